//! The effective configuration: every setting that was read, with its value and source.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use super::source::ValueSource;

/// One effective setting.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    pub key: &'static str,
    /// `[hidden]` for secrets.
    pub value: Json,
    pub origin: ValueSource,
    /// The value in the source, if it was below the minimum and raised to it.
    pub raised_from: Option<Json>,
}

/// Every setting that was read, without secrets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EffectiveConfig(Vec<EffectiveSection>);

#[derive(Clone, Debug, PartialEq)]
struct EffectiveSection {
    name: String,
    header: String,
    settings: Vec<Setting>,
}

impl EffectiveConfig {
    /// Adds an empty section and returns its index.
    pub(super) fn begin(&mut self, name: &str, header: String) -> usize {
        self.0.push(EffectiveSection { name: name.to_owned(), header, settings: Vec::new() });
        self.0.len() - 1
    }

    pub(super) fn add(&mut self, index: usize, setting: Setting) {
        if let Some(section) = self.0.get_mut(index) {
            section.settings.push(setting);
        }
    }

    /// Returns an equivalent config file; each value that is not a default has its source as a comment.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for section in &self.0 {
            let separator = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{separator}{}", section.header);
            for Setting { key, value, origin, raised_from } in &section.settings {
                let comment = match (origin, raised_from) {
                    (ValueSource::Default, _) => String::new(),
                    (origin, None) => format!("  # {origin}"),
                    (origin, Some(from)) => format!("  # {origin}, raised from {from} to the minimum"),
                };
                let _ = writeln!(text, "{key} = {}{comment}", toml_value(value));
            }
        }
        text
    }

    /// Returns sections by name; each setting has `value` and `from`.
    pub fn to_json(&self) -> Json {
        let mut sections = Map::new();
        for section in &self.0 {
            let entry = |setting: &Setting| {
                (setting.key.to_owned(), json!({"value": setting.value, "from": setting.origin.to_string()}))
            };
            let settings = Json::Object(section.settings.iter().map(entry).collect());
            if section.header.starts_with("[[") {
                let list = sections.entry(section.name.clone()).or_insert_with(|| json!([]));
                list.as_array_mut().expect("a name belongs to a section or to a list").push(settings);
            } else {
                sections.insert(section.name.clone(), settings);
            }
        }
        Json::Object(sections)
    }

    /// Returns the settings that differ, as `section.key`; lists such as `[[tenants]]` are not compared.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let own = self.flatten();
        let others = other.flatten();
        let changed = own.iter().filter(|(name, value)| !others.contains(&(name.clone(), *value)));
        let removed = others.iter().filter(|(name, _)| !own.iter().any(|(own, _)| own == name));
        changed.chain(removed).map(|(name, _)| name.clone()).collect()
    }

    fn flatten(&self) -> Vec<(String, &Json)> {
        let tables = self.0.iter().filter(|section| !section.header.starts_with("[["));
        tables
            .flat_map(|section| {
                let named = |setting: &Setting| format!("{}.{}", section.name, setting.key);
                section.settings.iter().map(move |setting| (named(setting), &setting.value))
            })
            .collect()
    }
}

/// Formats a value as TOML; nulls do not occur.
pub(super) fn toml_value(value: &Json) -> String {
    match value {
        Json::Array(items) => {
            let items: Vec<_> = items.iter().map(toml_value).collect();
            format!("[{}]", items.join(", "))
        }
        Json::Object(entries) => {
            let entry = |(key, value): (&String, &Json)| {
                format!("{} = {}", toml_value(&json!(key)), toml_value(value))
            };
            let entries: Vec<_> = entries.iter().map(entry).collect();
            format!("{{{}}}", entries.join(", "))
        }
        // JSON does not escape U+007F, TOML requires it.
        Json::String(_) => value.to_string().replace('\u{7f}', "\\u007F"),
        Json::Null | Json::Bool(_) | Json::Number(_) => value.to_string(),
    }
}
