//! Dependencies between crates: each crate may use crates of lower layers only.

use super::{File, Finding};
use crate::metadata::Package;

/// Layers from the top down; a crate may use crates of lower rows only.
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

/// Crates that may use anything, each other included; no layer may use them, not even in its tests, except
/// [`TEST_TOOLS`].
const TOOLS: &[&str] = &[
    "evenkeel-sim",
    "evenkeel-sim-node",
    "evenkeel-bench",
    "evenkeel-test-network",
    "evenkeel-test-postgres",
    "xtask",
];

/// Tools that every layer may use in its tests.
const TEST_TOOLS: &[&str] = &["evenkeel-test-network", "evenkeel-test-postgres"];

/// Exceptions, (from, to); each is a decision with a page in `docs/design/`.
///
/// The binary runs simulated model servers: `evenkeel demo` and `evenkeel sim-node`.
const EXCEPTIONS: &[(&str, &str)] = &[("evenkeel", "evenkeel-sim-node")];

/// The position of a crate among the layers.
enum Layer {
    Row(usize),
    Tool,
}

/// Finds dependencies on the same or a higher layer, and crates without a layer.
pub(super) fn dependencies(packages: &[Package], files: &[File]) -> Vec<Finding> {
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
        let is_test_tool =
            |used: &&String| TEST_TOOLS.contains(&used.as_str()) && package.uses_in_tests.contains(used);
        for used in package.uses.iter().filter(|used| !is_test_tool(used)) {
            if let Some(message) = violation(&package.name, used) {
                findings.push(finding(dependency_line(text, used), message));
            }
        }
    }
    findings
}

/// Explains why `from` may not use `to`; `None` if it may, or if a crate has no layer, which is reported separately.
fn violation(from: &str, to: &str) -> Option<String> {
    if from == to || EXCEPTIONS.contains(&(from, to)) {
        return None;
    }
    match (layer(from)?, layer(to)?) {
        (Layer::Tool, _) => None,
        (Layer::Row(_), Layer::Tool) => Some(format!("`{from}` uses the tool `{to}`; no layer may")),
        (Layer::Row(upper), Layer::Row(lower)) if upper < lower => None,
        (Layer::Row(upper), Layer::Row(lower)) if upper == lower => {
            Some(format!("`{from}` uses `{to}` of its own layer; only lower layers are allowed"))
        }
        (Layer::Row(_), Layer::Row(_)) => {
            Some(format!("`{from}` uses `{to}` of a higher layer; only lower layers are allowed"))
        }
    }
}

fn layer(name: &str) -> Option<Layer> {
    if TOOLS.contains(&name) {
        return Some(Layer::Tool);
    }
    LAYERS.iter().position(|layer| layer.contains(&name)).map(Layer::Row)
}

/// Finds the line that declares a dependency; 1 if the manifest declares it in another form.
fn dependency_line(manifest: &str, name: &str) -> usize {
    let is_dependency = |line: &str| {
        let key = line.strip_prefix("[dependencies.").or_else(|| line.strip_prefix("[dev-dependencies."));
        let rest = key.unwrap_or(line).strip_prefix(name);
        rest.is_some_and(|rest| rest.starts_with(['.', ' ', '=', ']']))
    };
    manifest.lines().position(is_dependency).map_or(1, |index| index + 1)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages};
    use super::*;

    #[test]
    fn a_dependency_on_a_lower_layer_passes() {
        assert_eq!(violations("evenkeel", &["evenkeel-sql", "evenkeel-policy"]), [] as [String; 0]);
        assert_eq!(violations("evenkeel-pipeline", &["evenkeel-actor"]), [] as [String; 0]);
        assert_eq!(violations("evenkeel-policy", &["evenkeel-policy"]), [] as [String; 0]);
    }

    #[test]
    fn a_dependency_on_the_same_or_a_higher_layer_is_found() {
        assert_eq!(
            violations("evenkeel-policy", &["evenkeel-queue"]),
            ["`evenkeel-policy` uses `evenkeel-queue` of a higher layer; only lower layers are allowed"]
        );
        assert_eq!(
            violations("evenkeel-llm", &["evenkeel-sql"]),
            ["`evenkeel-llm` uses `evenkeel-sql` of its own layer; only lower layers are allowed"]
        );
    }

    #[test]
    fn tools_may_use_anything_and_no_layer_may_use_them() {
        assert_eq!(violations("evenkeel-bench", &["evenkeel-sim", "evenkeel"]), [] as [String; 0]);
        assert_eq!(
            violations("evenkeel-policy", &["evenkeel-sim"]),
            ["`evenkeel-policy` uses the tool `evenkeel-sim`; no layer may"]
        );
    }

    #[test]
    fn a_layer_may_use_a_test_tool_in_its_tests_only() {
        let tool = "evenkeel-test-postgres";
        let in_tests = Package { uses_in_tests: vec![tool.to_owned()], ..package("evenkeel-sql", &[tool]) };
        assert_eq!(messages(&dependencies(&[in_tests], &[])), []);
        assert_eq!(
            violations("evenkeel-sql", &[tool]),
            ["`evenkeel-sql` uses the tool `evenkeel-test-postgres`; no layer may"]
        );
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        let messages = violations("evenkeel-new", &["evenkeel"]);
        assert_eq!(
            messages,
            ["crate `evenkeel-new` has no layer; add it to the tables in xtask/src/tidy/layers.rs"]
        );
    }

    #[test]
    fn a_finding_has_the_line_of_the_dependency() {
        let manifest =
            "[package]\nname = \"x\"\n\n[dev-dependencies]\nevenkeel-sim-x = \"1\"\nevenkeel-sim = {}\n";
        let findings =
            dependencies(&[package("evenkeel-actor", &["evenkeel-sim"])], &[file("Cargo.toml", manifest)]);
        assert_eq!(messages(&findings), [(6, "`evenkeel-actor` uses the tool `evenkeel-sim`; no layer may")]);
        assert_eq!(dependency_line("[dependencies.evenkeel-sim]\n", "evenkeel-sim"), 1);
    }

    fn violations(name: &str, uses: &[&str]) -> Vec<String> {
        dependencies(&[package(name, uses)], &[]).into_iter().map(|finding| finding.message).collect()
    }

    fn package(name: &str, uses: &[&str]) -> Package {
        Package {
            name: name.to_owned(),
            manifest: "Cargo.toml".to_owned(),
            features: Vec::new(),
            uses: uses.iter().map(|&used| used.to_owned()).collect(),
            uses_in_tests: Vec::new(),
        }
    }
}
