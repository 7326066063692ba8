//! A mailbox that fails: its messages are dead-lettered, its actor fails, and the supervision decides.

use std::num::NonZeroUsize;
use std::process::Command;

use evenkeel_actor::dead_letters::DeadLetterReason;
use evenkeel_actor::guardian::{ErrorKind, SupervisionDirective};
use evenkeel_actor::runtime::tokio::TokioRuntime;
use evenkeel_actor::*;

use crate::harness::*;
use crate::limits::drop_message;

#[test]
fn an_actor_with_a_failed_mailbox_is_restarted_with_an_empty_one() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.recorder("a");
        actor.tell(act(|_, _| Err(ActorError::mailbox("broken on purpose"))));
        (1..=3).for_each(|number| actor.tell(record(number)));
        assert_eq!(harness.dead_letters(), [], "they are only counted");
        let labels = [("reason", DeadLetterReason::MailboxFailed.as_label())];
        assert_eq!(harness.metric("dead_letters_total", &labels), 3.0);
        actor.tell(record(4));
        assert_eq!(harness.lines(), ["a 4"]);
        let count = |name| harness.metric(name, &[("actor", "a")]);
        let counts =
            ["actor.mailbox.failures_total", "actor.failures_total", "actor.restarts_total"].map(count);
        assert_eq!(counts, [1.0, 1.0, 1.0]);
    });
}

#[test]
fn the_supervisor_learns_that_the_mailbox_failed_and_may_stop_the_actor() {
    let stop_on_mailbox = |error: &ActorError| match error.kind() {
        ErrorKind::Mailbox => SupervisionDirective::Stop,
        ErrorKind::Failed | ErrorKind::Panicked | ErrorKind::Escalated => SupervisionDirective::Restart,
    };
    explore_with(supervised(decided_by(stop_on_mailbox)), |harness| {
        let actor = harness.recorder("a");
        actor.tell(act(|_, _| Err(ActorError::mailbox("broken on purpose"))));
        actor.tell(record(1));
        harness.run();
        let labels = [("reason", DeadLetterReason::MailboxFailed.as_label())];
        assert_eq!(harness.metric("dead_letters_total", &labels), 1.0);
        assert_eq!(actor.state(), ActorState::Stopped);
        assert!(matches!(actor.try_tell(record(2)), Err(SendError::Closed(_))));
    });
}

#[test]
fn an_ask_in_a_failed_mailbox_is_discarded_although_its_actor_keeps_dead_letters() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.recorder("a");
        actor.tell(act(|_, _| Err(ActorError::mailbox("broken on purpose"))));
        let ask = actor.ask(|reply| Msg::Ask(1, reply));
        assert_eq!(harness.runtime.block_on(ask), Err(AskError::Discarded));
    });
}

#[test]
fn a_failure_of_another_kind_leaves_the_mailbox_alone() {
    explore_with(supervised(restart_immediately()), |harness| {
        let actor = harness.recorder("a");
        actor.tell(act(|_, _| Err(ActorError::new("failed on purpose"))));
        actor.tell(record(1));
        assert_eq!((harness.lines(), harness.dead_letters()), (vec!["a 1".to_owned()], vec![]));
        assert_eq!(harness.metric("actor.mailbox.failures_total", &[("actor", "a")]), 0.0);
    });
}

/// Set in the process that [`in_limited_process`] starts.
const LIMITED: &str = "EVENKEEL_ACTOR_TEST_LIMITED";
/// Address space of that process in KiB. The mailbox must grow to 512 MiB at some point.
const ADDRESS_SPACE_KIB: u32 = 800 * 1024;
const MESSAGE_BYTES: usize = 128 * 1024;

#[test]
#[cfg(target_os = "linux")]
fn a_mailbox_that_cannot_grow_fails_its_actor_and_not_the_process() {
    let this = "mailbox_failure::a_mailbox_that_cannot_grow_fails_its_actor_and_not_the_process";
    in_limited_process(this, async |system| {
        let actor = system.spawn(&large_mailbox()).unwrap();
        let (accepted, error) = fill(|message| actor.try_tell(message).map_err(drop_message));
        assert!(matches!(error, SendError::MailboxFailed(_)), "{error:?}");
        assert!(accepted > 1000, "{accepted} messages");
        while actor.depth() != 0 {
            tokio::task::yield_now().await;
        }
        let labels = [("reason", DeadLetterReason::MailboxFailed.as_label())];
        assert_eq!(read(&system.metrics(), "dead_letters_total", &labels), f64::from(accepted));
        assert_eq!(actor.try_tell([0; MESSAGE_BYTES]).ok(), Some(SendOutcome::Queued));
        assert_eq!(actor.state(), ActorState::Running);
    });
}

#[test]
#[cfg(target_os = "linux")]
fn a_router_tells_a_failed_mailbox_from_a_closed_one() {
    let this = "mailbox_failure::a_router_tells_a_failed_mailbox_from_a_closed_one";
    in_limited_process(this, async |system| {
        let options = RouterOptions::round_robin(NonZeroUsize::MIN);
        let router = system.spawn_router(&large_mailbox(), options).unwrap();
        let (_, error) = fill(|message| router.try_tell(message).map_err(drop_message));
        assert!(matches!(error, SendError::MailboxFailed(_)), "{error:?}");
        while router.depth() != 0 {
            tokio::task::yield_now().await;
        }
    });
}

type LargeMessage = [u8; MESSAGE_BYTES];

struct Idle;

impl Actor for Idle {
    type Msg = LargeMessage;

    fn receive(&mut self, _message: Self::Msg, _ctx: &mut Context<'_, Self>) -> HandlerResult<Self::Msg> {
        Ok(Flow::Continue)
    }
}

fn large_mailbox() -> Props<Idle> {
    Props::new(|| Idle).mailbox(mailbox_options(1_000_000, OverflowStrategy::Reject)).build()
}

/// Sends until a message is rejected; returns the number of accepted messages and the error.
fn fill(send: impl Fn(LargeMessage) -> Result<SendOutcome, SendError<()>>) -> (u32, SendError<()>) {
    let mut accepted = 0;
    loop {
        match send([0; MESSAGE_BYTES]) {
            Ok(_) => accepted += 1,
            Err(error) => return (accepted, error),
        }
    }
}

/// Starts the test `this` in a process with a limited address space, and there runs `test` in a system that handles
/// nothing before the first await.
fn in_limited_process(this: &str, test: impl AsyncFnOnce(&ReadyQueueScheduler)) {
    if std::env::var_os(LIMITED).is_some() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        return runtime.block_on(async {
            // More than the limit leaves room for.
            let dead_letters_max = 1_000_000;
            let config = ActorSystemConfig { dead_letters_max, ..supervised(restart_immediately()) };
            test(&ActorSystemRunner::new(config).start(TokioRuntime::current().unwrap()).unwrap()).await;
        });
    }
    let script = format!("ulimit -v {ADDRESS_SPACE_KIB} && exec \"$0\" --exact {this} --nocapture");
    let output = Command::new("sh")
        .args(["-c", &script])
        .arg(std::env::current_exe().unwrap())
        .env(LIMITED, "1")
        // Messages are moved through several frames of the test's thread.
        .env("RUST_MIN_STACK", (64 << 20).to_string())
        .output()
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}
