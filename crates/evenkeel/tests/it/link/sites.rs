//! Keys, settings and commands of the two sites of a link.

use std::net::SocketAddr;
use std::process::Command;

use super::process::LoggedProcess;
use crate::test_dir::TestDir;

/// The edge connects, the core listens.
pub(crate) struct Sites {
    pub(crate) dir: TestDir,
    /// Fingerprint of the edge's key.
    pub(crate) edge_key: String,
    /// Fingerprint of the core's key.
    pub(crate) core_key: String,
}

/// A side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkSide {
    Edge,
    Core,
}

impl Sites {
    /// Creates the key pairs, and a config file that both sites use.
    pub(crate) fn new(name: &str, config: &str) -> Self {
        let dir = TestDir::new(&format!("link-{name}"));
        dir.write("link.toml", config);
        let edge_key = create_keys(&dir, "edge-keys");
        let core_key = create_keys(&dir, "core-keys");
        Self { dir, edge_key, core_key }
    }

    /// Returns the command of the core.
    pub(crate) fn listen(&self, address: &str, allowed: &[String]) -> Command {
        let args = ["listen", "--keys", "core-keys", "--peer", &self.edge_key, "--path", address];
        let mut command = self.command(LinkSide::Core, &args);
        command.args(["--config", "link.toml"]);
        allowed.iter().for_each(|target| _ = command.args(["--allow", target]));
        command
    }

    /// Returns the command of the edge; each forward listens on a free port.
    pub(crate) fn connect(&self, paths: &[String], targets: &[String]) -> Command {
        let args = ["connect", "--keys", "edge-keys", "--peer", &self.core_key, "--config", "link.toml"];
        let mut command = self.command(LinkSide::Edge, &args);
        paths.iter().for_each(|path| _ = command.args(["--path", path]));
        for target in targets {
            command.args(["--forward", &format!("127.0.0.1:0={target}")]);
        }
        command
    }

    pub(crate) fn status(&self, side: LinkSide, args: &[&str]) -> Command {
        self.command(side, &[&["status"], args].concat())
    }

    /// Returns a command of a site. The sites have different runtime directories, like different machines.
    pub(crate) fn command(&self, side: LinkSide, args: &[&str]) -> Command {
        let mut command = self.dir.command(&[&["link"], args].concat());
        command.env("EVENKEEL_RUNTIME_DIR", self.dir.file(&format!("run-{side:?}")));
        command
    }
}

/// Creates a key pair in a subdirectory; returns its fingerprint.
pub(crate) fn create_keys(dir: &TestDir, name: &str) -> String {
    dir.run(&["link", "keys", "--out", name]).ok().trim().to_owned()
}

/// Waits until the core listens; returns its UDP port.
pub(crate) fn wait_port(core: &LoggedProcess) -> u16 {
    let address = core.wait_log("waiting for the paths of a link")["address"].clone();
    address.as_str().unwrap().rsplit(':').next().unwrap().parse().unwrap()
}

/// Waits until the edge has logged its forwards; returns their addresses in the order of their flags.
pub(crate) fn wait_forwards(edge: &LoggedProcess, message: &str, count: usize) -> Vec<SocketAddr> {
    let lines = edge.wait_logs(message, count);
    lines.iter().map(|line| line["listen"].as_str().unwrap().parse().unwrap()).collect()
}
