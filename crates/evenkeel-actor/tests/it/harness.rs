//! Test harness that hides the API from most tests: a system in virtual time and scripted actors.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use evenkeel_actor::dead_letters::{DeadLetter, DeadLetterReason, KeepMessage};
use evenkeel_actor::guardian::{
    Backoff, FailureNotification, Supervision, SupervisionDecision, SupervisionDirective,
};
use evenkeel_actor::hub::{Snapshot, Value};
use evenkeel_actor::runtime::RuntimeHandle;
use evenkeel_actor::runtime::test::{TestOptions, TestRuntime};
use evenkeel_actor::*;

/// Number of interleavings per test.
const SEEDS: u64 = 12;

/// A system with two workers in virtual time.
pub(crate) struct Harness {
    pub(crate) system: ReadyQueueScheduler,
    pub(crate) log: Log,
    // Dropped last, so that the system can stop.
    pub(crate) runtime: TestRuntime,
}

/// Runs a test under many interleavings.
pub(crate) fn explore(test: impl Fn(&Harness)) {
    explore_with(config(), test);
}

pub(crate) fn explore_with(config: ActorSystemConfig, test: impl Fn(&Harness)) {
    (0..SEEDS).for_each(|seed| test(&Harness::new(TestOptions::new(seed), config)));
}

/// Runs a test of batches: a run handles up to 64 messages under each seed.
pub(crate) fn explore_batches(test: impl Fn(&Harness)) {
    for seed in 0..SEEDS {
        let options = TestOptions { messages_per_run: 64.try_into().unwrap(), ..TestOptions::new(seed) };
        test(&Harness::new(options, config()));
    }
}

pub(crate) fn config() -> ActorSystemConfig {
    ActorSystemConfig::with_workers(NonZeroUsize::new(2).unwrap())
}

/// Returns a configuration with this supervision of top-level actors.
pub(crate) fn supervised(supervision: Supervision) -> ActorSystemConfig {
    ActorSystemConfig { supervision, ..config() }
}

/// Returns a supervision that restarts without backoff.
pub(crate) fn restart_immediately() -> Supervision {
    Supervision::default().with_backoff(Backoff::NONE)
}

pub(crate) fn decided_by(decider: fn(&ActorError) -> SupervisionDirective) -> Supervision {
    restart_immediately().with_decider(decider)
}

impl Harness {
    pub(crate) fn new(options: TestOptions, config: ActorSystemConfig) -> Self {
        let runtime = TestRuntime::with(options);
        let system = ActorSystemRunner::new(config).start(runtime.handle()).unwrap();
        Self { system, log: Log::default(), runtime }
    }

    pub(crate) fn puppet(&self, name: &'static str) -> PuppetBuilder {
        puppet(name, &self.log)
    }

    /// Spawns a top-level actor and runs until it has started.
    pub(crate) fn spawn(&self, puppet: PuppetBuilder) -> ActorRef<Msg> {
        let actor = self.system.spawn(&puppet.props()).unwrap();
        self.runtime.run_until_idle();
        actor
    }

    /// Spawns an actor without hooks, which records the messages it handles.
    pub(crate) fn recorder(&self, name: &'static str) -> ActorRef<Msg> {
        self.spawn(self.puppet(name))
    }

    /// Runs until idle, then takes the recorded lines.
    pub(crate) fn lines(&self) -> Vec<String> {
        self.runtime.run_until_idle();
        self.log.take()
    }

    pub(crate) fn run(&self) {
        self.runtime.run_until_idle();
    }

    pub(crate) fn advance_ms(&self, ms: u64) {
        self.runtime.advance(Duration::from_millis(ms));
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.runtime.now().as_nanos() / 1_000_000
    }

    /// Takes the dead letters: reason and number of each message.
    pub(crate) fn dead_letters(&self) -> Vec<(DeadLetterReason, u32)> {
        self.run();
        let letters = self.system.take_dead_letters();
        let message =
            |letter: &DeadLetter| number(letter.message.as_ref().and_then(|kept| kept.downcast_ref()));
        letters.iter().map(|letter| (letter.reason, message(letter))).collect()
    }

    /// Returns the value of a counter or gauge.
    pub(crate) fn metric(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        read(&self.system.metrics(), name, labels)
    }
}

