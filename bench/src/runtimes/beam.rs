//! Erlang's virtual machine, in a process of its own: `foreign/beam/bench.erl` writes the workloads once more.
//!
//! Bound: a run compiles the module at most once, and the VM ends with the process that started it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::sample::{NoSample, Sample};
use crate::settings::{Mailbox, Settings, Switch};
use crate::skynet::CHILDREN;
use crate::workload::{HeapGauge, Workload};
use crate::workloads::fan::FanShape;
use crate::workloads::{ask, skynet, spawn};

const SOURCE: &str = include_str!("../../foreign/beam/bench.erl");

/// Processes that the VM may have besides the actors.
const OTHER_PROCESSES: u64 = 1024;

/// Runs a workload on a VM that weighs its own actors, so no gauge of this process is asked.
pub(super) fn run(workload: Workload, settings: &Settings, _: Option<HeapGauge>) -> Result<Sample, NoSample> {
    let part = ErlangCase::of(workload, settings)?;
    let module = compiled()?;
    let mut vm = vm(&module, &part, settings).spawn().map_err(|error| not_started("erl", &error))?;
    // The VM ends when its standard input does, also where this process is killed.
    let alive = vm.stdin.take();
    let ended = vm.wait_with_output();
    drop(alive);
    read(&ended.map_err(failed)?)
}

/// What `bench.erl` is asked for.
#[derive(Debug, PartialEq, Eq)]
struct ErlangCase {
    name: &'static str,
    counts: Vec<u64>,
    /// How many actors live at once, at most.
    actors: u64,
}

impl ErlangCase {
    fn of(workload: Workload, settings: &Settings) -> Result<Self, NoSample> {
        if settings.mailbox != Mailbox::Unbounded {
            return Err(NoSample::Unsupported("mailboxes have no bound"));
        }
        if settings.echo == Switch::On {
            return Err(NoSample::Unsupported("no tokio runtime to run an echo server on"));
        }
        match workload {
            Workload::Tell1 => Ok(Self::fan(FanShape::TELL1, settings)),
            Workload::Mpsc4 => Ok(Self::fan(FanShape::MPSC4, settings)),
            Workload::Fan10 => Ok(Self::fan(FanShape::FAN10, settings)),
            Workload::Fan100 => Ok(Self::fan(FanShape::FAN100, settings)),
            Workload::Fan1000 => Ok(Self::fan(FanShape::FAN1000, settings)),
            Workload::Ask => {
                Ok(Self { name: "ask", counts: vec![settings.scaled(ask::QUESTIONS)], actors: 1 })
            }
            Workload::Skynet => {
                let level = skynet::level(settings);
                let nodes = (0..=level).map(|level| CHILDREN.pow(level)).sum();
                Ok(Self { name: "skynet", counts: vec![CHILDREN, u64::from(level)], actors: nodes })
            }
            Workload::Spawn => Ok(Self::idle("spawn", settings)),
            Workload::Heap => Ok(Self::idle("heap", settings)),
            Workload::Wake => Err(NoSample::Unsupported("no foreign thread can tell a process")),
            Workload::Latency1 | Workload::Latency10 | Workload::Latency100 | Workload::Latency1000 => {
                Err(NoSample::Unsupported("bench.erl takes no delays"))
            }
            Workload::Register => Err(NoSample::Unsupported("register compares sets, not runtimes")),
        }
    }

    fn fan(shape: FanShape, settings: &Settings) -> Self {
        let actors = shape.actors as u64;
        Self { name: "fan", counts: vec![actors, shape.turns(settings), shape.producers as u64], actors }
    }

    fn idle(name: &'static str, settings: &Settings) -> Self {
        let actors = settings.scaled(spawn::ACTORS);
        Self { name, counts: vec![actors], actors }
    }
}

/// Prepares a VM with as many schedulers as there are workers, and everything else as it comes.
fn vm(module: &Path, part: &ErlangCase, settings: &Settings) -> Command {
    let workers = settings.workers;
    let mut vm = Command::new("erl");
    vm.args(["-noshell", "+S", &format!("{workers}:{workers}")]);
    // The largest settings stay below the most that a VM takes, 134 million.
    vm.args(["+P", &(part.actors + OTHER_PROCESSES).to_string()]);
    vm.arg("-pa").arg(module).args(["-run", "bench", "main", part.name]);
    vm.args(part.counts.iter().map(u64::to_string));
    vm.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    vm
}

fn read(ended: &Output) -> Result<Sample, NoSample> {
    let out = String::from_utf8_lossy(&ended.stdout);
    let err = String::from_utf8_lossy(&ended.stderr);
    if !ended.status.success() {
        let why = err.lines().next_back().unwrap_or("it did not say why");
        return Err(NoSample::Failed(format!("erl ended with {}: {why}", ended.status)));
    }
    Sample::parse(&out).ok_or_else(|| NoSample::Failed(format!("no figures in `{}`", out.trim())))
}

