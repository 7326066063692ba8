//! TagQueue, UntagQueue and ListQueueTags.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::api::{EmptyResponse, RequestContext, SqsApi};
use crate::error::SqsError;
use crate::limit::{TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX};
use crate::queue_metadata::QueueMetadata;
use crate::reason;
use crate::text_validation::is_valid_text;

pub(crate) type Tags = BTreeMap<String, String>;

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct TagQueue {
    queue_url: Option<String>,
    tags: Option<Tags>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct UntagQueue {
    queue_url: Option<String>,
    tag_keys: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListQueueTags {
    queue_url: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
pub(crate) struct ListTagsResponse {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tags: Tags,
}

impl SqsApi {
    pub(crate) async fn tag_queue(
        &self,
        context: &RequestContext,
        request: TagQueue,
    ) -> Result<EmptyResponse, SqsError> {
        self.change(context, request.queue_url.as_deref(), |spec| {
            let tags =
                request.tags.filter(|tags| !tags.is_empty()).ok_or(SqsError::Missing { name: "Tags" })?;
            spec.metadata.tags.extend(tags);
            check_tags(&spec.name, &spec.metadata.tags)
        })
        .await
    }

    pub(crate) async fn untag_queue(
        &self,
        context: &RequestContext,
        request: &UntagQueue,
    ) -> Result<EmptyResponse, SqsError> {
        self.change(context, request.queue_url.as_deref(), |spec| {
            let keys = request.tag_keys.as_ref().ok_or(SqsError::Missing { name: "TagKeys" })?;
            if keys.is_empty() {
                return Err(SqsError::invalid(reason::TAG_KEY));
            }
            spec.metadata.tags.retain(|key, _| !keys.contains(key));
            Ok(())
        })
        .await
    }

    pub(crate) fn queue_tags(
        &self,
        context: &RequestContext,
        request: &ListQueueTags,
    ) -> Result<ListTagsResponse, SqsError> {
        let queue = self.queue(context, request.queue_url.as_deref())?;
        Ok(ListTagsResponse { tags: QueueMetadata::read(&queue.descriptor().metadata).tags })
    }
}

/// Checks the tags of a queue against AWS's rules.
pub(crate) fn check_tags(queue: &str, tags: &Tags) -> Result<(), SqsError> {
    if tags.len() > TAGS_MAX {
        return Err(SqsError::invalid(format!("Too many tags added for queue {queue}.")));
    }
    for (key, value) in tags {
        if !(1..=TAG_KEY_MAX).contains(&key.chars().count()) {
            return Err(SqsError::invalid(reason::TAG_KEY));
        }
        if value.chars().count() > TAG_VALUE_MAX {
            let reason = format!("a value has at most {TAG_VALUE_MAX} characters.");
            return Err(SqsError::invalid_value("Tags", key, reason));
        }
        if !is_valid_text(key) || !is_valid_text(value) {
            return Err(SqsError::invalid(reason::CHARACTERS));
        }
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(SqsError::invalid_value("Tags", key, "a key must not begin with aws:."));
        }
    }
    Ok(())
}
