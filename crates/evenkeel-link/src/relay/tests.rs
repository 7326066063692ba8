//! Relays on loopback, and clients that follow the rules or do not.

use std::net::SocketAddr;

use evenkeel_policy::time::Duration;
use evenkeel_telemetry::{Registry, RelayMetrics};
use tempfile::TempDir;
use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::*;
use crate::identity::{ExistingKey, Identity};
use crate::relay::setup_key::{SignaturePurpose, Transcript};

/// Turns a test that would hang into one that fails.
const TIMEOUT: Duration = Duration::from_secs(20);
const NONCE: [u8; 16] = [3; 16];

/// A relay whose next hop is a socket of the test.
struct RelayTest {
    relay: RelayServer,
    relay_key: crate::identity::Fingerprint,
    next: UdpSocket,
    client_key: SetupKey,
}

impl RelayTest {
    async fn start(limits: RelayLimits) -> Self {
        let relay_identity = identity();
        let client_identity = identity();
        let next = socket().await;
        let config = RelayConfig {
            listen: any_port(),
            next: vec![next.local_addr().unwrap()],
            peers: vec![client_identity.fingerprint()],
            limits,
        };
        let metrics = RelayMetrics::new(&Registry::new()).unwrap();
        let relay = RelayServer::bind(&relay_identity, config, metrics).unwrap();
        let client_key = SetupKey::new(&client_identity).unwrap();
        Self { relay, relay_key: relay_identity.fingerprint(), next, client_key }
    }

    fn hop(&self) -> Hop {
        Hop { address: self.relay.local_address(), fingerprint: self.relay_key }
    }

    async fn set_up(&self, client: &UdpSocket) -> Result<(), ChainError> {
        set_up_chain(client, &self.client_key, &[self.hop()], self.next.local_addr().unwrap()).await
    }

    /// Returns a valid token, after a hello.
    async fn token(&self, client: &UdpSocket) -> SetupMessage {
        let relay = self.relay_key;
        let hello = SetupMessage { relay, nonce: NONCE, body: SetupBody::Hello };
        let SetupBody::Challenge { cookie } = self.exchange(client, &hello).await.body else {
            panic!("no challenge");
        };
        let next = self.next.local_addr().unwrap();
        let transcript =
            Transcript { relay, client: self.client_key.fingerprint(), nonce: NONCE, cookie, next };
        let signature = self.client_key.sign(SignaturePurpose::Token, &transcript);
        let body = SetupBody::Token { cookie, next, key: self.client_key.public(), signature };
        SetupMessage { relay, nonce: NONCE, body }
    }

    async fn exchange(&self, client: &UdpSocket, message: &SetupMessage) -> SetupMessage {
        client.send_to(&message.encode(), self.relay.local_address()).await.unwrap();
        SetupMessage::decode(&receive(client).await.0).unwrap()
    }

    fn refused(&self, reason: RefusalReason) -> u64 {
        let status = self.relay.status()();
        status.refused.iter().find(|(known, _)| *known == reason).unwrap().1
    }

    fn associations(&self) -> usize {
        self.relay.status()().peers[0].1
    }
}

#[tokio::test]
async fn packets_pass_unchanged_in_both_directions_after_the_set_up() {
    let test = RelayTest::start(RelayLimits::default()).await;
    let client = socket().await;
    test.set_up(&client).await.unwrap();
    // A message for another relay is a packet like any other.
    let hello = SetupMessage { relay: test.client_key.fingerprint(), nonce: NONCE, body: SetupBody::Hello };
    for packet in [vec![1; 1], vec![2; 1_452], vec![3; PACKET_LEN_MAX], hello.encode()] {
        client.send_to(&packet, test.relay.local_address()).await.unwrap();
        let (received, from) = receive(&test.next).await;
        assert_eq!(received, packet);
        test.next.send_to(&packet, from).await.unwrap();
        assert_eq!(receive(&client).await, (packet, test.relay.local_address()));
    }
    // A packet that is too long is dropped.
    for len in [PACKET_LEN_MAX + 1, 7] {
        client.send_to(&vec![4; len], test.relay.local_address()).await.unwrap();
    }
    assert_eq!(receive(&test.next).await.0.len(), 7);
}

