//! The workspace as `cargo metadata` describes it: crates, features and the dependencies between them.

use crate::error::TaskError;
use crate::process::Cmd;
use serde_json::Value;
use std::path::Path;

/// A crate of the workspace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Path of its `Cargo.toml`, relative to the repository's root, with forward slashes.
    pub(crate) manifest: String,
    pub(crate) features: Vec<String>,
    /// Crates of the workspace that it depends on, including build and dev-dependencies, without duplicates.
    pub(crate) uses: Vec<String>,
    /// Those of `uses` that are dev-dependencies only.
    pub(crate) uses_in_tests: Vec<String>,
}

/// Lists the crates of the workspace.
pub(crate) fn packages() -> Result<Vec<Package>, TaskError> {
    parse(&Cmd::cargo("metadata --no-deps --locked --format-version 1").output()?)
}

fn parse(json: &str) -> Result<Vec<Package>, TaskError> {
    let unreadable = || TaskError::new("`cargo metadata` printed an unknown format");
    let metadata: Value = serde_json::from_str(json).map_err(|_| unreadable())?;
    let root = metadata["workspace_root"].as_str().ok_or_else(unreadable)?;
    let packages = metadata["packages"].as_array().ok_or_else(unreadable)?;
    packages.iter().map(|package| parse_package(package, Path::new(root)).ok_or_else(unreadable)).collect()
}

fn parse_package(package: &Value, root: &Path) -> Option<Package> {
    let manifest = Path::new(package["manifest_path"].as_str()?).strip_prefix(root).ok()?;
    let manifest: Vec<_> = manifest.iter().map(|part| part.to_string_lossy()).collect();
    let mut uses = Vec::new();
    let mut uses_beyond_tests = Vec::new();
    for dependency in package["dependencies"].as_array()?.iter().filter(|used| used["path"].is_string()) {
        let name = dependency["name"].as_str()?.to_owned();
        if dependency["kind"] != "dev" {
            uses_beyond_tests.push(name.clone());
        }
        uses.push(name);
    }
    uses.sort();
    uses.dedup();
    let uses_in_tests = uses.iter().filter(|used| !uses_beyond_tests.contains(used)).cloned().collect();
    Some(Package {
        name: package["name"].as_str()?.to_owned(),
        manifest: manifest.join("/"),
        features: package["features"].as_object()?.keys().cloned().collect(),
        uses,
        uses_in_tests,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dependencies_with_a_path_belong_to_the_workspace() {
        let json = r#"{"workspace_root": "/repo", "packages": [{
            "name": "hull", "manifest_path": "/repo/crates/hull/Cargo.toml",
            "features": {"sail": [], "default": ["sail"]},
            "dependencies": [
                {"name": "libm", "kind": null},
                {"name": "keel", "kind": null, "path": "/repo/crates/keel"},
                {"name": "keel", "kind": "dev", "path": "/repo/crates/keel"},
                {"name": "dock", "kind": "dev", "path": "/repo/crates/dock"}]}]}"#;
        let hull = Package {
            name: "hull".to_owned(),
            manifest: "crates/hull/Cargo.toml".to_owned(),
            features: vec!["default".to_owned(), "sail".to_owned()],
            uses: vec!["dock".to_owned(), "keel".to_owned()],
            uses_in_tests: vec!["dock".to_owned()],
        };
        assert_eq!(parse(json), Ok(vec![hull]));
    }

    #[test]
    fn an_unknown_format_is_an_error() {
        assert!(parse("{}").is_err());
        assert!(parse("no json").is_err());
    }
}
