//! TagQueue, UntagQueue and ListQueueTags.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::door::{Nothing, Sqs};
use crate::fault::Fault;
use crate::limit::{TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX};
use crate::notes::Notes;

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
pub(crate) struct ListedTags {
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    tags: Tags,
}

impl Sqs {
    pub(crate) async fn tag_queue(&self, wish: TagQueue) -> Result<Nothing, Fault> {
        let tags = wish.tags.ok_or(Fault::Missing { name: "Tags" })?;
        let queue = self.queue(wish.queue_url.as_deref())?;
        self.change(&queue, |shape| {
            shape.notes.tags.extend(tags);
            check_tags(&shape.notes.tags)
        })
        .await
    }

    pub(crate) async fn untag_queue(&self, wish: &UntagQueue) -> Result<Nothing, Fault> {
        let keys = wish.tag_keys.as_ref().ok_or(Fault::Missing { name: "TagKeys" })?;
        let queue = self.queue(wish.queue_url.as_deref())?;
        self.change(&queue, |shape| {
            shape.notes.tags.retain(|key, _| !keys.contains(key));
            Ok(())
        })
        .await
    }

    pub(crate) fn queue_tags(&self, wish: &ListQueueTags) -> Result<ListedTags, Fault> {
        let queue = self.queue(wish.queue_url.as_deref())?;
        Ok(ListedTags { tags: Notes::read(&queue.body().notes).tags })
    }
}

/// Refuses tags that AWS would.
pub(crate) fn check_tags(tags: &Tags) -> Result<(), Fault> {
    if TAGS_MAX < tags.len() {
        let count = tags.len();
        return Err(Fault::invalid(format!("Too many tags: {count}, at most {TAGS_MAX} are allowed.")));
    }
    for (key, value) in tags {
        if !(1..=TAG_KEY_MAX).contains(&key.chars().count()) || TAG_VALUE_MAX < value.chars().count() {
            let reason = format!("a key has 1 to {TAG_KEY_MAX} characters, a value at most {TAG_VALUE_MAX}.");
            return Err(Fault::value("Tags", key, reason));
        }
        if key.to_ascii_lowercase().starts_with("aws:") {
            return Err(Fault::value("Tags", key, "no key begins with aws:."));
        }
    }
    Ok(())
}
