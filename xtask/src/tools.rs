//! Tools that tasks need besides cargo, and their installation.
//!
//! A task lists its needs as [`Tool`]s; [`ensure`] installs the missing ones that it can install, and fails with
//! instructions for the others.

use crate::error::TaskError;
use crate::process::Call;
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
    /// A cargo subcommand that a separate crate provides.
    Subcommand { name: &'static str, package: &'static str },
    /// A program of a Debian package.
    Debian { program: &'static str, package: &'static str },
    /// Python 3 with the module venv.
    Python,
    /// A Python package, with its extras in brackets, in the virtual environment at this path.
    PythonPackage { directory: &'static str, name: &'static str, version: &'static str },
    /// Node.js with npm.
    Node,
    /// An npm package, in the directory for all of them.
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
    // In a separate environment, because its dependencies conflict with those of the clients.
    Tool::PythonPackage { directory: "target/schemathesis", name: "schemathesis", version: "4.32.5" },
    Tool::Node,
    // Each version runs on Debian's Node.js. AWS's client comes before sqs-consumer, which would install a newer one.
    Tool::NodePackage { name: "@aws-sdk/client-sqs", version: "3.967.0" },
    Tool::NodePackage { name: "sqs-consumer", version: "11.6.0" },
    Tool::NodePackage { name: "openai", version: "6.49.0" },
];

/// Directory of the npm packages; tests expect them there.
const NODE_DIRECTORY: &str = "target/node";

/// The means of installation that this machine offers.
#[derive(Clone, Copy, Debug)]
struct Installers {
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
    Other,
}

/// Installs every tool that is missing.
pub(crate) fn ensure(tools: &[Tool]) -> Result<(), TaskError> {
    for tool in tools.iter().filter(|tool| !is_present(**tool)) {
        let calls = install_calls(*tool, installers())?;
        println!("{} is missing; installing it", describe(*tool));
        calls.iter().try_for_each(Call::run).map_err(|error| {
            TaskError::new(format!("{} is missing and could not be installed: {error}", describe(*tool)))
        })?;
    }
    Ok(())
}

fn installers() -> Installers {
    let rustup = Call::new("rustup", "--version").succeeds();
    let root = Call::new("id", "-u").output().is_ok_and(|id| id.trim_end() == "0");
    Installers {
        rustup: if rustup { Rustup::Present } else { Rustup::Absent },
        user: if root { User::Root } else { User::Other },
    }
}

/// Reports whether cargo has this subcommand.
pub(crate) fn has_subcommand(name: &str) -> bool {
    Call::cargo(name).args(["--version"]).succeeds()
}

fn is_present(tool: Tool) -> bool {
    match tool {
        Tool::Component { subcommand, .. } => has_subcommand(subcommand),
        Tool::Target(target) => {
            let libraries = Call::new("rustc", "--print target-libdir --target").args([target]).output();
            libraries.is_ok_and(|directory| Path::new(directory.trim_end()).is_dir())
        }
        Tool::Nightly => Call::new("rustup", "run nightly rustc --version").succeeds(),
        Tool::Miri => Call::new("rustup", "run nightly cargo miri --version").succeeds(),
        Tool::LlvmTools => {
            let installed = Call::new("rustup", "component list --toolchain nightly --installed").output();
            installed.is_ok_and(|names| names.lines().any(|name| name.starts_with("llvm-tools")))
        }
        Tool::Subcommand { name, .. } => has_subcommand(name),
        // Not every program has `--version`, and some are in directories that only root has in its PATH.
        Tool::Debian { program, .. } => {
            Call::new("sh", "-c").args([format!("PATH=$PATH:/usr/sbin command -v {program}")]).succeeds()
        }
        // Debian's Python comes without venv.
        Tool::Python => Call::new("python3", "-c").args(["import ensurepip, venv"]).succeeds(),
        Tool::PythonPackage { directory, name, version } => {
            python(directory, "-c").args([version_check(name, version)]).succeeds()
        }
        Tool::Node => Call::new("node", "--version").succeeds() && Call::new("npm", "--version").succeeds(),
        Tool::NodePackage { name, version } => {
            Call::new("node", "-e").args([node_version_check(name, version)]).succeeds()
        }
    }
}

