//! A folder of a test's own, and the binary run in it.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder, gone at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
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

    /// The binary, in this folder, with none of the variables that mean something to it.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.current_dir(&self.0).args(args);
        for (name, _) in std::env::vars_os() {
            let ours = |name: &str| {
                let prefixes = ["EVENKEEL_", "LLMLB_", "OTEL_"];
                prefixes.iter().any(|prefix| name.starts_with(prefix)) || name == "RUST_LOG"
            };
            if name.to_str().is_some_and(ours) {
                command.env_remove(name);
            }
        }
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.command(args).output().unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a command ended, and what it said.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// What was said by a command that did what it should.
    #[track_caller]
    pub(crate) fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    /// What was said by a command that could not.
    #[track_caller]
    pub(crate) fn failed(self) -> String {
        assert_eq!((self.code, self.out.as_str()), (Some(1), ""), "{self:?}");
        self.err
    }
}
