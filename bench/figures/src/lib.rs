//! What every comparison in rounds needs: a random order that can be repeated, the middle of many figures, tables; and
//! for those that compare servers, their processes and a connection to them.

mod line;
mod order;
mod process;
mod quartiles;
mod table;
mod wire;

pub use line::{Line, Sample, Trouble, delays, get};
pub use order::Random;
pub use process::Process;
pub use quartiles::Quartiles;
pub use table::{draw, short, times};
pub use wire::{Body, Head, Wire};