pub(crate) fn read(snapshot: &Snapshot, name: &str, labels: &[(&str, &str)]) -> f64 {
    match snapshot.get(name, labels) {
        Some(Value::Counter(count)) => *count as f64,
        Some(Value::Gauge(value)) => *value,
        other => panic!("{name} {labels:?} is {other:?}"),
    }
}

fn number(message: Option<&Msg>) -> u32 {
    match message {
        Some(Msg::Record(number)) => *number,
        _ => u32::MAX,
    }
}

/// Lines recorded by actors, in order.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn record(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// An actor scripted by its messages and hooks, which records what it does.
pub(crate) struct Puppet {
    pub(crate) name: &'static str,
    /// Number of this value of the actor, from 1; each restart adds one.
    pub(crate) incarnation: u32,
    pub(crate) log: Log,
    plan: Arc<Plan>,
}

pub(crate) enum Msg {
    /// Records the number.
    Record(u32),
    /// Runs the closure.
    Act(Act),
    /// Records the number and replies with it.
    Ask(u32, Reply<u32>),
}

type Act = Box<dyn FnOnce(&mut Puppet, &mut Context<'_, Puppet>) -> HandlerResult<Msg> + Send>;

/// Hooks of a puppet.
#[derive(Default)]
struct Plan {
    incarnations: AtomicU32,
    log_hooks: bool,
    factory: Option<Box<dyn Fn(u32) + Send + Sync>>,
    started: Option<Box<dyn Fn(&mut Puppet, &mut Context<'_, Puppet>) -> HandlerResult<Msg> + Send + Sync>>,
    signal: Option<Box<dyn Fn(&Signal, &mut Context<'_, Puppet>) -> HandlerResult<Msg> + Send + Sync>>,
    restarting: Option<Box<dyn Fn(&mut Puppet, &mut Context<'_, Puppet>) + Send + Sync>>,
    stopped: Option<Box<dyn Fn(&mut Puppet, &mut Context<'_, Puppet>) + Send + Sync>>,
    overrule: Option<fn(&FailureNotification) -> Option<SupervisionDirective>>,
    dropped: Option<fn(&Puppet)>,
}

pub(crate) struct PuppetBuilder {
    name: &'static str,
    log: Log,
    plan: Plan,
    mailbox: MailboxOptions,
    children: Supervision,
    dead_letters: KeepMessage,
    chain: Option<Box<dyn Fn() -> CompositeMiddleware + Send + Sync>>,
    stash_max: usize,
}

pub(crate) fn puppet(name: &'static str, log: &Log) -> PuppetBuilder {
    PuppetBuilder {
        name,
        log: log.clone(),
        plan: Plan::default(),
        mailbox: MailboxOptions::default(),
        children: restart_immediately(),
        dead_letters: KeepMessage::Whole,
        chain: None,
        stash_max: STASH_MAX,
    }
}

impl PuppetBuilder {
    /// Records calls of its hooks too.
    pub(crate) fn log_hooks(mut self) -> Self {
        self.plan.log_hooks = true;
        self
    }

    /// Calls `factory` with the number of the value about to be created.
    pub(crate) fn factory(mut self, factory: impl Fn(u32) + Send + Sync + 'static) -> Self {
        self.plan.factory = Some(Box::new(factory));
        self
    }

    pub(crate) fn started(
        mut self,
        hook: impl Fn(&mut Puppet, &mut Context<'_, Puppet>) -> HandlerResult<Msg> + Send + Sync + 'static,
    ) -> Self {
        self.plan.started = Some(Box::new(hook));
        self
    }

    /// Calls `hook` instead of recording the signal.
    pub(crate) fn signal(
        mut self,
        hook: impl Fn(&Signal, &mut Context<'_, Puppet>) -> HandlerResult<Msg> + Send + Sync + 'static,
    ) -> Self {
        self.plan.signal = Some(Box::new(hook));
        self
    }

    pub(crate) fn restarting(
        mut self,
        hook: impl Fn(&mut Puppet, &mut Context<'_, Puppet>) + Send + Sync + 'static,
    ) -> Self {
        self.plan.restarting = Some(Box::new(hook));
        self
    }

    pub(crate) fn stopped(
        mut self,
        hook: impl Fn(&mut Puppet, &mut Context<'_, Puppet>) + Send + Sync + 'static,
    ) -> Self {
        self.plan.stopped = Some(Box::new(hook));
        self
    }

    pub(crate) fn overrule(
        mut self,
        overrule: fn(&FailureNotification) -> Option<SupervisionDirective>,
    ) -> Self {
        self.plan.overrule = Some(overrule);
        self
    }

    pub(crate) fn dropped(mut self, dropped: fn(&Puppet)) -> Self {
        self.plan.dropped = Some(dropped);
        self
    }

    pub(crate) fn mailbox(mut self, options: MailboxOptions) -> Self {
        self.mailbox = options;
        self
    }

    /// Sets the capacity for user messages and reserves none for the system.
    pub(crate) fn capacity(self, capacity: usize, overflow: OverflowStrategy) -> Self {
        self.mailbox(mailbox_options(capacity, overflow))
    }

    pub(crate) fn supervise(mut self, children: Supervision) -> Self {
        self.children = children;
        self
    }

    /// Keeps only plain messages in dead letters; by default all are kept whole.
    pub(crate) fn keep_plain_messages(mut self) -> Self {
        self.dead_letters = KeepMessage::Plain;
        self
    }

    pub(crate) fn middleware(
        mut self,
        chain: impl Fn() -> CompositeMiddleware + Send + Sync + 'static,
    ) -> Self {
        self.chain = Some(Box::new(chain));
        self
    }

    pub(crate) fn stash_max(mut self, stash_max: usize) -> Self {
        self.stash_max = stash_max;
        self
    }

    pub(crate) fn props(self) -> Props<Puppet> {
        let Self { name, log, plan, mailbox, children, dead_letters, chain, stash_max } = self;
        let plan = Arc::new(plan);
        let factory = move || {
            let incarnation = plan.incarnations.fetch_add(1, Ordering::Relaxed) + 1;
            if let Some(factory) = &plan.factory {
                factory(incarnation);
            }
            Puppet { name, incarnation, log: log.clone(), plan: plan.clone() }
        };
        let builder = Props::new(factory)
            .label(name)
            .mailbox(mailbox)
            .supervise(children)
            .dead_letters(dead_letters)
            .stash_max(stash_max);
        match chain {
            Some(chain) => builder.middleware(chain).build(),
            None => builder.build(),
        }
    }
}

pub(crate) fn mailbox_options(capacity: usize, overflow: OverflowStrategy) -> MailboxOptions {
    MailboxOptions {
        capacity: NonZeroUsize::new(capacity).unwrap(),
        overflow,
        reserve_for_system: 0,
        high_watermark: capacity,
        low_watermark: capacity / 2,
        middleware: None,
    }
}

pub(crate) fn record(number: u32) -> Msg {
    Msg::Record(number)
}

pub(crate) fn act(
    act: impl FnOnce(&mut Puppet, &mut Context<'_, Puppet>) -> HandlerResult<Msg> + Send + 'static,
) -> Msg {
    Msg::Act(Box::new(act))
}

/// Returns a message that runs `work`, ignores its result and continues.
pub(crate) fn run<T>(work: impl FnOnce(&mut Puppet, &mut Context<'_, Puppet>) -> T + Send + 'static) -> Msg {
    act(|me, ctx| {
        work(me, ctx);
        Ok(Flow::Continue)
    })
}

/// Returns a message that suspends the actor until the key is signalled.
pub(crate) fn suspend_until(key: u64) -> Msg {
    let until = ResumeCondition::ExternalSignal(SignalKey(key));
    act(move |_, _| Ok(Flow::Suspend(SuspendReason::UserDefined, until)))
}

pub(crate) fn fail(reason: &'static str) -> Msg {
    act(move |_, _| Err(ActorError::new(reason)))
}

pub(crate) fn panic(reason: &'static str) -> Msg {
    act(move |_, _| panic!("{reason}"))
}

impl Puppet {
    pub(crate) fn record(&self, text: impl std::fmt::Display) {
        self.log.record(format!("{} {text}", self.name));
    }

    fn record_hook(&self, text: impl std::fmt::Display) {
        if self.plan.log_hooks {
            let Self { name, incarnation, .. } = self;
            self.log.record(format!("{name}{incarnation} {text}"));
        }
    }
}

impl Actor for Puppet {
    type Msg = Msg;

    fn receive(&mut self, message: Msg, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        match message {
            Msg::Record(number) => self.record(number),
            Msg::Act(act) => return act(self, ctx),
            Msg::Ask(number, reply) => {
                self.record(number);
                let _ = reply.send(number);
            }
        }
        Ok(Flow::Continue)
    }

    fn started(&mut self, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        self.record_hook("started");
        match self.plan.clone().started.as_ref() {
            Some(hook) => hook(self, ctx),
            None => Ok(Flow::Continue),
        }
    }

    fn signal(&mut self, signal: Signal, ctx: &mut Context<'_, Self>) -> HandlerResult<Msg> {
        if let Some(hook) = &self.plan.signal {
            return hook(&signal, ctx);
        }
        match signal {
            Signal::Terminated { cause, .. } => {
                self.record(format_args!("terminated: {}", termination_text(&cause)));
            }
            Signal::ChildFailed(failure) => {
                self.record(format_args!(
                    "child failed: {} → {}",
                    failure.error,
                    decision_text(failure.decision)
                ));
            }
            Signal::ReceiveTimeout => self.record("receive timeout"),
            Signal::CapacityTimeout => self.record("capacity timeout"),
            Signal::Timer(TimerId(id)) => self.record(format_args!("timer {id}")),
        }
        Ok(Flow::Continue)
    }

    fn restarting(&mut self, error: &ActorError, ctx: &mut Context<'_, Self>) {
        self.record_hook(format_args!("restarting: {error}"));
        if let Some(hook) = self.plan.clone().restarting.as_ref() {
            hook(self, ctx);
        }
    }

    fn stopped(&mut self, ctx: &mut Context<'_, Self>) {
        self.record_hook("stopped");
        if let Some(hook) = self.plan.clone().stopped.as_ref() {
            hook(self, ctx);
        }
    }

    fn overrule(&mut self, failure: &FailureNotification) -> Option<SupervisionDirective> {
        self.plan.overrule.and_then(|overrule| overrule(failure))
    }
}

impl Drop for Puppet {
    fn drop(&mut self) {
        self.record_hook("dropped");
        if let Some(dropped) = self.plan.dropped {
            dropped(self);
        }
    }
}

pub(crate) fn termination_text(termination: &Termination) -> String {
    match termination {
        Termination::Stopped => "stopped".to_owned(),
        Termination::Failed { error, reason } => format!("{error}, {reason}"),
        Termination::Unknown => "unknown".to_owned(),
    }
}

fn decision_text(decision: SupervisionDecision) -> String {
    match decision {
        SupervisionDecision::Resume => "resume".to_owned(),
        SupervisionDecision::Restart { after } => format!("restart after {after:?}"),
        SupervisionDecision::Stop { reason } => format!("stop, {reason}"),
        SupervisionDecision::Escalate => "escalate".to_owned(),
    }
}

pub(crate) const MS: Duration = Duration::from_millis(1);

/// Returns a point in virtual time.
pub(crate) fn at_ms(ms: u64) -> Instant {
    Instant::from_millis(ms)
}

/// Makes an actor spawn a child and runs until the child has started.
pub(crate) fn spawn_child(harness: &Harness, parent: &ActorRef<Msg>, child: PuppetBuilder) -> ActorRef<Msg> {
    let props = child.props();
    let spawned = harness
        .runtime
        .block_on(parent.ask(|reply| run(move |_, ctx| reply.send(ctx.spawn(&props)).is_ok())));
    let child = spawned.unwrap().unwrap();
    harness.run();
    child
}

impl Harness {
    /// Returns a message that awaits a point in virtual time, then records `number`.
    pub(crate) fn wait_until_ms(&self, ms: u64, number: u32) -> Msg {
        let sleep = RuntimeHandle::sleep_until(&self.runtime.handle(), at_ms(ms));
        act(move |_, _| {
            Ok(Flow::wait(async move {
                sleep.await;
                record(number)
            }))
        })
    }
}
