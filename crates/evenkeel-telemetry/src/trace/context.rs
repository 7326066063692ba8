//! Where a span belongs, as W3C's `traceparent` tells it from one server to the next.

use std::fmt;

/// What a client says of the trace that its request belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace; never zero.
    pub trace: u128,
    /// The span that the request was made in; never zero.
    pub span: u64,
    /// Whether it is traced.
    pub sampled: bool,
}

impl TraceParent {
    /// Reads the header; what is not well-formed says nothing.
    pub fn parse(header: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(header).ok()?.trim();
        let mut parts = text.split('-');
        let version = parts.next()?;
        let trace = parts.next()?;
        let span = parts.next()?;
        let flags = parts.next()?;
        // Later versions may say more, but not less.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        hex(version, 2)?;
        let parent = Self {
            trace: hex(trace, 32)?,
            span: u64::try_from(hex(span, 16)?).ok()?,
            sampled: hex(flags, 2)? & 1 == 1,
        };
        (parent.trace != 0 && parent.span != 0).then_some(parent)
    }
}

fn hex(text: &str, digits: usize) -> Option<u128> {
    let is_hex = |byte: u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    if text.len() != digits || !text.bytes().all(is_hex) {
        return None;
    }
    u128::from_str_radix(text, 16).ok()
}

/// A span's place in a trace; shown as the `traceparent` of requests that are made in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    /// The trace.
    pub trace: u128,
    /// The span.
    pub span: u64,
    /// The span that it is part of.
    pub parent: Option<u64>,
}

impl fmt::Display for SpanContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-01", self.trace, self.span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_read_again() {
        let context = SpanContext { trace: 0xABCD << 100, span: 9, parent: None };
        let parent = TraceParent::parse(context.to_string().as_bytes()).unwrap();
        assert_eq!((parent.trace, parent.span, parent.sampled), (context.trace, 9, true));
    }

    #[test]
    fn only_what_is_well_formed_says_anything() {
        let trace = "0af7651916cd43dd8448eb211c80319c";
        let span = "b7ad6b7169203331";
        let parse = |text: &str| TraceParent::parse(text.as_bytes());
        assert!(parse(&format!("00-{trace}-{span}-00")).is_some_and(|parent| !parent.sampled));
        assert!(parse(&format!("01-{trace}-{span}-03-more")).is_some_and(|parent| parent.sampled));
        for wrong in [
            String::new(),
            format!("00-{trace}-{span}"),
            format!("00-{trace}-{span}-01-more"),
            format!("ff-{trace}-{span}-01"),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-+{}-{span}-01", &trace[1..]),
            format!("0-{trace}-{span}-01"),
        ] {
            assert_eq!(parse(&wrong), None, "{wrong}");
        }
        assert_eq!(TraceParent::parse(b"\xff"), None);
    }
}
