//! JSON pull parser: a cursor over the bytes that validates everything it skips.
//!
//! Guarantees: accepts exactly the grammar of RFC 8259, in one pass and without allocation. The caller checks that the
//! bytes are UTF-8.
//!
//! Limits: values nest at most [`DEPTH_MAX`] deep.

use std::borrow::Cow;

/// Deepest nesting, so that recursion is safe.
pub(crate) const DEPTH_MAX: u32 = 128;

/// Invalid JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid JSON at byte {at}")]
pub(crate) struct JsonError {
    /// Offset of the invalid byte; the length of the text if it ends too early.
    pub(crate) at: usize,
    pub(crate) kind: JsonErrorKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonErrorKind {
    Syntax,
    /// Nested deeper than [`DEPTH_MAX`].
    TooDeep,
}

/// Type of a value, known from its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Object,
    Array,
    Text,
    Number,
    Bool,
    Null,
}

/// A string, with its quotes and escapes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Text<'a> {
    quoted: &'a [u8],
    /// Number of bytes by which decoding shortens the string; 0 only if it has no escapes.
    escape_overhead: usize,
}

impl<'a> Text<'a> {
    /// Returns the bytes between the quotes, escapes included.
    pub(crate) fn raw(&self) -> &'a [u8] {
        &self.quoted[1..self.quoted.len() - 1]
    }

    /// Decodes the string; `None` if it is not Unicode, such as half of a surrogate pair.
    pub(crate) fn decoded(&self) -> Option<Cow<'a, str>> {
        if self.escape_overhead == 0 {
            return core::str::from_utf8(self.raw()).ok().map(Cow::Borrowed);
        }
        serde_json::from_slice::<String>(self.quoted).ok().map(Cow::Owned)
    }

    /// Reports whether the decoded string is `other`.
    pub(crate) fn is(&self, other: &str) -> bool {
        if self.escape_overhead == 0 {
            return self.raw() == other.as_bytes();
        }
        self.decoded().as_deref() == Some(other)
    }

    /// Returns the length of the decoded string in UTF-8.
    pub(crate) fn len(&self) -> usize {
        self.raw().len() - self.escape_overhead
    }
}

/// Returns the UTF-8 length of a UTF-16 unit; each half of a surrogate pair counts as two of the pair's four bytes.
pub(crate) fn utf8_len(unit: u32) -> usize {
    match unit {
        0..0x80 => 1,
        0x80..0x800 | 0xD800..=0xDFFF => 2,
        _ => 3,
    }
}

