//! Doors at their real edge: sockets on loopback, bytes as an attacker writes them.

mod disconnect;
mod edge;
mod h2;
mod house;
mod rate;
mod stop;
mod tls;
