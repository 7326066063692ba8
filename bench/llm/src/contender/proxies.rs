//! HAProxy and nginx, from Debian.

use std::fs;
use std::io;

use super::{Setup, StartedProcess, log, target};
use bench_support::{Process, free_port, program, start_haproxy};

pub(super) fn haproxy(setup: &Setup) -> io::Result<StartedProcess> {
    let address = free_port()?;
    let process = start_haproxy(address, &setup.nodes, "leastconn", &setup.directory)?;
    Ok(StartedProcess { target: target(vec![address]), process: Some(process) })
}

pub(super) fn nginx(setup: &Setup) -> io::Result<StartedProcess> {
    let address = free_port()?;
    let servers: String = setup.nodes.iter().map(|node| format!("    server {node};\n")).collect();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .into_iter()
        .map(|kind| format!("  {kind}_temp_path {kind};\n"))
        .collect();
    // Streams need buffering to be off.
    let config = format!(
        "daemon off;\nworker_processes auto;\npid nginx.pid;\nerror_log stderr;\n\
         events {{\n  worker_connections 4000;\n}}\n\
         http {{\n  access_log off;\n  keepalive_requests 1000000000;\n{temporary}\
         \x20 upstream nodes {{\n    least_conn;\n{servers}    keepalive 256;\n    keepalive_requests 1000000000;\n  }}\n\
         \x20 server {{\n    listen {address};\n    client_body_buffer_size 64k;\n\
         \x20   location / {{\n      proxy_pass http://nodes;\n      proxy_http_version 1.1;\n\
         \x20     proxy_set_header Connection \"\";\n      proxy_buffering off;\n    }}\n  }}\n}}\n"
    );
    let file = setup.directory.join("nginx.conf");
    fs::write(&file, config)?;
    let mut command = program("nginx");
    command.arg("-e").arg("stderr").arg("-p").arg(&setup.directory).arg("-c").arg(&file);
    let process = Process::start(&mut command, &log(&setup.directory))?;
    Ok(StartedProcess { target: target(vec![address]), process: Some(process) })
}
