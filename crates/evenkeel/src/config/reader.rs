//! Reads settings from the file, the environment and flags; records all settings and errors.
//!
//! Guarantees: all errors are found in one pass. A key in the file that no setting reads is an error. Every setting
//! that was read is in the [`EffectiveConfig`], in reading order.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::effective::{EffectiveConfig, Setting};
use super::renamed_keys::{new_key, new_setting, old_key};
use super::source::{ConfigError, ValueSource};
use super::suggest::closest;
use super::value::{ConfigValue, Integer};

/// Environment variables whose names do not follow `EVENKEEL_SECTION_KEY`, by section and key: those in the router load
/// optimization specification (docs/specs.md), `RUST_LOG`, and OpenTelemetry's.
const PREDEFINED_VARIABLES: &[(&str, &str, &str)] = &[
    ("load_manager", "max_waiting", "LLMLB_MAX_WAITING"),
    ("load_manager", "default_timeout_secs", "LLMLB_WAIT_TIMEOUT_SECS"),
    ("load_manager", "warning_threshold", "LLMLB_WARNING_THRESHOLD"),
    ("load_manager", "overload_threshold", "LLMLB_OVERLOAD_THRESHOLD"),
    ("connection_pool", "max_idle_per_host", "LLMLB_POOL_MAX_IDLE"),
    ("connection_pool", "idle_timeout_secs", "LLMLB_POOL_IDLE_TIMEOUT_SECS"),
    ("node_cache", "max_capacity", "LLMLB_CACHE_MAX_CAPACITY"),
    ("node_cache", "ttl_secs", "LLMLB_CACHE_TTL_SECS"),
    ("telemetry", "log", "RUST_LOG"),
    ("telemetry", "otlp_endpoint", "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ("telemetry", "otlp_headers", "OTEL_EXPORTER_OTLP_HEADERS"),
];

/// A command-line flag that overrides a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Without brackets.
    pub section: &'static str,
    pub key: &'static str,
    /// With its dashes.
    pub name: &'static str,
    pub value: String,
}

/// A value and its source.
#[derive(Clone, Debug)]
pub(super) struct SourcedValue<T> {
    pub(super) value: T,
    pub(super) origin: ValueSource,
}

/// A number that was raised to its minimum if it was below.
pub(super) struct RaisedInteger {
    pub(super) value: Integer,
    /// The number in the configuration, if it was raised.
    pub(super) from: Option<Integer>,
}

/// State shared by the sections of one configuration.
pub(super) struct Reader<'a> {
    path: Arc<str>,
    /// Byte offset of each line's start.
    line_starts: Vec<usize>,
    env: &'a BTreeMap<String, String>,
    flags: &'a [Flag],
    state: RefCell<ReadState>,
}

#[derive(Default)]
struct ReadState {
    errors: Vec<ConfigError>,
    effective: EffectiveConfig,
    /// Section and key of every setting.
    known: BTreeSet<(String, &'static str)>,
    /// Keys in the file that no setting read.
    unread: Vec<UnknownKey>,
    variables: Vec<KnownVariable>,
}

/// Environment variable of a setting.
struct KnownVariable {
    name: String,
    /// `EVENKEEL_SECTION_KEY`, which differs from `name` if the variable is predefined.
    regular_name: String,
}

struct UnknownKey {
    section: String,
    key: String,
    origin: ValueSource,
}

impl<'a> Reader<'a> {
    pub(super) fn new(
        path: &str,
        text: &str,
        env: &'a BTreeMap<String, String>,
        flags: &'a [Flag],
    ) -> Reader<'a> {
        let newlines = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
        let line_starts = std::iter::once(0).chain(newlines.map(|(index, _)| index + 1)).collect();
        Reader { path: path.into(), line_starts, env, flags, state: RefCell::default() }
    }

    /// Returns the line that contains a byte offset of the file.
    pub(super) fn line_at(&self, byte: usize) -> ValueSource {
        ValueSource::File {
            path: self.path.clone(),
            line: self.line_starts.partition_point(|start| *start <= byte),
        }
    }

    pub(super) fn error(&self, origin: &ValueSource, message: impl Into<String>) {
        let error = ConfigError { origin: origin.clone(), message: message.into() };
        self.state.borrow_mut().errors.push(error);
    }

    /// Opens the top level of the file.
    pub(super) fn root<'t>(&'t self, table: DeTable<'t>) -> Section<'t> {
        Section {
            reader: self,
            name: String::new(),
            table,
            sources: AllowedSources::All,
            effective_index: None,
        }
    }