#[tokio::test]
async fn nothing_is_forwarded_before_the_set_up() {
    let test = RelayTest::start(RelayLimits::default()).await;
    let stranger = socket().await;
    stranger.send_to(&[0x40; 1_200], test.relay.local_address()).await.unwrap();
    let client = socket().await;
    test.set_up(&client).await.unwrap();
    client.send_to(b"first", test.relay.local_address()).await.unwrap();
    assert_eq!(receive(&test.next).await.0, b"first");
    assert_eq!(test.refused(RefusalReason::Malformed), 1);
}

#[tokio::test]
async fn a_token_is_refused_from_another_address_and_repeated_it_changes_nothing() {
    let test = RelayTest::start(RelayLimits::default()).await;
    let client = socket().await;
    let token = test.token(&client).await;
    let thief = socket().await;
    let stolen = test.exchange(&thief, &token).await.body;
    let by = test.relay_key;
    assert_eq!(stolen, SetupBody::Refused { reason: RefusalReason::ForgedCookie, by });
    let accepted = test.exchange(&client, &token).await;
    assert!(matches!(accepted.body, SetupBody::Accepted { .. }), "{accepted:?}");
    assert_eq!(test.exchange(&client, &token).await, accepted);
    assert_eq!(test.exchange(&thief, &token).await.body, stolen);
    assert_eq!(test.associations(), 1);
    assert_eq!(test.refused(RefusalReason::ForgedCookie), 2);
}

#[tokio::test]
async fn a_forged_token_is_refused_and_opens_nothing() {
    let test = RelayTest::start(RelayLimits::default()).await;
    let client = socket().await;
    let mut token = test.token(&client).await;
    let SetupBody::Token { signature, .. } = &mut token.body else { panic!("{token:?}") };
    signature[9] ^= 4;
    let answer = test.exchange(&client, &token).await.body;
    assert_eq!(answer, SetupBody::Refused { reason: RefusalReason::WrongSignature, by: test.relay_key });
    assert_eq!(test.associations(), 0);
    assert_eq!(test.refused(RefusalReason::WrongSignature), 1);
}

#[tokio::test]
async fn a_key_has_at_most_its_number_of_associations() {
    let limits = RelayLimits { associations_per_peer_max: 2, ..RelayLimits::default() };
    let test = RelayTest::start(limits).await;
    let clients = [socket().await, socket().await, socket().await];
    test.set_up(&clients[0]).await.unwrap();
    test.set_up(&clients[1]).await.unwrap();
    let reason = RefusalReason::PeerFull;
    let refused = ChainError::Relay { hop: 0, error: SetupError::Refused { reason } };
    assert_eq!(test.set_up(&clients[2]).await, Err(refused));
    // A client that is set up again takes the place of its association.
    test.set_up(&clients[0]).await.unwrap();
    assert_eq!(test.associations(), 2);
}

#[tokio::test]
async fn an_idle_association_ends() {
    let limits = RelayLimits { idle_timeout: Duration::from_millis(1), ..RelayLimits::default() };
    let test = RelayTest::start(limits).await;
    test.set_up(&socket().await).await.unwrap();
    let ended = async {
        while test.associations() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, ended).await.unwrap();
}

