//! Reads settings one by one from file, environment and flags, and remembers what was read and what was wrong.
//!
//! Bound: every mistake is found in one go. What a file holds and nobody read is a mistake; what was read is shown by
//! [`Shown`], in the order it was read in.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::Arc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::effective::{EffectiveConfig, Setting};
use super::source::{ConfigError, ValueSource};
use super::suggest::closest;
use super::value::ConfigValue;

/// Variables with names of their own, by section and key: those of seed 001, the one all Rust programs know, and those
/// of OpenTelemetry.
const GIVEN_VARIABLES: &[(&str, &str, &str)] = &[
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

/// A flag that stands for a setting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// The section, without brackets.
    pub section: &'static str,
    /// The key.
    pub key: &'static str,
    /// The flag's name, with its dashes.
    pub name: &'static str,
    /// What it was given.
    pub value: String,
}

/// A value and where it comes from.
#[derive(Clone, Debug)]
pub(super) struct SourcedValue<T> {
    pub(super) value: T,
    pub(super) origin: ValueSource,
}

/// What the sections of one configuration share.
pub(super) struct Reader<'a> {
    path: Arc<str>,
    /// Where the lines of the file begin.
    lines: Vec<usize>,
    env: &'a BTreeMap<String, String>,
    flags: &'a [Flag],
    notes: RefCell<ReadState>,
}

#[derive(Default)]
struct ReadState {
    mistakes: Vec<ConfigError>,
    shown: EffectiveConfig,
    /// What could have been set: section and key.
    known: BTreeSet<(String, &'static str)>,
    /// What the file holds and nobody read.
    unread: Vec<UnknownKey>,
    /// The variables that mean something, each with what it would be called by rule.
    variables: Vec<(String, String)>,
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
        let breaks = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at + 1);
        let lines = std::iter::once(0).chain(breaks).collect();
        Reader { path: path.into(), lines, env, flags, notes: RefCell::default() }
    }

    /// The place of a byte of the file.
    pub(super) fn at(&self, byte: usize) -> ValueSource {
        ValueSource::File {
            path: self.path.clone(),
            line: self.lines.partition_point(|begin| *begin <= byte),
        }
    }

    pub(super) fn error(&self, origin: &ValueSource, what: impl Into<String>) {
        self.notes.borrow_mut().mistakes.push(ConfigError { origin: origin.clone(), what: what.into() });
    }

    /// Opens the file's outermost level.
    pub(super) fn root<'t>(&'t self, table: DeTable<'t>) -> Section<'t> {
        Section { reader: self, name: String::new(), table, from: AllowedSources::Everywhere, shown: None }
    }

    /// Tells what was read, or everything that was wrong.
    pub(super) fn finish(self) -> Result<EffectiveConfig, Vec<ConfigError>> {
        let mut notes = self.notes.into_inner();
        for unread in &notes.unread {
            let what = unread.what(&notes.known);
            notes.mistakes.push(ConfigError { origin: unread.origin.clone(), what });
        }
        for name in self.env.keys() {
            if let Some(what) = notes.unknown_variable(name) {
                notes.mistakes.push(ConfigError { origin: ValueSource::Env(name.clone()), what });
            }
        }
        notes.mistakes.sort();
        notes.mistakes.dedup();
        if notes.mistakes.is_empty() { Ok(notes.shown) } else { Err(notes.mistakes) }
    }
}

