//! Paths: no text contains an absolute path of one machine, and no module is called `mod.rs`.

use super::{File, Finding};

/// Directories whose contents differ from machine to machine.
const MACHINE_ROOTS: &[&str] = &["/home/", "/root/", "/Users/", "/work/"];
const MACHINE_DRIVE: &str = r"C:\";

pub(super) fn machine_paths(file: &File) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        let root = MACHINE_ROOTS.iter().find(|root| has_path_below(line, root, starts_name));
        let drive = Some(&MACHINE_DRIVE).filter(|drive| has_path_below(line, drive, starts_windows_name));
        if let Some(start) = root.or(drive) {
            findings.push(Finding {
                path: file.path.clone(),
                line: index + 1,
                message: format!("a path under {start} exists on one machine only; use a relative path"),
                rule: "machine-path",
            });
        }
    }
    findings
}

/// Reports whether the line has an absolute path below `root`; `root` alone is allowed.
fn has_path_below(line: &str, root: &str, is_next: fn(char) -> bool) -> bool {
    line.match_indices(root).any(|(start, _)| {
        let inside_longer_path = |c: char| c.is_alphanumeric() || "_-.~})*%$".contains(c);
        !line[..start].ends_with(inside_longer_path) && line[start + root.len()..].starts_with(is_next)
    })
}

fn starts_name(c: char) -> bool {
    c.is_alphanumeric() || "._-$<{".contains(c)
}

/// Accepts only a capital letter or an escaped backslash, because `C:\n` in a string contains a line break.
fn starts_windows_name(c: char) -> bool {
    c.is_ascii_uppercase() || c == '\\'
}

pub(super) fn mod_files(file: &File) -> Vec<Finding> {
    if file.path.rsplit('/').next() != Some("mod.rs") {
        return Vec::new();
    }
    vec![Finding {
        path: file.path.clone(),
        line: 1,
        message: "call the file of a module by its name: `foo.rs` next to `foo/`".to_owned(),
        rule: "mod-file",
    }]
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file, messages};
    use super::*;

    #[test]
    fn a_path_of_one_machine_is_found() {
        for root in MACHINE_ROOTS {
            for around in ["see PATH for it", "a=\"PATH\"", "(PATH)", "file://PATH", "x:PATH"] {
                let text = format!("\n{}\n", around.replace("PATH", &format!("{root}alice/repo")));
                let findings = machine_paths(&file("a.md", &text));
                assert_eq!(findings.len(), 1, "{text}");
                assert_eq!(findings[0].line, 2);
            }
        }
        assert_eq!(machine_paths(&file("a.rs", &format!("\"{MACHINE_DRIVE}\\Temp\""))).len(), 1);
        assert_eq!(machine_paths(&file("a.md", &format!("{MACHINE_DRIVE}Users"))).len(), 1);
    }

    #[test]
    fn roots_alone_and_parts_of_other_paths_pass() {
        for good in [
            "neither `/home/…` nor `/root/`",
            "https://example.org/home/page",
            "target/work/x",
            "../root/x",
            "{directory}/work/x",
            r#""C:\n""#,
        ] {
            assert_eq!(messages(&machine_paths(&file("a.md", good))), [], "{good}");
        }
    }

    #[test]
    fn a_mod_file_is_found_by_its_name() {
        assert_eq!(
            messages(&mod_files(&file("crates/a/tests/it/mod.rs", ""))),
            [(1, "call the file of a module by its name: `foo.rs` next to `foo/`")]
        );
        assert_eq!(messages(&mod_files(&file("crates/a/src/xmod.rs", ""))), []);
    }
}
