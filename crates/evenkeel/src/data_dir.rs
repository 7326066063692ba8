//! The data directory: durable state of one server, protected by a file lock.
//!
//! Guarantees: one process at a time holds the lock; the operating system releases it when the process ends, even by
//! a crash. A process that finds the lock held by a server gets that server's URLs.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Uid, geteuid};
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

    /// Reads a file that only its owner may access; `None` if it does not exist.
    ///
    /// Rejects a file that another user may have read or put there.
    pub fn read_secret(path: &Path, file: &str) -> Result<Option<String>, DataDirError> {
        let path = path.join(file);
        let io_error = |error: io::Error| DataDirError::Io { path: path.clone(), error };
        // Opening a named pipe without NONBLOCK would wait for a writer.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let mut opened = match rustix::fs::open(&path, flags, Mode::empty()) {
            Ok(opened) => File::from(opened),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(DataDirError::NotRegular { path }),
            Err(error) => return Err(io_error(error.into())),
        };
        let metadata = opened.metadata().map_err(io_error)?;
        if !metadata.is_file() {
            return Err(DataDirError::NotRegular { path });
        }
        if !is_trusted_owner(metadata.uid(), geteuid()) {
            return Err(DataDirError::ForeignOwner { path, owner: metadata.uid() });
        }
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(DataDirError::AccessibleToOthers { path, mode });
        }
        let mut text = String::new();
        opened.read_to_string(&mut text).map_err(io_error)?;
        Ok(Some(text))
    }

    /// Reads a file with secrets that cannot be configured elsewhere, as [`DataDir::read_secret`] does. If others may access it,
    /// that is logged: on some volumes all files have the same mode, and the server must start there too.
    pub fn read_private(path: &Path, file: &str) -> Result<Option<String>, DataDirError> {
        match Self::read_secret(path, file) {
            Err(DataDirError::AccessibleToOthers { path: file_path, mode }) => {
                let path_shown = file_path.display();
                tracing::warn!(target: "evenkeel", path = %path_shown, mode = format_args!("{mode:03o}"), "other users may read the secrets in this file; run `chmod 600` on it");
                Self::read(path, file)
            }
            result => result,
        }
    }

    /// Replaces a file atomically and durably: readers see either the old or the new text, also after a crash.
    pub fn replace(&self, file: &str, text: &str) -> Result<(), DataDirError> {
        let target = self.path.join(file);
        replace_file(&target, text).map_err(|error| DataDirError::Io { path: target, error })
    }
}

/// Replaces a file atomically and durably, as [`DataDir::replace`] does.
pub(crate) fn replace_file(target: &Path, text: &str) -> io::Result<()> {
    let temporary = target.with_added_extension("new");
    // A crash may have left the file behind, or another user may have put it there.
    match fs::remove_file(&temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // `create_new` does not follow a symbolic link.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
    // The umask may have removed permissions of the owner. Some volumes have no modes.
    if let Err(error) = file.set_permissions(Permissions::from_mode(0o600)) {
        let path = temporary.display();
        tracing::warn!(target: "evenkeel", %path, %error, "could not restrict a file to its owner; check who may read the volume of the data directory");
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, target)?;
    File::open(target.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// Reports whether a process of `user` may trust a file of `owner`.
fn is_trusted_owner(owner: u32, user: Uid) -> bool {
    owner == user.as_raw() || owner == Uid::ROOT.as_raw()
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
    #[error("{} is a symbolic link or not a regular file; delete it and restart the server", path.display())]
    NotRegular { path: PathBuf },
    #[error("{} belongs to another user (uid {owner}); run evenkeel as that user, or delete the file and restart the server", path.display())]
    ForeignOwner { path: PathBuf, owner: u32 },
    #[error("{path} has mode {mode:03o}; other users must have no access to the key; run `chmod 600 {path}`, or delete the file and restart the server if others may have read it; on a volume without file modes, set admin_key_hashes", path = path.display())]
    AccessibleToOthers { path: PathBuf, mode: u32 },
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
    fn a_planted_temporary_file_is_not_written_to() {
        let temp = TempPath::new("planted");
        let data_dir = temp.lock();
        let target = temp.0.join("target");
        fs::write(&target, "untouched").unwrap();
        let planted = temp.0.join("a.toml.new");
        for plant in [std::os::unix::fs::symlink::<&Path, &Path>, fs::hard_link] {
            plant(&target, &planted).unwrap();
            data_dir.replace("a.toml", "secret").unwrap();
            assert_eq!(fs::read_to_string(&target).unwrap(), "untouched");
            assert_eq!(DataDir::read_secret(&temp.0, "a.toml").unwrap().as_deref(), Some("secret"));
        }
    }

    #[test]
    fn a_secret_that_others_may_have_read_or_planted_is_rejected() {
        let temp = TempPath::new("secret");
        let data_dir = temp.lock();
        let error = |file: &str| DataDir::read_secret(&temp.0, file).unwrap_err().to_string();
        assert_eq!(DataDir::read_secret(&temp.0, "key").unwrap(), None);
        data_dir.replace("key", "secret").unwrap();
        assert_eq!(DataDir::read_secret(&temp.0, "key").unwrap().as_deref(), Some("secret"));
        std::os::unix::fs::symlink(temp.0.join("key"), temp.0.join("link")).unwrap();
        assert!(error("link").contains("symbolic link"), "{}", error("link"));
        fs::create_dir(temp.0.join("directory")).unwrap();
        assert!(error("directory").contains("not a regular file"), "{}", error("directory"));
        for mode in [0o640, 0o620, 0o604, 0o602] {
            fs::set_permissions(temp.0.join("key"), Permissions::from_mode(mode)).unwrap();
            let error = error("key");
            assert!(error.contains(&format!("has mode {mode:o}")) && error.contains("chmod 600"), "{error}");
        }
        // Only root may give files away.
        fs::set_permissions(temp.0.join("key"), Permissions::from_mode(0o600)).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(temp.0.join("key"), Some(12_345), None).unwrap();
            assert!(error("key").contains("another user (uid 12345)"), "{}", error("key"));
        }
    }

    #[test]
    fn a_private_file_with_another_mode_is_read_and_a_link_is_rejected() {
        let temp = TempPath::new("private");
        temp.lock().replace("nodes", "secret").unwrap();
        fs::set_permissions(temp.0.join("nodes"), Permissions::from_mode(0o660)).unwrap();
        assert_eq!(DataDir::read_private(&temp.0, "nodes").unwrap().as_deref(), Some("secret"));
        std::os::unix::fs::symlink(temp.0.join("nodes"), temp.0.join("link")).unwrap();
        let error = DataDir::read_private(&temp.0, "link").unwrap_err().to_string();
        assert!(error.contains("symbolic link"), "{error}");
    }

    #[test]
    fn files_of_the_own_user_and_of_root_are_trusted() {
        let user = Uid::from_raw(1000);
        assert!(is_trusted_owner(1000, user) && is_trusted_owner(0, user));
        assert!(!is_trusted_owner(1001, user) && !is_trusted_owner(1000, Uid::ROOT));
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
