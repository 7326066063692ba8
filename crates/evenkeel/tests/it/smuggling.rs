//! Request smuggling: a request whose length is ambiguous (CL.TE and relatives) reaches no node.

use std::io::Read;

use serde_json::json;

use crate::fleet::{Backend, CHAT, Fleet};
use evenkeel_sim_node::testing::{chat, fast, open};

/// Request that an attacker hides after the end of another, as one of two parsers sees it.
const HIDDEN: &str = "GET /api/tenants HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[test]
fn a_request_with_two_lengths_is_rejected_and_the_hidden_request_is_never_parsed() {
    let fleet = Fleet::start("smuggling", "", vec![("one", Backend::Sim(fast()))]);
    let body = chat(json!({})).to_string();
    let len = body.len();
    let hex = format!("{len:x}");
    let chunked = format!("{hex}\r\n{body}\r\n0\r\n\r\n");
    for (headers, sent) in [
        // Both kinds of length, in both orders, with either being the real one.
        (format!("content-length: {len}\r\ntransfer-encoding: chunked"), format!("{body}{HIDDEN}")),
        (format!("transfer-encoding: chunked\r\ncontent-length: {len}"), format!("{body}{HIDDEN}")),
        (
            format!("content-length: {}\r\ntransfer-encoding: chunked", chunked.len()),
            chunked.clone() + HIDDEN,
        ),
        ("transfer-encoding: chunked\r\ncontent-length: 6".to_owned(), format!("0\r\n\r\n{HIDDEN}")),
        // One of the two is obfuscated.
        (format!("content-length: {len}\r\nTransfer-Encoding : chunked"), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}\r\ntransfer-encoding:\tchunked"), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}\r\ntransfer-encoding: xchunked"), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}\r\ntransfer-encoding: chunked, identity"), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}\r\nx: y\r\n transfer-encoding: chunked"), format!("{body}{HIDDEN}")),
        ("transfer-encoding: identity\r\ntransfer-encoding: chunked".to_owned(), chunked.clone() + HIDDEN),
        // Two lengths of the same kind, or a length that is not a number.
        (format!("content-length: {len}\r\ncontent-length: {}", len + 1), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}\r\ncontent-length: {len}"), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}, {len}"), format!("{body}{HIDDEN}")),
        (format!("content-length: +{len}"), format!("{body}{HIDDEN}")),
        (format!("content-length: 0x{hex}"), format!("{body}{HIDDEN}")),
        // Malformed chunks.
        ("transfer-encoding: chunked".to_owned(), format!("{hex}\n{body}\r\n0\r\n\r\n{HIDDEN}")),
        ("transfer-encoding: chunked".to_owned(), format!("-{hex}\r\n{body}\r\n0\r\n\r\n{HIDDEN}")),
        ("transfer-encoding: chunked".to_owned(), format!("0x{hex}\r\n{body}\r\n0\r\n\r\n{HIDDEN}")),
    ] {
        let head =
            format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}");
        let mut socket = open(fleet.address, &format!("{head}\r\n\r\n{sent}"));
        let mut bytes = Vec::new();
        // The server closes the connection, or resets it if bytes were left unread.
        let _ = socket.read_to_end(&mut bytes);
        let response = String::from_utf8(bytes).unwrap();
        assert!(
            response.is_empty() || response.starts_with("HTTP/1.1 400 Bad Request\r\n"),
            "{headers:?}: {response}"
        );
        assert_eq!(response.matches("HTTP/1.1 ").count(), response.len().min(1), "{headers:?}: {response}");
        assert!(!response.contains("\"tenants\""), "{headers:?}: {response}");
    }
    assert_eq!(fleet.status()["counts"]["dispatched"], 0, "a request reached a node");
    fleet.wait_idle();
}

#[test]
fn a_request_with_one_length_is_served() {
    let fleet = Fleet::start("not-smuggling", "", vec![("one", Backend::Sim(fast()))]);
    let body = chat(json!({})).to_string();
    let sized = (format!("content-length: {}", body.len()), body.clone());
    let chunked = format!("{:x};note=1\r\n{body}\r\n0\r\nx-trailer: 1\r\n\r\n", body.len());
    for (headers, sent) in [sized, ("transfer-encoding: chunked".to_owned(), chunked)] {
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}");
        let reply = evenkeel_sim_node::testing::read(open(fleet.address, &format!("{head}\r\n\r\n{sent}")));
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    fleet.wait_idle();
}
