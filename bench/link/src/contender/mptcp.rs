//! MPTCP of the Linux kernel.

use bench_support::RunError;
use evenkeel_test_network::Network;

use super::command::run;
use super::read_proc;

/// Largest number of subflows that the kernel supports.
const SUBFLOWS_MAX: &str = "8";

pub(super) fn check() -> Result<(), RunError> {
    if read_proc("/proc/sys/net/mptcp/enabled")?.trim() == "1" {
        return Ok(());
    }
    Err(RunError("MPTCP is disabled (net.mptcp.enabled)".to_owned()))
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
