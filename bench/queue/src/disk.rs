//! The disk that all contenders share: its filesystem and fsync latency.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::time::Instant;

const SYNCS: usize = 300;
const BYTES: usize = 1_200;
const NAMES: &[(u64, &str)] = &[
    (0xEF53, "ext4"),
    (0x5846_5342, "xfs"),
    (0x9123_683E, "btrfs"),
    (0x0102_1994, "tmpfs (not durable)"),
    (0x794C_7630, "overlayfs"),
    (0x2FC1_2FC1, "zfs"),
];

/// Returns the name of a directory's filesystem.
pub(crate) fn filesystem(directory: &Path) -> io::Result<String> {
    let kind = rustix::fs::statfs(directory)?.f_type as u64;
    let name = NAMES.iter().find(|(number, _)| *number == kind).map(|(_, name)| (*name).to_owned());
    Ok(name.unwrap_or_else(|| format!("filesystem type {kind:#x}")))
}

/// Measures the median time in microseconds of an fdatasync after appending slightly more than one message.
pub(crate) fn sync_us(directory: &Path) -> io::Result<f64> {
    let path = directory.join("sync");
    let mut file = File::create(&path)?;
    let mut durations = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        file.write_all(&[7; BYTES])?;
        let started = Instant::now();
        file.sync_data()?;
        durations.push(started.elapsed());
    }
    fs::remove_file(path)?;
    durations.sort_unstable();
    Ok(durations[SYNCS / 2].as_secs_f64() * 1e6)
}

/// Returns the one-minute load average.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}
