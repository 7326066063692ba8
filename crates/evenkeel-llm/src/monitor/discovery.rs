//! What a node is and serves, asked over whichever of its paths answers.

use http::StatusCode;
use serde_json::Value;

use super::engine::{CLUES, Engine, slots_question};
use super::node_client::{NodeClient, NodeReply};
use evenkeel_upstream::{Origin, UpstreamError};

/// The most models of one node.
const MODELS_MAX: usize = 1024;
/// The longest name of a model.
const MODEL_LEN_MAX: usize = 512;

/// What a node said; `None` where it did not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Discovery {
    pub(super) engine: Option<Engine>,
    pub(super) models: Option<Vec<String>>,
    pub(super) slots: Option<u32>,
}

/// Asks over one path after the other, until one answers.
///
/// What a node is need not be asked while it is `known`: whoever comes back from being unwell may be another.
pub(super) async fn discover(caller: &NodeClient, origins: &[Origin], known: Option<Engine>) -> Discovery {
    for origin in origins {
        if let Ok(survey) = ask(caller, origin, known).await {
            return survey;
        }
    }
    Discovery::default()
}

async fn ask(
    caller: &NodeClient,
    origin: &Origin,
    known: Option<Engine>,
) -> Result<Discovery, UpstreamError> {
    let answer = caller.get(origin, "/v1/models").await?;
    if is_busy(&answer) {
        return Ok(Discovery::default());
    }
    let mut listed = answer.json().as_ref().and_then(ModelList::of_openai);
    if listed.is_none() {
        listed = caller.get(origin, "/api/tags").await?.json().as_ref().and_then(ModelList::of_ollama);
    }
    let named = Engine::by_headers(&answer.headers).or(listed.as_ref().and_then(|listed| listed.engine));
    let engine = match known.or(named) {
        Some(engine) => engine,
        None => recognise(caller, origin).await?,
    };
    let slots = match slots_question(engine) {
        Some((path, field)) => {
            caller.get(origin, path).await?.json().as_ref().and_then(|said| count(said, field))
        }
        None => None,
    };
    Ok(Discovery { engine: Some(engine), models: listed.map(|listed| listed.models), slots })
}

/// A node that has no room, or is still loading, says nothing about itself.
fn is_busy(answer: &NodeReply) -> bool {
    matches!(answer.status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE)
}

async fn recognise(caller: &NodeClient, origin: &Origin) -> Result<Engine, UpstreamError> {
    for clue in CLUES {
        let said = caller.get(origin, clue.path).await?.json();
        if said.is_some_and(|said| clue.fits(&said)) {
            return Ok(clue.engine);
        }
    }
    Ok(Engine::Unknown)
}

fn count(said: &Value, field: &str) -> Option<u32> {
    let slots = u32::try_from(said.get(field)?.as_u64()?).ok()?;
    (0 < slots).then_some(slots)
}

/// A list of models, and who made it if it says so.
#[derive(Debug, PartialEq, Eq)]
struct ModelList {
    models: Vec<String>,
    engine: Option<Engine>,
}

impl ModelList {
    /// Reads what `/v1/models` says.
    fn of_openai(said: &Value) -> Option<Self> {
        // Some servers have null for an empty list.
        let listed = said.get("data")?.as_array().map_or(&[][..], Vec::as_slice);
        let owners = listed.iter().filter_map(|model| model.get("owned_by")?.as_str());
        Some(Self { models: names(listed, "id"), engine: owners.filter_map(Engine::by_owner).next() })
    }

    /// Reads what Ollama's `/api/tags` says.
    fn of_ollama(said: &Value) -> Option<Self> {
        let listed = said.get("models")?.as_array().map_or(&[][..], Vec::as_slice);
        Some(Self { models: names(listed, "name"), engine: Some(Engine::Ollama) })
    }
}

/// Takes names out of a list, each once and in order; what is no name is left out.
fn names(listed: &[Value], field: &str) -> Vec<String> {
    let named = listed.iter().filter_map(|model| model.get(field)?.as_str());
    let fit = named.filter(|name| !name.is_empty() && name.len() <= MODEL_LEN_MAX);
    let mut names: Vec<String> = fit.take(MODELS_MAX).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_list_names_each_model_once_and_leaves_out_what_is_no_name() {
        let said = json!({"object": "list", "data": [
            {"id": "b", "owned_by": "somebody"}, {"id": "a", "owned_by": "sglang"}, {"id": "b"}, {"id": ""}, {"id": 7},
            "c", {"id": "x".repeat(MODEL_LEN_MAX + 1)},
        ]});
        let listed = ModelList { models: vec!["a".to_owned(), "b".to_owned()], engine: Some(Engine::Sglang) };
        assert_eq!(ModelList::of_openai(&said), Some(listed));
    }

    #[test]
    fn an_empty_list_is_a_list_and_anything_else_is_none() {
        let empty = Some(ModelList { models: vec![], engine: None });
        assert_eq!(ModelList::of_openai(&json!({"data": []})), empty);
        assert_eq!(ModelList::of_openai(&json!({"data": null})), empty);
        for said in [json!({"error": "no"}), json!([]), json!("Ollama is running")] {
            assert_eq!(ModelList::of_openai(&said), None);
            assert_eq!(ModelList::of_ollama(&said), None);
        }
    }

    #[test]
    fn no_more_than_models_max_are_taken() {
        let data: Vec<_> = (0..MODELS_MAX + 5).map(|id| json!({"id": id.to_string()})).collect();
        assert_eq!(ModelList::of_openai(&json!({"data": data})).unwrap().models.len(), MODELS_MAX);
    }

    #[test]
    fn slots_are_a_number_above_zero() {
        assert_eq!(count(&json!({"total_slots": 4}), "total_slots"), Some(4));
        for said in
            [json!({"total_slots": 0}), json!({"total_slots": -1}), json!({"total_slots": "4"}), json!({})]
        {
            assert_eq!(count(&said, "total_slots"), None);
        }
    }
}
