//! Names of models that clients may send besides those of nodes: aliases, and the fallbacks of a model.
//!
//! Guarantees: every alias leads to a model; a chain names no model twice. The fallbacks of a fallback are not followed,
//! so that two models may be each other's fallback.
//!
//! Limits: [`MODEL_ENTRIES_MAX`] names, [`FALLBACKS_MAX`] fallbacks each.

use std::collections::HashMap;
use std::sync::Arc;

use evenkeel_server::tenant::Tenant;

use crate::request::MODEL_BYTES_MAX;

/// Maximum number of configured names.
pub const MODEL_ENTRIES_MAX: usize = 256;
/// Maximum number of fallbacks of a name.
pub const FALLBACKS_MAX: usize = 8;

/// Cases in which a request falls back to another model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FallbackOn {
    /// No node can serve the model, or all attempts failed.
    #[default]
    Outage,
    /// Also if the model's queue or its nodes reject the request for lack of capacity.
    Capacity,
}

/// A name as configured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelOptions {
    pub name: String,
    /// Model that the name stands for; `None` if it is the name of a model.
    pub alias_of: Option<String>,
    /// Models to try next, in order; an alias without any has those of the model that it stands for.
    pub fallbacks: Vec<String>,
    pub fallback_on: FallbackOn,
}

/// The configured names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelTable {
    routes: HashMap<String, ModelRoute>,
}

/// Models of a configured name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ModelRoute {
    /// The model that the name stands for, then its fallbacks.
    models: Vec<RouteModel>,
    pub(crate) fallback_on: FallbackOn,
}

/// A model of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RouteModel {
    /// Name as configured, which may be an alias.
    name: Arc<str>,
    pub(crate) model: Arc<str>,
}

impl ModelTable {
    /// Checks the entries and resolves their aliases; returns all errors.
    pub fn new(entries: &[ModelOptions]) -> Result<Self, Vec<ModelError>> {
        let mut errors = Vec::new();
        if let Some(entry) = entries.get(MODEL_ENTRIES_MAX) {
            let kind = ModelErrorKind::TooMany;
            errors.push(ModelError { entry: MODEL_ENTRIES_MAX, name: entry.name.clone(), kind });
        }
        let mut routes = HashMap::new();
        for (index, entry) in entries.iter().take(MODEL_ENTRIES_MAX).enumerate() {
            let is_first = !entries[..index].iter().any(|other| other.name == entry.name);
            let route = if is_first { route(entries, entry) } else { Err(ModelErrorKind::Twice) };
            match route {
                Ok(route) => {
                    routes.insert(entry.name.clone(), route);
                }
                Err(kind) => errors.push(ModelError { entry: index, name: entry.name.clone(), kind }),
            }
        }
        if errors.is_empty() { Ok(Self { routes }) } else { Err(errors) }
    }

    pub(crate) fn route(&self, name: &str) -> Option<&ModelRoute> {
        self.routes.get(name)
    }

    /// Lists the names whose models include one that `is_served`, among those that the tenant may use.
    pub(crate) fn names(&self, tenant: &Tenant, is_served: impl Fn(&str) -> bool) -> Vec<Arc<str>> {
        let is_listed = |name: &str, route: &ModelRoute| {
            route.allowed(name, tenant).iter().any(|candidate| is_served(&candidate.model))
        };
        let listed = self.routes.iter().filter(|(name, route)| is_listed(name, route));
        listed.map(|(name, _)| Arc::from(name.as_str())).collect()
    }
}

impl ModelRoute {
    /// Returns the models that may serve a tenant's request for `name`; none if it may not use the first.
    ///
    /// A tenant may use a model if its `models` list the model or the alias by which it is named.
    pub(crate) fn allowed(&self, name: &str, tenant: &Tenant) -> Vec<&RouteModel> {
        let may_use =
            |name: &str, model: &str| tenant.check_model(name).is_ok() || tenant.check_model(model).is_ok();
        match self.models.split_first() {
            Some((first, fallbacks)) if may_use(name, &first.model) => {
                let allowed = fallbacks.iter().filter(|other| may_use(&other.name, &other.model));
                [first].into_iter().chain(allowed).collect()
            }
            Some(_) | None => Vec::new(),
        }
    }
}

