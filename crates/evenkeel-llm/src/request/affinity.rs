//! Affinity and session of a request. The affinity is a hash of the ID or the beginning of its conversation. Requests with the same affinity
//! benefit from the prompt cache of the same node.
//!
//! Guarantees: the same request has the same affinity in every process and version.
//!
//! Limits: at most [`PREFIX_BYTES_MAX`] bytes of each part are hashed.

use evenkeel_policy::class::SessionId;

use super::{Endpoint, ParseError};
use crate::json::{Cursor, Kind, Text};

/// Length of the hashed prefix of a prompt, a system prompt or a message.
const PREFIX_BYTES_MAX: usize = 1_024;

/// Precision of a conversation ID; the ID of the highest rank is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    User,
    Metadata,
    Conversation,
    CacheKey,
}

/// Fields of an object that identify a conversation, best first.
const IDS: [&str; 6] = ["conversation_id", "session_id", "thread_id", "chat_id", "id", "user_id"];

/// Affinity of the fields parsed so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Affinity {
    id: Option<(Rank, u64)>,
    /// The ID of the lowest rank. It names the session: a user or an agent rather than one of its conversations.
    session: Option<(Rank, u64)>,
    prompt: Option<u64>,
    preamble: Option<u64>,
    system: Option<u64>,
    first_user: Option<u64>,
}

impl Affinity {
    /// Reads a conversation ID: a string, a number, or an object with one of [`IDS`].
    pub(super) fn read_id(&mut self, rank: Rank, cursor: &mut Cursor<'_>) -> Result<(), ParseError> {
        let id = match cursor.kind()? {
            Kind::Text | Kind::Number => read_scalar(cursor)?,
            Kind::Object => {
                let mut best: Option<(usize, u64)> = None;
                cursor.object(|name, cursor| {
                    let index = IDS.iter().position(|id| name.is(id));
                    let (Some(index), Kind::Text | Kind::Number) = (index, cursor.kind()?) else {
                        return Ok(cursor.skip()?);
                    };
                    if let Some(id) = read_scalar(cursor)?
                        && best.is_none_or(|(other, _)| index < other)
                    {
                        best = Some((index, id));
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
        let Some(id) = id else { return Ok(()) };
        if self.id.is_none_or(|(other, _)| other < rank) {
            self.id = Some((rank, id));
        }
        if self.session.is_none_or(|(other, _)| rank < other) {
            self.session = Some((rank, id));
        }
        Ok(())
    }

    pub(super) fn record_prompt(&mut self, value: &[u8]) {
        self.prompt = Some(hash_prefix(value));
    }

    pub(super) fn record_preamble(&mut self, value: &[u8]) {
        self.preamble = Some(hash_prefix(value));
    }

    /// Records a message. Only the first user message and the first one before it count; the later ones change with
    /// each turn.
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

    pub(super) fn session(&self) -> Option<SessionId> {
        self.session.map(|(_, id)| SessionId(id))
    }

    /// Reports whether a conversation can be recognized.
    ///
    /// Embeddings and reranking leave nothing in a prompt cache, so for them only an explicit ID counts.
    pub(super) fn is_known(&self, endpoint: Endpoint) -> bool {
        let has_prompt = self.parts().iter().any(Option::is_some);
        self.id.is_some() || has_prompt && !matches!(endpoint, Endpoint::Embeddings | Endpoint::Rerank)
    }

    /// Hashes the parts together with the model.
    pub(super) fn hash(&self, model: &str) -> u64 {
        let model = hash(model.as_bytes());
        match self.id {
            Some((_, id)) => mix(model, id),
            None => self.parts().iter().fold(!model, |joined, part| mix(joined, part.unwrap_or(0))),
        }
    }

    fn parts(&self) -> [Option<u64>; 4] {
        [self.prompt, self.preamble, self.system, self.first_user]
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

/// Hashes bytes, eight at a time. A collision gains an attacker nothing, so the hash needs no secret.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let hashed = words.iter().fold(bytes.len() as u64, |hashed, word| mix(hashed, u64::from_le_bytes(*word)));
    let mut last = [0; 8];
    last[..rest.len()].copy_from_slice(rest);
    mix(hashed, u64::from_le_bytes(last))
}

/// Multiplies and folds, so that every bit of both inputs affects every bit of the result.
fn mix(hashed: u64, word: u64) -> u64 {
    let product = u128::from(hashed ^ 0x9E37_79B9_7F4A_7C15) * u128::from(word ^ 0xD6E8_FEB8_6659_FD93);
    product as u64 ^ (product >> 64) as u64
}
