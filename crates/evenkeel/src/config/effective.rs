//! A configuration as meant: every setting that was read, with its value and where that comes from.

use std::fmt::Write as _;

use serde_json::{Map, Value as Json, json};

use super::source::ValueSource;

/// One setting as meant.
#[derive(Clone, Debug, PartialEq)]
pub struct Setting {
    /// Its key.
    pub key: &'static str,
    /// What it is; a secret is `[hidden]`.
    pub value: Json,
    /// Where that comes from.
    pub origin: ValueSource,
}

/// Everything that was read, without secrets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EffectiveConfig(Vec<EffectiveSection>);

#[derive(Clone, Debug, PartialEq)]
struct EffectiveSection {
    name: String,
    header: String,
    settings: Vec<Setting>,
}

impl EffectiveConfig {
    /// Begins a section, and names its place.
    pub(super) fn begin(&mut self, name: &str, header: String) -> usize {
        self.0.push(EffectiveSection { name: name.to_owned(), header, settings: Vec::new() });
        self.0.len() - 1
    }

    pub(super) fn add(&mut self, place: usize, setting: Setting) {
        if let Some(part) = self.0.get_mut(place) {
            part.settings.push(setting);
        }
    }

    /// Writes it as a file that means the same, with the origin of what is not a default.
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        for part in &self.0 {
            let between = if text.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{between}{}", part.header);
            for Setting { key, value, origin } in &part.settings {
                let from =
                    if *origin == ValueSource::Default { String::new() } else { format!("  # {origin}") };
                let _ = writeln!(text, "{key} = {}{from}", toml_text(value));
            }
        }
        text
    }

    /// Writes it for programs: sections by name, settings with `value` and `from`.
    pub fn to_json(&self) -> Json {
        let mut sections = Map::new();
        for part in &self.0 {
            let entry = |setting: &Setting| {
                (setting.key.to_owned(), json!({"value": setting.value, "from": setting.origin.to_string()}))
            };
            let settings = Json::Object(part.settings.iter().map(entry).collect());
            if part.header.starts_with("[[") {
                let list = sections.entry(part.name.clone()).or_insert_with(|| json!([]));
                list.as_array_mut().expect("a name is either a section's or a list's").push(settings);
            } else {
                sections.insert(part.name.clone(), settings);
            }
        }
        Json::Object(sections)
    }

    /// Names the settings that differ, as `section.key`, of the sections that are single tables.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mine = self.flat();
        let others = other.flat();
        let changed = mine.iter().filter(|(name, value)| !others.contains(&(name.clone(), *value)));
        let gone = others.iter().filter(|(name, _)| !mine.iter().any(|(mine, _)| mine == name));
        changed.chain(gone).map(|(name, _)| name.clone()).collect()
    }

    fn flat(&self) -> Vec<(String, &Json)> {
        let single = self.0.iter().filter(|part| !part.header.starts_with("[["));
        single
            .flat_map(|part| {
                part.settings.iter().map(move |set| (format!("{}.{}", part.name, set.key), &set.value))
            })
            .collect()
    }
}

/// Writes a value as TOML does; objects and nulls do not occur.
pub(super) fn toml_text(value: &Json) -> String {
    match value {
        Json::Array(items) => {
            let items: Vec<_> = items.iter().map(toml_text).collect();
            format!("[{}]", items.join(", "))
        }
        // JSON leaves this one as it is, TOML does not.
        Json::String(_) => value.to_string().replace('\u{7f}', "\\u007F"),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::Object(_) => value.to_string(),
    }
}
