//! Two namespaces and the paths between them.

use crate::namespace::{self, Namespace};
use crate::path::{EmulatedPath, interface_name};
use crate::spec::PathSpec;
use crate::unavailable::{Unavailable, check_available};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Largest number of paths.
const PATHS_MAX: usize = 64;

/// Packets that each interface holds until the emulator reads them.
const INTERFACE_QUEUE: u32 = 2000;

/// Two namespaces, edge and core, with paths between them; removed on drop.
#[derive(Debug)]
pub struct Network {
    // Fields are dropped in this order: paths use the namespaces.
    paths: Vec<EmulatedPath>,
    edge: Arc<Namespace>,
    core: Arc<Namespace>,
}

impl Network {
    /// Creates the namespaces and paths, and prints the seed of everything random.
    pub fn new(specs: &[PathSpec]) -> Result<Self, Unavailable> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let seed = since.as_micros() as u64;
        eprintln!("seed of the emulated network: {seed}");
        Self::with_seed(specs, seed)
    }

    /// Creates the namespaces and paths.
    pub fn with_seed(specs: &[PathSpec], seed: u64) -> Result<Self, Unavailable> {
        assert!(specs.len() <= PATHS_MAX, "at most {PATHS_MAX} paths are supported");
        check_available()?;
        namespace::remove_leftovers();
        static COUNTER: AtomicU64 = AtomicU64::new(0);
        let number = COUNTER.fetch_add(1, Ordering::Relaxed);
        let edge = Arc::new(Namespace::create("edge", number)?);
        let core = Arc::new(Namespace::create("core", number)?);
        for namespace in [&edge, &core] {
            namespace.prepare()?;
        }
        let paths = (1u8..).zip(specs).map(|(number, spec)| {
            // Two seeds for each path, one per direction.
            EmulatedPath::start(number, *spec, seed.wrapping_add(u64::from(number) << 32), &edge, &core)
        });
        let paths = paths.collect::<Result<_, _>>()?;
        Ok(Self { paths, edge, core })
    }

    pub fn edge(&self) -> &Namespace {
        &self.edge
    }

    pub fn core(&self) -> &Namespace {
        &self.core
    }

    /// Returns a path by its number, from 1: path 1 is the interface `p1` with the addresses 10.0.1.1 and 10.0.1.2.
    pub fn path(&self, number: usize) -> &EmulatedPath {
        &self.paths[number - 1]
    }

    pub fn paths(&self) -> &[EmulatedPath] {
        &self.paths
    }
}

/// An end of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Side {
    Edge,
    Core,
}

impl Side {
    pub(crate) fn address(self, path: u8) -> Ipv4Addr {
        let host = match self {
            Self::Edge => 1,
            Self::Core => 2,
        };
        Ipv4Addr::new(10, 0, path, host)
    }

    /// Returns the commands of `ip` that set up a new interface of a path.
    pub(crate) fn path_commands(self, path: u8) -> String {
        let name = interface_name(path);
        let address = self.address(path);
        let table = routing_table(path);
        format!(
            "address add {address}/24 dev {name}\n\
             link set {name} txqueuelen {INTERFACE_QUEUE}\n\
             rule add from {address} table {table}\n\
             {}",
            self.up_commands(path)
        )
    }

    /// Returns the commands that bring an interface up.
    ///
    /// Packets from the interface's address leave by it. So do those of a socket that is bound to the interface, for
    /// which the main table needs a route through it.
    pub(crate) fn up_commands(self, path: u8) -> String {
        let name = interface_name(path);
        let table = routing_table(path);
        format!(
            "link set {name} up\n\
             route add default dev {name} metric {table}\n\
             route add default dev {name} table {table}\n"
        )
    }
}

/// Returns the number of a path's routing table, which is also the metric of its default route.
fn routing_table(path: u8) -> u32 {
    100 + u32::from(path)
}
