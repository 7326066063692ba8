//! The whole door, in front of engines that do what a test says.

mod deadline;
mod dialects;
mod engine;
mod failure;
mod house;
mod leave;
mod media;
mod nodes;
mod serve;
mod tenants;
mod told;
mod traces;
