//! Shared parts of the benchmark suites: a repeatable random order, quartiles and tables; and for suites that compare
//! servers, process control, a minimal HTTP/1.1 connection and common command-line values.

mod args;
mod http;
mod order;
mod process;
mod program;
mod quartiles;
mod row;
mod table;

pub use args::{parse_scale, time_seed};
pub use http::{Body, Head, HttpConnection};
pub use order::SplitMix64;
pub use process::{Process, process_tree_cpu, thread_cpu};
pub use program::{free_port, program, start_haproxy, start_packaged};
pub use quartiles::Quartiles;
pub use row::{RowSamples, RunError, TurnSample, get, latency_percentiles};
pub use table::{draw, format_ratio, short};
