//! Reports why this machine cannot emulate a network.

use std::fs::{self, File};
use std::io;
use std::process::{Command, Stdio};

const TUN: &str = "/dev/net/tun";
/// Capabilities that are needed, with their bits in `/proc/self/status`.
const CAPABILITIES: &[(&str, u32)] = &[("CAP_NET_ADMIN", 12), ("CAP_SYS_ADMIN", 21)];

/// The reason why this machine cannot emulate a network.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    #[error("the program `ip` is missing (Debian package iproute2): {0}")]
    IpMissing(io::Error),
    #[error("cannot open {TUN}: {0}")]
    TunMissing(io::Error),
    #[error("the process does not have {0}; run it as root")]
    CapabilityMissing(&'static str),
    #[error("`ip {args}` failed: {stderr}")]
    IpFailed { args: String, stderr: String },
    #[error("cannot {step}: {source}")]
    SetupFailed { step: String, source: io::Error },
}

/// Checks that networks can be emulated here.
pub fn check_available() -> Result<(), Unavailable> {
    let version = Command::new("ip").arg("-V").stdout(Stdio::null()).status();
    version.map_err(Unavailable::IpMissing)?;
    let status = fs::read_to_string("/proc/self/status")
        .map_err(|source| Unavailable::SetupFailed { step: "read /proc/self/status".to_owned(), source })?;
    if let Some(name) = missing_capability(&status) {
        return Err(Unavailable::CapabilityMissing(name));
    }
    File::options().read(true).write(true).open(TUN).map_err(Unavailable::TunMissing)?;
    Ok(())
}

fn missing_capability(status: &str) -> Option<&'static str> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    CAPABILITIES.iter().find(|(_, bit)| effective & (1 << bit) == 0).map(|(name, _)| *name)
}

/// Prints that a test is skipped; with the environment variable `CI`, it panics instead.
pub fn skip(unavailable: &Unavailable) {
    assert!(
        std::env::var_os("CI").is_none(),
        "tests with network namespaces must run in CI, but {unavailable}"
    );
    eprintln!("SKIPPED: no network namespaces: {unavailable}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_missing_capability_is_named() {
        for (mask, expected) in [
            ("000001ffffffffff", None),
            ("0000000000201000", None),
            ("0000000000200000", Some("CAP_NET_ADMIN")),
            ("0000000000001000", Some("CAP_SYS_ADMIN")),
            ("0000000000000000", Some("CAP_NET_ADMIN")),
        ] {
            let status = format!("Name:\tx\nCapPrm:\tffff\nCapEff:\t{mask}\n");
            assert_eq!(missing_capability(&status), expected, "{mask}");
        }
    }

    #[test]
    fn the_reason_says_what_is_missing() {
        let error = Unavailable::CapabilityMissing("CAP_NET_ADMIN");
        assert_eq!(error.to_string(), "the process does not have CAP_NET_ADMIN; run it as root");
        let error = Unavailable::TunMissing(io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(error.to_string(), "cannot open /dev/net/tun: entity not found");
    }
}
