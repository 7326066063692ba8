//! The template cluster: an initialised data directory that every server copies, because `initdb` takes seconds.
//!
//! Templates are in `target/test-postgres`, one per version of PostgreSQL and per user. A template appears complete or not
//! at all, and is never changed. Processes that need a missing template at the same time wait for the first, whose
//! programs have time limits.

use crate::installation::Installation;
use crate::program::{Account, Program};
use crate::server::TestServerError;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};

/// To be increased when the arguments of `initdb` change.
const REVISION: u32 = 1;
const DIRECTORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/test-postgres");

/// Name of the superuser.
pub(crate) const SUPERUSER: &str = "postgres";
/// Password of the superuser; no secret, because the servers listen on loopback and contain test data only.
pub(crate) const PASSWORD: &str = "secret";

/// Copies the template to `target`, a path that does not exist; creates the template if it is missing.
pub(crate) fn copy_to(
    target: &Path,
    installation: &Installation,
    account: Option<Account>,
) -> Result<(), TestServerError> {
    let template = template_path(target, installation, account)?;
    if !template.exists() {
        create(&template, installation, account)?;
    }
    copy(&template, target)
}

fn template_path(
    target: &Path,
    installation: &Installation,
    account: Option<Account>,
) -> Result<PathBuf, TestServerError> {
    // Data directories are readable by their owner only.
    let owner = match account {
        Some(account) => account.uid,
        None => own_uid(target.parent().unwrap_or(target))?,
    };
    Ok(Path::new(DIRECTORY).join(format!("template-{}-{REVISION}-{owner}", installation.version()?)))
}

/// Returns the user id of this process, given a directory that it created.
pub(crate) fn own_uid(directory: &Path) -> Result<u32, TestServerError> {
    let metadata = fs::metadata(directory)
        .map_err(|source| TestServerError::Io { path: directory.to_owned(), source })?;
    Ok(metadata.uid())
}

fn create(
    template: &Path,
    installation: &Installation,
    account: Option<Account>,
) -> Result<(), TestServerError> {
    let io_error = |path: &Path| {
        let path = path.to_owned();
        move |source| TestServerError::Io { path, source }
    };
    let directory = Path::new(DIRECTORY);
    fs::create_dir_all(directory).map_err(io_error(directory))?;
    let lock_path = template.with_added_extension("lock");
    let lock = File::create(&lock_path).map_err(io_error(&lock_path))?;
    lock.lock().map_err(io_error(&lock_path))?;
    if template.exists() {
        return Ok(());
    }
    // `initdb` may run as a user that cannot write to the target directory, so it writes to a temporary one.
    let scratch = tempfile::tempdir().map_err(io_error(&std::env::temp_dir()))?;
    let password_file = scratch.path().join("password");
    fs::write(&password_file, PASSWORD).map_err(io_error(&password_file))?;
    give_to(account, scratch.path())?;
    let data = scratch.path().join("data");
    installation
        .program("initdb")
        .args(["--username", SUPERUSER, "--auth=scram-sha-256", "--encoding=UTF8", "--no-locale"])
        // Small write-ahead log segments make the copy small.
        .args(["--wal-segsize=1", "--no-sync", "--no-instructions", "--pwfile"])
        .path_arg(&password_file)
        .args(["--pgdata"])
        .path_arg(&data)
        .account(account)
        .run()?;
    let unfinished = template.with_added_extension("unfinished");
    if unfinished.exists() {
        fs::remove_dir_all(&unfinished).map_err(io_error(&unfinished))?;
    }
    copy(&data, &unfinished)?;
    fs::rename(&unfinished, template).map_err(io_error(template))
}

/// Makes the server's user the owner of a file or directory.
pub(crate) fn give_to(account: Option<Account>, path: &Path) -> Result<(), TestServerError> {
    let Some(Account { uid, gid }) = account else { return Ok(()) };
    chown(path, Some(uid), Some(gid)).map_err(|source| TestServerError::Io { path: path.to_owned(), source })
}

fn copy(from: &Path, to: &Path) -> Result<(), TestServerError> {
    Program::new("cp").args(["-a", "--reflink=auto"]).path_arg(from).path_arg(to).run()?;
    Ok(())
}
