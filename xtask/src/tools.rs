//! What each chore needs beyond cargo, and how a missing piece is got.
//!
//! A chore names its needs as a table of [`Tool`]s; [`ensure`] installs what it can and says
//! precisely what to do about the rest.

use crate::error::TaskError;
use crate::process::Call;
use std::path::Path;

/// Something a chore needs.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tool {
    /// A part of the Rust toolchain that cargo calls by a name of its own.
    Component { name: &'static str, subcommand: &'static str },
    /// The standard library of another machine.
    Target(&'static str),
    /// The nightly toolchain.
    Nightly,
    /// Miri, which exists for nightly only.
    Miri,
    /// What reads the counts of nightly's instrumented programs.
    LlvmTools,
    /// A cargo subcommand that is a crate of its own.
    Subcommand { name: &'static str, package: &'static str },
    /// A program that Debian and its kin have as a package.
    Debian { program: &'static str, package: &'static str },
    /// Python that can make environments.
    Python,
    /// A Python package, its extras in brackets, in the environment that is this folder.
    PythonPackage { folder: &'static str, name: &'static str, version: &'static str },
    /// Node.js with npm, which installs its packages.
    Node,
    /// A package of npm's, in a folder of its own.
    NodePackage { name: &'static str, version: &'static str },
}

/// What the tests need; a test that needs more than cargo is served from here.
pub(crate) const FOR_TESTS: &[Tool] = &[
    Tool::Python,
    Tool::PythonPackage { folder: "target/python", name: "openai", version: "3.49.0" },
    Tool::PythonPackage { folder: "target/python", name: "anthropic", version: "2.8.0" },
    Tool::PythonPackage { folder: "target/python", name: "boto3", version: "1.44.0" },
    Tool::PythonPackage { folder: "target/python", name: "celery", version: "5.7.0" },
    Tool::PythonPackage { folder: "target/python", name: "kombu", version: "5.7.0" },
    // With which kombu speaks to SQS.
    Tool::PythonPackage { folder: "target/python", name: "pycurl", version: "7.49.0" },
    // In a folder of its own: it wants other versions of what the clients want.
    Tool::PythonPackage { folder: "target/schemathesis", name: "schemathesis", version: "4.32.5" },
    Tool::Node,
    // Of each package a version that runs on the Node.js that Debian has. AWS's client is there before
    // sqs-consumer, which would bring a newer one.
    Tool::NodePackage { name: "@aws-sdk/client-sqs", version: "3.967.0" },
    Tool::NodePackage { name: "sqs-consumer", version: "11.6.0" },
    Tool::NodePackage { name: "openai", version: "6.49.0" },
];

/// Where npm's packages are installed; tests look for them there.
const NODE_FOLDER: &str = "target/node";

/// What there is to install things with.
#[derive(Clone, Copy, Debug)]
struct Means {
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

/// Gets every tool that is not there.
pub(crate) fn ensure(tools: &[Tool]) -> Result<(), TaskError> {
    for tool in tools.iter().filter(|tool| !is_present(**tool)) {
        let remedy = remedy(*tool, means())?;
        println!("{} is missing; installing it", described(*tool));
        remedy.iter().try_for_each(Call::run).map_err(|failure| {
            TaskError::new(format!("{} is missing and cannot be installed: {failure}", described(*tool)))
        })?;
    }
    Ok(())
}

fn means() -> Means {
    let rustup = Call::new("rustup", "--version").succeeds();
    let root = Call::new("id", "-u").output().is_ok_and(|id| id.trim_end() == "0");
    Means {
        rustup: if rustup { Rustup::Present } else { Rustup::Absent },
        user: if root { User::Root } else { User::Other },
    }
}

/// Whether cargo has this subcommand.
pub(crate) fn has_subcommand(name: &str) -> bool {
    Call::cargo(name).args(["--version"]).succeeds()
}

fn is_present(tool: Tool) -> bool {
    match tool {
        Tool::Component { subcommand, .. } => has_subcommand(subcommand),
        Tool::Target(target) => {
            let libraries = Call::new("rustc", "--print target-libdir --target").args([target]).output();
            libraries.is_ok_and(|folder| Path::new(folder.trim_end()).is_dir())
        }
        Tool::Nightly => Call::new("rustup", "run nightly rustc --version").succeeds(),
        Tool::Miri => Call::new("rustup", "run nightly cargo miri --version").succeeds(),
        Tool::LlvmTools => {
            let installed = Call::new("rustup", "component list --toolchain nightly --installed").output();
            installed.is_ok_and(|names| names.lines().any(|name| name.starts_with("llvm-tools")))
        }
        Tool::Subcommand { name, .. } => has_subcommand(name),
        // Not every program knows `--version`, and some are where only root looks.
        Tool::Debian { program, .. } => {
            Call::new("sh", "-c").args([format!("PATH=$PATH:/usr/sbin command -v {program}")]).succeeds()
        }
        // Debian has Python without the part that makes environments.
        Tool::Python => Call::new("python3", "-c").args(["import ensurepip, venv"]).succeeds(),
        Tool::PythonPackage { folder, name, version } => {
            python(folder, "-c").args([version_check(name, version)]).succeeds()
        }
        Tool::Node => Call::new("node", "--version").succeeds() && Call::new("npm", "--version").succeeds(),
        Tool::NodePackage { name, version } => {
            Call::new("node", "-e").args([node_version_check(name, version)]).succeeds()
        }
    }
}

/// Calls the Python of an environment.
fn python(folder: &str, line: &str) -> Call {
    Call::new(format!("{folder}/bin/python"), line)
}

/// Writes the Python line that ends well only if this version of a package is installed.
fn version_check(name: &str, version: &str) -> String {
    // Extras are asked for by name, but installed under names of their own.
    let name = name.split('[').next().unwrap_or(name);
    format!("import importlib.metadata as m; raise SystemExit(m.version('{name}') != '{version}')")
}

/// Writes the line of JavaScript that ends well only if this version of a package is installed.
fn node_version_check(name: &str, version: &str) -> String {
    format!(
        "process.exit(require('./{NODE_FOLDER}/node_modules/{name}/package.json').version === '{version}' ? 0 : 1)"
    )
}

/// Decides what to run to get a tool, or what to tell the user when nothing here can get it.
fn remedy(tool: Tool, means: Means) -> Result<Vec<Call>, TaskError> {
    let call = match tool {
        Tool::Component { name, .. } => Call::new("rustup", "component add").args([name]),
        Tool::Target(target) => Call::new("rustup", "target add").args([target]),
        Tool::Nightly => Call::new("rustup", "toolchain install nightly --profile minimal"),
        Tool::Miri => Call::new("rustup", "component add --toolchain nightly miri rust-src"),
        Tool::LlvmTools => Call::new("rustup", "component add --toolchain nightly llvm-tools"),
        Tool::Subcommand { package, .. } => {
            return Ok(vec![Call::cargo("install --locked").args([package])]);
        }
        Tool::Debian { package, .. } => return remedy_by_apt(tool, &[package], means.user),
        Tool::Python => return remedy_by_apt(tool, &["python3-venv"], means.user),
        Tool::Node => return remedy_by_apt(tool, &["nodejs", "npm"], means.user),
        Tool::NodePackage { name, version } => {
            // What npm has not saved it removes with the next package.
            let install = Call::new(
                "npm",
                "install --save-exact --no-audit --no-fund --ignore-scripts --loglevel=error",
            );
            return Ok(vec![install.args(["--prefix", NODE_FOLDER]).args([format!("{name}@{version}")])]);
        }
        Tool::PythonPackage { folder, name, version } => {
            let install = python(folder, "-m pip install --quiet --disable-pip-version-check");
            return Ok(vec![
                Call::new("python3", "-m venv").args([folder]),
                install.args([format!("{name}=={version}")]),
            ]);
        }
    };
    match means.rustup {
        Rustup::Present => Ok(vec![call]),
        Rustup::Absent => Err(TaskError::new(format!(
            "{} is missing, and so is rustup, which would add it; either install it from where your Rust \
             came from, or get rustup and run `{call}`",
            described(tool)
        ))),
    }
}

fn remedy_by_apt(tool: Tool, packages: &[&str], user: User) -> Result<Vec<Call>, TaskError> {
    let install =
        Call::new("apt-get", "install --yes --no-install-recommends").args(packages.iter().copied());
    match user {
        User::Root => Ok(vec![Call::new("apt-get", "update"), install]),
        User::Other => Err(TaskError::new(format!(
            "{} is missing, and only root may install it: run `sudo {install}`, or what installs it where \
             there is no apt",
            described(tool)
        ))),
    }
}

fn described(tool: Tool) -> String {
    match tool {
        Tool::Component { name, .. } => format!("the Rust component {name}"),
        Tool::Target(target) => format!("the Rust target {target}"),
        Tool::Nightly => "the nightly Rust toolchain".to_owned(),
        Tool::Miri => "Miri (a component of nightly Rust)".to_owned(),
        Tool::LlvmTools => "llvm-tools (a component of nightly Rust)".to_owned(),
        Tool::Subcommand { name, .. } => format!("cargo {name}"),
        Tool::Debian { program, package } => format!("{program} (Debian package {package})"),
        Tool::Python => "Python 3 with its module venv (Debian package python3-venv)".to_owned(),
        Tool::PythonPackage { name, version, .. } => format!("the Python package {name} {version}"),
        Tool::Node => "Node.js with npm (Debian packages nodejs and npm)".to_owned(),
        Tool::NodePackage { name, version } => format!("npm's package {name} {version}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TARGET: Tool = Tool::Target("thumbv6m-none-eabi");
    const QEMU: Tool = Tool::Debian { program: "qemu-system-arm", package: "qemu-system-arm" };
    const NOTHING: Means = Means { rustup: Rustup::Absent, user: User::Other };
    const MUTANTS: Tool = Tool::Subcommand { name: "mutants", package: "cargo-mutants" };

    #[test]
    fn rustup_adds_what_belongs_to_rust() {
        assert_eq!(line(TARGET), "rustup target add thumbv6m-none-eabi");
        let rustfmt = Tool::Component { name: "rustfmt", subcommand: "fmt" };
        assert_eq!(line(rustfmt), "rustup component add rustfmt");
        assert_eq!(line(Tool::Miri), "rustup component add --toolchain nightly miri rust-src");
        assert_eq!(line(Tool::LlvmTools), "rustup component add --toolchain nightly llvm-tools");
    }

    #[test]
    fn cargo_installs_its_own_subcommands_without_rustup() {
        assert_eq!(lines(MUTANTS, NOTHING), ["cargo install --locked cargo-mutants"]);
    }

    #[test]
    fn root_installs_packages_from_a_fresh_list() {
        let means = Means { user: User::Root, ..NOTHING };
        assert_eq!(
            lines(QEMU, means),
            ["apt-get update", "apt-get install --yes --no-install-recommends qemu-system-arm"]
        );
    }

    #[test]
    fn python_packages_go_into_an_environment_of_their_own() {
        let openai = Tool::PythonPackage { folder: "target/python", name: "openai", version: "1.2.3" };
        assert_eq!(
            lines(openai, NOTHING),
            [
                "python3 -m venv target/python",
                "target/python/bin/python -m pip install --quiet --disable-pip-version-check openai==1.2.3"
            ]
        );
    }

    #[test]
    fn a_python_package_with_extras_is_looked_for_by_its_own_name() {
        assert!(version_check("litellm[proxy]", "1.2.3").ends_with("(m.version('litellm') != '1.2.3')"));
    }

    #[test]
    fn npm_packages_go_into_a_folder_of_their_own() {
        let openai = Tool::NodePackage { name: "openai", version: "1.2.3" };
        assert_eq!(
            lines(openai, NOTHING),
            [
                "npm install --save-exact --no-audit --no-fund --ignore-scripts --loglevel=error --prefix target/node openai@1.2.3"
            ]
        );
        let error = remedy(Tool::Node, NOTHING).unwrap_err().to_string();
        assert!(error.starts_with("Node.js with npm (Debian packages nodejs and npm) is missing"), "{error}");
        assert!(error.contains("`sudo apt-get install --yes --no-install-recommends nodejs npm`"), "{error}");
    }

    #[test]
    fn without_python_the_user_learns_which_package_has_it() {
        let error = remedy(Tool::Python, NOTHING).unwrap_err().to_string();
        assert!(
            error.contains("`sudo apt-get install --yes --no-install-recommends python3-venv`"),
            "{error}"
        );
    }

    #[test]
    fn without_rustup_the_user_learns_what_is_missing_and_how_to_get_it() {
        let error = remedy(TARGET, NOTHING).unwrap_err().to_string();
        assert!(error.starts_with("the Rust target thumbv6m-none-eabi is missing"), "{error}");
        assert!(error.ends_with("run `rustup target add thumbv6m-none-eabi`"), "{error}");
    }

    #[test]
    fn who_is_not_root_learns_what_to_run() {
        let error = remedy(QEMU, NOTHING).unwrap_err().to_string();
        assert!(error.starts_with("qemu-system-arm (Debian package qemu-system-arm) is missing"), "{error}");
        assert!(
            error.contains("`sudo apt-get install --yes --no-install-recommends qemu-system-arm`"),
            "{error}"
        );
    }

    fn line(tool: Tool) -> String {
        lines(tool, Means { rustup: Rustup::Present, ..NOTHING }).join("\n")
    }

    fn lines(tool: Tool, means: Means) -> Vec<String> {
        remedy(tool, means).unwrap().iter().map(Call::to_string).collect()
    }
}
