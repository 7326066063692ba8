//! PgBouncer, from Debian.

use std::fs;
use std::io;

use bench_support::{free_port, program, start_packaged};
use rustix::process::geteuid;

use super::{LoadTarget, POOL_SIZE, Preparation, SqlSetup, StartedMiddle, log};
use crate::database::NAME;
use crate::pgbench::{PgTarget, QueryProtocol};

/// User that runs PgBouncer instead of root, which it refuses.
const USER: &str = "postgres";

/// Time for which a client keeps its connection to the database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PoolMode {
    Transaction,
    /// The only mode of version 1.18 that supports prepared statements.
    Session,
}

impl PoolMode {
    fn name(self) -> &'static str {
        match self {
            Self::Transaction => "transaction",
            Self::Session => "session",
        }
    }
}

pub(super) fn start(setup: &SqlSetup, mode: PoolMode, protocol: QueryProtocol) -> io::Result<StartedMiddle> {
    let address = free_port()?;
    let file = setup.directory.join("pgbouncer.ini");
    fs::write(&file, config(setup, mode, address.port()))?;
    let mut command = program("pgbouncer");
    if geteuid().is_root() {
        command.args(["-u", USER]);
    }
    command.arg(&file);
    let process = start_packaged(&mut command, "Debian package pgbouncer", &log(&setup.directory))?;
    let target = PgTarget { port: address.port(), protocol, result_bytes: setup.result_bytes };
    Ok(StartedMiddle {
        load: LoadTarget::Pgbench(target),
        process: Some(process),
        preparation: Preparation::None,
    })
}

/// Returns a configuration with default settings, except the pool and the number of clients.
fn config(setup: &SqlSetup, mode: PoolMode, port: u16) -> String {
    format!(
        "[databases]\n{NAME} = host=127.0.0.1 port={} dbname={NAME} user={NAME}\n\n\
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
         pool_mode = {}\ndefault_pool_size = {POOL_SIZE}\nmax_client_conn = 1000\n\
         log_connections = 0\nlog_disconnections = 0\nlog_stats = 0\n",
        setup.database_port,
        mode.name(),
    )
}
