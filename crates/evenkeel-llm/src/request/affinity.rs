//! What a request has in common with others that should meet the same node: a conversation's name, or its beginning.
//!
//! The same request has the same affinity in every process and for ever; at most [`PREFIX_BYTES_MAX`] bytes of each
//! part are looked at.

use super::{Endpoint, ParseError};
use crate::json::{Cursor, Kind, Text};

/// How much of a prompt, a preamble or a message counts.
const PREFIX_BYTES_MAX: usize = 1_024;

/// How well a name tells conversations apart; a higher one counts instead of a lower.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    User,
    Metadata,
    Conversation,
    CacheKey,
}

/// Names under which a conversation is told in an object, from the best.
const IDS: [&str; 6] = ["conversation_id", "session_id", "thread_id", "chat_id", "id", "user_id"];

/// What was found so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Affinity {
    id: Option<(Rank, u64)>,
    prompt: Option<u64>,
    preamble: Option<u64>,
    system: Option<u64>,
    first_user: Option<u64>,
}

impl Affinity {
    /// Reads what names the conversation: a string, a number, or an object with one of [`IDS`].
    pub(super) fn read_id(&mut self, rank: Rank, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        let id = match cursor.kind()? {
            Kind::Text | Kind::Number => read_scalar(cursor)?,
            Kind::Object => {
                let mut best: Option<(usize, u64)> = None;
                cursor.object(|name, cursor| {
                    let place = IDS.iter().position(|id| name.is(id));
                    let (Some(place), Kind::Text | Kind::Number) = (place, cursor.kind()?) else {
                        return Ok(cursor.skip()?);
                    };
                    if let Some(id) = read_scalar(cursor)?
                        && best.is_none_or(|(other, _)| place < other)
                    {
                        best = Some((place, id));
                    }
                    Ok::<(), ParseError>(())
                })?;
                best.map(|(_, id)| id)
            }
            Kind::Array | Kind::Bool | Kind::Null => {
                cursor.skip()?;
                None
            }
        };
        if let Some(id) = id
            && self.id.is_none_or(|(other, _)| other < rank)
        {
            self.id = Some((rank, id));
        }
        Ok(())
    }

    pub(super) fn record_prompt(&mut self, value: &[u8]) {
        self.prompt = Some(hash_prefix(value));
    }

    pub(super) fn record_preamble(&mut self, value: &[u8]) {
        self.preamble = Some(hash_prefix(value));
    }

    /// Notes a message; only the first of the user and the first before it count, as the later ones change.
    pub(super) fn record_message(&mut self, role: Option<Text<'_>>, content: &[u8]) {
        if self.first_user.is_some() {
            return;
        }
        let Some(role) = role else { return };
        if role.is("user") {
            self.first_user = Some(hash_prefix(content));
        } else if self.system.is_none() {
            self.system = Some(hash_prefix(content));
        }
    }

    /// Joins what was found with the model.
    ///
    /// A request for embeddings or ranks leaves nothing warm behind, so only a name given on purpose counts.
    pub(super) fn hash(&self, model: &str, endpoint: Endpoint) -> Option<u64> {
        let model = hash(model.as_bytes());
        if let Some((_, id)) = self.id {
            return Some(mix(model, id));
        }
        let parts = [self.prompt, self.preamble, self.system, self.first_user];
        if matches!(endpoint, Endpoint::Embeddings | Endpoint::Rerank) || parts.iter().all(Option::is_none) {
            return None;
        }
        Some(parts.iter().fold(!model, |joined, part| mix(joined, part.unwrap_or(0))))
    }
}

fn read_scalar(cursor: &mut Cursor<'_>) -> Result<Option<u64>, ParseError> {
    let from = cursor.at();
    cursor.skip()?;
    let written = cursor.since(from);
    Ok(Some(hash(written)).filter(|_| written != br#""""#))
}

fn hash_prefix(value: &[u8]) -> u64 {
    hash(&value[..value.len().min(PREFIX_BYTES_MAX)])
}

/// Hashes bytes, eight at a time; nobody gains by making two alike, so it needs no secret.
fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let hashed = words.iter().fold(bytes.len() as u64, |hashed, word| mix(hashed, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hashed, u64::from_le_bytes(last))
}

/// Multiplies and folds, so that every bit of both reaches every bit of the result.
fn mix(hashed: u64, word: u64) -> u64 {
    let product = u128::from(hashed ^ 0x9E37_79B9_7F4A_7C15) * u128::from(word ^ 0xD6E8_FEB8_6659_FD93);
    product as u64 ^ (product >> 64) as u64
}
