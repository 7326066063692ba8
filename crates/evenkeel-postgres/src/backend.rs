//! Messages from the server, parsed in place.
//!
//! Guarantees: no read beyond a message's end, and no panic on any input.

/// A message body that does not have the form that its type requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("message is truncated or malformed")]
pub(crate) struct Malformed;

/// The unread rest of a message.
#[derive(Clone, Copy)]
pub(crate) struct MessageBody<'a>(pub(crate) &'a [u8]);

impl<'a> MessageBody<'a> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk::<N>().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        self.take::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, Malformed> {
        self.take().map(u16::from_be_bytes)
    }

    pub(crate) fn i16(&mut self) -> Result<i16, Malformed> {
        self.take().map(i16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_be_bytes)
    }

    pub(crate) fn i32(&mut self) -> Result<i32, Malformed> {
        self.take().map(i32::from_be_bytes)
    }

    /// Reads a text that ends with a zero byte.
    pub(crate) fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let end = memchr::memchr(0, self.0).ok_or(Malformed)?;
        let text = &self.0[..end];
        self.0 = &self.0[end + 1..];
        Ok(text)
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(head)
    }
}

/// One column of a result, as RowDescription has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnDescription {
    pub name: String,
    /// Table that the column comes from; 0 if it is an expression.
    pub table_oid: u32,
    /// Number of the column in that table; 0 if it is an expression.
    pub column_id: i16,
    pub type_oid: u32,
    /// Size of the type in bytes; negative if it varies.
    pub type_size: i16,
    pub type_modifier: i32,
}

/// Parameters and result columns of a prepared statement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Description {
    /// Type of each parameter.
    pub params: Vec<u32>,
    /// `None` if the statement has no result set.
    pub columns: Option<Vec<ColumnDescription>>,
    /// Name of the prepared statement; empty for the unnamed one.
    pub(crate) name: Box<str>,
}

pub(crate) fn parse_columns(body: &[u8]) -> Result<Vec<ColumnDescription>, Malformed> {
    let mut body = MessageBody(body);
    let count = body.u16()?;
    (0..count).map(|_| parse_column(&mut body)).collect()
}

fn parse_column(body: &mut MessageBody<'_>) -> Result<ColumnDescription, Malformed> {
    let name = String::from_utf8_lossy(body.text()?).into_owned();
    let table_oid = body.u32()?;
    let column_id = body.i16()?;
    let type_oid = body.u32()?;
    let type_size = body.i16()?;
    let type_modifier = body.i32()?;
    body.i16()?; // the format, which is text
    Ok(ColumnDescription { name, table_oid, column_id, type_oid, type_size, type_modifier })
}

pub(crate) fn parse_param_types(body: &[u8]) -> Result<Vec<u32>, Malformed> {
    let mut body = MessageBody(body);
    let count = body.u16()?;
    (0..count).map(|_| body.u32()).collect()
}

/// One row; its values are in PostgreSQL's text format, `None` is NULL.
#[derive(Clone, Copy)]
pub struct RowText<'a> {
    remaining: u16,
    /// Checked by [`RowText::parse`].
    values: MessageBody<'a>,
}

impl<'a> RowText<'a> {
    pub(crate) fn parse(body: &'a [u8]) -> Result<Self, Malformed> {
        let mut values = MessageBody(body);
        let remaining = values.u16()?;
        let mut rest = values;
        for _ in 0..remaining {
            next_value(&mut rest)?;
        }
        if rest.0.is_empty() { Ok(Self { remaining, values }) } else { Err(Malformed) }
    }

    /// Returns the size of the row as it was received.
    pub fn byte_len(&self) -> usize {
        self.values.0.len()
    }
}

impl<'a> Iterator for RowText<'a> {
    type Item = Option<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        self.remaining = self.remaining.checked_sub(1)?;
        next_value(&mut self.values).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (usize::from(self.remaining), Some(usize::from(self.remaining)))
    }
}

impl ExactSizeIterator for RowText<'_> {}

fn next_value<'a>(body: &mut MessageBody<'a>) -> Result<Option<&'a [u8]>, Malformed> {
    let Ok(length) = usize::try_from(body.i32()?) else { return Ok(None) };
    body.bytes(length).map(Some)
}

/// Tag of a completed command, such as `INSERT 0 1`; stored in place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct CommandTag {
    length: u8,
    bytes: [u8; Self::BYTES_MAX],
}

impl CommandTag {
    /// The server's own limit, `COMPLETION_TAG_BUFSIZE`, without the zero byte.
    const BYTES_MAX: usize = 63;
    pub(crate) const EMPTY: Self = Self { length: 0, bytes: [0; Self::BYTES_MAX] };

    pub(crate) fn parse(body: &[u8]) -> Result<Self, Malformed> {
        let text = MessageBody(body).text()?;
        let mut tag = Self::EMPTY;
        tag.bytes.get_mut(..text.len()).ok_or(Malformed)?.copy_from_slice(text);
        tag.length = u8::try_from(text.len()).map_err(|_| Malformed)?;
        std::str::from_utf8(text).map_err(|_| Malformed)?;
        Ok(tag)
    }

    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }

    /// Returns the number at the end of the tag, if it has one.
    pub fn rows_affected(&self) -> Option<u64> {
        self.as_str().rsplit_once(' ')?.1.parse().ok()
    }
}

impl core::fmt::Debug for CommandTag {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_yields_values_and_nulls() {
        let body = [&[0, 3][..], &[0, 0, 0, 1, b'x'], &[255, 255, 255, 255], &[0, 0, 0, 0]].concat();
        let row = RowText::parse(&body).unwrap();
        assert_eq!(row.len(), 3);
        assert_eq!(row.collect::<Vec<_>>(), [Some(&b"x"[..]), None, Some(&b""[..])]);
    }

    #[test]
    fn a_row_cut_at_any_byte_or_with_surplus_bytes_is_malformed() {
        let body = [&[0, 2][..], &[0, 0, 0, 1, b'x'], &[0, 0, 0, 2, b'y', b'z']].concat();
        for end in 0..body.len() {
            assert!(RowText::parse(&body[..end]).is_err(), "{end}");
        }
        assert!(RowText::parse(&[&body[..], &[0]].concat()).is_err());
    }

    #[test]
    fn the_rows_of_a_tag_are_its_last_number() {
        let rows = |tag: &str| CommandTag::parse(&[tag.as_bytes(), &[0]].concat()).unwrap().rows_affected();
        assert_eq!(rows("INSERT 0 5"), Some(5));
        assert_eq!(rows("SELECT 1000000"), Some(1_000_000));
        assert_eq!(rows("BEGIN"), None);
        assert_eq!(rows("CREATE TABLE"), None);
    }

    #[test]
    fn a_tag_of_64_bytes_is_malformed() {
        let tag = [b'A'; 64];
        assert!(CommandTag::parse(&[&tag[..63], &[0]].concat()).is_ok());
        assert!(CommandTag::parse(&[&tag[..], &[0]].concat()).is_err());
    }
}
