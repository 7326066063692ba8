//! Forwarded connections survive their paths: a PostgreSQL session, a streamed response, and an idle session.

mod clients;

use std::io::Write;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use evenkeel_sim_node::testing::ResponseEnd;
use evenkeel_test_network::{Network, PathSpec, network_or_skip};
use evenkeel_test_postgres::SharedDatabase;

use crate::link::process::LoggedProcess;
use crate::link::sites::LinkSide;
use crate::link::test_link::{ForwardLane, LinkOptions, TestLink};
use crate::test_dir::TestDir;
use clients::{ChatStream, EchoSession, PsqlSession};

const PATHS: [PathSpec; 2] =
    [PathSpec::new(10.0, Duration::from_millis(10)), PathSpec::new(10.0, Duration::from_millis(30))];

/// Tokens per second of the streamed response.
const TOKENS_PER_SECOND: u64 = 10;

/// A link that carries one connection of each kind.
struct Sessions {
    psql: PsqlSession,
    chat: ChatStream,
    echo: EchoSession,
    link: TestLink,
    _sim: LoggedProcess,
    _database: SharedDatabase,
}

impl Sessions {
    /// Opens the connections; the response streams for this many seconds.
    fn start(name: &str, network: Network, config: &str, stream_secs: u64) -> Self {
        let database = evenkeel_test_postgres::shared().unwrap();
        let relay = clients::relay_to_postgres(network.core(), &database.url());
        let (sim, node) = start_sim_node(&TestDir::new(&format!("link-{name}-sim")), &network);
        let link = TestLink::with(
            name,
            network,
            &LinkOptions { config, targets: &[relay, node], ..LinkOptions::default() },
        );
        link.wait_active(2);
        let mut psql = PsqlSession::start(&link, link.forward_to_target(0), &database.url());
        psql.run("create temp table kept (n int);");
        let echo = EchoSession::start(link.connect(ForwardLane::Stream));
        let chat = ChatStream::start(&link, link.forward_to_target(1), stream_secs * TOKENS_PER_SECOND);
        Self { psql, chat, echo, link, _sim: sim, _database: database }
    }

    /// Uses the sessions that wait for input.
    fn exchange(&mut self, step: u32) {
        let backend = self.psql.backend;
        let sql = format!("insert into kept values ({step}) returning n || ' ' || pg_backend_pid();");
        assert_eq!(self.psql.query(&sql), Some(format!("{step} {backend}")));
        self.echo.exchange(&format!("step {step}"));
    }

    /// Checks that every session is whole after this number of exchanges.
    fn finish(mut self, exchanges: usize) {
        assert_eq!(self.psql.query("select count(*) from kept;"), Some(exchanges.to_string()));
        let (response, expected) = self.chat.finish();
        assert_eq!((response.status, response.end), (200, ResponseEnd::Complete), "{response:?}");
        assert_eq!(response.streamed_text(), expected);
    }
}

fn start_sim_node(dir: &TestDir, network: &Network) -> (LoggedProcess, SocketAddr) {
    let speed = TOKENS_PER_SECOND.to_string();
    let args = ["sim-node", "--ttft-ms", "0", "--tokens-per-second", &speed];
    let sim = network.core().run(|| LoggedProcess::spawn("sim-node", &mut dir.command(&args)));
    let line = sim.wait_log("listening on http://")["message"].clone();
    let address = line.as_str().unwrap().split("http://").nth(1).unwrap().split(": ").next().unwrap();
    (sim, address.parse().unwrap())
}

#[test]
fn sessions_continue_when_the_path_of_either_direction_is_black_holed() {
    let mut sessions = Sessions::start("survive", network_or_skip!(&PATHS), "", 12);
    sessions.exchange(1);
    let mut step = 1;
    for number in [1, 2] {
        sessions.link.network().path(number).black_hole(true);
        for _ in 0..3 {
            step += 1;
            sessions.exchange(step);
        }
        for side in [LinkSide::Edge, LinkSide::Core] {
            sessions
                .link
                .wait_session(side, "lost path", |session| session["paths"][number - 1]["state"] != "ACTIVE");
        }
        sessions.link.network().path(number).black_hole(false);
        sessions.link.wait_active(2);
    }
    sessions.finish(step as usize);
}

#[test]
fn sessions_continue_after_30_s_without_any_path() {
    let mut sessions = Sessions::start("outage", network_or_skip!(&PATHS), "", 8);
    sessions.exchange(1);
    set_black_holes(&sessions.link, true);
    // A keystroke during the outage is delivered after it.
    sessions.echo.socket().write_all(b"keystroke").unwrap();
    thread::sleep(Duration::from_secs(30));
    set_black_holes(&sessions.link, false);
    sessions.echo.expect("keystroke");
    sessions.exchange(2);
    sessions.finish(2);
}

#[test]
fn sessions_end_with_an_error_after_the_session_timeout_and_the_link_starts_anew() {
    let config = "[link]\nsession_timeout_secs = 3\n";
    let mut sessions = Sessions::start("timeout", network_or_skip!(&PATHS), config, 600);
    sessions.exchange(1);
    set_black_holes(&sessions.link, true);
    sessions.expect_errors();
    set_black_holes(&sessions.link, false);
    sessions.link.wait_active(2);
    let mut echo = EchoSession::start(sessions.link.connect(ForwardLane::Stream));
    echo.exchange("after the outage");
}

impl Sessions {
    /// Waits until each session has ended with an error.
    fn expect_errors(&mut self) {
        self.link.edge.wait_log("the session of the link ended and its flows were reset");
        self.link.core.wait_log("the session of a link ended");
        assert_eq!(self.psql.query("select 1;"), None);
        self.echo.expect_reset();
        let (response, expected) = self.chat.finish();
        assert_eq!(response.end, ResponseEnd::Reset, "{response:?}");
        assert!(response.body.len() < expected.len());
    }
}

fn set_black_holes(link: &TestLink, open: bool) {
    for path in link.network().paths() {
        path.black_hole(open);
    }
}