impl UnknownKey {
    fn what(&self, known: &BTreeSet<(String, &'static str)>) -> String {
        let Self { section, key, .. } = self;
        let beside = known.iter().filter(|(at, _)| at == section).map(|(_, key)| *key);
        let place = if section.is_empty() { String::new() } else { format!(" in [{section}]") };
        if let Some(meant) = closest(key, beside) {
            return format!("unknown key {key:?}{place}; did you mean {meant:?}?");
        }
        match known.iter().find(|(at, other)| other == key && !at.is_empty()) {
            Some((at, _)) => format!("unknown key {key:?}{place}; it belongs in [{at}]"),
            None => format!("unknown key {key:?}{place}"),
        }
    }
}

impl ReadState {
    /// Says what is wrong with a variable that begins like ours and stands for nothing.
    fn unknown_variable(&self, name: &str) -> Option<String> {
        if self.variables.iter().any(|(known, _)| known == name) || is_of_kubernetes(name) {
            return None;
        }
        let regular =
            self.variables.iter().find(|(_, regular)| regular == name).map(|(known, _)| known.as_str());
        let known = || self.variables.iter().map(|(known, _)| known.as_str());
        let meant = regular.or_else(|| closest(name, known()));
        let suggestion = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
        let mut sections = self.known.iter().filter(|(section, _)| section.is_empty()).map(|(_, key)| key);
        let of_a_section =
            sections.any(|section| name.starts_with(&format!("EVENKEEL_{}_", section.to_ascii_uppercase())));
        // Other programs have variables that begin like the seed's.
        let like_a_seeds = name.starts_with("LLMLB_") && meant.is_some();
        (of_a_section || like_a_seeds).then(|| format!("stands for no setting{suggestion}"))
    }
}

/// Tells whether Kubernetes may have set it, for a service that is called `evenkeel` something.
fn is_of_kubernetes(name: &str) -> bool {
    let tail = |part: &str| name.ends_with(part);
    let of_a_port =
        name.contains("_PORT_") && ["_TCP", "_UDP", "_PROTO", "_ADDR", "_PORT"].into_iter().any(tail);
    of_a_port || name.contains("_SERVICE_PORT") || tail("_SERVICE_HOST") || tail("_PORT")
}

/// Where the settings of a section may come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AllowedSources {
    Everywhere,
    /// One of several tables of the same name has no variable and no flag.
    FileOnly,
}

/// One table of the file; what nobody reads of it is a mistake once it is dropped.
pub(super) struct Section<'a> {
    reader: &'a Reader<'a>,
    /// Without brackets, as in `llm.health`; empty for the outermost level.
    name: String,
    table: DeTable<'a>,
    from: AllowedSources,
    /// Its place among what is shown.
    shown: Option<usize>,
}