    /// Returns the effective configuration, or all errors.
    pub(super) fn finish(self) -> Result<EffectiveConfig, Vec<ConfigError>> {
        let mut state = self.state.into_inner();
        for unread in &state.unread {
            let message = unread.message(&state.known);
            state.errors.push(ConfigError { origin: unread.origin.clone(), message });
        }
        for name in self.env.keys() {
            if let Some(message) = state.unknown_variable(name) {
                state.errors.push(ConfigError { origin: ValueSource::Env(name.clone()), message });
            }
        }
        state.errors.sort();
        state.errors.dedup();
        if state.errors.is_empty() { Ok(state.effective) } else { Err(state.errors) }
    }
}

impl UnknownKey {
    fn message(&self, known: &BTreeSet<(String, &'static str)>) -> String {
        let Self { section, key, .. } = self;
        let location = if section.is_empty() { String::new() } else { format!(" in [{section}]") };
        if let Some(new) = new_key(section, key) {
            return format!("{key:?}{location} was renamed to {new:?}");
        }
        let siblings = known.iter().filter(|(other, _)| other == section).map(|(_, key)| *key);
        if let Some(suggestion) = closest(key, siblings) {
            return format!("unknown key {key:?}{location}; did you mean {suggestion:?}?");
        }
        match known.iter().find(|(section, other)| other == key && !section.is_empty()) {
            Some((section, _)) => format!("unknown key {key:?}{location}; it belongs in [{section}]"),
            None => format!("unknown key {key:?}{location}"),
        }
    }
}

impl ReadState {
    /// Returns an error message for an environment variable that looks like one of ours but belongs to no setting.
    fn unknown_variable(&self, name: &str) -> Option<String> {
        if self.variables.iter().any(|known| known.name == name) || may_be_set_by_kubernetes(name) {
            return None;
        }
        if let Some((section, key)) = new_setting(name, regular_variable) {
            return Some(format!("was renamed to {}", variable(section, key)));
        }
        let regular = self.variables.iter().find(|known| known.regular_name == name);
        let names = || self.variables.iter().map(|known| known.name.as_str());
        let suggestion = regular.map(|known| known.name.as_str()).or_else(|| closest(name, names()));
        let hint = suggestion.map(|suggestion| format!("; did you mean {suggestion}?")).unwrap_or_default();
        let mut sections = self.known.iter().filter(|(section, _)| section.is_empty()).map(|(_, key)| key);
        let names_a_section =
            sections.any(|section| name.starts_with(&format!("EVENKEEL_{}_", section.to_ascii_uppercase())));
        // Other programs may have variables that begin with LLMLB_; only typos of ours are errors.
        let is_llmlb_typo = name.starts_with("LLMLB_") && suggestion.is_some();
        (names_a_section || is_llmlb_typo).then(|| format!("no setting has this variable{hint}"))
    }
}

/// Reports whether Kubernetes may have set a variable, for a service whose name begins with `evenkeel`.
fn may_be_set_by_kubernetes(name: &str) -> bool {
    let ends_with = |suffix: &str| name.ends_with(suffix);
    let describes_a_port =
        name.contains("_PORT_") && ["_TCP", "_UDP", "_PROTO", "_ADDR", "_PORT"].into_iter().any(ends_with);
    describes_a_port || name.contains("_SERVICE_PORT") || ends_with("_SERVICE_HOST") || ends_with("_PORT")
}

/// Sources from which a section's settings may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowedSources {
    All,
    /// Entries of a list such as `[[tenants]]` have no variables and no flags.
    FileOnly,
}

/// One table of the file. Keys that are still unread when it is dropped are errors.
pub(super) struct Section<'a> {
    reader: &'a Reader<'a>,
    /// Without brackets, as in `llm.health`; empty for the top level.
    name: String,
    table: DeTable<'a>,
    sources: AllowedSources,
    /// Index of the section in the effective configuration; the top level has none.
    effective_index: Option<usize>,
}

