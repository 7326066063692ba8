//! First messages of a connection: the connecting side's hello and the answer.
//!
//! Each is all that its side writes to the first bidirectional stream, at most [`MESSAGE_LEN_MAX`] bytes. Numbers are
//! big-endian:
//!
//! | hello | bytes | | welcome | bytes | | rejection | bytes |
//! |---|---|---|---|---|---|---|---|
//! | version | 2 | | 0 | 1 | | 1 | 1 |
//! | path | 1 | | session | 16 | | code | 1 |
//! | length of the name, name | 1 + n | | proof | 32 | | text | n |
//! | 0, or 1 (2 for a probe), session and proof | 1 or 49 | | | | | | |

use std::fmt;

use evenkeel_policy::swrr::PATHS_MAX;

use super::session_key::{PROOF_LEN, SESSION_ID_LEN, SessionId};

pub(super) const VERSION: u16 = 1;
pub(super) const MESSAGE_LEN_MAX: usize = 1024;
const NAME_LEN_MAX: usize = 64;
const TEXT_LEN_MAX: usize = 200;

/// First message of the connecting side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) path: u8,
    pub(super) name: String,
    /// Session to join; `None` starts a new one.
    pub(super) join: Option<Join>,
    pub(super) purpose: PathPurpose,
}

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathPurpose {
    /// It becomes the connection of its path.
    Traffic,
    /// It only measures a route of a session's path; the path keeps its connection.
    Probe,
}

/// Session to join, and the proof of knowing its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Join {
    pub(super) session: SessionId,
    pub(super) proof: [u8; PROOF_LEN],
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let name = truncated(&self.name, NAME_LEN_MAX);
        let mut bytes = VERSION.to_be_bytes().to_vec();
        bytes.extend([self.path, name.len() as u8]);
        bytes.extend(name.as_bytes());
        match &self.join {
            None => bytes.push(0),
            Some(join) => {
                bytes.push(match self.purpose {
                    PathPurpose::Traffic => 1,
                    PathPurpose::Probe => 2,
                });
                bytes.extend(join.session.0);
                bytes.extend(join.proof);
            }
        }
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, PathRejection> {
        let mut reader = MessageReader(bytes);
        let version = u16::from_be_bytes(reader.array()?);
        if version != VERSION {
            let text = format!(
                "this side speaks version {VERSION} of the link protocol, the peer version {version}"
            );
            return Err(PathRejection::new(RejectionCode::Version, text));
        }
        let [path, name_len] = reader.array()?;
        let name = printable(reader.take(name_len.into())?);
        if NAME_LEN_MAX < name_len.into() {
            return Err(malformed("the name of the path is too long"));
        }
        if PATHS_MAX <= path.into() {
            return Err(PathRejection::new(
                RejectionCode::Malformed,
                format!("path {path} exceeds {}", PATHS_MAX - 1),
            ));
        }
        let [kind] = reader.array()?;
        let join = match kind {
            0 => None,
            1 | 2 => Some(Join { session: SessionId(reader.array()?), proof: reader.array()? }),
            _ => return Err(malformed("the hello has an unknown kind")),
        };
        let purpose = if kind == 2 { PathPurpose::Probe } else { PathPurpose::Traffic };
        reader.end()?;
        Ok(Self { path, name, join, purpose })
    }
}

/// Answer of the accepting side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Welcome(Join),
    Refused(PathRejection),
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Welcome(join) => [&[0][..], &join.session.0, &join.proof].concat(),
            Self::Refused(rejection) => {
                let text = truncated(&rejection.text, TEXT_LEN_MAX);
                [&[1, rejection.code.to_byte()], text.as_bytes()].concat()
            }
        }
    }

    /// Parses an answer; the error is the rule broken.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, PathRejection> {
        let mut reader = MessageReader(bytes);
        match reader.array()? {
            [0] => {
                let join = Join { session: SessionId(reader.array()?), proof: reader.array()? };
                reader.end()?;
                Ok(Self::Welcome(join))
            }
            [1] => {
                let [code] = reader.array()?;
                if TEXT_LEN_MAX < reader.0.len() {
                    return Err(malformed("the text is too long"));
                }
                Ok(Self::Refused(PathRejection {
                    code: RejectionCode::from_byte(code),
                    text: printable(reader.0),
                }))
            }
            [_] => Err(malformed("the answer has an unknown kind")),
        }
    }
}

/// Reason for which a path is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathRejection {
    /// Machine-readable reason.
    pub code: RejectionCode,
    /// Reason for a person; the first 200 bytes are sent.
    pub text: String,
}

impl PathRejection {
    /// Creates a rejection.
    pub fn new(code: RejectionCode, text: impl Into<String>) -> Self {
        Self { code, text: text.into() }
    }

    /// Creates the rejection of a path whose session does not exist, or has ended.
    pub fn unknown_session(session: SessionId) -> Self {
        Self::new(RejectionCode::UnknownSession, format!("session {session} is unknown here"))
    }
}

