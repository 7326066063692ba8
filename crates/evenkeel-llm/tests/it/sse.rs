//! Streams: passed on and understood the same, wherever they are cut.

use evenkeel_llm::sse::{EVENT_BYTES_MAX, HideUsage, StreamEnd, StreamTotals};
use evenkeel_llm::usage::Usage;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::checks::sse::{check, told};

/// Checks a stream cut at every place.
pub(crate) fn check_every_cut(stream: &[u8]) {
    check(stream);
    for hide in [HideUsage::Nothing, HideUsage::Usage] {
        let whole = told(hide, [stream]);
        for at in 0..=stream.len() {
            assert_eq!(told(hide, [&stream[..at], &stream[at..]]), whole, "cut at {at}");
        }
    }
}

/// An event that a server may send.
#[derive(Clone, Debug)]
enum Sent {
    /// A piece of each of so many answers.
    Pieces(u8),
    /// Something that brings nothing.
    Nothing(&'static str),
    /// The extra event with the counts.
    Counts(Usage),
    /// The counts with a piece of an answer.
    PieceAndCounts(Usage),
    Error(&'static str),
    Done,
}

impl Sent {
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Pieces(count) => {
                let choices = vec![r#"{"index":0,"delta":{"content":"hi \"}]"}}"#; usize::from(*count)];
                vec![format!(r#"data: {{"id":"x","choices":[{}],"usage":null}}"#, choices.join(","))]
            }
            Self::Nothing(lines) => lines.split('|').map(str::to_owned).collect(),
            Self::Counts(Usage { input, output }) => vec![
                ": counts".to_owned(),
                r#"data: {"choices" : [ ],"#.to_owned(),
                format!(r#"data:"usage":{{"prompt_tokens":{input},"completion_tokens":{output}}}}}"#),
            ],
            Self::PieceAndCounts(Usage { input, output }) => vec![format!(
                r#"data:{{"choices":[{{"text":"x"}}],"usage":{{"input_tokens":{input},"output_tokens":{output}}}}}"#
            )],
            Self::Error(lines) => lines.split('|').map(str::to_owned).collect(),
            Self::Done => vec!["data: [DONE]".to_owned()],
        }
    }

    fn is_hidden(&self) -> bool {
        matches!(self, Self::Counts(_))
    }

    fn note(&self, found: &mut StreamTotals) {
        match self {
            Self::Pieces(count) => found.tokens += u64::from(*count),
            Self::Nothing(_) => {}
            Self::Counts(usage) => found.usage = Some(*usage),
            Self::PieceAndCounts(usage) => {
                found.usage = Some(*usage);
                found.tokens += 1;
            }
            Self::Error(_) => found.error = true,
            Self::Done => found.done = true,
        }
    }
}

fn sent() -> impl Strategy<Value = Sent> {
    let usage = || (0..1_000_u64, 0..1_000_u64).prop_map(|(input, output)| Usage { input, output });
    let nothing = [
        ": keep-alive",
        "event: ping",
        "id: 7|retry: 10",
        "data",
        "data:",
        "datax: [DONE]",
        "data: {broken",
        "data: [DONE] not",
        r#"data: {"choices":[]}"#,
        r#"data: {"choices":[],"usage":null}"#,
        r#"data: {"choices":[{"delta":{"role":"assistant","content":""}}],"error":null}"#,
        r#"data: {"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
        r#"data: {"text":"\"usage\":{\"prompt_tokens\":1}"}"#,
    ];
    let error = [
        r#"data: {"error":{"message":"out of memory"}}"#,
        r#"event: error|data: {"message":"x"}"#,
        r#"data: {"type":"error"}"#,
    ];
    prop_oneof![
        4 => (1..4_u8).prop_map(Sent::Pieces),
        2 => select(nothing.to_vec()).prop_map(Sent::Nothing),
        1 => usage().prop_map(Sent::Counts),
        1 => usage().prop_map(Sent::PieceAndCounts),
        1 => select(error.to_vec()).prop_map(Sent::Error),
        1 => Just(Sent::Done),
    ]
}

fn line_end() -> impl Strategy<Value = &'static str> {
    select(vec!["\n", "\r\n", "\r"])
}

/// Pieces that streams are made of.
fn soup() -> impl Strategy<Value = Vec<u8>> {
    let known = [
        "\n",
        "\n\n",
        "\r",
        "\r\n",
        "\r\n\r\n",
        "data:",
        "data: ",
        "event: error",
        ":",
        "[DONE]",
        "{",
        "}",
        "[",
        "]",
        "\"choices\":[",
        "\"choices\":[]",
        "\"usage\":{\"prompt_tokens\":1}",
        "\"delta\":{\"content\":\"x\"}",
        ",",
        "\"error\":{}",
        "{\"choices\":[],\"usage\":{\"input_tokens\":1}}",
        "\"type\":\"message_stop\"",
    ];
    let piece = prop_oneof![
        8 => select(known.to_vec()).prop_map(|piece| piece.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 1..3),
    ];
    vec(piece, 0..30).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn every_event_is_understood_and_only_the_counts_are_hidden(
        stream in vec((sent(), line_end(), line_end()), 0..8),
        cuts in vec(any::<Index>(), 0..6),
    ) {
        let mut whole = Vec::new();
        let mut shown = Vec::new();
        let mut found = StreamTotals::default();
        for (sent, end, last_end) in &stream {
            let event = format!("{}{end}{last_end}", sent.lines().join(end));
            // After a lone return a line feed is its other half, not a line.
            let event = if format!("{end}{last_end}") == "\r\n" { format!("{event}\n") } else { event };
            sent.note(&mut found);
            whole.extend_from_slice(event.as_bytes());
            if !sent.is_hidden() {
                shown.extend_from_slice(event.as_bytes());
            }
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
        cuts.extend([0, whole.len()]);
        cuts.sort_unstable();
        let chunks = || cuts.windows(2).map(|pair| &whole[pair[0]..pair[1]]);
        let ending = if found.done { StreamEnd::Complete } else { StreamEnd::NoEndMarker };
        for (hide, passed) in [(HideUsage::Nothing, &whole), (HideUsage::Usage, &shown)] {
            let told = told(hide, chunks());
            prop_assert_eq!(String::from_utf8_lossy(&told.passed), String::from_utf8_lossy(passed));
            prop_assert_eq!((told.found, told.ending), (found, ending));
        }
        check_every_cut(&whole);
    }

    #[test]
    fn no_cut_changes_what_any_bytes_tell(stream in soup()) {
        check_every_cut(&stream);
    }
}

#[test]
fn an_event_too_long_to_hold_is_passed_on_unread() {
    let stream = |len: usize| {
        let event = r#"data: {"choices":[],"usage":{"prompt_tokens":1}}"#;
        format!("{event}{}\n\ndata: [DONE]\n\n", " ".repeat(len - event.len() - 2))
    };
    let cuts = [1, EVENT_BYTES_MAX / 2, EVENT_BYTES_MAX - 1, EVENT_BYTES_MAX, EVENT_BYTES_MAX + 1];
    let fits = stream(EVENT_BYTES_MAX);
    let too_long = stream(EVENT_BYTES_MAX + 1);
    for at in cuts {
        for len in [at, EVENT_BYTES_MAX + 20] {
            let all = told(HideUsage::Usage, fits.as_bytes().chunks(len.max(1_000)));
            assert_eq!((all.passed.len(), all.ending), ("data: [DONE]\n\n".len(), StreamEnd::Complete));
            let all = told(HideUsage::Usage, too_long.as_bytes().chunks(len.max(1_000)));
            assert_eq!(all.passed, too_long.as_bytes());
            assert_eq!(all.found, StreamTotals { done: true, ..StreamTotals::default() });
        }
    }
}