/// Names the folder of the compiled module, beside this program; compiles it where there is none of this build.
fn compiled() -> Result<PathBuf, NoSample> {
    let program = std::env::current_exe().map_err(failed)?;
    let folder = program.with_file_name("beam");
    let module = folder.join("bench.beam");
    if !is_newer(&module, &program).map_err(failed)? {
        compile(&folder, &module)?;
    }
    Ok(folder)
}

fn is_newer(module: &Path, program: &Path) -> io::Result<bool> {
    match fs::metadata(module) {
        Ok(module) => Ok(fs::metadata(program)?.modified()? < module.modified()?),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Compiles in a folder of this process's own, so that others who do the same find a whole module or none.
fn compile(folder: &Path, module: &Path) -> Result<(), NoSample> {
    let own = folder.join(std::process::id().to_string());
    let source = own.join("bench.erl");
    fs::create_dir_all(&own).map_err(failed)?;
    fs::write(&source, SOURCE).map_err(failed)?;
    let erlc = Command::new("erlc").args(["-Wall", "-Werror", "-o"]).args([&own, &source]).output();
    let outcome = match erlc {
        Ok(erlc) if erlc.status.success() => fs::rename(own.join("bench.beam"), module).map_err(failed),
        Ok(erlc) => {
            let said = String::from_utf8_lossy(&erlc.stdout);
            Err(NoSample::Failed(format!("erlc: {}", said.lines().next().unwrap_or_default())))
        }
        Err(error) => Err(not_started("erlc", &error)),
    };
    fs::remove_dir_all(&own).map_err(failed)?;
    outcome
}

fn not_started(program: &str, error: &io::Error) -> NoSample {
    NoSample::Failed(match error.kind() {
        io::ErrorKind::NotFound => {
            format!("{program} is missing; `apt-get install erlang-base` brings it")
        }
        _ => format!("{program} cannot be started: {error}"),
    })
}

fn failed(error: io::Error) -> NoSample {
    NoSample::Failed(format!("the module of the BEAM: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    #[test]
    fn the_vm_is_asked_for_what_the_others_do() {
        assert_eq!(line("mpsc4", ""), "+S 2:2 +P 1025 fan 1 250000 4");
        assert_eq!(line("fan1000", "workers=1"), "+S 1:1 +P 2024 fan 1000 250 4");
        assert_eq!(line("ask", "scale=0.5"), "+S 2:2 +P 1025 ask 100000");
        assert_eq!(line("skynet", ""), "+S 2:2 +P 1112135 skynet 10 6");
        assert_eq!(line("heap", ""), "+S 2:2 +P 101024 heap 100000");
    }

    #[test]
    fn the_largest_settings_are_within_the_vms_limit() {
        let part = ErlangCase::of(Workload::Skynet, &settings("scale=100")).unwrap();
        assert!(part.actors + OTHER_PROCESSES < 134_217_727);
    }

    #[test]
    fn a_vm_whose_starter_is_gone_ends() {
        let part = ErlangCase { name: "ask", counts: vec![u64::MAX], actors: 1 };
        let mut vm = vm(module(), &part, &Settings::default());
        let ended = vm.stdin(Stdio::null()).output().unwrap();
        let said = "erl ended with exit status: 1: whoever started this is gone";
        assert_eq!(read(&ended), Err(NoSample::Failed(said.to_owned())));
    }

    #[test]
    fn a_run_that_goes_wrong_says_why() {
        let part = ErlangCase { name: "teleport", counts: vec![1], actors: 1 };
        let mut vm = vm(module(), &part, &Settings::default()).spawn().unwrap();
        let alive = vm.stdin.take();
        let outcome = read(&vm.wait_with_output().unwrap());
        drop(alive);
        let Err(NoSample::Failed(why)) = outcome else { panic!("{outcome:?}") };
        assert!(why.starts_with("erl ended with exit status: 1: {function_clause,"), "{why}");
    }

    /// Compiled once for all tests, which share the folder of one process.
    fn module() -> &'static Path {
        static MODULE: LazyLock<PathBuf> = LazyLock::new(|| compiled().unwrap());
        &MODULE
    }

    fn line(workload: &str, words: &str) -> String {
        let settings = settings(words);
        let part = ErlangCase::of(Workload::find(workload).unwrap(), &settings).unwrap();
        let vm = vm(Path::new("module"), &part, &settings);
        let words: Vec<_> = vm.get_args().map(|word| word.to_string_lossy()).collect();
        let hidden = ["-noshell", "-pa", "module", "-run", "bench", "main"];
        let shown = words.iter().filter(|word| !hidden.contains(&word.as_ref()));
        shown.map(AsRef::as_ref).collect::<Vec<_>>().join(" ")
    }

    fn settings(words: &str) -> Settings {
        Settings::parse(words.split_whitespace()).unwrap()
    }
}
