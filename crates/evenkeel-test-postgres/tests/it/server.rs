use evenkeel_test_postgres::TestServer;
use std::fs;
use std::net::TcpStream;

#[test]
fn a_started_server_accepts_connections() {
    let server = TestServer::start().unwrap();
    assert_eq!(server.psql("postgres", "SELECT 1 + 1").unwrap(), "2\n");
    let version = server.psql("postgres", "SHOW server_version_num").unwrap();
    assert!(130_000 <= version.trim_end().parse().unwrap(), "{version}");
}

#[test]
fn a_wrong_password_is_refused() {
    let server = TestServer::start().unwrap();
    server.psql("postgres", "CREATE ROLE alice LOGIN PASSWORD 'right'").unwrap();
    let url = |password| server.url_as("postgres", "alice", password);
    assert_eq!(connect(&url("right")), Ok("alice\n".to_owned()));
    let error = connect(&url("wrong")).unwrap_err();
    assert!(error.contains("password authentication failed"), "{error}");
}

#[test]
fn restart_keeps_the_data_and_the_port() {
    let mut server = TestServer::start().unwrap();
    let port = server.port();
    server.psql("postgres", "CREATE TABLE t (n int); INSERT INTO t VALUES (7)").unwrap();
    server.restart().unwrap();
    assert_eq!(server.port(), port);
    assert_eq!(server.psql("postgres", "SELECT n FROM t").unwrap(), "7\n");
}

#[test]
fn a_killed_server_recovers_its_data_at_restart() {
    let mut server = TestServer::start().unwrap();
    server.psql("postgres", "CREATE TABLE t (n int); INSERT INTO t VALUES (7)").unwrap();
    server.kill().unwrap();
    assert!(TcpStream::connect((server.host(), server.port())).is_err());
    server.restart().unwrap();
    assert!(server.log().contains("was not properly shut down"), "{}", server.log());
    assert_eq!(server.psql("postgres", "SELECT count(*) FROM t").unwrap(), "1\n");
}

#[test]
fn a_stopped_server_refuses_connections_and_can_be_stopped_again() {
    let mut server = TestServer::start().unwrap();
    server.stop().unwrap();
    assert!(TcpStream::connect((server.host(), server.port())).is_err());
    server.stop().unwrap();
    assert!(server.log().contains("database system is shut down"), "{}", server.log());
}

#[test]
fn a_dropped_server_leaves_neither_process_nor_directory() {
    let server = TestServer::start().unwrap();
    let directory = server.socket_directory().to_owned();
    let address = (server.host(), server.port());
    assert!(fs::exists(&directory).unwrap() && TcpStream::connect(address).is_ok());
    drop(server);
    assert!(!fs::exists(&directory).unwrap());
    assert!(TcpStream::connect(address).is_err());
}

#[test]
fn a_stopped_server_leaves_no_directory_when_it_is_dropped() {
    let mut server = TestServer::start().unwrap();
    let directory = server.socket_directory().to_owned();
    server.stop().unwrap();
    assert!(fs::exists(&directory).unwrap());
    drop(server);
    assert!(!fs::exists(&directory).unwrap());
}

#[test]
fn tls_is_available_with_the_given_certificate() {
    let issued = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let options = TestServer::options().enable_tls(issued.cert.pem(), issued.signing_key.serialize_pem());
    let server = options.start().unwrap();
    let root = server.socket_directory().join("root.crt");
    fs::write(&root, issued.cert.pem()).unwrap();
    // `hostaddr` is the address, the host name is verified.
    let verified = |host: &str| {
        let query = format!("hostaddr=127.0.0.1&sslmode=verify-full&sslrootcert={}", root.display());
        let url = server.url("postgres").replace("127.0.0.1", host);
        psql(&format!("{url}?{query}"), "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
    };
    assert_eq!(verified("localhost"), Ok("t\n".to_owned()));
    let error = verified("other.test").unwrap_err();
    assert!(error.contains("does not match host name"), "{error}");
}

#[test]
fn settings_and_hba_lines_are_applied() {
    let options =
        TestServer::options().setting("max_connections", "17").hba("host all bob 127.0.0.1/32 trust");
    let server = options.start().unwrap();
    assert_eq!(server.psql("postgres", "SHOW max_connections").unwrap(), "17\n");
    server.psql("postgres", "CREATE ROLE bob LOGIN").unwrap();
    assert_eq!(connect(&server.url_as("postgres", "bob", "any")), Ok("bob\n".to_owned()));
}

#[test]
fn the_socket_directory_has_the_socket() {
    let server = TestServer::start().unwrap();
    let url = format!(
        "postgres://{}:{}@/postgres?host={}&port={}",
        server.user(),
        server.password(),
        server.socket_directory().display(),
        server.port()
    );
    assert_eq!(psql(&url, "SELECT inet_client_addr() IS NULL"), Ok("t\n".to_owned()));
}

#[test]
fn a_failed_statement_is_an_error_with_its_message() {
    let server = TestServer::start().unwrap();
    let error = server.psql("postgres", "SELECT 1; SELECT missing; SELECT 2").unwrap_err().to_string();
    assert!(error.contains("column \"missing\" does not exist"), "{error}");
}

#[test]
fn the_error_of_a_server_that_cannot_start_contains_its_log() {
    let error = TestServer::options().setting("shared_buffers", "nonsense").start().unwrap_err().to_string();
    assert!(error.contains("invalid value for parameter \"shared_buffers\""), "{error}");
}

/// Returns the name of the user that the URL logs in.
fn connect(url: &str) -> Result<String, String> {
    psql(url, "SELECT current_user")
}

/// Runs `psql` with a URL, password included.
fn psql(url: &str, sql: &str) -> Result<String, String> {
    let output = std::process::Command::new("psql")
        .args(["-XAtqw", url, "-c", sql])
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
