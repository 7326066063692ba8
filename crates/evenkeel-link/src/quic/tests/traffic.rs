//! Data and measurements.

use bytes::Bytes;

use super::sites::{Sites, new_session};
use crate::path_signals::PathSignals;
use crate::quic::connection::PathConnection;

const LEN: usize = 4 << 20;

#[tokio::test]
async fn streams_and_datagrams_pass_in_both_directions() {
    let mut sites = Sites::start();
    let (near, far) = sites.connect(new_session(0)).await.unwrap();
    for (from, to) in [(&near, &far), (&far, &near)] {
        let datagram = Bytes::from(vec![7; from.signals().datagram_max]);
        assert!(1000 < datagram.len());
        from.send_datagram(datagram.clone()).unwrap();
        assert_eq!(to.read_datagram().await.unwrap(), datagram);
        assert_eq!(transfer(from, to).await, LEN);
    }
}

#[tokio::test]
async fn signals_follow_the_traffic() {
    let mut sites = Sites::start();
    let (near, far) = sites.connect(new_session(0)).await.unwrap();
    let before = near.signals();
    assert_eq!(transfer(&near, &far).await, LEN);
    let after = settled(&near).await;
    assert!(LEN as u64 <= after.acked_bytes - before.acked_bytes);
    assert!(LEN as u64 / 1500 <= after.acked_packets - before.acked_packets);
    assert!(before.rtt_count < after.rtt_count);
    assert!(before.rtt_sum < after.rtt_sum);
    assert!(before.acked_at < after.acked_at);
    assert!(before.window < after.window);
    assert!(!after.rtt_min.unwrap().is_zero());
    assert!(after.rtt_min <= after.rtt_latest);
    assert_eq!(after.in_flight, 0);
    assert_eq!(after.waiting_since, None);
}

#[tokio::test]
async fn a_path_that_waits_for_an_acknowledgement_says_since_when() {
    let mut sites = Sites::start();
    let (near, far) = sites.connect(new_session(0)).await.unwrap();
    let idle = settled(&near).await;
    near.send_datagram(Bytes::from_static(b"probe")).unwrap();
    // On this one thread the peer runs only after the datagram has been sent.
    let waiting = loop {
        let signals = near.signals();
        if signals.waiting_since.is_some() {
            break signals;
        }
        tokio::task::yield_now().await;
    };
    assert!(0 < waiting.in_flight);
    assert!(idle.acked_at <= waiting.waiting_since);
    far.read_datagram().await.unwrap();
    assert_eq!(settled(&near).await.waiting_since, None);
}

#[tokio::test]
async fn a_closed_path_tells_the_peer_why() {
    let mut sites = Sites::start();
    let (near, far) = sites.connect(new_session(0)).await.unwrap();
    assert_eq!(far.close_reason(), None);
    near.close(3, "replaced");
    assert_eq!(far.closed().await.to_string(), "closed by peer: replaced (code 3)");
    assert!(far.close_reason().is_some());
}

/// Sends [`LEN`] bytes over one stream with the send window of a driver, and returns how many arrived.
async fn transfer(from: &PathConnection, to: &PathConnection) -> usize {
    let send = async {
        let mut stream = from.open_stream().await.unwrap();
        for _ in 0..LEN / 4096 {
            from.follow_window();
            stream.write_all(&[1; 4096]).await.unwrap();
        }
        stream.finish().unwrap();
        stream.stopped().await.unwrap();
    };
    let receive = async {
        let mut stream = to.accept_stream().await.unwrap();
        stream.read_to_end(2 * LEN).await.unwrap().len()
    };
    let ((), received) = tokio::join!(send, receive);
    received
}

/// Waits until nothing is in flight.
async fn settled(path: &PathConnection) -> PathSignals {
    loop {
        let signals = path.signals();
        if signals.in_flight == 0 {
            return signals;
        }
        tokio::task::yield_now().await;
    }
}
