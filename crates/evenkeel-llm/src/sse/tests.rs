use super::*;

const TOKEN: &str = "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hi\"}}]}\n\n";
const ROLE: &str =
    "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n";
const USAGE: &str =
    "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5}}\n\n";
const DONE: &str = "data: [DONE]\n\n";

#[test]
fn a_chunk_of_whole_events_is_passed_on_as_it_is() {
    let chunk = Bytes::from([TOKEN, TOKEN].concat());
    let mut out = Vec::new();
    let mut scanner = Scanner::new(Hide::Usage);
    let found = scanner.scan(chunk.clone(), &mut out);
    assert_eq!((out.len(), out[0].as_ptr(), out[0].len()), (1, chunk.as_ptr(), chunk.len()));
    assert_eq!(found.tokens, 2);
}

#[test]
fn only_the_extra_counts_are_hidden() {
    let stream = [ROLE, TOKEN, TOKEN, USAGE, DONE].concat();
    let (passed, found, ending) = scanned(Hide::Usage, &[&stream]);
    assert_eq!(passed, [ROLE, TOKEN, TOKEN, DONE].concat());
    let usage = Some(Usage { input: 3, output: 2 });
    assert_eq!(found, Scanned { tokens: 2, usage, done: true, error: false });
    assert_eq!(ending, Ending::Done);
    assert_eq!(scanned(Hide::Nothing, &[&stream]), (stream, found, ending));
}

#[test]
fn an_event_in_pieces_is_held_until_it_is_whole() {
    let mut scanner = Scanner::new(Hide::Nothing);
    let mut out = Vec::new();
    scanner.scan(Bytes::from_static(b"data: {\"choices\":"), &mut out);
    assert!(out.is_empty());
    scanner.scan(Bytes::from_static(b"[]}\n\nda"), &mut out);
    assert_eq!(out, ["data: {\"choices\":[]}\n\n"]);
}

#[test]
fn a_stream_that_stops_is_told_from_one_that_ends() {
    assert_eq!(scanned(Hide::Nothing, &[TOKEN]).2, Ending::Unsaid);
    assert_eq!(scanned(Hide::Nothing, &[TOKEN, "data: {"]), (TOKEN.to_owned(), one_token(), Ending::Cut));
    let (passed, found, ending) = scanned(Hide::Nothing, &[TOKEN, "data: [DONE]\n"]);
    assert_eq!((passed, ending), (format!("{TOKEN}data: [DONE]\n"), Ending::Done));
    assert!(found.done);
}

fn one_token() -> Scanned {
    Scanned { tokens: 1, ..Scanned::default() }
}

fn scanned(hide: Hide, chunks: &[&str]) -> (String, Scanned, Ending) {
    let mut scanner = Scanner::new(hide);
    let mut out = Vec::new();
    for chunk in chunks {
        scanner.scan(Bytes::copy_from_slice(chunk.as_bytes()), &mut out);
    }
    let ending = scanner.finish(&mut out);
    (String::from_utf8(out.concat()).unwrap(), scanner.found(), ending)
}
