//! Locates PostgreSQL's programs and the user that runs the server.

use crate::program::{Account, Program, ProgramError};
use std::path::{Path, PathBuf};

/// Programs that a server and its tests need, all in one directory.
const PROGRAMS: &[&str] = &["initdb", "postgres", "pg_ctl", "psql"];
const DEBIAN_DIRECTORY: &str = "/usr/lib/postgresql/15/bin";
const SERVER_USER: &str = "postgres";

/// The directory of PostgreSQL's programs.
#[derive(Clone, Debug)]
pub(crate) struct Installation {
    directory: PathBuf,
}

/// Reports whether [`TestServer`](crate::TestServer) finds PostgreSQL's programs.
pub fn is_installed() -> bool {
    Installation::find().is_some()
}

impl Installation {
    /// Returns the first complete installation: Debian's PostgreSQL 15, that of `pg_config`, that in PATH.
    pub(crate) fn find() -> Option<Self> {
        let candidates: [fn() -> Option<PathBuf>; 3] =
            [|| Some(PathBuf::from(DEBIAN_DIRECTORY)), pg_config_directory, path_directory];
        let directory =
            candidates.iter().find_map(|candidate| candidate().filter(|directory| is_complete(directory)))?;
        Some(Self { directory })
    }

    pub(crate) fn program(&self, name: &str) -> Program {
        Program::new(self.path(name))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Returns the version, such as `15.18`.
    pub(crate) fn version(&self) -> Result<String, ProgramError> {
        // The output is "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)".
        let output = self.program("postgres").args(["--version"]).run()?;
        Ok(output.split_whitespace().nth(2).unwrap_or("unknown").to_owned())
    }
}

fn pg_config_directory() -> Option<PathBuf> {
    let output = Program::new("pg_config").args(["--bindir"]).run().ok()?;
    Some(PathBuf::from(output.trim_end()))
}

/// Returns the directory of `postgres` in PATH, behind links: the other programs are beside the file, not the link.
fn path_directory() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let linked =
        std::env::split_paths(&path).map(|entry| entry.join("postgres")).find(|file| file.is_file())?;
    Some(linked.canonicalize().ok()?.parent()?.to_owned())
}

fn is_complete(directory: &Path) -> bool {
    PROGRAMS.iter().all(|program| directory.join(program).is_file())
}

/// Returns the user that must run the server instead of root, which the server refuses; `None` without that user.
pub(crate) fn server_account() -> Option<Account> {
    let id =
        |option: &str| Program::new("id").args([option, SERVER_USER]).run().ok()?.trim_end().parse().ok();
    Some(Account { uid: id("-u")?, gid: id("-g")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_all_programs_is_no_installation() {
        let directory = tempfile::tempdir().unwrap();
        for program in PROGRAMS {
            assert!(!is_complete(directory.path()));
            std::fs::write(directory.path().join(program), "").unwrap();
        }
        assert!(is_complete(directory.path()));
    }

    #[test]
    fn the_version_is_a_number() {
        let version = Installation::find().unwrap().version().unwrap();
        assert!(version.starts_with(|c: char| c.is_ascii_digit()), "{version}");
    }
}
