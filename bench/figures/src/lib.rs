//! What every comparison in rounds needs: a random order that can be repeated, the middle of many figures, tables; and
//! for those that compare servers, their processes, a connection to them and the words of their command lines.

mod line;
mod order;
mod process;
mod quartiles;
mod table;
mod wire;
mod words;

pub use line::{Line, Sample, Trouble, delays, get};
pub use order::Random;
pub use process::Process;
pub use quartiles::Quartiles;
pub use table::{draw, short, times};
pub use wire::{Body, Head, Wire};
pub use words::{Misuse, any_seed, list, number};
