//! Responses made of arbitrary parts of responses, in any order.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use crate::checks::response::check;

const PARTS: [&str; 22] = [
    "HTTP/1.1 200 OK\r\n",
    "HTTP/1.0 200 OK\r\n",
    "HTTP/1.1 204 No Content\r\n",
    "HTTP/1.1 100 Continue\r\n\r\n",
    "content-length: 3\r\n",
    "Content-Length: 0\r\n",
    "content-length: 18446744073709551615\r\n",
    "transfer-encoding: chunked\r\n",
    "Transfer-Encoding: gzip\r\n",
    "connection: close\r\n",
    "x: y\r\n",
    "\r\n",
    "3\r\nabc\r\n",
    "3;a=b\r\n",
    "FFFFFFFFFFFFFFFF\r\n",
    "0\r\n",
    "0\r\n\r\n",
    "abc",
    ":",
    " ",
    "\n",
    "\r",
];

fn part() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        12 => select(&PARTS[..]).prop_map(|part| part.as_bytes().to_vec()),
        1 => vec(any::<u8>(), 1..3),
    ]
}

proptest! {
    #[test]
    fn a_response_is_the_same_wherever_it_is_cut(raw in vec(part(), 0..12)) {
        check(&raw.concat());
    }

    #[test]
    fn a_response_with_a_valid_start_is_the_same_wherever_it_is_cut(raw in vec(part(), 0..12)) {
        check(&[b"HTTP/1.1 200 OK\r\n", &raw.concat()[..]].concat());
    }
}
