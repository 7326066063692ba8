//! A running path: its addresses, its settings and its counters.

use crate::emulator::Emulator;
use crate::ip;
use crate::namespace::Namespace;
use crate::network::Side;
use crate::spec::PathSpec;
use crate::unavailable::Unavailable;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// An emulated link between the two namespaces.
#[derive(Debug)]
pub struct EmulatedPath {
    number: u8,
    to_core: Arc<PathDirection>,
    to_edge: Arc<PathDirection>,
    edge: Arc<Namespace>,
    _emulator: Emulator,
}

impl EmulatedPath {
    /// Creates the interfaces of a path in both namespaces and starts its emulator.
    pub(crate) fn start(
        number: u8,
        spec: PathSpec,
        seed: u64,
        edge: &Arc<Namespace>,
        core: &Namespace,
    ) -> Result<Self, Unavailable> {
        spec.assert_valid();
        let to_core = Arc::new(PathDirection::new(spec));
        let to_edge = Arc::new(PathDirection::new(spec));
        let name = interface_name(number);
        let devices = [edge.create_device(&name)?, core.create_device(&name)?];
        let emulator = Emulator::start(&name, devices, [&to_core, &to_edge], seed);
        let emulator = emulator
            .map_err(|source| Unavailable::SetupFailed { step: format!("emulate path {name}"), source })?;
        ip::batch(edge.name(), &Side::Edge.path_commands(number))?;
        ip::batch(core.name(), &Side::Core.path_commands(number))?;
        Ok(Self { number, to_core, to_edge, edge: Arc::clone(edge), _emulator: emulator })
    }

    /// Returns the name of the interface, the same in both namespaces.
    pub fn interface(&self) -> String {
        interface_name(self.number)
    }

    /// Returns the address of the edge's interface.
    pub fn edge_address(&self) -> Ipv4Addr {
        Side::Edge.address(self.number)
    }

    /// Returns the address of the core's interface.
    pub fn core_address(&self) -> Ipv4Addr {
        Side::Core.address(self.number)
    }

    pub fn to_core(&self) -> &PathDirection {
        &self.to_core
    }

    pub fn to_edge(&self) -> &PathDirection {
        &self.to_edge
    }

    /// Changes both directions; packets on their way are not affected.
    pub fn set(&self, spec: PathSpec) {
        self.to_core.set(spec);
        self.to_edge.set(spec);
    }

    /// Opens or closes a black hole in both directions.
    pub fn black_hole(&self, open: bool) {
        self.to_core.black_hole(open);
        self.to_edge.black_hole(open);
    }

    /// Takes the edge's interface down, like an unplugged modem.
    pub fn down(&self) -> Result<(), Unavailable> {
        ip::batch(self.edge.name(), &format!("link set {} down\n", self.interface()))
    }

    /// Brings the edge's interface up again, with its routes, which the kernel has removed.
    pub fn up(&self) -> Result<(), Unavailable> {
        ip::batch(self.edge.name(), &Side::Edge.up_commands(self.number))
    }
}

pub(crate) fn interface_name(number: u8) -> String {
    format!("p{number}")
}

/// One direction of a path.
#[derive(Debug)]
pub struct PathDirection {
    state: Mutex<DirectionState>,
}

/// Settings and counters that a test uses while packets flow.
#[derive(Debug)]
pub(crate) struct DirectionState {
    pub(crate) spec: PathSpec,
    pub(crate) black_hole: bool,
    pub(crate) counters: PathCounters,
}

/// Numbers of packets, and of bytes of whole IP packets, in one direction since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounters {
    /// Packets that the sending side sent.
    pub offered: u64,
    /// Packets that the receiving side got.
    pub delivered: u64,
    pub delivered_bytes: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets dropped by the queue or the policer.
    pub queue_dropped: u64,
    /// Packets dropped by a black hole, or by an interface that is down.
    pub black_holed: u64,
}

impl PathDirection {
    fn new(spec: PathSpec) -> Self {
        let counters = PathCounters::default();
        Self { state: Mutex::new(DirectionState { spec, black_hole: false, counters }) }
    }

    /// Changes this direction; packets on their way are not affected.
    pub fn set(&self, spec: PathSpec) {
        spec.assert_valid();
        self.lock().spec = spec;
    }

    /// Opens or closes a black hole, which neither accepts nor delivers packets while it is open.
    pub fn black_hole(&self, open: bool) {
        self.lock().black_hole = open;
    }

    /// Returns the counters, which include every packet that the receiving side could have read.
    pub fn counters(&self) -> PathCounters {
        self.lock().counters
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, DirectionState> {
        // Every change is a single assignment, so a panic leaves the state valid.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
