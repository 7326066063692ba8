//! Repeated type names: at most two modules may define the same name, so that a name identifies a type.
//!
//! Definitions in `src/` of every crate and in `bench/` count. Associated types, whose trait says what they are, and
//! types in test modules do not.

use super::Finding;
use super::rust::{RustFile, Token};
use std::collections::{BTreeMap, BTreeSet};

const MODULES_MAX: usize = 2;

/// Names that may repeat, each with the reason.
const ALLOWED: &[(&[&str], &str)] = &[
    (&["Msg"], "the messages of an actor; the name of the module says which actor"),
    (
        &["State", "Inner", "Options", "Command", "Counter"],
        "private to a module, whose name says what they belong to",
    ),
    (&["Readme"], "holds the doctests of a README"),
    (&["UsageError", "CliError", "Request", "ListArgs", "NamedArgs"], "one per command-line parser"),
    (
        &[
            "Contender",
            "Entrant",
            "Score",
            "Outcome",
            "Message",
            "Tell",
            "Ask",
            "Addr",
            "NodeAddr",
            "CounterActor",
            "NodeActor",
        ],
        "one per benchmark or runtime adapter",
    ),
    (
        &["RequestId", "ModelId", "PickReason", "AttemptFailure", "RequestOutcome"],
        "telemetry mirrors the pipeline on purpose",
    ),
];

/// A type and the place that defines it.
struct Definition<'a> {
    path: &'a str,
    line: usize,
    /// Path of the file, followed by the names of the inline modules around the definition.
    module: String,
}

/// Finds names that are defined in more than two modules.
pub(super) fn repeated(files: &[RustFile]) -> Vec<Finding> {
    let test_modules: Vec<String> = files.iter().flat_map(test_module_paths).collect();
    let mut by_name: BTreeMap<&str, Vec<Definition>> = BTreeMap::new();
    for file in files.iter().filter(|file| is_counted(&file.path, &test_modules)) {
        for (name, definition) in definitions(file) {
            by_name.entry(name).or_default().push(definition);
        }
    }
    let allowed: BTreeSet<&str> = ALLOWED.iter().flat_map(|(names, _)| names.iter().copied()).collect();
    by_name.retain(|name, _| !allowed.contains(name));
    by_name.iter().filter_map(|(name, definitions)| finding(name, definitions)).collect()
}

fn finding(name: &str, definitions: &[Definition]) -> Option<Finding> {
    let modules: BTreeSet<&str> = definitions.iter().map(|definition| definition.module.as_str()).collect();
    let (first, others) = definitions.split_first()?;
    if modules.len() <= MODULES_MAX {
        return None;
    }
    let others: Vec<_> = others.iter().map(|other| format!("{}:{}", other.path, other.line)).collect();
    Some(Finding {
        path: first.path.to_owned(),
        line: first.line,
        message: format!(
            "`{name}` is defined in {} modules, the limit is {MODULES_MAX}; also: {}",
            modules.len(),
            others.join(", ")
        ),
        rule: "type-names",
    })
}

fn is_counted(path: &str, test_modules: &[String]) -> bool {
    let is_source = path.contains("/src/") || path.starts_with("bench/");
    let is_workspace = ["crates/", "xtask/", "bench/"].iter().any(|root| path.starts_with(root));
    let is_test = path.contains("/tests/") || test_modules.iter().any(|module| belongs_to(path, module));
    is_workspace && is_source && !is_test
}

fn belongs_to(path: &str, module: &str) -> bool {
    path.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
}

/// Lists the paths, without `.rs`, of the modules that a file declares for tests only.
fn test_module_paths(file: &RustFile) -> Vec<String> {
    let mut paths = Vec::new();
    for (index, three) in file.tokens.windows(3).enumerate() {
        let [keyword, name, end] = three else { continue };
        if keyword.text == "mod" && end.text == ";" && is_for_tests(&file.tokens[..index]) {
            paths.push(format!("{}/{}", module_directory(&file.path), name.text));
        }
    }
    paths
}

/// Returns the directory that contains the submodules of a file.
fn module_directory(path: &str) -> &str {
    let stem = path.strip_suffix(".rs").unwrap_or(path);
    match stem.rsplit_once('/') {
        Some((directory, "lib" | "main" | "mod")) => directory,
        Some(_) | None => stem,
    }
}

/// Reports whether the item after these tokens has an attribute such as `#[cfg(test)]` or `#[cfg(all(test, loom))]`.
fn is_for_tests(before: &[Token]) -> bool {
    let mut rest = before;
    loop {
        match rest.last().map(|token| token.text.as_str()) {
            // The visibility: `pub` or `pub(crate)`.
            Some("pub" | ")") => {
                let public = rest.iter().rposition(|token| token.text == "pub");
                let Some(public) = public else { return false };
                rest = &rest[..public];
            }
            Some("]") => {
                let depth = rest.last().map_or(0, |token| token.depth);
                let open = rest.iter().rposition(|token| token.text == "[" && token.depth == depth);
                let Some(open) = open else { return false };
                let attribute: Vec<_> = rest[open..].iter().map(|token| token.text.as_str()).collect();
                let is_cfg = attribute.get(1) == Some(&"cfg");
                let is_negated = attribute.windows(3).any(|three| three == ["not", "(", "test"]);
                if is_cfg && attribute.contains(&"test") && !is_negated {
                    return true;
                }
                rest = &rest[..open.saturating_sub(1)];
            }
            Some(_) | None => return false,
        }
    }
}

