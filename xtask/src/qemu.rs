//! `cargo xtask qemu`: the firmware on emulated machines, within a time limit each.
//!
//! Every machine also runs a negative control, which expects what does not happen: a machine on which
//! nothing can fail proves nothing.

use crate::args::{Command, Rest, Wanted, Word, Words};
use crate::error::TaskError;
use crate::process::{Call, ExitKind};
use crate::tools::{self, Tool};
use std::time::Duration;

pub(crate) const COMMAND: Command = Command {
    name: "qemu",
    about: "runs the firmware on emulated machines",
    words: Words::Any { noun: "machine", list: words },
    rest: Rest::Refused,
    examples: &[
        ("cargo xtask qemu", "every machine"),
        ("cargo xtask qemu microbit", "the smallest of them only"),
    ],
    run: |wanted: &Wanted| run_machines(&wanted.words),
};

/// A machine that QEMU knows, and what is built for it.
struct Machine {
    name: &'static str,
    core: &'static str,
    target: &'static str,
}

const MACHINES: &[Machine] = &[
    Machine { name: "microbit", core: "cortex-m0", target: "thumbv6m-none-eabi" },
    Machine { name: "mps2-an505", core: "cortex-m33", target: "thumbv8m.main-none-eabi" },
];

/// What the firmware is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Every case must pass.
    Cases,
    /// The first case must fail.
    Control,
}

const QEMU: Tool = Tool::Debian { program: "qemu-system-arm", package: "qemu-system-arm" };
const RUN_MAX: Duration = Duration::from_secs(30);
const TARGET_DIR: &str = "target/firmware";
/// How the firmware ends when an expectation of its own is not met.
const PANICKED: i32 = 101;

fn words() -> Vec<Word> {
    MACHINES.iter().map(|machine| Word { name: machine.name, about: machine.core }).collect()
}

/// Builds and runs for the machines that were named, or all if none was.
pub(crate) fn run_machines(named: &[&str]) -> Result<(), TaskError> {
    tools::ensure(&[QEMU])?;
    let mut rows = Vec::new();
    for machine in MACHINES.iter().filter(|machine| named.is_empty() || named.contains(&machine.name)) {
        tools::ensure(&[Tool::Target(machine.target)])?;
        for purpose in [Purpose::Cases, Purpose::Control] {
            build(machine, purpose)?;
            let ended = start(machine).run_within(RUN_MAX)?;
            rows.push((machine, purpose, ended));
        }
    }
    println!("\n{}", table(&rows));
    match rows.iter().find(|(_, purpose, ended)| !is_as_expected(*purpose, *ended)) {
        Some((machine, purpose, ended)) => Err(TaskError::new(format!(
            "on {}, {} {}; {} expected",
            machine.name,
            subject(*purpose),
            described(*ended),
            described(expected(*purpose))
        ))),
        None => Ok(()),
    }
}

fn build(machine: &Machine, purpose: Purpose) -> Result<(), TaskError> {
    let features: &[&str] = match purpose {
        Purpose::Cases => &[],
        Purpose::Control => &["--features", "negative"],
    };
    Call::cargo("build --release --locked --manifest-path firmware/Cargo.toml")
        .args(["--target-dir", TARGET_DIR, "--target", machine.target])
        .args(features.iter().copied())
        .run()
}

fn start(machine: &Machine) -> Call {
    Call::new("qemu-system-arm", "-nographic -monitor none -serial none")
        .args(["-semihosting-config", "enable=on,target=native", "-machine", machine.name, "-kernel"])
        .args([format!("{TARGET_DIR}/{}/release/evenkeel-firmware", machine.target)])
}

fn expected(purpose: Purpose) -> ExitKind {
    match purpose {
        Purpose::Cases => ExitKind::With(0),
        Purpose::Control => ExitKind::With(PANICKED),
    }
}

fn is_as_expected(purpose: Purpose, ended: ExitKind) -> bool {
    ended == expected(purpose)
}

fn subject(purpose: Purpose) -> &'static str {
    match purpose {
        Purpose::Cases => "the cases",
        Purpose::Control => "the negative control",
    }
}

fn described(ended: ExitKind) -> String {
    match ended {
        ExitKind::With(0) => "passed".to_owned(),
        ExitKind::With(PANICKED) => "failed".to_owned(),
        ExitKind::With(code) => format!("ended with {code}"),
        ExitKind::Killed => "was killed".to_owned(),
        ExitKind::TooLate => format!("did not end within {} s", RUN_MAX.as_secs()),
    }
}

fn table(rows: &[(&Machine, Purpose, ExitKind)]) -> String {
    let lines = rows.iter().map(|(machine, purpose, ended)| {
        let verdict = if is_as_expected(*purpose, *ended) { "as it must" } else { "wrong" };
        let subject = subject(*purpose);
        let ended = described(*ended);
        format!("{:<12}{:<12}{subject:<22}{ended:<10}{verdict}", machine.name, machine.core)
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_its_own_panic_fails_the_negative_control_as_it_must() {
        assert!(is_as_expected(Purpose::Control, ExitKind::With(PANICKED)));
        for other in [ExitKind::With(0), ExitKind::With(1), ExitKind::Killed, ExitKind::TooLate] {
            assert!(!is_as_expected(Purpose::Control, other), "{other:?}");
        }
    }

    #[test]
    fn only_success_passes_the_cases() {
        assert!(is_as_expected(Purpose::Cases, ExitKind::With(0)));
        for other in [ExitKind::With(1), ExitKind::With(PANICKED), ExitKind::Killed, ExitKind::TooLate] {
            assert!(!is_as_expected(Purpose::Cases, other), "{other:?}");
        }
    }

    #[test]
    fn the_table_has_a_line_for_each_run() {
        let rows = [
            (&MACHINES[0], Purpose::Cases, ExitKind::With(0)),
            (&MACHINES[0], Purpose::Control, ExitKind::With(0)),
        ];
        assert_eq!(
            table(&rows),
            "microbit    cortex-m0   the cases             passed    as it must\n\
             microbit    cortex-m0   the negative control  passed    wrong"
        );
    }

    #[test]
    fn the_line_that_starts_a_machine_can_be_typed() {
        assert_eq!(
            start(&MACHINES[0]).to_string(),
            "qemu-system-arm -nographic -monitor none -serial none -semihosting-config \
             enable=on,target=native -machine microbit -kernel \
             target/firmware/thumbv6m-none-eabi/release/evenkeel-firmware"
        );
    }
}