impl fmt::Display for PathRejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Machine-readable reason of a rejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectionCode {
    /// The sides speak different versions.
    Version,
    /// The hello breaks a rule of the protocol.
    Malformed,
    /// The session to join does not exist; the connecting side starts a new one.
    UnknownSession,
    /// The proof does not belong to the session and the connection.
    WrongProof,
    /// A limit is reached.
    Busy,
    /// The accepting side is shutting down.
    ShuttingDown,
    /// A code of a later version.
    Other(u8),
}

impl RejectionCode {
    fn to_byte(self) -> u8 {
        match self {
            Self::Version => 1,
            Self::Malformed => 2,
            Self::UnknownSession => 3,
            Self::WrongProof => 4,
            Self::Busy => 5,
            Self::ShuttingDown => 6,
            Self::Other(code) => code,
        }
    }

    fn from_byte(code: u8) -> Self {
        match code {
            1 => Self::Version,
            2 => Self::Malformed,
            3 => Self::UnknownSession,
            4 => Self::WrongProof,
            5 => Self::Busy,
            6 => Self::ShuttingDown,
            code => Self::Other(code),
        }
    }
}

fn malformed(text: &str) -> PathRejection {
    PathRejection::new(RejectionCode::Malformed, text)
}

/// Returns the longest prefix of at most `len_max` bytes.
fn truncated(text: &str, len_max: usize) -> &str {
    &text[..text.floor_char_boundary(len_max)]
}

/// Replaces control characters and invalid UTF-8, so that a peer cannot forge log lines.
fn printable(bytes: &[u8]) -> String {
    let replace = |character: char| if character.is_control() { '\u{fffd}' } else { character };
    String::from_utf8_lossy(bytes).chars().map(replace).collect()
}

/// Unread rest of a message.
struct MessageReader<'a>(&'a [u8]);

impl<'a> MessageReader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], PathRejection> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or_else(|| malformed("the message is too short"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PathRejection> {
        Ok(self.take(N)?.try_into().expect("the slice has N bytes"))
    }

    fn end(&self) -> Result<(), PathRejection> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed("the message is too long")) }
    }
}

const _: () = assert!(4 + NAME_LEN_MAX + 1 + SESSION_ID_LEN + PROOF_LEN <= MESSAGE_LEN_MAX);

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::option;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_hello_is_read_as_it_was_written(path in 0_u8..128, name in "[a-z0-9]{0,64}", join in option::of(join()), is_probe: bool) {
            let purpose = if is_probe && join.is_some() { PathPurpose::Probe } else { PathPurpose::Traffic };
            let hello = Hello { path, name, join, purpose };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }

        #[test]
        fn an_answer_is_read_as_it_was_written(join in join(), code: u8, text in "[ -~]{0,200}") {
            let welcome = Answer::Welcome(join);
            prop_assert_eq!(Answer::decode(&welcome.encode()), Ok(welcome));
            let refused = Answer::Refused(PathRejection::new(RejectionCode::from_byte(code), text));
            prop_assert_eq!(Answer::decode(&refused.encode()), Ok(refused));
        }

        #[test]
        fn a_cut_hello_is_malformed(join in option::of(join()), cut in 1_usize..60) {
            let bytes = Hello { path: 0, name: "wan".to_owned(), join, purpose: PathPurpose::Traffic }.encode();
            let len = bytes.len().saturating_sub(cut);
            prop_assert_eq!(Hello::decode(&bytes[..len]).map_err(|rejection| rejection.code), Err(RejectionCode::Malformed));
        }

        #[test]
        fn any_bytes_are_read_or_rejected(bytes in vec(any::<u8>(), 0..=MESSAGE_LEN_MAX)) {
            if let Ok(hello) = Hello::decode(&bytes) {
                prop_assert!(hello.name.chars().all(|character| !character.is_control()));
            }
            if let Ok(Answer::Refused(rejection)) = Answer::decode(&bytes) {
                prop_assert!(rejection.text.chars().count() <= TEXT_LEN_MAX);
            }
        }
    }

    #[test]
    fn long_names_and_texts_are_cut_between_characters() {
        let hello = Hello { path: 0, name: "ä".repeat(33), join: None, purpose: PathPurpose::Traffic };
        assert_eq!(Hello::decode(&hello.encode()).unwrap().name, "ä".repeat(32));
        let refused = Answer::Refused(PathRejection::new(RejectionCode::Busy, "€".repeat(67)));
        let expected = Answer::Refused(PathRejection::new(RejectionCode::Busy, "€".repeat(66)));
        assert_eq!(Answer::decode(&refused.encode()), Ok(expected));
    }

    fn join() -> impl Strategy<Value = Join> {
        let join = |(session, proof): ([u8; SESSION_ID_LEN], [u8; PROOF_LEN])| Join {
            session: SessionId(session),
            proof,
        };
        any::<([u8; SESSION_ID_LEN], [u8; PROOF_LEN])>().prop_map(join)
    }
}
