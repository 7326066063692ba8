//! What every comparison in rounds needs: a random order that can be repeated, the middle of many figures, tables; and
//! for those that compare servers, their processes, a connection to them and the args of their command lines.

mod args;
mod http;
mod order;
mod process;
mod quartiles;
mod row;
mod table;

pub use args::{UsageError, any_seed, list, number};
pub use http::{Body, Head, HttpConnection};
pub use order::SplitMix64;
pub use process::Process;
pub use quartiles::Quartiles;
pub use row::{RowSamples, RunError, TurnSample, delays, get};
pub use table::{draw, short, times};
