//! Span contexts, and their W3C `traceparent` header.

use std::fmt;

/// A client's `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Trace id; never zero.
    pub trace: u128,
    /// Id of the client's span; never zero.
    pub span: u64,
    /// The client's sampling decision.
    pub sampled: bool,
}

impl TraceParent {
    /// Parses the header; `None` if it is malformed.
    pub fn parse(header: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(header).ok()?.trim();
        let mut parts = text.split('-');
        let version = parts.next()?;
        let trace = parts.next()?;
        let span = parts.next()?;
        let flags = parts.next()?;
        // Later versions may append fields, but not omit any.
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

/// A span's position in a trace; displayed as the `traceparent` of requests sent within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpanContext {
    pub trace: u128,
    pub span: u64,
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
    fn a_displayed_context_parses_again() {
        let context = SpanContext { trace: 0xABCD << 100, span: 9, parent: None };
        let parent = TraceParent::parse(context.to_string().as_bytes()).unwrap();
        assert_eq!((parent.trace, parent.span, parent.sampled), (context.trace, 9, true));
    }

    #[test]
    fn only_a_well_formed_header_is_accepted() {
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
