//! `[[llm.models]]`: aliases of models, and their fallbacks.

use evenkeel_llm::{FallbackOn, ModelErrorKind, ModelOptions, ModelTable, NodeOptions};

use super::reader::Section;
use super::source::ValueSource;

/// An entry, and the lines that its errors refer to.
struct ModelEntry {
    options: ModelOptions,
    line: ValueSource,
    alias_of: ValueSource,
    fallbacks: ValueSource,
}

pub(super) fn read(section: &mut Section<'_>, nodes: &[(ValueSource, NodeOptions)]) -> ModelTable {
    let tables = section.sections("models");
    let entries: Vec<_> = tables.into_iter().map(|(line, mut table)| read_entry(&mut table, line)).collect();
    for entry in &entries {
        check_served(section, entry, &entries, nodes);
    }
    let options: Vec<_> = entries.iter().map(|entry| entry.options.clone()).collect();
    ModelTable::new(&options).unwrap_or_else(|errors| {
        for error in errors {
            let entry = &entries[error.entry];
            let origin = match error.kind {
                ModelErrorKind::Cycle => &entry.alias_of,
                ModelErrorKind::TooManyFallbacks | ModelErrorKind::FallbackTwice { .. } => &entry.fallbacks,
                ModelErrorKind::TooMany
                | ModelErrorKind::Twice
                | ModelErrorKind::InvalidName { .. }
                | ModelErrorKind::Empty => &entry.line,
            };
            section.error(origin, error);
        }
        ModelTable::default()
    })
}

fn read_entry(table: &mut Section<'_>, line: ValueSource) -> ModelEntry {
    let name = table.optional::<String>("name").map(|name| name.value);
    if name.is_none() {
        table.error(&line, "a model needs a name");
    }
    let alias_of = table.optional::<String>("alias_of");
    let fallbacks = table.read("fallbacks", Vec::<String>::new());
    let choices = [("outage", FallbackOn::Outage), ("capacity", FallbackOn::Capacity)];
    ModelEntry {
        alias_of: alias_of.as_ref().map_or_else(|| line.clone(), |alias| alias.origin.clone()),
        fallbacks: fallbacks.origin,
        line,
        options: ModelOptions {
            name: name.unwrap_or_default(),
            alias_of: alias_of.map(|alias| alias.value),
            fallbacks: fallbacks.value,
            fallback_on: table.one_of("fallback_on", "outage", &choices),
        },
    }
}

/// Rejects models that no node serves, if all nodes list their models, and an alias that hides the model of a node.
fn check_served(
    section: &Section<'_>,
    entry: &ModelEntry,
    entries: &[ModelEntry],
    nodes: &[(ValueSource, NodeOptions)],
) {
    let options = &entry.options;
    let listing = |name: &str| {
        let lists = |node: &&NodeOptions| node.models.iter().any(|model| is_model(model, name));
        nodes.iter().map(|(_, node)| node).find(lists)
    };
    if options.alias_of.is_some()
        && let Some(node) = listing(&options.name)
    {
        let message =
            format!("model {:?}: an alias would hide this model of node {:?}", options.name, node.name);
        section.error(&entry.line, message);
    }
    // The models of the other nodes are not known yet.
    if nodes.is_empty() || nodes.iter().any(|(_, node)| node.models.is_empty()) {
        return;
    }
    let own = options.alias_of.as_ref().map_or((&options.name, &entry.line), |name| (name, &entry.alias_of));
    let fallbacks = options.fallbacks.iter().map(|name| (name, &entry.fallbacks));
    for (name, origin) in [own].into_iter().chain(fallbacks) {
        let is_alias =
            || entries.iter().any(|other| other.options.name == *name && other.options.alias_of.is_some());
        if !name.is_empty() && listing(name).is_none() && !is_alias() {
            section.error(origin, format!("model {:?}: no node lists the model {name:?}", options.name));
        }
    }
}

/// Reports whether a client's name means this model of a node: Ollama lists `name:latest`, and clients send `name`.
fn is_model(model: &str, name: &str) -> bool {
    model == name || !name.contains(':') && model.strip_suffix(":latest") == Some(name)
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, ConfigSources};

    const NODE: &str = "[[llm.nodes]]\nname = 'one'\nurl = 'http://10.0.0.1:8000'\n";
    const LISTED: &str = "models = ['llama', 'qwen:latest']\n";

    /// Returns the errors, joined.
    fn errors(text: &str) -> String {
        let file = Some(("e.toml".to_owned(), text.to_owned()));
        match Config::read(&ConfigSources { file, ..ConfigSources::default() }) {
            Ok(_) => String::new(),
            Err(errors) => errors.to_string(),
        }
    }

    #[test]
    fn aliases_and_fallbacks_are_read() {
        let entries = "[[llm.models]]\nname = 'gpt-4o'\nalias_of = 'llama'\nfallbacks = ['qwen']\n\
            fallback_on = 'capacity'\n[[llm.models]]\nname = 'llama'\nfallbacks = ['mini']\n\
            [[llm.models]]\nname = 'mini'\nalias_of = 'qwen'\n";
        assert_eq!(errors(&format!("{NODE}{LISTED}{entries}")), "");
        assert_eq!(errors(entries), "", "nodes may be added at run time");
    }

    #[test]
    fn an_error_names_the_line() {
        let text = |entry: &str| errors(&format!("{NODE}{LISTED}[[llm.models]]\n{entry}\n"));
        for (entry, expected) in [
            ("name = 'gpt'\nalias_of = 'lama'", "e.toml:7: model \"gpt\": no node lists the model \"lama\""),
            ("name = 'gpt'\nalias_of = 'gpt'", "e.toml:7: model \"gpt\": its aliases form a cycle"),
            ("name = 'llama'\nfallbacks = ['x']", "e.toml:7: model \"llama\": no node lists the model \"x\""),
            (
                "name = 'lama'\nfallbacks = ['llama']",
                "e.toml:5: model \"lama\": no node lists the model \"lama\"",
            ),
            (
                "name = 'llama'\nalias_of = 'qwen'",
                "e.toml:5: model \"llama\": an alias would hide this model of node \"one\"",
            ),
            (
                "name = 'llama'\nfallbacks = ['llama']",
                "e.toml:7: model \"llama\": its fallbacks lead to \"llama\"",
            ),
            ("name = 'llama'", "e.toml:5: model \"llama\": it needs alias_of or fallbacks"),
            ("alias_of = 'llama'", "e.toml:5: a model needs a name"),
            ("name = 'gpt'\nalias = 'llama'", "unknown key \"alias\" in [llm.models]"),
            ("name = 'gpt'\nalias_of = 'llama'\nfallback_on = 'error'", "e.toml:8: fallback_on must be"),
        ] {
            let found = text(entry);
            assert!(found.contains(expected), "{entry}: {found}");
        }
    }

    #[test]
    fn models_of_nodes_that_do_not_list_them_are_not_checked() {
        assert_eq!(errors(&format!("{NODE}[[llm.models]]\nname = 'gpt'\nalias_of = 'anything'\n")), "");
    }
}
