//! Flows between a connector and a listener over loopback sockets.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use evenkeel_link::flow::{DatagramMode, FlowLane, ResetCode};
use evenkeel_link::forward::{Forward, udp};
use evenkeel_link::identity::{ExistingKey, Identity};
use evenkeel_link::session::{OpenFlowError, SessionConfig};
use evenkeel_link::{
    AcceptedLink, ConnectorSettings, DatagramFlow, IncomingFlow, LinkConnector, LinkListener, LinkStartError,
};
use evenkeel_telemetry::{PathMetrics, Registry};
use tokio::net::UdpSocket;
use tokio::time::timeout;

/// Turns a test that would hang into one that fails.
const WAIT_MAX: Duration = Duration::from_secs(30);
const LANES: [FlowLane; 3] = [FlowLane::Stream, FlowLane::Bonded, FlowLane::Redundant];

#[tokio::test(flavor = "multi_thread")]
async fn a_finished_flow_delivers_its_data_after_its_handles_are_dropped() {
    for lane in LANES {
        let mut pair = Pair::start(SessionConfig::default()).await;
        let sent = pattern(5_000_000);
        let (mut send, mut recv) = pair.connector.link().open(lane, "sink").unwrap();
        let mut flow = pair.next_flow().await;
        // The receiving side finishes first, so the sending side drops its handles with data still in flight.
        flow.send.finish();
        assert_eq!(timeout(WAIT_MAX, recv.read(1)).await.unwrap().unwrap(), None);
        let writer = tokio::spawn({
            let sent = sent.clone();
            async move {
                send.write(sent).await.unwrap();
                send.finish();
                drop((send, recv));
            }
        });
        let received = read_all(&mut flow).await;
        writer.await.unwrap();
        assert!(received == sent, "{lane}: {} of {} bytes", received.len(), sent.len());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flow_carries_data_both_ways_in_every_lane() {
    let mut pair = Pair::start(SessionConfig::default()).await;
    for lane in LANES {
        let (mut send, mut recv) = pair.connector.link().open(lane, "echo").unwrap();
        send.write(Bytes::from_static(b"hello")).await.unwrap();
        let mut flow = pair.next_flow().await;
        assert_eq!((flow.target.as_str(), flow.lane), ("echo", lane));
        let heard = flow.recv.read(100).await.unwrap().unwrap();
        flow.send.write(heard).await.unwrap();
        assert_eq!(recv.read(100).await.unwrap().unwrap(), "hello");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn datagrams_pass_both_ways_over_real_connections_in_every_mode() {
    let mut pair = Pair::start(SessionConfig::default()).await;
    for mode in [DatagramMode::Pin, DatagramMode::Stripe, DatagramMode::Duplicate] {
        let (send, recv) = pair.connector.link().open(FlowLane::Datagram(mode), "echo").unwrap();
        let near = DatagramFlow::new(send, recv);
        near.send(pattern(3_000)).unwrap();
        let IncomingFlow { send, recv, lane, .. } = pair.next_flow().await;
        assert_eq!(lane, FlowLane::Datagram(mode));
        let far = DatagramFlow::new(send, recv);
        let heard = timeout(WAIT_MAX, far.receive()).await.unwrap().unwrap();
        assert!(heard == pattern(3_000), "{mode}: {} bytes", heard.len());
        far.send(Bytes::new()).unwrap();
        assert_eq!(timeout(WAIT_MAX, near.receive()).await.unwrap().unwrap(), "");
        far.reset(ResetCode::REFUSED, "no such target");
        let error = timeout(WAIT_MAX, near.receive()).await.unwrap().unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string().as_str()),
            (ErrorKind::ConnectionRefused, "no such target")
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_client_of_a_full_udp_forward_replaces_the_one_that_was_idle_longest() {
    let mut pair = Pair::start(SessionConfig::default()).await;
    let mut forward: Forward = "udp:127.0.0.1:0=echo:7".parse().unwrap();
    forward.connections_max = 2;
    let socket = UdpSocket::bind(forward.listen).await.unwrap();
    let address = socket.local_addr().unwrap();
    let running = tokio::spawn(udp::run(socket, forward, DatagramMode::Pin, pair.connector.link()));
    let mut flows = Vec::new();
    for _ in 0..3 {
        let client = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        client.send_to(b"hello", address).await.unwrap();
        let IncomingFlow { send, recv, .. } = pair.next_flow().await;
        let flow = DatagramFlow::new(send, recv);
        assert_eq!(timeout(WAIT_MAX, flow.receive()).await.unwrap().unwrap(), "hello");
        flows.push(flow);
    }
    let error = timeout(WAIT_MAX, flows[0].receive()).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}");
    assert_eq!(pair.connector.link().status().flows.len(), 2);
    running.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_arrives_with_its_reason_and_ends_both_directions() {
    let mut pair = Pair::start(SessionConfig::default()).await;
    let (mut send, mut recv) = pair.connector.link().open(FlowLane::Stream, "nowhere").unwrap();
    let flow = pair.next_flow().await;
    flow.send.reset(ResetCode::REFUSED, "nowhere is not allowed");
    let error = timeout(WAIT_MAX, recv.read(1)).await.unwrap().unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().as_str()),
        (ErrorKind::ConnectionRefused, "nowhere is not allowed")
    );
    assert_eq!(send.write(Bytes::from_static(b"x")).await.unwrap_err().kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_flow_is_reset_at_the_other_side() {
    let mut pair = Pair::start(SessionConfig::default()).await;
    drop(pair.connector.link().open(FlowLane::Stream, "gone").unwrap());
    let (send, recv) = pair.connector.link().open(FlowLane::Stream, "gone").unwrap();
    let mut flow = pair.next_flow().await;
    drop((send, recv));
    let read = timeout(WAIT_MAX, flow.recv.read(1)).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), ErrorKind::ConnectionReset);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_receiver_that_stops_reading_stalls_only_its_own_flow() {
    let mut pair = Pair::start(SessionConfig::default()).await;
    let (mut stalled, _recv) = pair.connector.link().open(FlowLane::Bonded, "stalled").unwrap();
    let unread = pair.next_flow().await;
    let writing = tokio::spawn(async move { stalled.write(pattern(64 << 20)).await });
    let (mut send, _recv) = pair.connector.link().open(FlowLane::Bonded, "busy").unwrap();
    let mut busy = pair.next_flow().await;
    let sent = pattern(20_000_000);
    let writer = tokio::spawn({
        let sent = sent.clone();
        async move {
            send.write(sent).await.unwrap();
            send.finish();
            (send, _recv)
        }
    });
    assert!(read_all(&mut busy).await == sent);
    assert!(!writing.is_finished(), "more than the receive window was taken from the stalled flow's writer");
    let status = &pair.connector.links().status()[0];
    let stalled = status.flows.iter().map(|flow| flow.acked).min();
    assert!(stalled.is_some_and(|acked| acked <= 16 << 20), "{status:?}");
    drop((unread, writer.await.unwrap()));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_more_flows_are_opened_than_allowed() {
    let config = SessionConfig { flows_max: 3, ..SessionConfig::default() };
    let pair = Pair::start(config).await;
    let link = pair.connector.link();
    let open: Vec<_> = (0..3).map(|_| link.open(FlowLane::Stream, "x").unwrap()).collect();
    assert_eq!(link.open(FlowLane::Stream, "x").err(), Some(OpenFlowError::TooManyFlows { flows_max: 3 }));
    drop(open);
    assert!(link.open(FlowLane::Stream, "x").is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_restarts_ends_the_flows_and_gets_a_new_session() {
    let mut pair = Pair::start(SessionConfig::default()).await;
    let (_send, mut recv) = pair.connector.link().open(FlowLane::Stream, "first").unwrap();
    // Dropping the flow would reset it before the listener ends.
    let _flow = pair.next_flow().await;
    let Pair { keys, connector, listener, .. } = pair;
    let addresses = listener.local_addresses().to_vec();
    listener.close().await;
    let error = timeout(WAIT_MAX, recv.read(1)).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the other side ended the link");
    let mut listener = keys.listen_again(&addresses).await;
    // Data written before the session exists arrives when it does.
    let (mut send, _recv) = connector.link().open(FlowLane::Stream, "second").unwrap();
    send.write(Bytes::from_static(b"again")).await.unwrap();
    let mut accepted = timeout(WAIT_MAX, listener.accept()).await.unwrap().unwrap();
    let mut flow = timeout(WAIT_MAX, accepted.flows.next()).await.unwrap().unwrap();
    assert_eq!(
        (flow.target.as_str(), flow.recv.read(10).await.unwrap().unwrap()),
        ("second", "again".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_the_connector_ends_the_flows_at_the_listener() {
    let mut pair = Pair::start(SessionConfig::default()).await;
    let (_send, _recv) = pair.connector.link().open(FlowLane::Stream, "x").unwrap();
    let mut flow = pair.next_flow().await;
    let Pair { connector, listener: _listener, mut accepted, .. } = pair;
    connector.close().await;
    let error = timeout(WAIT_MAX, flow.recv.read(1)).await.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "the other side ended the link");
    assert!(timeout(WAIT_MAX, accepted.flows.next()).await.unwrap().is_none());
}

#[tokio::test]
async fn the_same_path_twice_is_an_error() {
    let keys = Keys::create();
    let path = "127.0.0.1:9".parse().unwrap();
    let peer = keys.listening.fingerprint();
    let targets = vec![path, "127.0.0.1:9".parse().unwrap()];
    let settings = ConnectorSettings::direct("test", peer, targets, SessionConfig::default());
    let result = LinkConnector::start(&keys.connecting, settings, metrics());
    let error = result.err().unwrap();
    assert!(matches!(&error, LinkStartError::DuplicatePath { name } if name == "127.0.0.1:9"), "{error}");
}

#[tokio::test]
async fn a_link_whose_sockets_cannot_be_opened_starts_down_and_reports_it() {
    let keys = Keys::create();
    let targets = vec!["nosuch0=127.0.0.1:9".parse().unwrap()];
    let peer = keys.listening.fingerprint();
    let settings = ConnectorSettings::direct("test", peer, targets, SessionConfig::default());
    let mut connector = LinkConnector::start(&keys.connecting, settings, metrics()).unwrap();
    assert!(!connector.link().is_up());
    let error = connector.check_sockets().unwrap_err();
    assert!(matches!(error, LinkStartError::Bind(_)), "{error}");
}

/// A link over two paths, whose session exists.
struct Pair {
    keys: Keys,
    connector: LinkConnector,
    listener: LinkListener,
    accepted: AcceptedLink,
}

struct Keys {
    connecting: Identity,
    listening: Identity,
    _dir: tempfile::TempDir,
}

impl Keys {
    fn create() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let create = |name: &str| Identity::create(&dir.path().join(name), ExistingKey::Keep).unwrap();
        Self { connecting: create("connecting"), listening: create("listening"), _dir: dir }
    }

    async fn listen_again(&self, addresses: &[SocketAddr]) -> LinkListener {
        let peer = self.connecting.fingerprint();
        let bind =
            || LinkListener::bind(&self.listening, peer, addresses, SessionConfig::default(), metrics());
        // The sockets of the earlier listener close in the background.
        let bound = async {
            loop {
                match bind() {
                    Ok(listener) => return listener,
                    Err(_) => tokio::task::yield_now().await,
                }
            }
        };
        timeout(WAIT_MAX, bound).await.unwrap()
    }
}

impl Pair {
    async fn start(config: SessionConfig) -> Self {
        let keys = Keys::create();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let peer = keys.connecting.fingerprint();
        let mut listener =
            LinkListener::bind(&keys.listening, peer, &[any, any], config.clone(), metrics()).unwrap();
        let addresses = listener.local_addresses().to_vec();
        let targets = addresses.iter().map(|address| address.to_string().parse().unwrap()).collect();
        let peer = keys.listening.fingerprint();
        let settings = ConnectorSettings::direct("test", peer, targets, config);
        let connector = LinkConnector::start(&keys.connecting, settings, metrics()).unwrap();
        let accepted = timeout(WAIT_MAX, listener.accept()).await.unwrap().unwrap();
        Self { keys, connector, listener, accepted }
    }

    /// Waits for a flow of the connector.
    async fn next_flow(&mut self) -> IncomingFlow {
        timeout(WAIT_MAX, self.accepted.flows.next()).await.unwrap().unwrap()
    }
}

async fn read_all(flow: &mut IncomingFlow) -> Vec<u8> {
    let mut received = Vec::new();
    let reading = async {
        while let Some(bytes) = flow.recv.read(1 << 16).await.unwrap() {
            received.extend_from_slice(&bytes);
        }
    };
    timeout(WAIT_MAX, reading).await.unwrap();
    received
}

/// Returns bytes that differ at every offset of a chunk.
fn pattern(len: usize) -> Bytes {
    (0..len).map(|index| (index % 251) as u8 ^ (index / 65_536) as u8).collect()
}

fn metrics() -> PathMetrics {
    PathMetrics::new(&Registry::new()).unwrap()
}
