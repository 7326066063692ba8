//! Reads the number of instructions from callgrind's output.

use crate::error::TaskError;

/// Returns the number of instructions of the whole run.
pub(super) fn parse(text: &str) -> Result<u64, TaskError> {
    let field = |name: &str| text.lines().rev().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if field("events:") != Some("Ir") {
        return Err(TaskError::new("callgrind's output does not count instructions (`events: Ir`) alone"));
    }
    let total = field("totals:").and_then(|total| total.parse().ok());
    total.ok_or_else(|| TaskError::new("callgrind's output has no line `totals:` with a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The beginning and the end of a file that valgrind 3.19 wrote.
    const RECORDED: &str = "\
# callgrind format
version: 1
creator: callgrind-3.19.0
pid: 2633
cmd:  target/release/actor-costs instructions tell 8192
part: 1


desc: I1 cache: 
desc: D1 cache: 
desc: LL cache: 

desc: Timerange: Basic block 0 - 1988440
desc: Trigger: Program termination

positions: line
events: Ir
summary: 10230271


ob=(4) /usr/libexec/valgrind/vgpreload_core-amd64-linux.so
fl=(134) ???
fn=(3140) 0x0000000000001050
0 5

fl=(138)
fn=(498)
84 4
+1 3
+2 1

totals: 10230271
";

    #[test]
    fn the_total_of_a_recorded_file_is_read() {
        assert_eq!(parse(RECORDED), Ok(10_230_271));
    }

    #[test]
    fn a_file_without_a_total_or_with_other_events_is_rejected() {
        let truncated = RECORDED.replace("totals: 10230271\n", "");
        assert!(parse(&truncated).unwrap_err().to_string().contains("no line `totals:`"));
        let cached = RECORDED.replace("events: Ir", "events: Ir Dr Dw");
        assert!(parse(&cached).unwrap_err().to_string().contains("instructions"));
    }
}
