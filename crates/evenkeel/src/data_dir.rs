//! The data directory: durable state of one server, protected by a file lock.
//!
//! Guarantees: one process at a time holds the lock; the operating system releases it when the process ends, even by
//! a crash. A process that finds the lock held by a server gets that server's URLs.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use thiserror::Error;

const LOCK: &str = "lock";
/// Maximum number of bytes read as the server's URLs.
const URL_BYTES_MAX: u64 = 1_024;
/// Delay between attempts while another process holds the lock and has not announced a URL.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);
const TRIES_MAX: u32 = 250;

/// A locked data directory; dropping it releases the lock.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    lock: File,
}

/// Result of an attempt to lock a data directory.
#[derive(Debug)]
pub enum DataDirClaim {
    Locked(DataDir),
    /// A running server holds the lock.
    InUse(ServerUrls),
}

/// URLs of a running server, for clients on its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrls {
    pub public: String,
    /// URL of the native API; that of the admin listener if there is one.
    pub admin: String,
}

impl DataDir {
    /// Locks the directory; creates it if it does not exist.
    ///
    /// Waits up to 5 s for a process that holds the lock without announcing a URL.
    pub fn claim(path: &Path) -> Result<DataDirClaim, DataDirError> {
        let io_error = |error: io::Error| DataDirError::Io { path: path.to_owned(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // A holder that has announced no URL is a starting server or a short-lived command.
        for _ in 0..TRIES_MAX {
            let lock = options.open(path.join(LOCK)).map_err(io_error)?;
            match lock.try_lock() {
                Ok(()) => {
                    lock.set_len(0).map_err(io_error)?;
                    return Ok(DataDirClaim::Locked(Self { path: path.to_owned(), lock }));
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(io_error(error)),
            }
            if let Some(urls) = read_urls(&lock).map_err(io_error)? {
                return Ok(DataDirClaim::InUse(urls));
            }
            thread::sleep(RETRY_INTERVAL);
        }
        Err(DataDirError::Busy { path: path.to_owned() })
    }

    /// Returns the URLs of the server that holds the lock. Neither creates nor locks the directory.
    pub fn server_urls(path: &Path) -> Option<ServerUrls> {
        let lock = File::open(path.join(LOCK)).ok()?;
        match lock.try_lock_shared() {
            Err(TryLockError::WouldBlock) => read_urls(&lock).ok()?,
            Ok(()) | Err(TryLockError::Error(_)) => None,
        }
    }

    /// Publishes the URLs of the server that holds the lock.
    pub fn announce(&mut self, urls: &ServerUrls) -> Result<(), DataDirError> {
        let text = format!("{}\n{}\n", urls.public, urls.admin);
        let truncated = self.lock.set_len(0).and_then(|()| self.lock.rewind());
        let written = truncated.and_then(|()| self.lock.write_all(text.as_bytes()));
        written.map_err(|error| DataDirError::Io { path: self.path.clone(), error })
    }

    /// Erases the URLs of the server, before its ports close.
    pub fn retract(&mut self) -> Result<(), DataDirError> {
        self.lock.set_len(0).map_err(|error| DataDirError::Io { path: self.path.clone(), error })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a file of the directory; `None` if it does not exist.
    pub fn read(path: &Path, file: &str) -> Result<Option<String>, DataDirError> {
        match fs::read_to_string(path.join(file)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DataDirError::Io { path: path.join(file), error }),
        }
    }

    /// Replaces a file atomically and durably: readers see either the old or the new text, also after a crash.
    pub fn replace(&self, file: &str, text: &str) -> Result<(), DataDirError> {
        let target = self.path.join(file);
        self.write(&target, text).map_err(|error| DataDirError::Io { path: target, error })
    }

    fn write(&self, target: &Path, text: &str) -> io::Result<()> {
        let temporary = target.with_added_extension("new");
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        // A file that a crash left behind keeps its mode. Some volumes have no modes.
        if let Err(error) = file.set_permissions(Permissions::from_mode(0o600)) {
            let path = temporary.display();
            tracing::warn!(target: "evenkeel", %path, %error, "could not restrict a file to its owner; check who may read the volume of the data directory");
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, target)?;
        File::open(&self.path)?.sync_all()
    }
}

/// Reads the URLs of the server; `None` before they are announced.
fn read_urls(lock: &File) -> io::Result<Option<ServerUrls>> {
    let mut text = String::new();
    Read::take(lock, URL_BYTES_MAX).read_to_string(&mut text)?;
    let Some(text) = text.strip_suffix('\n') else { return Ok(None) };
    // A server of an earlier version announces one URL.
    let (public, admin) = text.split_once('\n').unwrap_or((text, text));
    Ok(Some(ServerUrls { public: public.to_owned(), admin: admin.to_owned() }))
}

#[derive(Debug, Error)]
pub enum DataDirError {
    #[error("{}: {error}", path.display())]
    Io {
        path: PathBuf,
        #[source]
        error: io::Error,
    },
    /// A process holds the lock and announced no URL.
    #[error("{}: data directory is locked by another process", path.display())]
    Busy { path: PathBuf },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Path of a directory that does not exist yet; removed on drop.
    struct TempPath(PathBuf);

    impl TempPath {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("evenkeel-data-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn lock(&self) -> DataDir {
            match DataDir::claim(&self.0).unwrap() {
                DataDirClaim::Locked(data_dir) => data_dir,
                DataDirClaim::InUse(urls) => panic!("in use by {urls:?}"),
            }
        }
    }

    impl Drop for TempPath {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn urls() -> ServerUrls {
        ServerUrls { public: "http://127.0.0.1:1".to_owned(), admin: "http://127.0.0.1:2".to_owned() }
    }

    #[test]
    fn a_second_process_gets_the_url_of_the_server_that_holds_the_lock() {
        let temp = TempPath::new("claim");
        let mut server = temp.lock();
        server.announce(&urls()).unwrap();
        assert!(matches!(DataDir::claim(&temp.0), Ok(DataDirClaim::InUse(announced)) if announced == urls()));
        assert_eq!(DataDir::server_urls(&temp.0), Some(urls()));
        server.retract().unwrap();
        assert_eq!(DataDir::server_urls(&temp.0), None);
        server.announce(&urls()).unwrap();
        drop(server);
        assert_eq!(DataDir::server_urls(&temp.0), None);
        drop(temp.lock());
    }

    #[test]
    fn locking_erases_the_url_of_a_dead_server() {
        let temp = TempPath::new("dead");
        temp.lock().announce(&urls()).unwrap();
        let next = temp.lock();
        assert_eq!(DataDir::read(next.path(), LOCK).unwrap(), Some(String::new()));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_only_its_owner_may_read_it() {
        let temp = TempPath::new("replace");
        let data_dir = temp.lock();
        assert_eq!(DataDir::read(&temp.0, "a.toml").unwrap(), None);
        // Left behind by a crash of a process with another umask.
        fs::write(temp.0.join("a.toml.new"), "").unwrap();
        fs::set_permissions(temp.0.join("a.toml.new"), Permissions::from_mode(0o644)).unwrap();
        for text in ["a longer text", "short"] {
            data_dir.replace("a.toml", text).unwrap();
            assert_eq!(DataDir::read(&temp.0, "a.toml").unwrap().as_deref(), Some(text));
        }
        let mode = |file: &Path| fs::metadata(file).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&temp.0), mode(&temp.0.join("a.toml"))), (0o700, 0o600));
        assert!(!temp.0.join("a.toml.new").exists());
    }

    #[test]
    fn finding_the_server_url_does_not_create_the_directory() {
        let temp = TempPath::new("look");
        assert_eq!(DataDir::server_urls(&temp.0), None);
        assert!(!temp.0.exists());
    }

    #[test]
    fn errors_contain_the_path_of_the_directory() {
        let error = DataDir::claim(Path::new("/dev/null/x")).unwrap_err();
        assert!(error.to_string().starts_with("/dev/null/x: "), "{error}");
    }
}
