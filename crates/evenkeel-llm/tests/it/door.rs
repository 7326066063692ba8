//! The whole door, in front of engines that do what a test says.

mod engine;
mod failure;
mod house;
mod leave;
mod nodes;
mod serve;
mod tenants;
