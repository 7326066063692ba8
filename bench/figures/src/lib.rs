//! What every comparison in rounds needs: a random order that can be repeated, and the middle of many figures.

mod order;
mod quartiles;

pub use order::Random;
pub use quartiles::Quartiles;
