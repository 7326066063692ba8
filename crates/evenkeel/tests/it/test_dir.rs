//! A directory for one test, and the `evenkeel` binary run in it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A directory that is removed on drop.
pub(crate) struct TestDir(PathBuf);

impl TestDir {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("evenkeel-it-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, file: &str) -> PathBuf {
        self.0.join(file)
    }

    pub(crate) fn write(&self, file: &str, text: &str) {
        fs::write(self.file(file), text).unwrap();
    }

    pub(crate) fn read(&self, file: &str) -> String {
        fs::read_to_string(self.file(file)).unwrap()
    }

    /// Returns a command that runs the binary in this directory, without the environment variables that it would read.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.current_dir(&self.0).args(args);
        for (name, _) in std::env::vars_os() {
            // `LLMLB_` is the prefix of the names that the specification gives to some settings.
            let is_read = |name: &str| {
                let prefixes = ["EVENKEEL_", "LLMLB_", "OTEL_"];
                prefixes.iter().any(|prefix| name.starts_with(prefix)) || name == "RUST_LOG"
            };
            if name.to_str().is_some_and(is_read) {
                command.env_remove(name);
            }
        }
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        CommandOutput::new(self.command(args).output().unwrap())
    }
}

impl Drop for TestDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Exit code and output of a command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl CommandOutput {
    pub(crate) fn new(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// Returns stdout of a command that succeeded.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// Returns stderr of a command that failed.
    #[track_caller]
    pub(crate) fn failed(self) -> String {
        assert_eq!((self.code, self.out.as_str()), (Some(1), ""), "{self:?}");
        self.err
    }
}
