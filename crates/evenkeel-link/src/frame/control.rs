//! Messages on the control flow. They survive the loss of a path like the data of any other flow.

use bytes::{BufMut, Bytes, BytesMut};

use super::FrameError;
use super::reader::{Prefix, Reader, put_number, put_text};
use crate::flow::{FlowId, ResetCode, ResetReason};

const RESET: u8 = 1;
const GOODBYE: u8 = 2;

/// Message on the control flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage {
    /// The sender has aborted a flow.
    Reset { flow: FlowId, reason: ResetReason },
    /// The sender ends the session.
    Goodbye,
}

impl ControlMessage {
    /// Encodes the message.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::new();
        match self {
            Self::Reset { flow, reason } => {
                out.put_u8(RESET);
                put_number(&mut out, flow.0);
                put_number(&mut out, reason.code.0.into());
                put_text(&mut out, &reason.text);
            }
            Self::Goodbye => out.put_u8(GOODBYE),
        }
        out.freeze()
    }

    fn parse(reader: &mut Reader<'_>) -> Result<Self, FrameError> {
        match reader.byte()? {
            RESET => {
                let flow = FlowId(reader.number()?);
                let code = u32::try_from(reader.number()?).map_err(|_| FrameError::NumberTooLarge)?;
                Ok(Self::Reset { flow, reason: ResetReason { code: ResetCode(code), text: reader.text()? } })
            }
            GOODBYE => Ok(Self::Goodbye),
            kind => Err(FrameError::UnknownType { kind }),
        }
    }
}

/// Decodes the data of the control flow.
#[derive(Clone, Debug, Default)]
pub struct ControlDecoder {
    prefix: Prefix,
}

impl ControlDecoder {
    /// Removes the next message from `input`; `None` once `input` is used up.
    pub fn decode(&mut self, input: &mut Bytes) -> Result<Option<ControlMessage>, FrameError> {
        self.prefix.parse(input, ControlMessage::parse)
    }
}