#[tokio::test]
async fn a_packet_that_the_next_hop_rejects_counts_as_dropped_on_the_way_there() {
    let test = RelayTest::start(RelayLimits::default()).await;
    let client = socket().await;
    test.set_up(&client).await.unwrap();
    let RelayTest { relay, next, .. } = test;
    drop(next);
    client.send_to(b"to nobody", relay.local_address()).await.unwrap();
    let status = relay.status();
    let dropped = async {
        while status().to_next.dropped.get() == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    timeout(TIMEOUT, dropped).await.unwrap();
    assert_eq!(status().to_client.dropped.get(), 0);
}

#[tokio::test]
async fn a_socket_that_cannot_be_opened_is_the_reason_of_the_refusal() {
    let relay_identity = identity();
    let client_identity = identity();
    // The system connects no socket to it without an option.
    let broadcast = SocketAddr::from(([255, 255, 255, 255], 7443));
    let config = RelayConfig {
        listen: any_port(),
        next: vec![broadcast],
        peers: vec![client_identity.fingerprint()],
        limits: RelayLimits::default(),
    };
    let metrics = RelayMetrics::new(&Registry::new()).unwrap();
    let relay = RelayServer::bind(&relay_identity, config, metrics).unwrap();
    let hops = [Hop { address: relay.local_address(), fingerprint: relay_identity.fingerprint() }];
    let key = SetupKey::new(&client_identity).unwrap();
    let refused = set_up_chain(&socket().await, &key, &hops, broadcast).await;
    let error = SetupError::Refused { reason: RefusalReason::NoSocket };
    assert_eq!(refused, Err(ChainError::Relay { hop: 0, error }));
}

#[tokio::test]
async fn a_relay_that_pretends_to_have_the_pinned_key_is_found_out() {
    let test = RelayTest::start(RelayLimits::default()).await;
    let client = socket().await;
    let impostor = socket().await;
    let hops = [Hop { address: impostor.local_addr().unwrap(), fingerprint: test.relay_key }];
    let target = test.next.local_addr().unwrap();
    let pretend = async {
        let other = SetupKey::new(&identity()).unwrap();
        loop {
            let (bytes, from) = receive(&impostor).await;
            let message = SetupMessage::decode(&bytes).unwrap();
            let body = match message.body {
                SetupBody::Hello => SetupBody::Challenge { cookie: [1; 40] },
                _ => SetupBody::Accepted { key: other.public(), signature: [2; 64] },
            };
            let answer = SetupMessage { body, ..message };
            impostor.send_to(&answer.encode(), from).await.unwrap();
        }
    };
    let outcome = tokio::select! {
        outcome = set_up_chain(&client, &test.client_key, &hops, target) => outcome,
        () = pretend => unreachable!(),
    };
    assert_eq!(outcome, Err(ChainError::Relay { hop: 0, error: SetupError::WrongSignature }));
}

#[tokio::test]
async fn a_chain_is_set_up_through_its_relays_and_the_failing_one_is_named() {
    let last = RelayTest::start(RelayLimits::default()).await;
    let identity = identity();
    let config = RelayConfig {
        listen: any_port(),
        next: vec![last.relay.local_address()],
        peers: vec![last.client_key.fingerprint()],
        limits: RelayLimits::default(),
    };
    let metrics = RelayMetrics::new(&Registry::new()).unwrap();
    let first = RelayServer::bind(&identity, config, metrics).unwrap();
    let hops = [Hop { address: first.local_address(), fingerprint: identity.fingerprint() }, last.hop()];
    let client = socket().await;
    let target = last.next.local_addr().unwrap();
    set_up_chain(&client, &last.client_key, &hops, target).await.unwrap();
    client.send_to(b"through both", first.local_address()).await.unwrap();
    assert_eq!(receive(&last.next).await.0, b"through both");

    let elsewhere = any_port();
    let error = SetupError::NextNotAllowed { next: elsewhere };
    let failed = set_up_chain(&socket().await, &last.client_key, &hops, elsewhere).await;
    assert_eq!(failed, Err(ChainError::Relay { hop: 1, error }));
}

#[tokio::test]
async fn a_relay_may_not_forward_to_itself() {
    let port = socket().await.local_addr().unwrap();
    let config =
        RelayConfig { listen: port, next: vec![port], peers: Vec::new(), limits: RelayLimits::default() };
    let metrics = RelayMetrics::new(&Registry::new()).unwrap();
    let error = RelayServer::bind(&identity(), config, metrics).err().unwrap().to_string();
    assert!(error.contains("may not forward to its own address"), "{error}");
}

/// Creates an identity whose files are deleted at once.
fn identity() -> Identity {
    let dir = TempDir::new().unwrap();
    Identity::create(dir.path(), ExistingKey::Keep).unwrap()
}

fn any_port() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

async fn socket() -> UdpSocket {
    UdpSocket::bind(any_port()).await.unwrap()
}

async fn receive(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = vec![0; 65_536];
    let (len, from) = timeout(TIMEOUT, socket.recv_from(&mut buffer)).await.unwrap().unwrap();
    buffer.truncate(len);
    (buffer, from)
}
