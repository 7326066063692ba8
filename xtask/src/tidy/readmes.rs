//! Checks that every package under `crates/` has a README.md.

use super::{File, Finding};
use crate::metadata::Package;

const CRATES: &str = "crates/";

pub(super) fn missing_readmes(packages: &[Package], files: &[File]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in packages.iter().filter(|package| package.manifest.starts_with(CRATES)) {
        let Some(directory) = package.manifest.strip_suffix("Cargo.toml") else { continue };
        let readme = format!("{directory}README.md");
        if !files.iter().any(|file| file.path == readme) {
            findings.push(Finding {
                message: format!("crate `{}` has no README.md", package.name),
                path: readme,
                line: 1,
                rule: "readmes",
            });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages};
    use super::*;

    #[test]
    fn a_crate_without_a_readme_is_reported() {
        let packages = [package("keel", "crates/keel/Cargo.toml"), package("xtask", "xtask/Cargo.toml")];
        let others = [file("README.md", ""), file("crates/hull/README.md", "")];
        assert_eq!(messages(&missing_readmes(&packages, &others)), [(1, "crate `keel` has no README.md")]);
        assert_eq!(messages(&missing_readmes(&packages, &[file("crates/keel/README.md", "")])), []);
    }

    fn package(name: &str, manifest: &str) -> Package {
        Package {
            name: name.to_owned(),
            manifest: manifest.to_owned(),
            features: Vec::new(),
            uses: Vec::new(),
            uses_in_tests: Vec::new(),
        }
    }
}
