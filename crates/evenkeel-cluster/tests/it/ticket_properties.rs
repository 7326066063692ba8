//! Properties of tickets.

use std::sync::OnceLock;

use evenkeel_cluster::{TicketError, TicketRequest};
use http::Method;
use proptest::prelude::*;
use tokio::runtime::Runtime;

use super::*;

/// Node "a", which knows a report of "b".
struct Pair {
    _runtime: Runtime,
    a: Arc<Cluster>,
    b: Arc<Cluster>,
}

fn pair() -> &'static Pair {
    static PAIR: OnceLock<Pair> = OnceLock::new();
    PAIR.get_or_init(|| {
        let runtime = Runtime::new().unwrap();
        let (a, b) = runtime.block_on(async {
            let b = start_target("b", || serving(vec![]));
            let server = serve_polls(b.clone()).await;
            let a = start_poller(&server);
            peer_when(&a, is_serving).await;
            // The server stops here; one report is enough.
            (a, b)
        });
        Pair { _runtime: runtime, a, b }
    })
}

fn method() -> impl Strategy<Value = Method> {
    prop::sample::select(vec![Method::GET, Method::POST, Method::PUT])
}

proptest! {
    #[test]
    fn a_ticket_says_what_it_was_issued_for(
        tenant in ".{0,60}",
        method in method(),
        path in "/[ -~]{0,40}",
        body in prop::collection::vec(any::<u8>(), 0..200),
        hops_left: u8,
        visited in prop::collection::vec("[c-z]{1,8}", 0..7),
    ) {
        let Pair { a, b, .. } = pair();
        let request =
            TicketRequest { tenant: &tenant, database_id: "db", method: &method, path: &path, body: &body, hops_left, visited: &visited };
        let ticket = a.issue_ticket(0, request).unwrap();
        let accepted = b.accept_ticket(&ticket, &method, &path).unwrap();
        prop_assert_eq!(&accepted.tenant, &tenant);
        prop_assert_eq!(accepted.hops_left, hops_left);
        prop_assert_eq!(accepted.visited.split_last().unwrap(), (&"a".to_owned(), &visited[..]));
        prop_assert_eq!(accepted.check_body(&body), Ok(()));
        let mut longer = body.clone();
        longer.push(0);
        prop_assert_eq!(accepted.check_body(&longer), Err(TicketError::OtherBody));
        prop_assert_eq!(b.accept_ticket(&ticket, &method, &path), Err(TicketError::AlreadyUsed));
    }

    #[test]
    fn a_ticket_with_any_character_changed_is_refused(tenant in "[a-z]{1,20}", other in "[A-Za-z0-9_-]") {
        let Pair { a, b, .. } = pair();
        let method = Method::POST;
        let request =
            TicketRequest { tenant: &tenant, database_id: "db", method: &method, path: "/query", body: b"", hops_left: 1, visited: &[] };
        let ticket = a.issue_ticket(0, request).unwrap();
        for index in 0..ticket.len() {
            if ticket[index..=index] == *other {
                continue;
            }
            let mut changed = ticket.clone();
            changed.replace_range(index..=index, &other);
            let refused = b.accept_ticket(&changed, &method, "/query");
            prop_assert!(
                matches!(refused, Err(TicketError::Signature | TicketError::Malformed)),
                "character {}: {:?}", index, refused
            );
        }
        for len in 0..ticket.len() {
            prop_assert!(b.accept_ticket(&ticket[..len], &method, "/query").is_err(), "cut after {}", len);
        }
        prop_assert!(b.accept_ticket(&ticket, &method, "/query").is_ok());
    }

    #[test]
    fn any_text_is_refused_without_a_panic(text in ".{0,300}") {
        prop_assert!(pair().b.accept_ticket(&text, &Method::POST, "/query").is_err());
    }
}
