//! `cargo xtask qemu`: runs the firmware on emulated machines, within a time limit each.
//!
//! Every machine also runs a negative control that must fail, to prove that failures are detected.

use crate::error::TaskError;
use crate::process::{Cmd, RunOutcome};
use crate::tools::{self, Tool};
use clap::builder::{PossibleValue, PossibleValuesParser};
use std::time::Duration;

/// Run the firmware on emulated machines
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cargo xtask qemu            run on every machine
  cargo xtask qemu microbit   run on the smallest one")]
pub(crate) struct QemuArgs {
    /// Machines to run on; all of them by default
    #[arg(value_name = "MACHINE", value_parser = value_parser())]
    machines: Vec<String>,
}

/// A machine that QEMU emulates, and the Rust target to build for it.
struct Machine {
    name: &'static str,
    core: &'static str,
    target: &'static str,
}

const MACHINES: &[Machine] = &[
    Machine { name: "microbit", core: "cortex-m0", target: "thumbv6m-none-eabi" },
    Machine { name: "mps2-an505", core: "cortex-m33", target: "thumbv8m.main-none-eabi" },
];

/// The purpose of a run, which decides the expected result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Every case must pass.
    Cases,
    /// The first case must fail.
    Control,
}

const QEMU: Tool = Tool::DebianPackage { program: "qemu-system-arm", package: "qemu-system-arm" };
const RUN_MAX: Duration = Duration::from_secs(30);
const TARGET_DIR: &str = "target/firmware";
/// Exit code of the firmware after a panic.
const PANICKED: i32 = 101;

fn value_parser() -> PossibleValuesParser {
    MACHINES
        .iter()
        .map(|machine| PossibleValue::new(machine.name).help(machine.core))
        .collect::<Vec<_>>()
        .into()
}

pub(crate) fn run(args: &QemuArgs) -> Result<(), TaskError> {
    run_machines(&args.machines)
}

/// Builds and runs the firmware for the named machines, or all if none is named.
pub(crate) fn run_machines(names: &[String]) -> Result<(), TaskError> {
    tools::ensure(&[QEMU])?;
    let mut rows = Vec::new();
    let is_chosen = |machine: &&Machine| names.is_empty() || names.iter().any(|name| name == machine.name);
    for machine in MACHINES.iter().filter(is_chosen) {
        tools::ensure(&[Tool::Target(machine.target)])?;
        for purpose in [Purpose::Cases, Purpose::Control] {
            build(machine, purpose)?;
            let exit = start(machine).run_within(RUN_MAX)?;
            rows.push(Run { machine, purpose, exit });
        }
    }
    println!("\n{}", table(&rows));
    match rows.iter().find(|run| !is_expected(run.purpose, run.exit)) {
        Some(run) => Err(TaskError::new(format!(
            "on {}, {} {}; expected: {}",
            run.machine.name,
            subject(run.purpose),
            describe(run.exit),
            describe(expected(run.purpose))
        ))),
        None => Ok(()),
    }
}

/// One run of the firmware.
struct Run {
    machine: &'static Machine,
    purpose: Purpose,
    exit: RunOutcome,
}

fn build(machine: &Machine, purpose: Purpose) -> Result<(), TaskError> {
    let features: &[&str] = match purpose {
        Purpose::Cases => &[],
        Purpose::Control => &["--features", "negative"],
    };
    Cmd::cargo("build --release --locked --manifest-path firmware/Cargo.toml")
        .args(["--target-dir", TARGET_DIR, "--target", machine.target])
        .args(features.iter().copied())
        .run()
}

fn start(machine: &Machine) -> Cmd {
    Cmd::new("qemu-system-arm", "-nographic -monitor none -serial none")
        .args(["-semihosting-config", "enable=on,target=native", "-machine", machine.name, "-kernel"])
        .args([format!("{TARGET_DIR}/{}/release/evenkeel-firmware", machine.target)])
}

fn expected(purpose: Purpose) -> RunOutcome {
    match purpose {
        Purpose::Cases => RunOutcome::Code(0),
        Purpose::Control => RunOutcome::Code(PANICKED),
    }
}

fn is_expected(purpose: Purpose, exit: RunOutcome) -> bool {
    exit == expected(purpose)
}

fn subject(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Cases => "the cases",
        Purpose::Control => "the negative control",
    }
}

fn describe(exit: RunOutcome) -> String {
    match exit {
        RunOutcome::Code(0) => "passed".to_owned(),
        RunOutcome::Code(PANICKED) => "failed".to_owned(),
        RunOutcome::Code(code) => format!("exited with code {code}"),
        RunOutcome::Killed => "was killed by a signal".to_owned(),
        RunOutcome::TimedOut => format!("did not finish within {} s", RUN_MAX.as_secs()),
    }
}

fn table(rows: &[Run]) -> String {
    let lines = rows.iter().map(|Run { machine, purpose, exit }| {
        let verdict = if is_expected(*purpose, *exit) { "as expected" } else { "unexpected" };
        let subject = subject(*purpose);
        let exit = describe(*exit);
        format!("{:<12}{:<12}{subject:<22}{exit:<10}{verdict}", machine.name, machine.core)
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_negative_control_must_panic() {
        assert!(is_expected(Purpose::Control, RunOutcome::Code(PANICKED)));
        for other in [RunOutcome::Code(0), RunOutcome::Code(1), RunOutcome::Killed, RunOutcome::TimedOut] {
            assert!(!is_expected(Purpose::Control, other), "{other:?}");
        }
    }

    #[test]
    fn the_cases_must_succeed() {
        assert!(is_expected(Purpose::Cases, RunOutcome::Code(0)));
        for other in
            [RunOutcome::Code(1), RunOutcome::Code(PANICKED), RunOutcome::Killed, RunOutcome::TimedOut]
        {
            assert!(!is_expected(Purpose::Cases, other), "{other:?}");
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_run() {
        let rows = [
            Run { machine: &MACHINES[0], purpose: Purpose::Cases, exit: RunOutcome::Code(0) },
            Run { machine: &MACHINES[0], purpose: Purpose::Control, exit: RunOutcome::Code(0) },
        ];
        assert_eq!(
            table(&rows),
            "microbit    cortex-m0   the cases             passed    as expected\n\
             microbit    cortex-m0   the negative control  passed    unexpected"
        );
    }

    #[test]
    fn the_qemu_command_is_a_valid_shell_command() {
        assert_eq!(
            start(&MACHINES[0]).to_string(),
            "qemu-system-arm -nographic -monitor none -serial none -semihosting-config \
             enable=on,target=native -machine microbit -kernel \
             target/firmware/thumbv6m-none-eabi/release/evenkeel-firmware"
        );
    }
}
