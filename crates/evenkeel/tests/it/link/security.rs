//! Packets and peers that do not belong to a link.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::process::LoggedProcess;
use super::sites::create_keys;
use super::test_link::{ForwardLane, LinkOptions, TestLink};
use super::transfer::Transfer;
use super::{MB, ms};

#[test]
fn garbage_and_strangers_are_refused_logged_once_and_do_not_disturb_a_transfer() {
    let link = TestLink::on_loopback("strangers", &LinkOptions::default());
    link.wait_active(2);
    let connection = link.connect(ForwardLane::Bonded);
    let transfer = Transfer::start_endless(&connection.edge, &connection.core);
    transfer.wait_progress(MB);

    let is_stopped = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| send_garbage(link.port, &is_stopped));
        // A peer with a key of its own, twice.
        create_keys(&link.sites.dir, "stranger-keys");
        for _ in 0..2 {
            let path = format!("127.0.0.1:{}", link.port);
            let args = [
                "link",
                "connect",
                "--keys",
                "stranger-keys",
                "--peer",
                &link.sites.core_key,
                "--path",
                &path,
            ];
            let mut command = link.sites.dir.command(&args);
            command.env("EVENKEEL_RUNTIME_DIR", link.sites.dir.file("run-stranger"));
            let stranger = LoggedProcess::spawn("stranger", &mut command);
            let line = stranger.wait_log("could not connect a path");
            assert!(line["error"].as_str().unwrap().contains("does not accept our key"), "{line}");
            transfer.wait_progress(MB);
        }
        is_stopped.store(true, Ordering::Relaxed);
    });

    transfer.wait_progress(MB);
    transfer.stop();
    let lines = link.core.wait_logs("an incoming connection of the link failed", 1);
    assert_eq!(lines.len(), 1, "{lines:?}");
    let warnings = link.edge.logged("could not connect a path");
    assert!(warnings.is_empty(), "{warnings:?}");
    for process in [&link.edge, &link.core] {
        assert!(process.logged("INACTIVE").is_empty());
        assert!(process.logged("ended").is_empty());
    }
}

/// Sends packets that are random, empty, or look like the start of a handshake.
fn send_garbage(port: u16, is_stopped: &AtomicBool) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut random = 88_172_645_463_325_252_u64;
    let mut packet = [0; 1_200];
    while !is_stopped.load(Ordering::Relaxed) {
        for byte in &mut packet {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *byte = random as u8;
        }
        let len = usize::from(packet[0]) * packet.len() / 255;
        // A full socket buffer may drop it.
        let _ = socket.send_to(&packet[..len], ("127.0.0.1", port));
        // An initial packet of version 1 with connection ids of 8 bytes, and random contents.
        packet[..6].copy_from_slice(&[0xc3, 0, 0, 0, 1, 8]);
        packet[14] = 8;
        let _ = socket.send_to(&packet, ("127.0.0.1", port));
        thread::sleep(ms(1));
    }
}
