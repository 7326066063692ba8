//! Service discovery of a node: its engine, models and slots, over the first path that responds.

use http::StatusCode;
use serde_json::Value;

use super::engine::{Engine, FINGERPRINTS, slots_endpoint};
use super::node_client::{NodeClient, NodeReply};
use evenkeel_upstream::{Origin, UpstreamError};

/// Limit of models per node.
const MODELS_MAX: usize = 1024;
/// Longest name of a model.
const MODEL_LEN_MAX: usize = 512;

/// Result of discovery; a field is `None` if its value is not known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Discovery {
    pub(super) engine: Option<Engine>,
    pub(super) models: Option<Vec<String>>,
    pub(super) slots: Option<u32>,
}

/// Runs discovery over one path after the other until one responds.
///
/// A `known` engine is not detected again; after a node was unhealthy, the caller passes `None`.
pub(super) async fn discover(client: &NodeClient, origins: &[Origin], known: Option<Engine>) -> Discovery {
    for origin in origins {
        if let Ok(discovery) = discover_over(client, origin, known).await {
            return discovery;
        }
    }
    Discovery::default()
}

async fn discover_over(
    client: &NodeClient,
    origin: &Origin,
    known: Option<Engine>,
) -> Result<Discovery, UpstreamError> {
    let reply = client.get(origin, "/v1/models").await?;
    if is_busy(&reply) {
        return Ok(Discovery::default());
    }
    let mut list = reply.json().as_ref().and_then(ModelList::from_openai);
    if list.is_none() {
        list = client.get(origin, "/api/tags").await?.json().as_ref().and_then(ModelList::from_ollama);
    }
    let named = Engine::by_headers(&reply.headers).or(list.as_ref().and_then(|list| list.engine));
    // The models are known by now: a probe that hangs leaves only the engine or its slots unknown.
    let engine = match known.or(named) {
        Some(engine) => Some(engine),
        None => detect_engine(client, origin).await.ok(),
    };
    let slots = match engine.and_then(slots_endpoint) {
        Some((path, field)) => {
            let reply = client.get(origin, path).await.ok().and_then(|reply| reply.json());
            reply.and_then(|reply| read_count(&reply, field))
        }
        None => None,
    };
    Ok(Discovery { engine, models: list.map(|list| list.models), slots })
}

/// Reports whether a node is overloaded or still loading; its reply then identifies neither engine nor models.
fn is_busy(reply: &NodeReply) -> bool {
    matches!(reply.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

async fn detect_engine(client: &NodeClient, origin: &Origin) -> Result<Engine, UpstreamError> {
    for fingerprint in FINGERPRINTS {
        let reply = client.get(origin, fingerprint.path).await?.json();
        if reply.is_some_and(|reply| fingerprint.matches(&reply)) {
            return Ok(fingerprint.engine);
        }
    }
    Ok(Engine::Unknown)
}

fn read_count(reply: &Value, field: &str) -> Option<u32> {
    let slots = u32::try_from(reply.get(field)?.as_u64()?).ok()?;
    (slots > 0).then_some(slots)
}

/// A list of models, and the engine if the list identifies it.
#[derive(Debug, PartialEq, Eq)]
struct ModelList {
    models: Vec<String>,
    engine: Option<Engine>,
}

impl ModelList {
    /// Parses `/v1/models`.
    fn from_openai(reply: &Value) -> Option<Self> {
        // Some servers return null for an empty list.
        let listed = reply.get("data")?.as_array().map_or(&[][..], Vec::as_slice);
        let owners = listed.iter().filter_map(|model| model.get("owned_by")?.as_str());
        Some(Self { models: names(listed, "id"), engine: owners.filter_map(Engine::by_owner).next() })
    }

    /// Parses Ollama's `/api/tags`.
    fn from_ollama(reply: &Value) -> Option<Self> {
        let listed = reply.get("models")?.as_array().map_or(&[][..], Vec::as_slice);
        Some(Self { models: names(listed, "name"), engine: Some(Engine::Ollama) })
    }
}

/// Returns the valid names of a list, sorted and without duplicates.
fn names(listed: &[Value], field: &str) -> Vec<String> {
    let named = listed.iter().filter_map(|model| model.get(field)?.as_str());
    let valid = named.filter(|name| !name.is_empty() && name.len() <= MODEL_LEN_MAX);
    let mut names: Vec<String> = valid.take(MODELS_MAX).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn duplicates_and_invalid_names_are_left_out() {
        let reply = json!({"object": "list", "data": [
            {"id": "b", "owned_by": "someone"}, {"id": "a", "owned_by": "sglang"}, {"id": "b"}, {"id": ""}, {"id": 7},
            "c", {"id": "x".repeat(MODEL_LEN_MAX + 1)},
        ]});
        let listed = ModelList { models: vec!["a".to_owned(), "b".to_owned()], engine: Some(Engine::Sglang) };
        assert_eq!(ModelList::from_openai(&reply), Some(listed));
    }

    #[test]
    fn an_empty_model_list_is_valid_and_other_replies_are_not() {
        let empty = Some(ModelList { models: vec![], engine: None });
        assert_eq!(ModelList::from_openai(&json!({"data": []})), empty);
        assert_eq!(ModelList::from_openai(&json!({"data": null})), empty);
        for reply in [json!({"error": "no"}), json!([]), json!("Ollama is running")] {
            assert_eq!(ModelList::from_openai(&reply), None);
            assert_eq!(ModelList::from_ollama(&reply), None);
        }
    }

    #[test]
    fn the_number_of_models_is_limited() {
        let data: Vec<_> = (0..MODELS_MAX + 5).map(|id| json!({"id": id.to_string()})).collect();
        assert_eq!(ModelList::from_openai(&json!({"data": data})).unwrap().models.len(), MODELS_MAX);
    }

    #[test]
    fn slots_are_a_positive_number() {
        assert_eq!(read_count(&json!({"total_slots": 4}), "total_slots"), Some(4));
        for reply in
            [json!({"total_slots": 0}), json!({"total_slots": -1}), json!({"total_slots": "4"}), json!({})]
        {
            assert_eq!(read_count(&reply, "total_slots"), None);
        }
    }
}
