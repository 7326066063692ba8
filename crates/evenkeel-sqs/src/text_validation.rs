//! Validation of the characters in messages.

/// Reports whether AWS accepts every character, that is, whether XML 1.0 allows it.
pub(crate) fn is_valid_text(text: &str) -> bool {
    // Fast path for printable ASCII. The fold without early exit is vectorized, which is faster than stopping at the
    // first other byte.
    let is_plain = text.bytes().fold(true, |plain, byte| plain & (0x20..0x80).contains(&byte));
    is_plain || text.chars().all(is_valid)
}

/// Reports whether XML 1.0 allows a character.
pub(crate) const fn is_valid(character: char) -> bool {
    matches!(character, '\u{9}' | '\u{a}' | '\u{d}' | '\u{20}'..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_outside_xml_are_rejected() {
        for good in [
            "",
            "plain",
            "tab\tline\nreturn\r",
            "ä€😀",
            "\u{d7ff}\u{e000}\u{fffd}\u{10000}\u{10ffff}",
            "\u{7f}",
        ] {
            assert!(is_valid_text(good), "{good:?} was rejected");
        }
        for bad in ["\0", "a\u{b}", "\u{1f}", "\u{fffe}", "\u{ffff}"] {
            assert!(!is_valid_text(bad), "{bad:?} was accepted");
        }
    }
}
