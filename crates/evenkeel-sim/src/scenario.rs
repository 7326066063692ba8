//! What a simulation is set up with.

use evenkeel_policy::backpressure::BackpressureConfig;
use evenkeel_policy::cost::Cost;
use evenkeel_policy::id::TenantId;
use evenkeel_policy::score::{RequestKind, SelectionPolicy};
use evenkeel_policy::time::Duration;
use evenkeel_policy::weight::Weight;

/// Who asks for what, on which nodes, decided how.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// What the random numbers start from.
    pub seed: u64,
    /// How long requests arrive.
    pub duration: Duration,
    /// Who asks.
    pub tenants: Vec<TenantPlan>,
    /// Who does the work.
    pub nodes: Vec<NodePlan>,
    /// Who is turned away.
    pub admit: AdmitPolicy,
    /// Who is served next.
    pub order: ServiceOrder,
    /// What a tenant of weight 1 may spend per round.
    pub quantum: Cost,
    /// What is asked for.
    pub request: RequestKind,
    /// How a node is chosen.
    pub selection: SelectionPolicy,
    /// What happens to tenants meanwhile.
    pub changes: Vec<(Duration, TenantAction)>,
}

/// One tenant and its appetite.
#[derive(Clone, Debug)]
pub struct TenantPlan {
    /// What reports call it.
    pub name: &'static str,
    /// Its weight.
    pub weight: Weight,
    /// Over how many keys it spreads its requests: each is a conversation that likes to stay on its node.
    pub keys: u32,
    /// How it asks.
    pub demand: Demand,
    /// What a request is thought to cost when it is sent.
    pub estimate: Cost,
    /// What it turns out to cost, at least and at most.
    pub actual: (Cost, Cost),
}

impl TenantPlan {
    /// A tenant of weight 1 with one key and plain messages.
    pub fn new(name: &'static str, demand: Demand) -> Self {
        Self {
            name,
            weight: Weight::ONE,
            keys: 1,
            demand,
            estimate: Cost::MESSAGE,
            actual: (Cost::MESSAGE, Cost::MESSAGE),
        }
    }
}

/// When a tenant asks.
#[derive(Clone, Copy, Debug)]
pub enum Demand {
    /// At random, so far apart on average.
    Every(Duration),
    /// So many requests wait at all times.
    Backlog(u32),
}

/// One node and the ways to it.
#[derive(Clone, Debug)]
pub struct NodePlan {
    /// How many requests it works on at once.
    pub slots: u32,
    /// How long a plain message takes it.
    pub message_time: Duration,
    /// How long it takes to begin an answer, which then comes bit by bit; nothing for an answer that comes at once.
    pub first_byte: Duration,
    /// The ways to it; none means no time on the way.
    pub paths: Vec<PathPlan>,
}

/// One way to a node.
#[derive(Clone, Copy, Debug)]
pub struct PathPlan {
    /// Its round-trip time.
    pub rtt: Duration,
}

/// Who is turned away.
#[derive(Clone, Copy, Debug)]
pub enum AdmitPolicy {
    /// Nobody, as far as there is room: a thousand places.
    Everybody,
    /// Whoever arrives when the queue is loaded.
    ByLoad(BackpressureConfig),
    /// Whoever holds more than its share of a loaded queue.
    ByShare(BackpressureConfig),
}

/// Who is served next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceOrder {
    /// Whoever came first: tenants are not told apart, neither by turns nor by places.
    Fifo,
    /// Whoever's turn it is, by deficit round robin over tenants.
    Drr,
}

/// What happens to a tenant.
#[derive(Clone, Copy, Debug)]
pub enum TenantAction {
    /// It has another weight from now on.
    Weight(TenantId, Weight),
    /// A random one is set aside.
    ParkSome,
    /// A random one is woken, if it was set aside.
    WakeSome,
    /// All are woken.
    WakeAll,
}
