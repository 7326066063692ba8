//! Streams are passed on and scanned the same, wherever the chunks are cut.

use evenkeel_llm::sse::{EVENT_BYTES_MAX, HideUsage, StreamEnd, StreamTotals};
use evenkeel_llm::usage::{TextLength, Usage};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::checks::sse::{check, scan};

/// Checks a stream cut at every byte.
pub(crate) fn check_every_split(stream: &[u8]) {
    check(stream);
    for hide in [HideUsage::Nothing, HideUsage::Usage] {
        let whole = scan(hide, [stream]);
        for at in 0..=stream.len() {
            assert_eq!(scan(hide, [&stream[..at], &stream[at..]]), whole, "cut at {at}");
        }
    }
}

/// An event that a server may send.
#[derive(Clone, Debug)]
enum ServerEvent {
    /// A delta with this many choices.
    Deltas(u8),
    /// An event without content.
    Empty(&'static str),
    /// The extra usage event.
    Usage(Usage),
    /// A delta with usage.
    DeltaAndUsage(Usage),
    Error(&'static str),
    Done,
}

impl ServerEvent {
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Deltas(count) => {
                let choices = vec![r#"{"index":0,"delta":{"content":"hi \"}]"}}"#; usize::from(*count)];
                vec![format!(r#"data: {{"id":"x","choices":[{}],"usage":null}}"#, choices.join(","))]
            }
            Self::Empty(lines) => lines.split('|').map(str::to_owned).collect(),
            Self::Usage(Usage { input, output, .. }) => vec![
                ": usage".to_owned(),
                r#"data: {"choices" : [ ],"#.to_owned(),
                format!(r#"data:"usage":{{"prompt_tokens":{input},"completion_tokens":{output}}}}}"#),
            ],
            Self::DeltaAndUsage(Usage { input, output, .. }) => vec![format!(
                r#"data:{{"choices":[{{"text":"x"}}],"usage":{{"input_tokens":{input},"output_tokens":{output}}}}}"#
            )],
            Self::Error(lines) => lines.split('|').map(str::to_owned).collect(),
            Self::Done => vec!["data: [DONE]".to_owned()],
        }
    }

    fn is_hidden(&self) -> bool {
        matches!(self, Self::Usage(_))
    }

    fn record(&self, totals: &mut StreamTotals) {
        match self {
            Self::Deltas(count) => {
                totals.deltas += u64::from(*count);
                totals.text += TextLength::of_content(6 * u64::from(*count));
            }
            Self::Empty(_) => {}
            Self::Usage(usage) => totals.usage = Some(*usage),
            Self::DeltaAndUsage(usage) => {
                totals.usage = Some(*usage);
                totals.deltas += 1;
                totals.text += TextLength::of_content(1);
            }
            Self::Error(_) => totals.error = true,
            Self::Done => totals.done = true,
        }
    }
}

fn server_event() -> impl Strategy<Value = ServerEvent> {
    let usage =
        || (0..1_000_u64, 0..1_000_u64).prop_map(|(input, output)| Usage { input, cached: 0, output });
    let empty = [
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
        4 => (1..4_u8).prop_map(ServerEvent::Deltas),
        2 => select(empty.to_vec()).prop_map(ServerEvent::Empty),
        1 => usage().prop_map(ServerEvent::Usage),
        1 => usage().prop_map(ServerEvent::DeltaAndUsage),
        1 => select(error.to_vec()).prop_map(ServerEvent::Error),
        1 => Just(ServerEvent::Done),
    ]
}

fn line_end() -> impl Strategy<Value = &'static str> {
    select(vec!["\n", "\r\n", "\r"])
}

/// Generates streams out of fragments of events.
fn fragments() -> impl Strategy<Value = Vec<u8>> {
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
    let fragment = prop_oneof![
        8 => select(known.to_vec()).prop_map(|fragment| fragment.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 1..3),
    ];
    vec(fragment, 0..30).prop_map(|fragments| fragments.concat())
}

proptest! {
    #[test]
    fn every_event_is_scanned_and_only_the_usage_is_hidden(
        stream in vec((server_event(), line_end(), line_end()), 0..8),
        cuts in vec(any::<Index>(), 0..6),
    ) {
        let mut whole = Vec::new();
        let mut visible = Vec::new();
        let mut totals = StreamTotals::default();
        for (server_event, end, last_end) in &stream {
            let event = format!("{}{end}{last_end}", server_event.lines().join(end));
            // A line feed right after a carriage return belongs to the same line ending, so another one ends the event.
            let event = if format!("{end}{last_end}") == "\r\n" { format!("{event}\n") } else { event };
            server_event.record(&mut totals);
            whole.extend_from_slice(event.as_bytes());
            if !server_event.is_hidden() {
                visible.extend_from_slice(event.as_bytes());
            }
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(whole.len() + 1)).collect();
        cuts.extend([0, whole.len()]);
        cuts.sort_unstable();
        let chunks = || cuts.windows(2).map(|pair| &whole[pair[0]..pair[1]]);
        let end = if totals.done { StreamEnd::Complete } else { StreamEnd::NoEndMarker };
        for (hide, passed) in [(HideUsage::Nothing, &whole), (HideUsage::Usage, &visible)] {
            let scanned = scan(hide, chunks());
            prop_assert_eq!(String::from_utf8_lossy(&scanned.passed), String::from_utf8_lossy(passed));
            prop_assert_eq!((scanned.totals, scanned.end), (totals, end));
        }
        check_every_split(&whole);
    }

    #[test]
    fn chunk_boundaries_do_not_matter_for_arbitrary_bytes(stream in fragments()) {
        check_every_split(&stream);
    }
}

#[test]
fn an_event_over_the_limit_is_passed_on_unread() {
    let stream = |len: usize| {
        let event = r#"data: {"choices":[],"usage":{"prompt_tokens":1}}"#;
        format!("{event}{}\n\ndata: [DONE]\n\n", " ".repeat(len - event.len() - 2))
    };
    let cuts = [1, EVENT_BYTES_MAX / 2, EVENT_BYTES_MAX - 1, EVENT_BYTES_MAX, EVENT_BYTES_MAX + 1];
    let fits = stream(EVENT_BYTES_MAX);
    let too_long = stream(EVENT_BYTES_MAX + 1);
    for at in cuts {
        for len in [at, EVENT_BYTES_MAX + 20] {
            let all = scan(HideUsage::Usage, fits.as_bytes().chunks(len.max(1_000)));
            assert_eq!((all.passed.len(), all.end), ("data: [DONE]\n\n".len(), StreamEnd::Complete));
            let all = scan(HideUsage::Usage, too_long.as_bytes().chunks(len.max(1_000)));
            assert_eq!(all.passed, too_long.as_bytes());
            assert_eq!(all.totals, StreamTotals { done: true, ..StreamTotals::default() });
        }
    }
}
