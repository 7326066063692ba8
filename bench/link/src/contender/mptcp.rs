//! MPTCP of the Linux kernel.

use std::fs;
use std::process::Command;

use bench_support::RunError;
use evenkeel_test_network::Network;

use super::CongestionControl;

/// Largest number of subflows that the kernel supports.
const SUBFLOWS_MAX: &str = "8";

pub(super) fn check(congestion_control: CongestionControl) -> Result<(), RunError> {
    let read = |file: &str| {
        let text = fs::read_to_string(file);
        text.map_err(|error| RunError(format!("{file}: {error}")))
    };
    if read("/proc/sys/net/mptcp/enabled")?.trim() != "1" {
        return Err(RunError("MPTCP is disabled (net.mptcp.enabled)".to_owned()));
    }
    let available = read("/proc/sys/net/ipv4/tcp_available_congestion_control")?;
    if !available.split_whitespace().any(|name| name == congestion_control.name()) {
        return Err(RunError(format!("the kernel has only: {}", available.trim())));
    }
    Ok(())
}

/// Makes the core announce the addresses of all paths, and the edge open a subflow to each.
pub(super) fn configure(network: &Network) -> Result<(), RunError> {
    let limits = ["mptcp", "limits", "set", "subflow", SUBFLOWS_MAX, "add_addr_accepted", SUBFLOWS_MAX];
    for namespace in [network.edge(), network.core()] {
        run(namespace.command("ip").args(limits))?;
    }
    // The stream itself connects to the first path.
    for path in &network.paths()[1..] {
        let address = path.core_address().to_string();
        let endpoint = ["mptcp", "endpoint", "add", &address, "dev", &path.interface(), "signal"];
        run(network.core().command("ip").args(endpoint))?;
    }
    Ok(())
}

fn run(command: &mut Command) -> Result<(), RunError> {
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(RunError(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
