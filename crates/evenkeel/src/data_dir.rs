//! The folder where a server keeps what it must not forget, and the one who may write there.
//!
//! Bound: one process at a time holds the folder; the system takes it back from whoever ends, however it ends. Whoever
//! wants in while a server has it learns where that server is.

use std::fmt;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

const LOCK: &str = "lock";
/// A URL is shorter.
const URL_BYTES_MAX: u64 = 1_024;
/// How often, and how many times, somebody looks again who found the folder held by nobody in particular.
const LOOK: Duration = Duration::from_millis(20);
const LOOKS_MAX: u32 = 250;

/// A folder that is ours until this is dropped.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    lock: File,
}

/// Whose a folder is.
#[derive(Debug)]
pub enum DataDirClaim {
    /// Ours.
    Ours(DataDir),
    /// A running server's.
    Served {
        /// Where that server is.
        url: String,
    },
}

impl DataDir {
    /// Makes the folder if there is none, and takes it if nobody has it.
    pub fn claim(path: &Path) -> Result<DataDirClaim, DataDirError> {
        let failed = |error: io::Error| DataDirError::Io { path: path.to_owned(), error };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // Who holds it and does not say where is a server that is about to start, or a command that is about to end.
        for _ in 0..LOOKS_MAX {
            let lock = options.open(path.join(LOCK)).map_err(failed)?;
            match lock.try_lock() {
                Ok(()) => {
                    lock.set_len(0).map_err(failed)?;
                    return Ok(DataDirClaim::Ours(Self { path: path.to_owned(), lock }));
                }
                Err(TryLockError::WouldBlock) => {}
                Err(TryLockError::Error(error)) => return Err(failed(error)),
            }
            if let Some(url) = announced(&lock).map_err(failed)? {
                return Ok(DataDirClaim::Served { url });
            }
            thread::sleep(LOOK);
        }
        Err(DataDirError::Busy { path: path.to_owned() })
    }

    /// Finds the server that has a folder, without making or taking it.
    pub fn server_of(path: &Path) -> Option<String> {
        let lock = File::open(path.join(LOCK)).ok()?;
        match lock.try_lock_shared() {
            Err(TryLockError::WouldBlock) => announced(&lock).ok()?,
            Ok(()) | Err(TryLockError::Error(_)) => None,
        }
    }

    /// Says where the server is that has the folder.
    pub fn announce(&mut self, url: &str) -> Result<(), DataDirError> {
        let emptied = self.lock.set_len(0).and_then(|()| self.lock.rewind());
        let written = emptied.and_then(|()| writeln!(self.lock, "{url}"));
        written.map_err(|error| DataDirError::Io { path: self.path.clone(), error })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads a file of it; `None` if there is none.
    pub fn read(path: &Path, file: &str) -> Result<Option<String>, DataDirError> {
        match fs::read_to_string(path.join(file)) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(DataDirError::Io { path: path.join(file), error }),
        }
    }

    /// Replaces a file of it: whoever reads it, at any time, a crash included, finds the old text or the new.
    pub fn replace(&self, file: &str, text: &str) -> Result<(), DataDirError> {
        let target = self.path.join(file);
        self.write(&target, text).map_err(|error| DataDirError::Io { path: target, error })
    }

    fn write(&self, target: &Path, text: &str) -> io::Result<()> {
        let beside = target.with_added_extension("new");
        let mut new = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
        new.write_all(text.as_bytes())?;
        new.sync_all()?;
        fs::rename(&beside, target)?;
        File::open(&self.path)?.sync_all()
    }
}

/// Reads where the server is; `None` before it has said so.
fn announced(lock: &File) -> io::Result<Option<String>> {
    let mut url = String::new();
    Read::take(lock, URL_BYTES_MAX).read_to_string(&mut url)?;
    Ok(url.strip_suffix('\n').map(str::to_owned))
}

/// Why a folder is not ours, or not what it should be.
#[derive(Debug)]
pub enum DataDirError {
    /// The system refuses.
    Io {
        /// What it refuses to read or write.
        path: PathBuf,
        /// What it says.
        error: io::Error,
    },
    /// Somebody holds it and does not say who.
    Busy {
        /// The folder.
        path: PathBuf,
    },
}

impl fmt::Display for DataDirError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Busy { path } => write!(f, "{}: another process holds this folder", path.display()),
        }
    }
}

impl std::error::Error for DataDirError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A folder that does not exist yet, gone at the end.
    struct Nowhere(PathBuf);

    impl Nowhere {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("evenkeel-data-{}-{name}", std::process::id()));
            let _ = fs::remove_dir_all(&path);
            Self(path)
        }

        fn ours(&self) -> DataDir {
            match DataDir::claim(&self.0).unwrap() {
                DataDirClaim::Ours(folder) => folder,
                DataDirClaim::Served { url } => panic!("served at {url}"),
            }
        }
    }

    impl Drop for Nowhere {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn whoever_comes_second_learns_where_the_server_is_until_it_ends() {
        let nowhere = Nowhere::new("claim");
        let mut server = nowhere.ours();
        server.announce("http://127.0.0.1:1").unwrap();
        assert!(
            matches!(DataDir::claim(&nowhere.0), Ok(DataDirClaim::Served { url }) if url == "http://127.0.0.1:1")
        );
        assert_eq!(DataDir::server_of(&nowhere.0).as_deref(), Some("http://127.0.0.1:1"));
        drop(server);
        assert_eq!(DataDir::server_of(&nowhere.0), None);
        drop(nowhere.ours());
    }

    #[test]
    fn what_a_dead_server_said_is_forgotten_by_the_next() {
        let nowhere = Nowhere::new("dead");
        nowhere.ours().announce("http://127.0.0.1:1").unwrap();
        let next = nowhere.ours();
        assert_eq!(DataDir::read(next.path(), LOCK).unwrap(), Some(String::new()));
    }

    #[test]
    fn a_file_is_replaced_as_a_whole_and_is_the_owners_alone() {
        let nowhere = Nowhere::new("replace");
        let folder = nowhere.ours();
        assert_eq!(DataDir::read(&nowhere.0, "a.toml").unwrap(), None);
        for text in ["a longer text", "short"] {
            folder.replace("a.toml", text).unwrap();
            assert_eq!(DataDir::read(&nowhere.0, "a.toml").unwrap().as_deref(), Some(text));
        }
        let mode = |file: &Path| fs::metadata(file).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&nowhere.0), mode(&nowhere.0.join("a.toml"))), (0o700, 0o600));
        assert!(!nowhere.0.join("a.toml.new").exists());
    }

    #[test]
    fn looking_for_a_server_makes_no_folder() {
        let nowhere = Nowhere::new("look");
        assert_eq!(DataDir::server_of(&nowhere.0), None);
        assert!(!nowhere.0.exists());
    }

    #[test]
    fn a_folder_that_cannot_be_is_told_by_name() {
        let error = DataDir::claim(Path::new("/dev/null/x")).unwrap_err();
        assert!(error.to_string().starts_with("/dev/null/x: "), "{error}");
    }
}