/// Position in a JSON text.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: u32,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0, depth: 0 }
    }

    /// Returns the type of the next value, and moves to its first byte.
    pub(crate) fn kind(&mut self) -> Result<Kind, JsonError> {
        self.skip_space();
        match self.peek() {
            Some(b'{') => Ok(Kind::Object),
            Some(b'[') => Ok(Kind::Array),
            Some(b'"') => Ok(Kind::Text),
            Some(b'-' | b'0'..=b'9') => Ok(Kind::Number),
            Some(b't' | b'f') => Ok(Kind::Bool),
            Some(b'n') => Ok(Kind::Null),
            _ => Err(self.syntax_error()),
        }
    }

    /// Returns the offset of the next value.
    pub(crate) fn start(&mut self) -> Result<usize, JsonError> {
        self.kind()?;
        Ok(self.at)
    }

    /// Returns the current offset.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// Returns the bytes since offset `from`.
    pub(crate) fn since(&self, from: usize) -> &'a [u8] {
        self.bytes.get(from..self.at).unwrap_or_default()
    }

    /// Reads an object; `each` gets every field's name and reads its value.
    pub(crate) fn object<E: From<JsonError>>(
        &mut self,
        mut each: impl FnMut(Text<'a>, &mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.enter(b'{')?;
        if self.skip_close(b'}') {
            return Ok(());
        }
        loop {
            let name = self.text()?;
            self.expect(b':')?;
            each(name, self)?;
            if self.skip_close(b'}') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Reads an array; `each` reads every value.
    pub(crate) fn array<E: From<JsonError>>(
        &mut self,
        mut each: impl FnMut(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.enter(b'[')?;
        if self.skip_close(b']') {
            return Ok(());
        }
        loop {
            each(self)?;
            if self.skip_close(b']') {
                return Ok(());
            }
            self.expect(b',')?;
        }
    }

    /// Reads a string.
    pub(crate) fn text(&mut self) -> Result<Text<'a>, JsonError> {
        self.expect(b'"')?;
        let from = self.at - 1;
        let mut escape_overhead = 0;
        loop {
            self.at += plain_len(&self.bytes[self.at..]);
            match self.peek() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(Text { quoted: self.since(from), escape_overhead });
                }
                Some(b'\\') => escape_overhead += self.skip_escape()?,
                _ => return Err(self.syntax_error()),
            }
        }
    }

    /// Reads a number; returns its text.
    pub(crate) fn number(&mut self) -> Result<&'a [u8], JsonError> {
        self.skip_space();
        let from = self.at;
        self.skip_if_next(b'-');
        if !self.skip_if_next(b'0') {
            self.skip_digits()?;
        }
        if self.skip_if_next(b'.') {
            self.skip_digits()?;
        }
        if self.skip_if_next(b'e') || self.skip_if_next(b'E') {
            let _signed = self.skip_if_next(b'+') || self.skip_if_next(b'-');
            self.skip_digits()?;
        }
        Ok(self.since(from))
    }

    /// Reads `true` or `false`.
    pub(crate) fn bool(&mut self) -> Result<bool, JsonError> {
        self.skip_space();
        let value = self.peek() == Some(b't');
        self.skip_word(if value { b"true" } else { b"false" })?;
        Ok(value)
    }

    /// Skips a value of any type.
    pub(crate) fn skip(&mut self) -> Result<(), JsonError> {
        match self.kind()? {
            Kind::Object => self.object(|_, cursor| cursor.skip()),
            Kind::Array => self.array(Self::skip),
            Kind::Text => self.text().map(drop),
            Kind::Number => self.number().map(drop),
            Kind::Bool => self.bool().map(drop),
            Kind::Null => self.skip_word(b"null"),
        }
    }

    /// Checks that nothing follows.
    pub(crate) fn end(&mut self) -> Result<(), JsonError> {
        self.skip_space();
        if self.at == self.bytes.len() { Ok(()) } else { Err(self.syntax_error()) }
    }

    fn enter(&mut self, open: u8) -> Result<(), JsonError> {
        self.expect(open)?;
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return Err(JsonError { at: self.at - 1, kind: JsonErrorKind::TooDeep });
        }
        Ok(())
    }

    /// Ends a level of nesting if `close` is next, and skips it; returns whether it was.
    fn skip_close(&mut self, close: u8) -> bool {
        self.skip_space();
        let closed = self.skip_if_next(close);
        self.depth -= u32::from(closed);
        closed
    }

    fn expect(&mut self, byte: u8) -> Result<(), JsonError> {
        self.skip_space();
        if self.skip_if_next(byte) { Ok(()) } else { Err(self.syntax_error()) }
    }

    fn skip_if_next(&mut self, byte: u8) -> bool {
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Skips an escape; returns by how many bytes it is longer than its character.
    fn skip_escape(&mut self) -> Result<usize, JsonError> {
        self.at += 1;
        let letter = self.peek();
        if !matches!(letter, Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' | b'u')) {
            return Err(self.syntax_error());
        }
        self.at += 1;
        if letter != Some(b'u') {
            return Ok(1);
        }
        let mut unit = 0;
        for _ in 0..4 {
            let digit = self.peek().and_then(|byte| char::from(byte).to_digit(16));
            unit = unit << 4 | digit.ok_or(self.syntax_error())?;
            self.at += 1;
        }
        Ok(6 - utf8_len(unit))
    }

    fn skip_digits(&mut self) -> Result<(), JsonError> {
        let from = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        if from == self.at { Err(self.syntax_error()) } else { Ok(()) }
    }

    fn skip_word(&mut self, word: &[u8]) -> Result<(), JsonError> {
        self.skip_space();
        word.iter()
            .try_for_each(|&byte| if self.skip_if_next(byte) { Ok(()) } else { Err(self.syntax_error()) })
    }

    fn syntax_error(&self) -> JsonError {
        JsonError { at: self.at, kind: JsonErrorKind::Syntax }
    }
}

/// Length from which a string is scanned with `memchr`.
const SHORT: usize = 64;