impl<'a> Section<'a> {
    /// Opens a table within this one; a missing table is empty.
    pub(super) fn section(&mut self, key: &'static str) -> Section<'a> {
        let table = match self.take(key) {
            None => DeTable::new(),
            Some((origin, value)) => match value.into_inner() {
                DeValue::Table(table) => table,
                _ => {
                    self.reader.error(&origin, format!("{key} must be a section, [{}]", self.path(key)));
                    DeTable::new()
                }
            },
        };
        let name = self.path(key);
        let index = self.reader.state.borrow_mut().effective.begin(&name, format!("[{name}]"));
        Section { reader: self.reader, name, table, sources: self.sources, effective_index: Some(index) }
    }

    /// Opens every table of a list within this one, with the line of each.
    pub(super) fn sections(&mut self, key: &'static str) -> Vec<(ValueSource, Section<'a>)> {
        let Some((origin, value)) = self.take(key) else { return Vec::new() };
        let name = self.path(key);
        let DeValue::Array(items) = value.into_inner() else {
            self.reader.error(&origin, format!("{key} must be sections, each [[{name}]]"));
            return Vec::new();
        };
        let mut sections = Vec::new();
        for item in items {
            let origin = self.reader.line_at(item.span().start);
            let DeValue::Table(table) = item.into_inner() else {
                self.reader.error(&origin, format!("{key} must be sections, each [[{name}]]"));
                continue;
            };
            let index = self.reader.state.borrow_mut().effective.begin(&name, format!("[[{name}]]"));
            let section = Section {
                reader: self.reader,
                name: name.clone(),
                table,
                sources: AllowedSources::FileOnly,
                effective_index: Some(index),
            };
            sections.push((origin, section));
        }
        sections
    }

    /// Opens an entry that a list has by default, so that its settings are part of the effective configuration.
    pub(super) fn default_entry(&mut self, key: &'static str) -> Section<'a> {
        let name = self.path(key);
        let index = self.reader.state.borrow_mut().effective.begin(&name, format!("[[{name}]]"));
        let sources = AllowedSources::FileOnly;
        Section { reader: self.reader, name, table: DeTable::new(), sources, effective_index: Some(index) }
    }

    /// Accepts the old name of a renamed key, for files that an earlier version of evenkeel wrote.
    ///
    /// If the file has both names, the old one is still an error.
    pub(super) fn accept_old_name(&mut self, key: &'static str) {
        let Some(old) = old_key(&self.name, key) else { return };
        if self.table.contains_key(key) {
            return;
        }
        if let Some((old_key, value)) = self.table.remove_entry(old) {
            self.table.insert(Spanned::new(old_key.span(), key.into()), value);
        }
    }

    /// Reads a setting that has a default.
    pub(super) fn read<T: ConfigValue>(&mut self, key: &'static str, default: T) -> SourcedValue<T> {
        let setting = self.find(key).unwrap_or(SourcedValue { value: default, origin: ValueSource::Default });
        self.record(key, &setting);
        setting
    }

    /// Reads a setting that may be left out.
    pub(super) fn optional<T: ConfigValue>(&mut self, key: &'static str) -> Option<SourcedValue<T>> {
        let setting = self.find(key)?;
        self.record(key, &setting);
        Some(setting)
    }

    /// Reads a setting that has a default and must lie in a range.
    pub(super) fn within<T>(&mut self, key: &'static str, default: T, range: RangeInclusive<T>) -> T
    where
        T: ConfigValue + PartialOrd + Copy,
    {
        let setting = self.read(key, default);
        self.check_range(key, setting, &range).unwrap_or(default)
    }

    /// Reads a setting that has a default; a value from 0 to the start of the range is raised to it.
    pub(super) fn raised_to(
        &mut self,
        key: &'static str,
        default: Integer,
        range: &RangeInclusive<Integer>,
    ) -> RaisedInteger {
        let mut setting =
            self.find(key).unwrap_or(SourcedValue { value: default, origin: ValueSource::Default });
        let read = setting.value;
        let from = (Integer(0)..*range.start()).contains(&read).then_some(read);
        if from.is_some() {
            setting.value = *range.start();
        }
        self.record_raised(key, &setting, from);
        RaisedInteger { value: self.check_range(key, setting, range).unwrap_or(default), from }
    }

    /// Reads a setting that may be left out and must lie in a range.
    pub(super) fn optional_within<T>(&mut self, key: &'static str, range: RangeInclusive<T>) -> Option<T>
    where
        T: ConfigValue + PartialOrd + Copy,
    {
        let setting = self.optional(key)?;
        self.check_range(key, setting, &range)
    }

    fn check_range<T>(&self, key: &str, setting: SourcedValue<T>, range: &RangeInclusive<T>) -> Option<T>
    where
        T: ConfigValue + PartialOrd,
    {
        if range.contains(&setting.value) {
            return Some(setting.value);
        }
        let min = range.start().to_json();
        let max = range.end().to_json();
        self.reader.error(&setting.origin, format!("{key} must be from {min} to {max}"));
        None
    }

    /// Reads a setting whose value is one of a few names.
    pub(super) fn one_of<T: Copy>(
        &mut self,
        key: &'static str,
        default: &'static str,
        choices: &[(&str, T)],
    ) -> T {
        let setting = self.read(key, default.to_owned());
        let value_of = |text: &str| choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if let Some(value) = value_of(&setting.value) {
            return value;
        }
        let names: Vec<_> = choices.iter().map(|(name, _)| format!("{name:?}")).collect();
        self.reader.error(&setting.origin, format!("{key} must be {}", names.join(" or ")));
        value_of(default).expect("the default is one of the choices")
    }

    pub(super) fn error(&self, origin: &ValueSource, message: impl Display) {
        self.reader.error(origin, message.to_string());
    }

    /// Finds a value; a flag wins over a variable, and a variable over the file.
    ///
    /// A value of the wrong type is an error and treated as missing.
    fn find<T: ConfigValue>(&mut self, key: &'static str) -> Option<SourcedValue<T>> {
        let in_file = self.take(key);
        let override_text = match self.sources {
            AllowedSources::FileOnly => None,
            AllowedSources::All => self.find_override(key),
        };
        let (origin, value) = match (override_text, in_file) {
            (Some((origin, text)), _) => (origin, T::from_text(text.trim())),
            (None, Some((origin, value))) => (origin, T::from_toml(value.get_ref())),
            (None, None) => return None,
        };
        let Some(value) = value else {
            let subject =
                if matches!(origin, ValueSource::File { .. }) { format!("{key} ") } else { String::new() };
            self.reader.error(&origin, format!("{subject}must be {}", T::kind()));
            return None;
        };
        Some(SourcedValue { value, origin })
    }

    /// Returns the flag or else the variable that sets a key.
    fn find_override(&self, key: &'static str) -> Option<(ValueSource, &'a String)> {
        let reader = self.reader;
        let name = variable(&self.name, key);
        let in_env = reader.env.get(&name).map(|text| (ValueSource::Env(name.clone()), text));
        let known = KnownVariable { name, regular_name: regular_variable(&self.name, key) };
        reader.state.borrow_mut().variables.push(known);
        let flag = reader.flags.iter().find(|flag| flag.section == self.name && flag.key == key);
        flag.map(|flag| (ValueSource::Flag(flag.name), &flag.value)).or(in_env)
    }

    fn take(&mut self, key: &'static str) -> Option<(ValueSource, Spanned<DeValue<'a>>)> {
        self.reader.state.borrow_mut().known.insert((self.name.clone(), key));
        let (key, value) = self.table.remove_entry(key)?;
        Some((self.reader.line_at(key.span().start), value))
    }

    fn record<T: ConfigValue>(&self, key: &'static str, setting: &SourcedValue<T>) {
        self.record_raised(key, setting, None);
    }

    fn record_raised<T: ConfigValue>(&self, key: &'static str, setting: &SourcedValue<T>, from: Option<T>) {
        if let Some(index) = self.effective_index {
            let raised_from = from.map(|from| from.to_json());
            let setting =
                Setting { key, value: setting.value.to_json(), origin: setting.origin.clone(), raised_from };
            self.reader.state.borrow_mut().effective.add(index, setting);
        }
    }

    fn path(&self, key: &str) -> String {
        if self.name.is_empty() { key.to_owned() } else { format!("{}.{key}", self.name) }
    }
}

impl Drop for Section<'_> {
    fn drop(&mut self) {
        for (key, _) in &self.table {
            let unread = UnknownKey {
                section: self.name.clone(),
                key: key.get_ref().to_string(),
                origin: self.reader.line_at(key.span().start),
            };
            self.reader.state.borrow_mut().unread.push(unread);
        }
    }
}

/// Returns the environment variable of a setting.
fn variable(section: &str, key: &str) -> String {
    let predefined =
        PREDEFINED_VARIABLES.iter().find(|predefined| predefined.0 == section && predefined.1 == key);
    predefined.map_or_else(|| regular_variable(section, key), |(_, _, name)| (*name).to_owned())
}

fn regular_variable(section: &str, key: &str) -> String {
    format!("EVENKEEL_{section}_{key}").replace('.', "_").to_ascii_uppercase()
}
