//! Tickets: issued by one node, accepted once by another.

use evenkeel_cluster::{TICKET_BYTES_MAX, Ticket, TicketError, TicketRequest, VISITED_MAX};
use http::Method;

use super::*;

/// A node that knows the reports of its peers, and these peers.
struct Trio {
    a: Arc<Cluster>,
    b: Arc<Cluster>,
    c: Arc<Cluster>,
    _servers: [Server; 2],
}

impl Trio {
    async fn start() -> Self {
        Self::with(|options| options, |options| options).await
    }

    /// Starts "a", and its peers "b" and "c", with changed options.
    async fn with(
        change_a: fn(ClusterOptions) -> ClusterOptions,
        change_b: fn(ClusterOptions) -> ClusterOptions,
    ) -> Self {
        let b = start(change_b(options("b", vec![])), || serving(vec![]));
        let c = start_target("c", || serving(vec![]));
        let b_server = serve_polls(b.clone()).await;
        let c_server = serve_polls(c.clone()).await;
        let peers = vec![peer("b", &b_server.url()), peer("c", &c_server.url())];
        let a = start(change_a(options("a", peers)), || serving(vec![]));
        while a.peers().iter().any(|peer| peer.report.is_none()) {
            tokio::task::yield_now().await;
        }
        Self { a, b, c, _servers: [b_server, c_server] }
    }

    fn issue(&self, request: TicketRequest<'_>) -> Result<String, TicketError> {
        self.a.issue_ticket(0, request)
    }
}

fn request() -> TicketRequest<'static> {
    let body = b"{\"sql\":\"SELECT 1\"}";
    TicketRequest {
        tenant: "acme",
        database_id: "db",
        method: &Method::POST,
        path: "/query",
        body,
        hops_left: 1,
        visited: &[],
    }
}

fn accept(cluster: &Cluster, ticket: &str) -> Result<Ticket, TicketError> {
    cluster.accept_ticket(ticket, &Method::POST, "/query")
}

#[tokio::test]
async fn a_ticket_is_accepted_once_by_its_target() {
    let trio = Trio::start().await;
    let ticket = trio.issue(request()).unwrap();
    assert!(ticket.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte)), "{ticket}");
    let error = accept(&trio.c, &ticket).unwrap_err();
    assert_eq!(error.to_string(), r#"the ticket is for node "b", this is "c""#);
    let accepted = accept(&trio.b, &ticket).unwrap();
    assert_eq!((&*accepted.tenant, &*accepted.issuer, accepted.hops_left), ("acme", "a", 1));
    assert_eq!(accepted.visited, ["a"]);
    assert_eq!(accept(&trio.b, &ticket), Err(TicketError::AlreadyUsed));
}

#[tokio::test]
async fn a_ticket_is_for_one_method_path_and_body() {
    let trio = Trio::start().await;
    let ticket = trio.issue(request()).unwrap();
    for (method, path) in [(Method::GET, "/query"), (Method::POST, "/execute"), (Method::POST, "/query?x")] {
        assert_eq!(trio.b.accept_ticket(&ticket, &method, path), Err(TicketError::OtherRoute));
    }
    let accepted = accept(&trio.b, &ticket).unwrap();
    assert_eq!(accepted.check_body(request().body), Ok(()));
    assert_eq!(accepted.check_body(b"{\"sql\":\"SELECT 2\"}"), Err(TicketError::OtherBody));
    assert_eq!(accepted.check_body(b""), Err(TicketError::OtherBody));
}

#[tokio::test]
async fn a_ticket_expires_by_its_targets_clock() {
    let expires_at_once = |options| ClusterOptions { ticket_lifetime: Duration::ZERO, ..options };
    let trio = Trio::with(expires_at_once, |options| options).await;
    let ticket = trio.issue(request()).unwrap();
    assert_eq!(accept(&trio.b, &ticket), Err(TicketError::Expired));
    // A peer that issues tickets for longer than this node remembers them.
    let never_expires = |options| ClusterOptions { ticket_lifetime: NEVER, ..options };
    let trio = Trio::with(never_expires, |options| options).await;
    let ticket = trio.issue(request()).unwrap();
    assert_eq!(accept(&trio.b, &ticket), Err(TicketError::ExpiryTooFar));
}

#[tokio::test]
async fn a_ticket_is_valid_for_ten_seconds() {
    let trio = Trio::start().await;
    tokio::time::pause();
    let early = trio.issue(request()).unwrap();
    let late = trio.issue(request()).unwrap();
    tokio::time::advance(Duration::from_secs(5)).await;
    assert!(accept(&trio.b, &early).is_ok());
    tokio::time::advance(Duration::from_secs(5)).await;
    assert_eq!(accept(&trio.b, &late), Err(TicketError::Expired));
}

