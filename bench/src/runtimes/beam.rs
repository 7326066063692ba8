//! The Erlang virtual machine, in a separate process: `foreign/beam/bench.erl` implements the workloads in Erlang.
//!
//! Limits: a run compiles the module at most once, and the VM exits when its parent process does.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::sample::{Sample, SampleError};
use crate::settings::{Mailbox, Settings, Switch};
use crate::skynet::CHILDREN;
use crate::workload::{HeapGauge, Workload};
use crate::workloads::fan::FanShape;
use crate::workloads::{ask, skynet, spawn};

const SOURCE: &str = include_str!("../../foreign/beam/bench.erl");

/// Extra process slots for the VM itself.
const OTHER_PROCESSES: u64 = 1024;

/// Runs a workload on a VM. The VM measures its own memory, so the heap gauge of this process is not used.
pub(super) fn run(
    workload: Workload,
    settings: &Settings,
    _: Option<HeapGauge>,
) -> Result<Sample, SampleError> {
    let case = ErlangCase::new(workload, settings)?;
    let module = compiled()?;
    let mut vm = vm(&module, &case, settings).spawn().map_err(|error| not_started("erl", &error))?;
    // The VM exits when its standard input is closed, even if this process is killed.
    let keep_alive = vm.stdin.take();
    let output = vm.wait_with_output();
    drop(keep_alive);
    read(&output.map_err(failed)?)
}

/// Arguments of `bench.erl`.
#[derive(Debug, PartialEq, Eq)]
struct ErlangCase {
    name: &'static str,
    counts: Vec<u64>,
    /// Maximum number of live actors.
    actors: u64,
}

impl ErlangCase {
    fn new(workload: Workload, settings: &Settings) -> Result<Self, SampleError> {
        if settings.mailbox != Mailbox::Unbounded {
            return Err(SampleError::Unsupported("mailboxes are unbounded"));
        }
        if settings.echo == Switch::On {
            return Err(SampleError::Unsupported("no tokio runtime to run an echo server on"));
        }
        match workload {
            Workload::Tell1 => Ok(Self::fan(FanShape::TELL1, settings)),
            Workload::Mpsc4 => Ok(Self::fan(FanShape::MPSC4, settings)),
            Workload::Fan10 => Ok(Self::fan(FanShape::FAN10, settings)),
            Workload::Fan100 => Ok(Self::fan(FanShape::FAN100, settings)),
            Workload::Fan1000 => Ok(Self::fan(FanShape::FAN1000, settings)),
            Workload::Ask => Ok(Self { name: "ask", counts: vec![settings.scaled(ask::ASKS)], actors: 1 }),
            Workload::Skynet => {
                let level = skynet::level(settings);
                let nodes = (0..=level).map(|level| CHILDREN.pow(level)).sum();
                Ok(Self { name: "skynet", counts: vec![CHILDREN, u64::from(level)], actors: nodes })
            }
            Workload::Spawn => Ok(Self::idle("spawn", settings)),
            Workload::Heap => Ok(Self::idle("heap", settings)),
            Workload::Wake => Err(SampleError::Unsupported("no thread outside the VM can send to a process")),
            Workload::Latency1
            | Workload::Latency10
            | Workload::Latency100
            | Workload::Latency1000
            | Workload::FloodTasks
            | Workload::FloodThread => Err(SampleError::Unsupported("bench.erl measures no latencies")),
            Workload::Register => Err(SampleError::Unsupported("register compares sets, not runtimes")),
        }
    }

    fn fan(shape: FanShape, settings: &Settings) -> Self {
        let actors = shape.actors as u64;
        Self { name: "fan", counts: vec![actors, shape.passes(settings), shape.producers as u64], actors }
    }

    fn idle(name: &'static str, settings: &Settings) -> Self {
        let actors = settings.scaled(spawn::ACTORS);
        Self { name, counts: vec![actors], actors }
    }
}

/// Prepares a VM with one scheduler per worker and default settings otherwise.
fn vm(module: &Path, case: &ErlangCase, settings: &Settings) -> Command {
    let workers = settings.workers;
    let mut vm = Command::new("erl");
    vm.args(["-noshell", "+S", &format!("{workers}:{workers}")]);
    // The largest settings stay below the VM's limit of 134 million processes.
    vm.args(["+P", &(case.actors + OTHER_PROCESSES).to_string()]);
    vm.arg("-pa").arg(module).args(["-run", "bench", "main", case.name]);
    vm.args(case.counts.iter().map(u64::to_string));
    vm.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    vm
}

fn read(output: &Output) -> Result<Sample, SampleError> {
    let out = String::from_utf8_lossy(&output.stdout);
    let err = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        let reason = err.lines().next_back().unwrap_or("no message");
        return Err(SampleError::Failed(format!("erl exited with {}: {reason}", output.status)));
    }
    Sample::parse(&out).ok_or_else(|| SampleError::Failed(format!("no metrics in `{}`", out.trim())))
}

