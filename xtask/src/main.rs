//! Evenkeel's own chores: test, ci, deep, tidy, bench.
fn main() {}