/// Counts the bytes before the first quote, backslash or control character.
///
/// Reads eight bytes at a time; wider reads were slower, because most strings are short.
fn plain_len(bytes: &[u8]) -> usize {
    let short = plain_len_short(bytes.get(..SHORT).unwrap_or(bytes));
    if short < SHORT {
        return short;
    }
    // A string that is not short is usually long, and worth a vectorized search.
    let rest = &bytes[SHORT..];
    let rest = &rest[..memchr::memchr2(b'"', b'\\', rest).unwrap_or(rest.len())];
    let controls = rest.iter().fold(0, |controls, byte| controls | u8::from(*byte < 0x20));
    SHORT + if controls == 0 { rest.len() } else { plain_len_short(rest) }
}

fn plain_len_short(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::MAX / 0xFF;
    const HIGHS: u64 = ONES * 0x80;
    let (words, rest) = bytes.as_chunks::<8>();
    for (index, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let zeros = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
        let quotes = zeros(word ^ (ONES * 0x22));
        let escapes = zeros(word ^ (ONES * 0x5C));
        let controls = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
        // The borrow of a subtraction causes false hits only above the first hit, so the lowest hit is correct.
        let hits = quotes | escapes | controls;
        if hits != 0 {
            return 8 * index + hits.trailing_zeros() as usize / 8;
        }
    }
    let is_plain = |byte: &u8| 0x20 <= *byte && *byte != b'"' && *byte != b'\\';
    8 * words.len() + rest.iter().take_while(|byte| is_plain(byte)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_is_that_of_the_decoded_string() {
        for (quoted, len) in [
            (r#""""#, 0),
            (r#""plain""#, 5),
            (r#""a\nb""#, 3),
            (r#""\u0041\u00e9\u20ac""#, 6),
            (r#""\ud83d\ude00\\u0041""#, 10),
            (r#""é""#, 2),
        ] {
            let text = Cursor::new(quoted.as_bytes()).text().unwrap();
            assert_eq!(text.len(), len, "{quoted}");
            assert_eq!(text.decoded().unwrap().len(), len, "{quoted}");
        }
    }

    #[test]
    fn names_are_compared_after_decoding() {
        assert!(Cursor::new(br#""mod\u0065l""#).text().unwrap().is("model"));
        assert!(!Cursor::new(br#""mod\u0065l""#).text().unwrap().is("mod\\u0065l"));
        assert_eq!(Cursor::new(br#""\ud800""#).text().unwrap().decoded(), None);
    }

    #[test]
    fn an_error_has_the_offset_of_the_invalid_byte() {
        for (text, at) in [
            ("", 0),
            ("  ", 2),
            ("{", 1),
            (r#"{"a" 1}"#, 5),
            (r#"{"a":1,}"#, 7),
            ("[1 2]", 3),
            ("01", 1),
            ("-", 1),
            ("1.", 2),
            ("1e+", 3),
            ("nul", 3),
            ("nulL", 3),
            ("\"a", 2),
            ("\"a\nb\"", 2),
            (r#""\x""#, 2),
            (r#""\u00g0""#, 5),
            ("1 1", 2),
            ("+1", 0),
        ] {
            assert_eq!(read(text), Err(JsonError { at, kind: JsonErrorKind::Syntax }), "{text}");
        }
    }

    #[test]
    fn values_nest_up_to_the_limit() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert_eq!(read(&nested(DEPTH_MAX as usize)), Ok(()));
        let error = JsonError { at: DEPTH_MAX as usize, kind: JsonErrorKind::TooDeep };
        assert_eq!(read(&nested(DEPTH_MAX as usize + 1)), Err(error));
        assert_eq!(read(&format!("[{}]", vec!["[[]]"; 1_000].join(","))), Ok(()));
    }

    #[test]
    fn plain_len_finds_the_end_at_every_offset_of_a_word() {
        for end in [b'"', b'\\', 0, 0x1F] {
            for at in 0..104 {
                let mut bytes = [b' ', 0x7F, 0xFF, b'!', b'#', b'[', b']', 0x80].repeat(13);
                bytes[at] = end;
                assert_eq!(plain_len(&bytes), at, "{end}");
            }
        }
        assert_eq!((plain_len(&[0x21; 13]), plain_len(&[0x21; 77])), (13, 77));
    }

    fn read(text: &str) -> Result<(), JsonError> {
        let mut cursor = Cursor::new(text.as_bytes());
        cursor.skip()?;
        cursor.end()
    }
}
