//! The disk that all share: what it is, and how long it takes to have something on it.

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
    (0x0102_1994, "tmpfs, which keeps nothing"),
    (0x794C_7630, "overlayfs"),
    (0x2FC1_2FC1, "zfs"),
];

/// Names the filesystem of a folder.
pub(crate) fn filesystem(folder: &Path) -> io::Result<String> {
    let kind = rustix::fs::statfs(folder)?.f_type as u64;
    let name = NAMES.iter().find(|(number, _)| *number == kind).map(|(_, name)| (*name).to_owned());
    Ok(name.unwrap_or_else(|| format!("a filesystem of type {kind:#x}")))
}

/// Half of the flushes of a little more than one message at the end of a file take this many microseconds at most.
pub(crate) fn sync_us(folder: &Path) -> io::Result<f64> {
    let path = folder.join("sync");
    let mut file = File::create(&path)?;
    let mut took = Vec::with_capacity(SYNCS);
    for _ in 0..SYNCS {
        file.write_all(&[7; BYTES])?;
        let begun = Instant::now();
        file.sync_data()?;
        took.push(begun.elapsed());
    }
    fs::remove_file(path)?;
    took.sort_unstable();
    Ok(took[SYNCS / 2].as_secs_f64() * 1e6)
}

/// How busy the machine is, as the kernel sees it over the last minute.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}
