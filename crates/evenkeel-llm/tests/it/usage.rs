//! Counts: found in any answer, however it is cut.

use evenkeel_llm::usage::{Usage, UsageScanner};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

use crate::values::{object, value};

proptest! {
    #[test]
    fn counts_are_found_among_anything(
        more in vec(("[a-d\\\\\"]{1,3}", value()), 0..4),
        beside in vec(("[a-d]{1,3}", value()), 0..3),
        place in any::<Index>(),
        (input, output) in any::<(u32, u32)>(),
        cuts in vec(any::<Index>(), 0..4),
    ) {
        let told = |name: &str, value: String| (name.to_owned(), value);
        let mut counts = beside;
        counts.insert(place.index(counts.len() + 1), told("prompt_tokens", input.to_string()));
        counts.insert(place.index(counts.len() + 1), told("completion_tokens", output.to_string()));
        let mut answer = more;
        answer.push(told("choices", format!(r#"[{{"usage":{}}}]"#, object(&counts))));
        answer.insert(place.index(answer.len() + 1), told("usage", object(&counts)));
        let answer = object(&answer).into_bytes();
        let usage = Some(Usage { input: input.into(), output: output.into() });
        prop_assert_eq!(Usage::of_json(&answer), usage);
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(answer.len() + 1)).collect();
        cuts.extend([0, answer.len()]);
        cuts.sort_unstable();
        let mut scanner = UsageScanner::default();
        cuts.windows(2).for_each(|pair| scanner.scan(&answer[pair[0]..pair[1]]));
        prop_assert_eq!(scanner.usage(), usage);
    }

    #[test]
    fn nothing_else_tells_counts(answer in value()) {
        prop_assert_eq!(Usage::of_json(answer.as_bytes()), None);
    }
}
