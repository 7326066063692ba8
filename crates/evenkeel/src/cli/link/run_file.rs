//! Files that name the running links of this machine, so that `evenkeel link status` finds them.

use std::env;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process;

use rustix::process::geteuid;

use crate::cli::CliError;

/// Environment variable with the directory of the files.
const DIRECTORY_VARIABLE: &str = "EVENKEEL_RUNTIME_DIR";
const PREFIX: &str = "link-";
const SUFFIX: &str = ".url";
/// Longest content of a file.
const URL_LEN_MAX: u64 = 256;

/// File of a running link; dropping it removes the file.
pub(super) struct RunFile {
    path: PathBuf,
}

impl RunFile {
    /// Writes the URL of this process's page.
    pub(super) fn create(url: &str) -> Result<Self, CliError> {
        let directory = directory();
        let at = |error: io::Error| format!("{}: {error}", directory.display());
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(at)?;
        // A directory in /tmp could have been created by somebody else, or be a link to another one.
        if fs::symlink_metadata(&directory).map_err(at)?.uid() != geteuid().as_raw() && !geteuid().is_root() {
            return Err(
                format!("{} belongs to another user; set {DIRECTORY_VARIABLE}", directory.display()).into()
            );
        }
        let path = directory.join(format!("{PREFIX}{}{SUFFIX}", process::id()));
        // A file of an earlier process with this id; a symbolic link would be removed, not followed.
        let _ = fs::remove_file(&path);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o644).open(&path).map_err(at)?;
        file.write_all(url.as_bytes()).map_err(at)?;
        Ok(Self { path })
    }
}

impl Drop for RunFile {
    fn drop(&mut self) {
        // A file that is left over is removed by the next `evenkeel link status`.
        let _ = fs::remove_file(&self.path);
    }
}

/// A link of this machine, which may have ended without removing its file.
pub(super) struct RunningLink {
    pub(super) pid: u32,
    pub(super) url: String,
    path: PathBuf,
}

impl RunningLink {
    /// Reads the files of all links, in the order of their process ids.
    pub(super) fn all() -> Result<Vec<Self>, CliError> {
        let directory = directory();
        let entries = match fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(format!("{}: {error}", directory.display()).into()),
        };
        let mut links: Vec<Self> = entries.filter_map(|entry| Self::read(&entry.ok()?.path())).collect();
        links.sort_by_key(|link| link.pid);
        Ok(links)
    }

    fn read(path: &Path) -> Option<Self> {
        let pid = path.file_name()?.to_str()?.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.parse().ok()?;
        if fs::metadata(path).ok()?.len() > URL_LEN_MAX {
            return None;
        }
        Some(Self { pid, url: fs::read_to_string(path).ok()?, path: path.to_owned() })
    }

    /// Removes the file of a process that has ended.
    pub(super) fn remove_if_ended(&self) -> bool {
        let has_ended = !Path::new("/proc").join(self.pid.to_string()).exists();
        has_ended && fs::remove_file(&self.path).is_ok()
    }
}

/// Returns the directory of the files: that of the variable, else `/run/evenkeel` for root, else a directory of the user.
fn directory() -> PathBuf {
    if let Some(directory) = env::var_os(DIRECTORY_VARIABLE) {
        return directory.into();
    }
    if geteuid().is_root() {
        return PathBuf::from("/run/evenkeel");
    }
    match env::var_os("XDG_RUNTIME_DIR") {
        Some(directory) => PathBuf::from(directory).join("evenkeel"),
        None => env::temp_dir().join(format!("evenkeel-{}", geteuid().as_raw())),
    }
}
