//! Requests that two readers could end in different places reach no node.

use std::io::Read;

use serde_json::json;

use crate::fleet::{Behind, CHAT, Fleet};
use crate::raw::{chat, fast, open};

/// What an attacker hides behind a request's supposed end.
const HIDDEN: &str = "GET /api/tenants HTTP/1.1\r\nhost: a\r\n\r\n";

#[test]
fn a_request_with_two_lengths_is_refused_and_what_is_hidden_behind_it_never_read() {
    let fleet = Fleet::start("smuggling", "", vec![("one", Behind::Sim(fast()))]);
    let body = chat(json!({})).to_string();
    let (len, hex) = (body.len(), format!("{:x}", body.len()));
    let chunked = format!("{hex}\r\n{body}\r\n0\r\n\r\n");
    for (headers, sent) in [
        // Both lengths, in both orders, with either being the true one.
        (format!("content-length: {len}\r\ntransfer-encoding: chunked"), format!("{body}{HIDDEN}")),
        (format!("transfer-encoding: chunked\r\ncontent-length: {len}"), format!("{body}{HIDDEN}")),
        (
            format!("content-length: {}\r\ntransfer-encoding: chunked", chunked.len()),
            chunked.clone() + HIDDEN,
        ),
        ("transfer-encoding: chunked\r\ncontent-length: 6".to_owned(), format!("0\r\n\r\n{HIDDEN}")),
        // One of them in disguise.
        (format!("content-length: {len}\r\nTransfer-Encoding : chunked"), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}\r\ntransfer-encoding:\tchunked"), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}\r\ntransfer-encoding: xchunked"), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}\r\ntransfer-encoding: chunked, identity"), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}\r\nx: y\r\n transfer-encoding: chunked"), format!("{body}{HIDDEN}")),
        ("transfer-encoding: identity\r\ntransfer-encoding: chunked".to_owned(), chunked.clone() + HIDDEN),
        // Two lengths of one kind, or none that is a number.
        (format!("content-length: {len}\r\ncontent-length: {}", len + 1), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}\r\ncontent-length: {len}"), format!("{body}{HIDDEN}")),
        (format!("content-length: {len}, {len}"), format!("{body}{HIDDEN}")),
        (format!("content-length: +{len}"), format!("{body}{HIDDEN}")),
        (format!("content-length: 0x{hex}"), format!("{body}{HIDDEN}")),
        // Chunks that have no clear end.
        ("transfer-encoding: chunked".to_owned(), format!("{hex}\n{body}\r\n0\r\n\r\n{HIDDEN}")),
        ("transfer-encoding: chunked".to_owned(), format!("-{hex}\r\n{body}\r\n0\r\n\r\n{HIDDEN}")),
        ("transfer-encoding: chunked".to_owned(), format!("0x{hex}\r\n{body}\r\n0\r\n\r\n{HIDDEN}")),
    ] {
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{headers}");
        let mut socket = open(fleet.address, &format!("{head}\r\n\r\n{sent}"));
        let mut said = Vec::new();
        // It ends by a close, or by a reset where bytes were left unread.
        let _ = socket.read_to_end(&mut said);
        let said = String::from_utf8(said).unwrap();
        assert!(said.is_empty() || said.starts_with("HTTP/1.1 400 Bad Request\r\n"), "{headers:?}: {said}");
        assert_eq!(said.matches("HTTP/1.1 ").count(), said.len().min(1), "{headers:?}: {said}");
        assert!(!said.contains("\"tenants\""), "{headers:?}: {said}");
    }
    assert_eq!(fleet.status()["counts"]["dispatched"], 0, "a node was asked");
    fleet.wait_idle();
}

#[test]
fn a_length_of_either_kind_alone_is_served() {
    let fleet = Fleet::start("not-smuggling", "", vec![("one", Behind::Sim(fast()))]);
    let body = chat(json!({})).to_string();
    let sized = (format!("content-length: {}", body.len()), body.clone());
    let chunked = format!("{:x};note=1\r\n{body}\r\n0\r\nx-trailer: 1\r\n\r\n", body.len());
    for (headers, sent) in [sized, ("transfer-encoding: chunked".to_owned(), chunked)] {
        let head = format!("POST {CHAT} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n{headers}");
        let reply = crate::raw::read(open(fleet.address, &format!("{head}\r\n\r\n{sent}")));
        assert_eq!(reply.status, 200, "{reply:?}");
    }
    fleet.wait_idle();
}