/// Returns the directory of the compiled module, next to this program; compiles it unless it is newer than the program.
fn compiled() -> Result<PathBuf, SampleError> {
    let program = std::env::current_exe().map_err(failed)?;
    let directory = program.with_file_name("beam");
    let module = directory.join("bench.beam");
    if !is_newer(&module, &program).map_err(failed)? {
        compile(&directory, &module)?;
    }
    Ok(directory)
}

fn is_newer(module: &Path, program: &Path) -> io::Result<bool> {
    match fs::metadata(module) {
        Ok(module) => Ok(fs::metadata(program)?.modified()? < module.modified()?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Compiles in a directory of this process, then renames, so that concurrent runs never see a partial module.
fn compile(directory: &Path, module: &Path) -> Result<(), SampleError> {
    let own = directory.join(std::process::id().to_string());
    let source = own.join("bench.erl");
    fs::create_dir_all(&own).map_err(failed)?;
    fs::write(&source, SOURCE).map_err(failed)?;
    let erlc = Command::new("erlc").args(["-Wall", "-Werror", "-o"]).args([&own, &source]).output();
    let outcome = match erlc {
        Ok(erlc) if erlc.status.success() => fs::rename(own.join("bench.beam"), module).map_err(failed),
        Ok(erlc) => {
            let text = String::from_utf8_lossy(&erlc.stdout);
            Err(SampleError::Failed(format!("erlc: {}", text.lines().next().unwrap_or_default())))
        }
        Err(error) => Err(not_started("erlc", &error)),
    };
    fs::remove_dir_all(&own).map_err(failed)?;
    outcome
}

fn not_started(program: &str, error: &io::Error) -> SampleError {
    SampleError::Failed(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{program} is not installed; try `apt-get install erlang-base`")
        }
        _ => format!("could not start {program}: {error}"),
    })
}

fn failed(error: io::Error) -> SampleError {
    SampleError::Failed(format!("BEAM module: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    #[test]
    fn the_vm_runs_the_same_counts_as_the_other_runtimes() {
        assert_eq!(line("mpsc4", ""), "+S 2:2 +P 1025 fan 1 250000 4");
        assert_eq!(line("fan1000", "workers=1"), "+S 1:1 +P 2024 fan 1000 250 4");
        assert_eq!(line("ask", "scale=0.5"), "+S 2:2 +P 1025 ask 100000");
        assert_eq!(line("skynet", ""), "+S 2:2 +P 1112135 skynet 10 6");
        assert_eq!(line("heap", ""), "+S 2:2 +P 101024 heap 100000");
    }

    #[test]
    fn the_largest_settings_are_within_the_vms_limit() {
        let case = ErlangCase::new(Workload::Skynet, &settings("scale=100")).unwrap();
        assert!(case.actors + OTHER_PROCESSES < 134_217_727);
    }

    #[test]
    fn a_vm_exits_when_its_parent_does() {
        let case = ErlangCase { name: "ask", counts: vec![u64::MAX], actors: 1 };
        let mut vm = vm(module(), &case, &Settings::default());
        let output = vm.stdin(Stdio::null()).output().unwrap();
        let expected = "erl exited with exit status: 1: the parent process has exited";
        assert_eq!(read(&output), Err(SampleError::Failed(expected.to_owned())));
    }

    #[test]
    fn a_failed_run_reports_the_reason() {
        let case = ErlangCase { name: "teleport", counts: vec![1], actors: 1 };
        let mut vm = vm(module(), &case, &Settings::default()).spawn().unwrap();
        let keep_alive = vm.stdin.take();
        let outcome = read(&vm.wait_with_output().unwrap());
        drop(keep_alive);
        let Err(SampleError::Failed(reason)) = outcome else { panic!("{outcome:?}") };
        assert!(reason.starts_with("erl exited with exit status: 1: {function_clause,"), "{reason}");
    }

    /// Compiles the module once for all tests, which share the directory of one process.
    fn module() -> &'static Path {
        static MODULE: LazyLock<PathBuf> = LazyLock::new(|| compiled().unwrap());
        &MODULE
    }

    fn line(workload: &str, pairs: &str) -> String {
        let settings = settings(pairs);
        let case = ErlangCase::new(Workload::parse(workload).unwrap(), &settings).unwrap();
        let vm = vm(Path::new("module"), &case, &settings);
        let args: Vec<_> = vm.get_args().map(|arg| arg.to_string_lossy()).collect();
        let hidden = ["-noshell", "-pa", "module", "-run", "bench", "main"];
        let shown = args.iter().filter(|arg| !hidden.contains(&arg.as_ref()));
        shown.map(AsRef::as_ref).collect::<Vec<_>>().join(" ")
    }

    fn settings(pairs: &str) -> Settings {
        Settings::parse(pairs.split_whitespace()).unwrap()
    }
}
