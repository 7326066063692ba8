//! Checks for and installs the tools that tasks need besides cargo.
//!
//! A task lists the tools it needs; [`ensure`] installs missing ones where it can, and otherwise fails with
//! instructions.

use crate::error::TaskError;
use crate::process::Cmd;
use std::path::Path;

/// A tool that a task needs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tool {
    /// A component of the Rust toolchain, and the cargo subcommand that it provides.
    Component { name: &'static str, subcommand: &'static str },
    /// The standard library for another target.
    Target(&'static str),
    /// The nightly toolchain.
    Nightly,
    /// Miri, a component of nightly.
    Miri,
    /// llvm-tools, a component of nightly that reads coverage data.
    LlvmTools,
    /// A cargo subcommand that `cargo install` installs.
    CargoInstall { subcommand: &'static str, package: &'static str },
    /// A program in a Debian package.
    DebianPackage { program: &'static str, package: &'static str },
    /// A PostgreSQL server, which is outside PATH on Debian; `evenkeel-test-postgres` knows where to look.
    Postgres,
    /// Python 3 with the `venv` module.
    Python,
    /// A Python package (its name may have extras in brackets), installed in the virtual environment in `directory`.
    PythonPackage { directory: &'static str, name: &'static str, version: &'static str },
    /// Node.js with npm.
    Node,
    /// An npm package, installed in [`NODE_DIRECTORY`].
    NodePackage { name: &'static str, version: &'static str },
}

/// Tools that the tests need.
pub(crate) const FOR_TESTS: &[Tool] = &[
    Tool::Python,
    Tool::PythonPackage { directory: "target/python", name: "openai", version: "3.49.0" },
    Tool::PythonPackage { directory: "target/python", name: "anthropic", version: "2.8.0" },
    Tool::PythonPackage { directory: "target/python", name: "boto3", version: "1.44.0" },
    Tool::PythonPackage { directory: "target/python", name: "celery", version: "5.7.0" },
    Tool::PythonPackage { directory: "target/python", name: "kombu", version: "5.7.0" },
    // kombu needs it to talk to SQS.
    Tool::PythonPackage { directory: "target/python", name: "pycurl", version: "7.49.0" },
    Tool::PythonPackage { directory: "target/python", name: "dramatiq", version: "2.2.1" },
    Tool::PythonPackage { directory: "target/python", name: "dramatiq_sqs", version: "0.4.4" },
    Tool::PythonPackage { directory: "target/python", name: "libsql", version: "0.1.11" },
    // The last line of versions that uses the query protocol of SQS.
    Tool::PythonPackage { directory: "target/boto3-query", name: "boto3", version: "1.26.165" },
    // In a separate environment, because its dependencies conflict with those of the clients.
    Tool::PythonPackage { directory: "target/schemathesis", name: "schemathesis", version: "4.32.5" },
    Tool::Node,
    // These versions run on Debian's Node.js. The AWS client is installed first, because sqs-consumer would otherwise
    // install a newer version of it.
    Tool::NodePackage { name: "@aws-sdk/client-sqs", version: "3.967.0" },
    Tool::NodePackage { name: "sqs-consumer", version: "11.6.0" },
    // Uses the query protocol of SQS, unlike versions since November 2023.
    Tool::NodePackage { name: "aws-sdk", version: "2.1480.0" },
    Tool::NodePackage { name: "openai", version: "6.49.0" },
    Tool::NodePackage { name: "@neondatabase/serverless", version: "1.2.0" },
    Tool::NodePackage { name: "@libsql/client", version: "0.18.0" },
    Tool::Postgres,
    Tool::DebianPackage { program: "curl", package: "curl" },
    NGINX,
    IPROUTE2,
    // The browser without its windows: a third of the size.
    Tool::DebianPackage { program: "chromium-headless-shell", package: "chromium-headless-shell" },
];

/// The proxy in front of a gateway in tests, and a contender of benchmarks.
pub(crate) const NGINX: Tool = Tool::DebianPackage { program: "nginx", package: "nginx-light" };

/// Creates the network namespaces of tests and benchmarks.
pub(crate) const IPROUTE2: Tool = Tool::DebianPackage { program: "ip", package: "iproute2" };

/// Directory of the npm packages, from which tests load them.
const NODE_DIRECTORY: &str = "target/node";

const POSTGRES_PACKAGE: &str = "postgresql-15";
/// Settings that Debian reads when it installs a PostgreSQL server.
const CREATECLUSTER_DIRECTORY: &str = "/etc/postgresql-common/createcluster.d";

/// Ways to install tools on this machine: rustup, and apt for root.
#[derive(Clone, Copy, Debug)]
struct Host {
    rustup: Rustup,
    user: User,
}

#[derive(Clone, Copy, Debug)]
enum Rustup {
    Present,
    Absent,
}

#[derive(Clone, Copy, Debug)]
enum User {
    Root,
    Unprivileged,
}

/// Installs every tool that is missing.
pub(crate) fn ensure(tools: &[Tool]) -> Result<(), TaskError> {
    for tool in tools.iter().filter(|tool| !is_present(**tool)) {
        let commands = install_commands(*tool, host())?;
        println!("{} is missing; installing it", describe(*tool));
        commands.iter().try_for_each(Cmd::run).map_err(|error| {
            TaskError::new(format!("{} is missing and could not be installed: {error}", describe(*tool)))
        })?;
    }
    Ok(())
}

fn host() -> Host {
    let rustup = Cmd::new("rustup", "--version").succeeds();
    let root = Cmd::new("id", "-u").output().is_ok_and(|id| id.trim_end() == "0");
    Host {
        rustup: if rustup { Rustup::Present } else { Rustup::Absent },
        user: if root { User::Root } else { User::Unprivileged },
    }
}

/// Reports whether cargo has this subcommand.
pub(crate) fn has_subcommand(name: &str) -> bool {
    Cmd::cargo(name).args(["--version"]).succeeds()
}

fn is_present(tool: Tool) -> bool {
    match tool {
        Tool::Component { subcommand, .. } => has_subcommand(subcommand),
        Tool::Target(target) => {
            let libdir = Cmd::new("rustc", "--print target-libdir --target").args([target]).output();
            libdir.is_ok_and(|directory| Path::new(directory.trim_end()).is_dir())
        }
        Tool::Nightly => Cmd::new("rustup", "run nightly rustc --version").succeeds(),
        Tool::Miri => Cmd::new("rustup", "run nightly cargo miri --version").succeeds(),
        Tool::LlvmTools => {
            let installed = Cmd::new("rustup", "component list --toolchain nightly --installed").output();
            installed.is_ok_and(|names| names.lines().any(|name| name.starts_with("llvm-tools")))
        }
        Tool::CargoInstall { subcommand, .. } => has_subcommand(subcommand),
        // Not every program has `--version`, and some are in directories that only root has in its PATH.
        Tool::DebianPackage { program, .. } => {
            Cmd::new("sh", "-c").args([format!("PATH=$PATH:/usr/sbin command -v {program}")]).succeeds()
        }
        Tool::Postgres => evenkeel_test_postgres::is_installed(),
        // Debian packages Python without venv.
        Tool::Python => Cmd::new("python3", "-c").args(["import ensurepip, venv"]).succeeds(),
        Tool::PythonPackage { directory, name, version } => {
            python(directory, "-c").args([python_version_check(name, version)]).succeeds()
        }
        Tool::Node => Cmd::new("node", "--version").succeeds() && Cmd::new("npm", "--version").succeeds(),
        Tool::NodePackage { name, version } => {
            Cmd::new("node", "-e").args([node_version_check(name, version)]).succeeds()
        }
    }
}

/// Creates a command that runs the Python of a virtual environment.
fn python(directory: &str, args: &str) -> Cmd {
    Cmd::new(format!("{directory}/bin/python"), args)
}

/// Returns Python code that exits with 0 only if this version of a package is installed.
fn python_version_check(name: &str, version: &str) -> String {
    // Extras are not part of the package's name.
    let name = name.split('[').next().unwrap_or(name);
    format!("import importlib.metadata as m; raise SystemExit(m.version('{name}') != '{version}')")
}

/// Returns JavaScript code that exits with 0 only if this version of a package is installed.
fn node_version_check(name: &str, version: &str) -> String {
    format!(
        "process.exit(require('./{NODE_DIRECTORY}/node_modules/{name}/package.json').version === '{version}' ? 0 : 1)"
    )
}

/// Returns the commands that install a tool, or an error with instructions if it cannot be installed here.
fn install_commands(tool: Tool, host: Host) -> Result<Vec<Cmd>, TaskError> {
    let call = match tool {
        Tool::Component { name, .. } => Cmd::new("rustup", "component add").args([name]),
        Tool::Target(target) => Cmd::new("rustup", "target add").args([target]),
        Tool::Nightly => Cmd::new("rustup", "toolchain install nightly --profile minimal"),
        Tool::Miri => Cmd::new("rustup", "component add --toolchain nightly miri rust-src"),
        Tool::LlvmTools => Cmd::new("rustup", "component add --toolchain nightly llvm-tools"),
        Tool::CargoInstall { package, .. } => {
            return Ok(vec![Cmd::cargo("install --locked").args([package])]);
        }
        Tool::DebianPackage { package, .. } => return apt_commands(tool, &[package], host.user),
        Tool::Postgres => return postgres_commands(host.user),
        Tool::Python => return apt_commands(tool, &["python3-venv"], host.user),
        Tool::Node => return apt_commands(tool, &["nodejs", "npm"], host.user),
        Tool::NodePackage { name, version } => {
            // Saves each package, because npm prunes unsaved ones on the next install.
            let install = Cmd::new(
                "npm",
                "install --save-exact --no-audit --no-fund --ignore-scripts --loglevel=error",
            );
            return Ok(vec![install.args(["--prefix", NODE_DIRECTORY]).args([format!("{name}@{version}")])]);
        }
        Tool::PythonPackage { directory, name, version } => {
            let install = python(directory, "-m pip install --quiet --disable-pip-version-check");
            return Ok(vec![
                Cmd::new("python3", "-m venv").args([directory]),
                install.args([format!("{name}=={version}")]),
            ]);
        }
    };
    match host.rustup {
        Rustup::Present => Ok(vec![call]),
        Rustup::Absent => Err(TaskError::new(format!(
            "{} is missing, and so is rustup; either install it the way you installed Rust, or install rustup and \
             run `{call}`",
            describe(tool)
        ))),
    }
}

fn apt_commands(tool: Tool, packages: &[&str], user: User) -> Result<Vec<Cmd>, TaskError> {
    let install = Cmd::new("apt-get", "install --yes --no-install-recommends").args(packages.iter().copied());
    match user {
        User::Root => Ok(vec![Cmd::new("apt-get", "update"), install]),
        User::Unprivileged => Err(TaskError::new(format!(
            "{} is missing, and only root can install it: run `sudo {install}`, or use the package manager of \
             your system",
            describe(tool)
        ))),
    }
}

/// Installs PostgreSQL without a system cluster, which Debian would create and start on port 5432.
fn postgres_commands(user: User) -> Result<Vec<Cmd>, TaskError> {
    let mut commands = apt_commands(Tool::Postgres, &[POSTGRES_PACKAGE], user)?;
    let file = format!("{CREATECLUSTER_DIRECTORY}/evenkeel.conf");
    let write = format!("mkdir -p {CREATECLUSTER_DIRECTORY} && echo 'create_main_cluster = false' >{file}");
    commands.insert(0, Cmd::new("sh", "-c").args([write]));
    // Other PostgreSQL packages are then installed as usual.
    commands.push(Cmd::new("rm", "").args([file]));
    Ok(commands)
}

fn describe(tool: Tool) -> String {
    match tool {
        Tool::Component { name, .. } => format!("the Rust component {name}"),
        Tool::Target(target) => format!("the Rust target {target}"),
        Tool::Nightly => "the nightly Rust toolchain".to_owned(),
        Tool::Miri => "Miri (a component of nightly Rust)".to_owned(),
        Tool::LlvmTools => "llvm-tools (a component of nightly Rust)".to_owned(),
        Tool::CargoInstall { subcommand, .. } => format!("cargo {subcommand}"),
        Tool::DebianPackage { program, package } => format!("{program} (Debian package {package})"),
        Tool::Postgres => format!("PostgreSQL 15 (Debian package {POSTGRES_PACKAGE})"),
        Tool::Python => "Python 3 with the venv module (Debian package python3-venv)".to_owned(),
        Tool::PythonPackage { name, version, .. } => format!("the Python package {name} {version}"),
        Tool::Node => "Node.js with npm (Debian packages nodejs and npm)".to_owned(),
        Tool::NodePackage { name, version } => format!("the npm package {name} {version}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Tool = Tool::Target("thumbv6m-none-eabi");
    const QEMU: Tool = Tool::DebianPackage { program: "qemu-system-arm", package: "qemu-system-arm" };
    const NO_INSTALLERS: Host = Host { rustup: Rustup::Absent, user: User::Unprivileged };
    const MUTANTS: Tool = Tool::CargoInstall { subcommand: "mutants", package: "cargo-mutants" };

    #[test]
    fn rustup_installs_components_and_targets() {
        assert_eq!(command_line(TARGET), "rustup target add thumbv6m-none-eabi");
        let rustfmt = Tool::Component { name: "rustfmt", subcommand: "fmt" };
        assert_eq!(command_line(rustfmt), "rustup component add rustfmt");
        assert_eq!(command_line(Tool::Miri), "rustup component add --toolchain nightly miri rust-src");
        assert_eq!(command_line(Tool::LlvmTools), "rustup component add --toolchain nightly llvm-tools");
    }

    #[test]
    fn cargo_installs_subcommands_without_rustup() {
        assert_eq!(command_lines(MUTANTS, NO_INSTALLERS), ["cargo install --locked cargo-mutants"]);
    }

    #[test]
    fn root_updates_the_package_list_before_installing() {
        let host = Host { user: User::Root, ..NO_INSTALLERS };
        assert_eq!(
            command_lines(QEMU, host),
            ["apt-get update", "apt-get install --yes --no-install-recommends qemu-system-arm"]
        );
    }

    #[test]
    fn postgres_is_installed_without_a_system_cluster() {
        let host = Host { user: User::Root, ..NO_INSTALLERS };
        let commands = command_lines(Tool::Postgres, host);
        assert_eq!(commands.len(), 4);
        assert!(commands[0].contains("create_main_cluster = false"), "{}", commands[0]);
        assert_eq!(commands[2], "apt-get install --yes --no-install-recommends postgresql-15");
        assert_eq!(commands[3], "rm /etc/postgresql-common/createcluster.d/evenkeel.conf");
        let error = install_commands(Tool::Postgres, NO_INSTALLERS).unwrap_err().to_string();
        assert!(error.starts_with("PostgreSQL 15 (Debian package postgresql-15) is missing"), "{error}");
        assert!(
            error.contains("`sudo apt-get install --yes --no-install-recommends postgresql-15`"),
            "{error}"
        );
    }

    #[test]
    fn python_packages_are_installed_into_a_virtual_environment() {
        let openai = Tool::PythonPackage { directory: "target/python", name: "openai", version: "1.2.3" };
        assert_eq!(
            command_lines(openai, NO_INSTALLERS),
            [
                "python3 -m venv target/python",
                "target/python/bin/python -m pip install --quiet --disable-pip-version-check openai==1.2.3"
            ]
        );
    }

    #[test]
    fn the_version_check_omits_the_extras_of_a_package() {
        assert!(
            python_version_check("litellm[proxy]", "1.2.3").ends_with("(m.version('litellm') != '1.2.3')")
        );
    }

    #[test]
    fn npm_packages_are_installed_under_target() {
        let openai = Tool::NodePackage { name: "openai", version: "1.2.3" };
        assert_eq!(
            command_lines(openai, NO_INSTALLERS),
            [
                "npm install --save-exact --no-audit --no-fund --ignore-scripts --loglevel=error --prefix target/node openai@1.2.3"
            ]
        );
        let error = install_commands(Tool::Node, NO_INSTALLERS).unwrap_err().to_string();
        assert!(error.starts_with("Node.js with npm (Debian packages nodejs and npm) is missing"), "{error}");
        assert!(error.contains("`sudo apt-get install --yes --no-install-recommends nodejs npm`"), "{error}");
    }

    #[test]
    fn the_error_for_missing_python_shows_the_command() {
        let error = install_commands(Tool::Python, NO_INSTALLERS).unwrap_err().to_string();
        assert!(
            error.contains("`sudo apt-get install --yes --no-install-recommends python3-venv`"),
            "{error}"
        );
    }

    #[test]
    fn without_rustup_the_error_shows_the_tool_and_the_command() {
        let error = install_commands(TARGET, NO_INSTALLERS).unwrap_err().to_string();
        assert!(error.starts_with("the Rust target thumbv6m-none-eabi is missing"), "{error}");
        assert!(error.ends_with("run `rustup target add thumbv6m-none-eabi`"), "{error}");
    }

    #[test]
    fn without_root_the_error_shows_the_command() {
        let error = install_commands(QEMU, NO_INSTALLERS).unwrap_err().to_string();
        assert!(error.starts_with("qemu-system-arm (Debian package qemu-system-arm) is missing"), "{error}");
        assert!(
            error.contains("`sudo apt-get install --yes --no-install-recommends qemu-system-arm`"),
            "{error}"
        );
    }

    fn command_line(tool: Tool) -> String {
        command_lines(tool, Host { rustup: Rustup::Present, ..NO_INSTALLERS }).join("\n")
    }

    fn command_lines(tool: Tool, host: Host) -> Vec<String> {
        install_commands(tool, host).unwrap().iter().map(Cmd::to_string).collect()
    }
}
