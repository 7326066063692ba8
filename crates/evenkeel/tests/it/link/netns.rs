//! Links over emulated paths between two network namespaces, edge (connecting) and core (listening).

mod failover;
mod random_loss;
mod shares;
mod survival;
mod telemetry;
mod transfers;
