//! Links over emulated paths between two network namespaces, edge (connecting) and core (listening).

mod candidates;
mod failover;
mod gateway;
mod lanes;
mod random_loss;
mod routes;
mod shares;
mod survival;
mod telemetry;
mod transfers;
mod udp;