/// Calls the Python of a virtual environment.
fn python(directory: &str, line: &str) -> Call {
    Call::new(format!("{directory}/bin/python"), line)
}

/// Writes a line of Python that succeeds only if this version of a package is installed.
fn version_check(name: &str, version: &str) -> String {
    // Extras are not part of the package's name.
    let name = name.split('[').next().unwrap_or(name);
    format!("import importlib.metadata as m; raise SystemExit(m.version('{name}') != '{version}')")
}

/// Writes a line of JavaScript that succeeds only if this version of a package is installed.
fn node_version_check(name: &str, version: &str) -> String {
    format!(
        "process.exit(require('./{NODE_DIRECTORY}/node_modules/{name}/package.json').version === '{version}' ? 0 : 1)"
    )
}

/// Returns the calls that install a tool, or an error with instructions if this machine cannot install it.
fn install_calls(tool: Tool, installers: Installers) -> Result<Vec<Call>, TaskError> {
    let call = match tool {
        Tool::Component { name, .. } => Call::new("rustup", "component add").args([name]),
        Tool::Target(target) => Call::new("rustup", "target add").args([target]),
        Tool::Nightly => Call::new("rustup", "toolchain install nightly --profile minimal"),
        Tool::Miri => Call::new("rustup", "component add --toolchain nightly miri rust-src"),
        Tool::LlvmTools => Call::new("rustup", "component add --toolchain nightly llvm-tools"),
        Tool::Subcommand { package, .. } => {
            return Ok(vec![Call::cargo("install --locked").args([package])]);
        }
        Tool::Debian { package, .. } => return apt_calls(tool, &[package], installers.user),
        Tool::Python => return apt_calls(tool, &["python3-venv"], installers.user),
        Tool::Node => return apt_calls(tool, &["nodejs", "npm"], installers.user),
        Tool::NodePackage { name, version } => {
            // npm removes packages that it did not save when it installs the next one.
            let install = Call::new(
                "npm",
                "install --save-exact --no-audit --no-fund --ignore-scripts --loglevel=error",
            );
            return Ok(vec![install.args(["--prefix", NODE_DIRECTORY]).args([format!("{name}@{version}")])]);
        }
        Tool::PythonPackage { directory, name, version } => {
            let install = python(directory, "-m pip install --quiet --disable-pip-version-check");
            return Ok(vec![
                Call::new("python3", "-m venv").args([directory]),
                install.args([format!("{name}=={version}")]),
            ]);
        }
    };
    match installers.rustup {
        Rustup::Present => Ok(vec![call]),
        Rustup::Absent => Err(TaskError::new(format!(
            "{} is missing, and so is rustup; either install it the way you installed Rust, or install rustup and \
             run `{call}`",
            describe(tool)
        ))),
    }
}

fn apt_calls(tool: Tool, packages: &[&str], user: User) -> Result<Vec<Call>, TaskError> {
    let install =
        Call::new("apt-get", "install --yes --no-install-recommends").args(packages.iter().copied());
    match user {
        User::Root => Ok(vec![Call::new("apt-get", "update"), install]),
        User::Other => Err(TaskError::new(format!(
            "{} is missing, and only root can install it: run `sudo {install}`, or use the package manager of \
             your system",
            describe(tool)
        ))),
    }
}

