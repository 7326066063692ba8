//! Which crate may use which: arrows point down only.

use super::{File, Finding};
use crate::metadata::Package;

/// From the top down; a crate uses crates of lower rows only.
const LAYERS: &[&[&str]] = &[
    &["evenkeel"],
    &["evenkeel-llm", "evenkeel-sql", "evenkeel-sqs", "evenkeel-pgwire", "evenkeel-console"],
    &["evenkeel-server"],
    &["evenkeel-scheduler", "evenkeel-cluster"],
    &["evenkeel-upstream", "evenkeel-postgres"],
    &["evenkeel-link"],
    &["evenkeel-pipeline", "evenkeel-queue"],
    &["evenkeel-actor", "evenkeel-telemetry"],
    &["evenkeel-policy"],
];

/// Crates that may use anything, each other included; no layer may use them, not even in its tests.
const TOOLS: &[&str] = &["evenkeel-sim", "evenkeel-sim-node", "evenkeel-bench", "xtask"];

/// Exceptions, (from, to); each is a decision with a page in `docs/design/`.
///
/// The binary runs simulated model servers: `evenkeel demo` and `evenkeel sim-node`.
const EXCEPTIONS: &[(&str, &str)] = &[("evenkeel", "evenkeel-sim-node")];

enum Layer {
    Row(usize),
    Tool,
}

/// Finds arrows that point up or sideways, and crates that have no place yet.
pub(super) fn arrows(packages: &[Package], files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages {
        let manifest = files.iter().find(|file| file.path == package.manifest);
        let text = manifest.map_or("", |file| file.text.as_str());
        let finding =
            |line, message| Finding { path: package.manifest.clone(), line, message, rule: "layers" };
        if layer(&package.name).is_none() {
            let message = format!(
                "crate `{}` has no layer; add it to the tables in xtask/src/tidy/layers.rs",
                package.name
            );
            findings.push(finding(1, message));
            continue;
        }
        for used in &package.uses {
            if let Some(message) = fault(&package.name, used) {
                findings.push(finding(dependency_line(text, used), message));
            }
        }
    }
    findings
}

/// Says what is wrong with `from` using `to`; a crate without a place is reported as such, not here.
fn fault(from: &str, to: &str) -> Option<String> {
    if from == to || EXCEPTIONS.contains(&(from, to)) {
        return None;
    }
    match (layer(from)?, layer(to)?) {
        (Layer::Tool, _) => None,
        (Layer::Row(_), Layer::Tool) => Some(format!("`{from}` uses the tool `{to}`; nothing may")),
        (Layer::Row(upper), Layer::Row(lower)) if upper < lower => None,
        (Layer::Row(upper), Layer::Row(lower)) if upper == lower => {
            Some(format!("`{from}` uses `{to}` of its own layer; arrows point down only"))
        }
        (Layer::Row(_), Layer::Row(_)) => {
            Some(format!("`{from}` uses `{to}` of a layer above; arrows point down only"))
        }
    }
}

fn layer(name: &str) -> Option<Layer> {
    if TOOLS.contains(&name) {
        return Some(Layer::Tool);
    }
    LAYERS.iter().position(|layer| layer.contains(&name)).map(Layer::Row)
}

/// Finds the line that names a dependency; the first where a manifest spells it in another way.
fn dependency_line(manifest: &str, name: &str) -> usize {
    let names_it = |line: &str| {
        let key = line.strip_prefix("[dependencies.").or_else(|| line.strip_prefix("[dev-dependencies."));
        let rest = key.unwrap_or(line).strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=', ']']))
    };
    manifest.lines().position(names_it).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages};
    use super::*;

    #[test]
    fn an_arrow_down_passes() {
        assert_eq!(faults("evenkeel", &["evenkeel-sql", "evenkeel-policy"]), [] as [String; 0]);
        assert_eq!(faults("evenkeel-pipeline", &["evenkeel-actor"]), [] as [String; 0]);
        assert_eq!(faults("evenkeel-policy", &["evenkeel-policy"]), [] as [String; 0]);
    }

    #[test]
    fn an_arrow_up_or_sideways_is_found() {
        assert_eq!(
            faults("evenkeel-policy", &["evenkeel-queue"]),
            ["`evenkeel-policy` uses `evenkeel-queue` of a layer above; arrows point down only"]
        );
        assert_eq!(
            faults("evenkeel-llm", &["evenkeel-sql"]),
            ["`evenkeel-llm` uses `evenkeel-sql` of its own layer; arrows point down only"]
        );
    }

    #[test]
    fn tools_use_anything_and_nothing_uses_them() {
        assert_eq!(faults("evenkeel-bench", &["evenkeel-sim", "evenkeel"]), [] as [String; 0]);
        assert_eq!(
            faults("evenkeel-policy", &["evenkeel-sim"]),
            ["`evenkeel-policy` uses the tool `evenkeel-sim`; nothing may"]
        );
    }

    #[test]
    fn a_crate_without_a_layer_is_told_where_to_go() {
        let messages = faults("evenkeel-new", &["evenkeel"]);
        assert_eq!(
            messages,
            ["crate `evenkeel-new` has no layer; add it to the tables in xtask/src/tidy/layers.rs"]
        );
    }

    #[test]
    fn a_finding_points_at_the_dependency() {
        let manifest =
            "[package]\nname = \"x\"\n\n[dev-dependencies]\nevenkeel-sim-x = \"1\"\nevenkeel-sim = {}\n";
        let findings =
            arrows(&[package("evenkeel-actor", &["evenkeel-sim"])], &[file("Cargo.toml", manifest)]);
        assert_eq!(messages(&findings), [(6, "`evenkeel-actor` uses the tool `evenkeel-sim`; nothing may")]);
        assert_eq!(dependency_line("[dependencies.evenkeel-sim]\n", "evenkeel-sim"), 1);
    }

    fn faults(name: &str, uses: &[&str]) -> Vec<String> {
        arrows(&[package(name, uses)], &[]).into_iter().map(|finding| finding.message).collect()
    }

    fn package(name: &str, uses: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            manifest: "Cargo.toml".to_owned(),
            features: Vec::new(),
            uses: uses.iter().map(|&used| used.to_owned()).collect(),
        }
    }
}