impl<'a> Section<'a> {
    /// Opens a table within this one; one that is not there is empty.
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
        let shown = self.reader.notes.borrow_mut().shown.begin(&name, format!("[{name}]"));
        Section { reader: self.reader, name, table, from: self.from, shown: Some(shown) }
    }

    /// Opens every table of a list within this one, with the place of each.
    pub(super) fn sections(&mut self, key: &'static str) -> Vec<(ValueSource, Section<'a>)> {
        let Some((origin, value)) = self.take(key) else { return Vec::new() };
        let name = self.path(key);
        let DeValue::Array(items) = value.into_inner() else {
            self.reader.error(&origin, format!("{key} must be sections, each [[{name}]]"));
            return Vec::new();
        };
        let mut sections = Vec::new();
        for item in items {
            let origin = self.reader.at(item.span().start);
            let DeValue::Table(table) = item.into_inner() else {
                self.reader.error(&origin, format!("{key} must be sections, each [[{name}]]"));
                continue;
            };
            let shown = self.reader.notes.borrow_mut().shown.begin(&name, format!("[[{name}]]"));
            let section = Section {
                reader: self.reader,
                name: name.clone(),
                table,
                from: AllowedSources::FileOnly,
                shown: Some(shown),
            };
            sections.push((origin, section));
        }
        sections
    }

    /// Reads a setting that has a default.
    pub(super) fn read<T: ConfigValue>(&mut self, key: &'static str, default: T) -> SourcedValue<T> {
        let read = self.find(key).unwrap_or(SourcedValue { value: default, origin: ValueSource::Default });
        self.show(key, &read);
        read
    }

    /// Reads a setting that may be left out.
    pub(super) fn optional<T: ConfigValue>(&mut self, key: &'static str) -> Option<SourcedValue<T>> {
        let read = self.find(key)?;
        self.show(key, &read);
        Some(read)
    }

    /// Reads a setting that must lie in a range.
    pub(super) fn within<T>(&mut self, key: &'static str, default: T, range: RangeInclusive<T>) -> T
    where
        T: ConfigValue + PartialOrd + Copy,
    {
        let read = self.read(key, default);
        self.check(key, read, &range).unwrap_or(default)
    }

    /// Reads a setting that may be left out and must lie in a range.
    pub(super) fn optional_within<T>(&mut self, key: &'static str, range: RangeInclusive<T>) -> Option<T>
    where
        T: ConfigValue + PartialOrd + Copy,
    {
        let read = self.optional(key)?;
        self.check(key, read, &range)
    }

    fn check<T>(&self, key: &str, read: SourcedValue<T>, range: &RangeInclusive<T>) -> Option<T>
    where
        T: ConfigValue + PartialOrd,
    {
        if range.contains(&read.value) {
            return Some(read.value);
        }
        let least = range.start().show();
        let most = range.end().show();
        self.reader.error(&read.origin, format!("{key} must be from {least} to {most}"));
        None
    }

    /// Reads a setting that is one of a few words.
    pub(super) fn word<T: Copy>(
        &mut self,
        key: &'static str,
        default: &'static str,
        words: &[(&str, T)],
    ) -> T {
        let read = self.read(key, default.to_owned());
        let of = |wanted: &str| words.iter().find(|(word, _)| *word == wanted).map(|(_, value)| *value);
        if let Some(value) = of(&read.value) {
            return value;
        }
        let listed: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        self.reader.error(&read.origin, format!("{key} must be {}", listed.join(" or ")));
        of(default).expect("the default is one of the words")
    }

    pub(super) fn error(&self, origin: &ValueSource, what: impl Display) {
        self.reader.error(origin, what.to_string());
    }

    /// Finds a value by who wins: flag, variable, file. One of the wrong kind is a mistake, and as if not there.
    fn find<T: ConfigValue>(&mut self, key: &'static str) -> Option<SourcedValue<T>> {
        let reader = self.reader;
        let of_file = self.take(key);
        let (variable, regular) = variables(&self.name, key);
        let text = match self.from {
            AllowedSources::FileOnly => None,
            AllowedSources::Everywhere => {
                let flag =
                    reader.flags.iter().find(|flag| (flag.section, flag.key) == (self.name.as_str(), key));
                let of_env = reader.env.get(&variable).map(|text| (ValueSource::Env(variable.clone()), text));
                reader.notes.borrow_mut().variables.push((variable, regular));
                flag.map(|flag| (ValueSource::Flag(flag.name), &flag.value)).or(of_env)
            }
        };
        let (origin, value) = match (text, of_file) {
            (Some((origin, text)), _) => (origin, T::from_text(text.trim())),
            (None, Some((origin, value))) => (origin, T::from_toml(value.get_ref())),
            (None, None) => return None,
        };
        let Some(value) = value else {
            let named =
                if matches!(origin, ValueSource::File { .. }) { format!("{key} ") } else { String::new() };
            reader.error(&origin, format!("{named}must be {}", T::kind()));
            return None;
        };
        Some(SourcedValue { value, origin })
    }

    fn take(&mut self, key: &'static str) -> Option<(ValueSource, Spanned<DeValue<'a>>)> {
        self.reader.notes.borrow_mut().known.insert((self.name.clone(), key));
        let (key, value) = self.table.remove_entry(key)?;
        Some((self.reader.at(key.span().start), value))
    }

    fn show<T: ConfigValue>(&self, key: &'static str, read: &SourcedValue<T>) {
        if let Some(shown) = self.shown {
            let setting = Setting { key, value: read.value.show(), origin: read.origin.clone() };
            self.reader.notes.borrow_mut().shown.add(shown, setting);
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
                origin: self.reader.at(key.span().start),
            };
            self.reader.notes.borrow_mut().unread.push(unread);
        }
    }
}

/// The variable that stands for a setting, and what it would be called by rule.
fn variables(section: &str, key: &str) -> (String, String) {
    let regular = format!("EVENKEEL_{section}_{key}").replace('.', "_").to_ascii_uppercase();
    let given = GIVEN_VARIABLES.iter().find(|(at, of, _)| (*at, *of) == (section, key));
    (given.map_or_else(|| regular.clone(), |(_, _, name)| (*name).to_owned()), regular)
}