fn describe(tool: Tool) -> String {
    match tool {
        Tool::Component { name, .. } => format!("the Rust component {name}"),
        Tool::Target(target) => format!("the Rust target {target}"),
        Tool::Nightly => "the nightly Rust toolchain".to_owned(),
        Tool::Miri => "Miri (a component of nightly Rust)".to_owned(),
        Tool::LlvmTools => "llvm-tools (a component of nightly Rust)".to_owned(),
        Tool::Subcommand { name, .. } => format!("cargo {name}"),
        Tool::Debian { program, package } => format!("{program} (Debian package {package})"),
        Tool::Python => "Python 3 with the module venv (Debian package python3-venv)".to_owned(),
        Tool::PythonPackage { name, version, .. } => format!("the Python package {name} {version}"),
        Tool::Node => "Node.js with npm (Debian packages nodejs and npm)".to_owned(),
        Tool::NodePackage { name, version } => format!("the npm package {name} {version}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Tool = Tool::Target("thumbv6m-none-eabi");
    const QEMU: Tool = Tool::Debian { program: "qemu-system-arm", package: "qemu-system-arm" };
    const NOTHING: Installers = Installers { rustup: Rustup::Absent, user: User::Other };
    const MUTANTS: Tool = Tool::Subcommand { name: "mutants", package: "cargo-mutants" };

    #[test]
    fn rustup_installs_components_and_targets() {
        assert_eq!(line(TARGET), "rustup target add thumbv6m-none-eabi");
        let rustfmt = Tool::Component { name: "rustfmt", subcommand: "fmt" };
        assert_eq!(line(rustfmt), "rustup component add rustfmt");
        assert_eq!(line(Tool::Miri), "rustup component add --toolchain nightly miri rust-src");
        assert_eq!(line(Tool::LlvmTools), "rustup component add --toolchain nightly llvm-tools");
    }

    #[test]
    fn cargo_installs_subcommands_without_rustup() {
        assert_eq!(lines(MUTANTS, NOTHING), ["cargo install --locked cargo-mutants"]);
    }

    #[test]
    fn root_updates_the_package_list_before_installing() {
        let installers = Installers { user: User::Root, ..NOTHING };
        assert_eq!(
            lines(QEMU, installers),
            ["apt-get update", "apt-get install --yes --no-install-recommends qemu-system-arm"]
        );
    }

    #[test]
    fn python_packages_are_installed_into_a_virtual_environment() {
        let openai = Tool::PythonPackage { directory: "target/python", name: "openai", version: "1.2.3" };
        assert_eq!(
            lines(openai, NOTHING),
            [
                "python3 -m venv target/python",
                "target/python/bin/python -m pip install --quiet --disable-pip-version-check openai==1.2.3"
            ]
        );
    }

    #[test]
    fn extras_are_not_part_of_the_name_of_an_installed_package() {
        assert!(version_check("litellm[proxy]", "1.2.3").ends_with("(m.version('litellm') != '1.2.3')"));
    }

    #[test]
    fn npm_packages_are_installed_under_target() {
        let openai = Tool::NodePackage { name: "openai", version: "1.2.3" };
        assert_eq!(
            lines(openai, NOTHING),
            [
                "npm install --save-exact --no-audit --no-fund --ignore-scripts --loglevel=error --prefix target/node openai@1.2.3"
            ]
        );
        let error = install_calls(Tool::Node, NOTHING).unwrap_err().to_string();
        assert!(error.starts_with("Node.js with npm (Debian packages nodejs and npm) is missing"), "{error}");
        assert!(error.contains("`sudo apt-get install --yes --no-install-recommends nodejs npm`"), "{error}");
    }

    #[test]
    fn the_error_for_missing_python_names_its_package() {
        let error = install_calls(Tool::Python, NOTHING).unwrap_err().to_string();
        assert!(
            error.contains("`sudo apt-get install --yes --no-install-recommends python3-venv`"),
            "{error}"
        );
    }

    #[test]
    fn without_rustup_the_error_names_the_tool_and_the_command() {
        let error = install_calls(TARGET, NOTHING).unwrap_err().to_string();
        assert!(error.starts_with("the Rust target thumbv6m-none-eabi is missing"), "{error}");
        assert!(error.ends_with("run `rustup target add thumbv6m-none-eabi`"), "{error}");
    }

    #[test]
    fn without_root_the_error_names_the_command() {
        let error = install_calls(QEMU, NOTHING).unwrap_err().to_string();
        assert!(error.starts_with("qemu-system-arm (Debian package qemu-system-arm) is missing"), "{error}");
        assert!(
            error.contains("`sudo apt-get install --yes --no-install-recommends qemu-system-arm`"),
            "{error}"
        );
    }

    fn line(tool: Tool) -> String {
        lines(tool, Installers { rustup: Rustup::Present, ..NOTHING }).join("\n")
    }

    fn lines(tool: Tool, installers: Installers) -> Vec<String> {
        install_calls(tool, installers).unwrap().iter().map(Call::to_string).collect()
    }
}