/// Resolves the models of an entry.
fn route(entries: &[ModelOptions], entry: &ModelOptions) -> Result<ModelRoute, ModelErrorKind> {
    let names = [&entry.name].into_iter().chain(&entry.alias_of).chain(&entry.fallbacks);
    if let Some(name) = names.into_iter().find(|name| !is_valid_name(name)) {
        return Err(ModelErrorKind::InvalidName { name: name.clone() });
    }
    if entry.alias_of.is_none() && entry.fallbacks.is_empty() {
        return Err(ModelErrorKind::Empty);
    }
    if entry.fallbacks.len() > FALLBACKS_MAX {
        return Err(ModelErrorKind::TooManyFallbacks);
    }
    let (model, inherited) = resolve(entries, entry)?;
    let source = inherited.filter(|_| entry.fallbacks.is_empty()).unwrap_or(entry);
    let first = RouteModel { name: entry.name.as_str().into(), model: model.into() };
    let mut models = vec![first];
    for name in &source.fallbacks {
        let model = match find(entries, name) {
            Some(other) => resolve(entries, other)?.0,
            None => name,
        };
        if models.iter().any(|known| *known.model == *model) {
            return Err(ModelErrorKind::FallbackTwice { model: model.to_owned() });
        }
        models.push(RouteModel { name: name.as_str().into(), model: model.into() });
    }
    Ok(ModelRoute { models, fallback_on: source.fallback_on })
}

/// Follows aliases; returns the model, and the entry with the nearest fallbacks on the way, if there is one.
fn resolve<'a>(
    entries: &'a [ModelOptions],
    entry: &'a ModelOptions,
) -> Result<(&'a str, Option<&'a ModelOptions>), ModelErrorKind> {
    let mut inherited = None;
    let mut current = entry;
    for _ in 0..=entries.len() {
        if inherited.is_none() && !current.fallbacks.is_empty() {
            inherited = Some(current);
        }
        let Some(target) = &current.alias_of else { return Ok((&current.name, inherited)) };
        match find(entries, target) {
            Some(next) => current = next,
            None => return Ok((target, inherited)),
        }
    }
    Err(ModelErrorKind::Cycle)
}

fn find<'a>(entries: &'a [ModelOptions], name: &str) -> Option<&'a ModelOptions> {
    entries.iter().find(|entry| entry.name == name)
}

/// Reports whether a name can be sent in a body and in a header.
fn is_valid_name(name: &str) -> bool {
    (1..=MODEL_BYTES_MAX).contains(&name.len())
        && name.trim().len() == name.len()
        && !name.contains(char::is_control)
}

/// Error in a configured name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("model {name:?}: {kind}")]
pub struct ModelError {
    /// Index of the entry.
    pub entry: usize,
    pub name: String,
    pub kind: ModelErrorKind,
}