/// A block in braces.
enum Block {
    Module(String),
    TestModule,
    /// An `impl` or a `trait`, whose types are associated types.
    Associated,
    Other,
}

/// Lists a file's types with the places that define them.
fn definitions(file: &RustFile) -> Vec<(&str, Definition<'_>)> {
    let mut found = Vec::new();
    let mut blocks: Vec<Block> = Vec::new();
    let mut item_start = 0;
    for (index, token) in file.tokens.iter().enumerate() {
        match token.text.as_str() {
            "{" => {
                blocks.push(block(&file.tokens[item_start..index]));
                item_start = index + 1;
            }
            "}" => {
                blocks.pop();
                item_start = index + 1;
            }
            ";" => item_start = index + 1,
            "struct" | "enum" | "union" | "trait" | "type" => {
                let name = file.tokens.get(index + 1).filter(|name| name.is_name());
                let is_associated = matches!(blocks.last(), Some(Block::Associated));
                let is_test = blocks.iter().any(|block| matches!(block, Block::TestModule));
                if let Some(name) = name
                    && !is_associated
                    && !is_test
                {
                    let module = module_path(&file.path, &blocks);
                    found
                        .push((name.text.as_str(), Definition { path: &file.path, line: name.line, module }));
                }
            }
            _ => {}
        }
    }
    found
}

fn module_path(path: &str, blocks: &[Block]) -> String {
    let mut module = path.to_owned();
    for block in blocks {
        if let Block::Module(name) = block {
            module = format!("{module}::{name}");
        }
    }
    module
}

/// Classifies the block that an item opens.
fn block(item: &[Token]) -> Block {
    let Some(depth) = item.last().map(|token| token.depth) else { return Block::Other };
    for (index, token) in item.iter().enumerate().filter(|(_, token)| token.depth == depth) {
        match token.text.as_str() {
            "impl" | "trait" => return Block::Associated,
            "fn" | "struct" | "enum" | "union" | "match" | "=" => return Block::Other,
            "mod" if is_for_tests(&item[..index]) => return Block::TestModule,
            "mod" => {
                return Block::Module(item.get(index + 1).map_or(String::new(), |name| name.text.clone()));
            }
            _ => {}
        }
    }
    Block::Other
}

#[cfg(test)]
mod tests {
    use super::super::tests::{messages, rust};
    use super::*;

    #[test]
    fn a_name_in_three_modules_is_reported_with_every_definition() {
        let files = [
            rust("crates/a/src/x.rs", "struct Slot;"),
            rust("crates/a/src/y.rs", "\npub(crate) enum Slot {}"),
            rust("bench/llm/src/z.rs", "type Slot = u8;"),
        ];
        assert_eq!(
            messages(&repeated(&files)),
            [(
                1,
                "`Slot` is defined in 3 modules, the limit is 2; also: crates/a/src/y.rs:2, bench/llm/src/z.rs:1"
            )]
        );
        assert_eq!(messages(&repeated(&files[..2])), []);
    }

    #[test]
    fn inline_modules_count_as_modules_and_one_module_counts_once() {
        let apart = "mod a { struct Slot; }\nmod b { struct Slot; }\nstruct Slot;";
        assert_eq!(repeated(&[rust("crates/a/src/x.rs", apart)]).len(), 1);
        let together = "#[cfg(a)] struct Slot;\n#[cfg(b)] struct Slot;\n#[cfg(c)] struct Slot;";
        assert_eq!(messages(&repeated(&[rust("crates/a/src/x.rs", together)])), []);
    }

    #[test]
    fn associated_types_and_allowed_names_may_repeat() {
        for good in [
            "impl Future for A where B: C<D = E> { type Slot = u8; fn a() {} type Slot2 = u8; }",
            "pub trait State: B { type Slot; }",
            "unsafe impl<T> A for T { type Slot = u8; }",
            "struct State;",
        ] {
            assert_eq!(messages(&repeated(&in_three_files(good))), [], "{good}");
        }
    }

    #[test]
    fn types_in_tests_are_not_counted() {
        for good in [
            "#[cfg(test)] mod tests { struct Slot; mod deeper { struct Slot; } }",
            "#[cfg(all(test, not(loom)))] #[path = \"x.rs\"] pub(crate) mod tests { struct Slot; }",
        ] {
            assert_eq!(messages(&repeated(&in_three_files(good))), [], "{good}");
        }
        assert_eq!(repeated(&in_three_files("#[cfg(not(test))] mod a { struct Slot; }")).len(), 1);
        let test_files = [
            rust("crates/a/src/lib.rs", "#[cfg(test)]\nmod rig;"),
            rust("crates/a/src/rig.rs", "struct Slot;\nmod deep;"),
            rust("crates/a/src/rig/deep.rs", "struct Slot;"),
            rust("crates/a/tests/it/main.rs", "struct Slot;"),
            rust("crates/a/src/x.rs", "struct Slot;"),
            rust("crates/a/src/rigging.rs", "struct Slot;"),
        ];
        assert_eq!(messages(&repeated(&test_files)), []);
    }

    #[test]
    fn types_inside_functions_count() {
        assert_eq!(repeated(&in_three_files("impl A { fn a() -> u8 { struct Slot; 1 } }")).len(), 1);
        assert_eq!(repeated(&in_three_files("fn a() -> impl B { enum Slot {} }")).len(), 1);
    }

    fn in_three_files(text: &str) -> Vec<RustFile> {
        ["x", "y", "z"].iter().map(|name| rust(&format!("crates/a/src/{name}.rs"), text)).collect()
    }
}
