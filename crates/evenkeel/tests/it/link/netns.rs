//! Links over emulated paths between two network namespaces, edge (connecting) and core (listening).

mod failover;
mod gateway;
mod shares;
mod survival;
mod telemetry;
mod transfers;