/// Kind of an error in a configured name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ModelErrorKind {
    #[error("more than {MODEL_ENTRIES_MAX} models are configured")]
    TooMany,
    #[error("it is configured twice")]
    Twice,
    #[error(
        "the name {name:?} must have 1 to {MODEL_BYTES_MAX} bytes, without control characters and without spaces around it"
    )]
    InvalidName { name: String },
    #[error("it needs alias_of or fallbacks")]
    Empty,
    #[error("its aliases form a cycle")]
    Cycle,
    #[error("it has more than {FALLBACKS_MAX} fallbacks")]
    TooManyFallbacks,
    #[error("its fallbacks lead to {model:?}, which the request has been tried with before")]
    FallbackTwice { model: String },
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &str, alias_of: &str, fallbacks: &[&str]) -> ModelOptions {
        ModelOptions {
            name: name.to_owned(),
            alias_of: Some(alias_of.to_owned()).filter(|target| !target.is_empty()),
            fallbacks: fallbacks.iter().map(|name| (*name).to_owned()).collect(),
            fallback_on: FallbackOn::Outage,
        }
    }

    /// Returns the models of a name, joined.
    fn models(entries: &[ModelOptions], name: &str) -> String {
        let table = ModelTable::new(entries).unwrap_or_else(|errors| panic!("{errors:?}"));
        let route = table.route(name).unwrap();
        route.models.iter().map(|candidate| &*candidate.model).collect::<Vec<_>>().join(" ")
    }

    fn error(entries: &[ModelOptions]) -> ModelErrorKind {
        let mut errors = ModelTable::new(entries).unwrap_err();
        errors.pop().unwrap().kind
    }

    #[test]
    fn an_alias_leads_to_its_model_over_other_aliases() {
        let entries = [entry("gpt", "chat", &[]), entry("chat", "llama", &[])];
        assert_eq!(models(&entries, "gpt"), "llama");
        assert_eq!(models(&entries, "chat"), "llama");
        assert!(ModelTable::new(&entries).unwrap().route("llama").is_none());
    }

    #[test]
    fn an_alias_without_fallbacks_has_those_of_its_model() {
        let capacity = ModelOptions { fallback_on: FallbackOn::Capacity, ..entry("llama", "", &["qwen"]) };
        let entries = [entry("gpt", "llama", &[]), capacity, entry("mini", "llama", &["phi"])];
        assert_eq!(models(&entries, "gpt"), "llama qwen");
        assert_eq!(models(&entries, "mini"), "llama phi");
        let table = ModelTable::new(&entries).unwrap();
        assert_eq!(table.route("gpt").unwrap().fallback_on, FallbackOn::Capacity);
        assert_eq!(table.route("mini").unwrap().fallback_on, FallbackOn::Outage);
    }

    #[test]
    fn the_fallbacks_of_a_fallback_are_not_followed() {
        let entries = [entry("a", "", &["b"]), entry("b", "", &["a", "c"])];
        assert_eq!(models(&entries, "a"), "a b");
        assert_eq!(models(&entries, "b"), "b a c");
        let entries = [entry("a", "", &["other"]), entry("other", "b", &["c"])];
        assert_eq!(models(&entries, "a"), "a b");
    }

    #[test]
    fn cycles_repetitions_and_names_that_cannot_be_sent_are_errors() {
        assert_eq!(error(&[entry("a", "b", &[]), entry("b", "a", &[])]), ModelErrorKind::Cycle);
        assert_eq!(error(&[entry("a", "a", &[])]), ModelErrorKind::Cycle);
        assert_eq!(error(&[entry("a", "b", &[]), entry("a", "c", &[])]), ModelErrorKind::Twice);
        let twice = |model: &str| ModelErrorKind::FallbackTwice { model: model.to_owned() };
        assert_eq!(error(&[entry("a", "b", &["b"])]), twice("b"));
        assert_eq!(error(&[entry("a", "", &["x", "y"]), entry("x", "y", &[])]), twice("y"));
        assert_eq!(error(&[entry("a", "", &[])]), ModelErrorKind::Empty);
        for name in ["", " a", "a\nb", &"x".repeat(MODEL_BYTES_MAX + 1)] {
            let kind = error(&[ModelOptions {
                name: "gpt".to_owned(),
                alias_of: Some(name.to_owned()),
                ..ModelOptions::default()
            }]);
            assert_eq!(kind, ModelErrorKind::InvalidName { name: name.to_owned() });
        }
    }

    #[test]
    fn the_numbers_of_names_and_fallbacks_are_limited() {
        let entries: Vec<_> =
            (0..=MODEL_ENTRIES_MAX).map(|index| entry(&format!("m{index}"), "llama", &[])).collect();
        assert!(ModelTable::new(&entries[1..]).is_ok());
        assert_eq!(ModelTable::new(&entries).unwrap_err()[0].kind, ModelErrorKind::TooMany);
        let names: Vec<_> = (0..=FALLBACKS_MAX).map(|index| format!("m{index}")).collect();
        let names: Vec<_> = names.iter().map(String::as_str).collect();
        assert!(ModelTable::new(&[entry("a", "", &names[1..])]).is_ok());
        assert_eq!(error(&[entry("a", "", &names)]), ModelErrorKind::TooManyFallbacks);
    }
}
