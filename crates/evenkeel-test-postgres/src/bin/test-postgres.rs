//! Starts a PostgreSQL server, prints its URL, and stops it when standard input is closed (Ctrl-D).

use evenkeel_test_postgres::{TestServer, TestServerError};
use std::io::{self, Read, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("test-postgres: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> Result<(), TestServerError> {
    let server = TestServer::start()?;
    let mut stdout = io::stdout();
    let printed = writeln!(stdout, "{}", server.url("postgres")).and_then(|()| stdout.flush());
    if printed.is_ok() {
        // An error ends the input, too.
        let _ = io::stdin().read_to_end(&mut Vec::new());
    }
    Ok(())
}
