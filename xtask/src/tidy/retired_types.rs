//! Rejects type names that earlier code used: participles, question words and metaphors that do not say what a type is.

use super::Finding;
use super::rust::RustFile;

const RETIRED: &[&str] = &[
    "Told", "Kept", "Taken", "Turned", "Placed", "Fallen", "Falls", "Begun", "Heard", "Held", "Listed",
    "Shown", "Ended", "Ending", "Wanted", "Passed", "Said", "Called", "Refused", "Was", "How", "What", "Who",
    "Because", "Inside", "Where", "Look", "Ear", "Hand", "Voice", "Bell", "Nap", "Haste", "Seal", "Ruling",
    "Duty", "Rest", "Horizon", "Place", "Places", "Lane", "Lanes", "Line", "Book", "Shape", "Notes", "Tally",
    "Standing", "Trouble", "Misuse", "Refusal", "Wording", "Wish", "Clue", "Bill", "Relay", "Quiet", "Walk",
];

/// Finds definitions of types with a retired name, associated types included.
pub(super) fn definitions(file: &RustFile) -> Vec<Finding> {
    let retired = file.type_definitions().filter(|name| RETIRED.contains(&name.text.as_str()));
    retired
        .map(|name| {
            let message =
                format!("the type name `{}` is retired; use a noun that says what it is", name.text);
            file.finding(name.line, message, "retired-types")
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{messages, rust};
    use super::*;

    #[test]
    fn retired_names_are_found_where_they_are_defined() {
        let text = "struct Told;\npub enum How {}\ntrait Voice {}\ntype Book = u8;\nunion Rest { a: u8 }\n";
        let lines: Vec<_> = definitions(&rust("a.rs", text)).iter().map(|finding| finding.line).collect();
        assert_eq!(lines, [1, 2, 3, 4, 5]);
        assert_eq!(
            messages(&definitions(&rust("a.rs", "\nstruct Lane;"))),
            [(2, "the type name `Lane` is retired; use a noun that says what it is")]
        );
    }

    #[test]
    fn longer_names_uses_and_strings_pass() {
        let text =
            "struct Placement(Told);\n// struct Told;\nconst A: &str = \"struct Told;\";\nenum told {}\n";
        assert_eq!(messages(&definitions(&rust("a.rs", text))), []);
    }
}