#[tokio::test]
async fn clocks_that_show_different_times_do_not_matter() {
    let b = start_target("b", || serving(vec![]));
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(60)).await;
    tokio::time::resume();
    let server = serve_polls(b.clone()).await;
    let a = start_poller(&server);
    let report = peer_when(&a, is_serving).await.report.unwrap();
    assert!(60_000 <= report.clock_ms, "{}", report.clock_ms);
    let ticket = a.issue_ticket(0, request()).unwrap();
    assert!(accept(&b, &ticket).is_ok());
}

#[tokio::test]
async fn a_ticket_from_before_a_restart_is_refused() {
    let trio = Trio::start().await;
    let ticket = trio.issue(request()).unwrap();
    let restarted = start_target("b", || serving(vec![]));
    assert_eq!(accept(&restarted, &ticket), Err(TicketError::BeforeRestart));
    assert!(accept(&trio.b, &ticket).is_ok());
}

#[tokio::test]
async fn a_ticket_with_another_secret_is_refused() {
    let other_secret =
        |options| ClusterOptions { secret: ClusterSecret::new("y".repeat(16)).unwrap(), ..options };
    let trio = Trio::start().await;
    let stranger = start(other_secret(options("b", vec![])), || serving(vec![]));
    assert_eq!(accept(&stranger, &trio.issue(request()).unwrap()), Err(TicketError::Signature));
}

#[tokio::test]
async fn a_text_that_is_no_ticket_is_refused() {
    let b = start_target("b", || serving(vec![]));
    for text in ["", "A", "not base64!", &"A".repeat(TICKET_BYTES_MAX + 1)] {
        assert_eq!(accept(&b, text), Err(TicketError::Malformed), "{text}");
    }
    assert_eq!(accept(&b, &"A".repeat(TICKET_BYTES_MAX)), Err(TicketError::Signature));
}

#[tokio::test]
async fn no_ticket_is_accepted_while_too_many_used_ones_are_remembered() {
    let remember_three = |options| ClusterOptions { used_tickets_max: 3, ..options };
    let trio = Trio::with(|options| options, remember_three).await;
    let tickets: Vec<_> = (0..4).map(|_| trio.issue(request()).unwrap()).collect();
    for ticket in &tickets[..3] {
        assert!(accept(&trio.b, ticket).is_ok());
    }
    assert_eq!(accept(&trio.b, &tickets[3]), Err(TicketError::TooManyUsed { max: 3 }));
    assert_eq!(accept(&trio.b, &tickets[0]), Err(TicketError::AlreadyUsed));
}

#[tokio::test]
async fn a_request_does_not_return_to_a_node_that_it_visited() {
    let trio = Trio::start().await;
    let visited = ["b".to_owned()];
    let error = trio.issue(TicketRequest { visited: &visited, ..request() }).unwrap_err();
    assert_eq!(error.to_string(), r#"the request has visited node "b" already"#);
    let visited = ["x".to_owned()];
    let ticket = trio.issue(TicketRequest { visited: &visited, hops_left: 0, ..request() }).unwrap();
    let accepted = accept(&trio.b, &ticket).unwrap();
    assert_eq!((accepted.visited, accepted.hops_left), (vec!["x".to_owned(), "a".to_owned()], 0));
}

#[tokio::test]
async fn a_ticket_beyond_its_limits_is_not_issued() {
    let trio = Trio::start().await;
    let names = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
    let visited = names(VISITED_MAX);
    assert_eq!(trio.issue(TicketRequest { visited: &visited, ..request() }), Err(TicketError::TooLong));
    let visited = names(VISITED_MAX - 1);
    assert!(trio.issue(TicketRequest { visited: &visited, ..request() }).is_ok());
    let visited = vec!["x".repeat(250); VISITED_MAX - 1];
    assert_eq!(trio.issue(TicketRequest { visited: &visited, ..request() }), Err(TicketError::TooLong));
    let tenant = "t".repeat(255);
    assert!(trio.issue(TicketRequest { tenant: &tenant, ..request() }).is_ok());
    let tenant = "t".repeat(256);
    assert_eq!(trio.issue(TicketRequest { tenant: &tenant, ..request() }), Err(TicketError::TooLong));
}

#[tokio::test]
async fn no_ticket_is_issued_for_a_peer_whose_clock_is_unknown() {
    let a = start(options("a", vec![peer("b", "http://127.0.0.1:1")]), || serving(vec![]));
    assert_eq!(a.issue_ticket(0, request()), Err(TicketError::NoReport { peer: "b".to_owned() }));
    assert_eq!(a.issue_ticket(1, request()), Err(TicketError::UnknownPeer { peer: 1 }));
}
