//! TLS modes, and cancellation over TLS.

use std::io::Write;
use std::time::Duration;

use evenkeel_postgres::{ConnectConfig, ConnectError, PgError, Pool, PoolConfig, Statement};
use evenkeel_test_postgres::TestServer;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio::time::timeout;

use crate::fixture::{ALICE, Rows, session, value};

/// A certificate authority, and a server certificate that it signed.
struct Certificates {
    authority_pem: String,
    server_pem: String,
    server_key_pem: String,
}

fn certificates(host: &str) -> Certificates {
    let authority_key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority = params.self_signed(&authority_key).unwrap();
    let issuer = Issuer::from_params(&params, &authority_key);
    let server_key = KeyPair::generate().unwrap();
    let server =
        CertificateParams::new(vec![host.to_owned()]).unwrap().signed_by(&server_key, &issuer).unwrap();
    Certificates {
        authority_pem: authority.pem(),
        server_pem: server.pem(),
        server_key_pem: server_key.serialize_pem(),
    }
}

fn file(pem: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(pem.as_bytes()).unwrap();
    file
}

async fn tls_version(url: &str) -> Result<String, PgError> {
    let pool = Pool::new(PoolConfig::new(ConnectConfig::parse(url).unwrap()));
    let mut connection = pool.get(&session(ALICE)).await?;
    let sql = "SELECT coalesce(version, 'none') FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    Ok(value(&mut connection, sql).await)
}

#[tokio::test]
async fn each_mode_encrypts_and_verifies_as_it_says() {
    let certificates = certificates("127.0.0.1");
    let server = TestServer::options()
        .enable_tls(&certificates.server_pem, &certificates.server_key_pem)
        .start()
        .unwrap();
    let url = server.url("postgres");
    let ca = file(&certificates.authority_pem);
    let other_ca = file(&self::certificates("127.0.0.1").authority_pem);
    let verify = |ca: &tempfile::NamedTempFile| {
        format!("{url}?sslmode=verify-full&sslrootcert={}", ca.path().display())
    };

    assert_eq!(tls_version(&verify(&ca)).await.unwrap(), "TLSv1.3");
    assert_eq!(tls_version(&url).await.unwrap(), "TLSv1.3");
    assert_eq!(tls_version(&format!("{url}?sslmode=require")).await.unwrap(), "TLSv1.3");
    assert_eq!(tls_version(&format!("{url}?sslmode=disable")).await.unwrap(), "none");

    let refused = [
        verify(&other_ca),
        format!("{url}?sslmode=verify-full"),
        verify(&ca).replace("127.0.0.1", "localhost"),
    ];
    for url in refused {
        let error = tls_version(&url).await.unwrap_err();
        assert!(matches!(error, PgError::Connect(ConnectError::Tls { .. })), "{url}: {error:?}");
        assert_eq!(error.sqlstate(), "08001");
    }
}

#[tokio::test]
async fn a_statement_over_tls_is_cancelled_over_tls() {
    let certificates = certificates("127.0.0.1");
    // Connections without TLS are rejected, cancel requests included.
    let server = TestServer::options()
        .enable_tls(&certificates.server_pem, &certificates.server_key_pem)
        .hba("hostnossl all all 127.0.0.1/32 reject")
        .start()
        .unwrap();
    let ca = file(&certificates.authority_pem);
    let url = format!("{}?sslmode=verify-full&sslrootcert={}", server.url("postgres"), ca.path().display());
    let pool = Pool::new(PoolConfig::new(ConnectConfig::parse(&url).unwrap()));
    let mut connection = pool.get(&session(ALICE)).await.unwrap();
    for _ in 0..3 {
        let statement = Statement::new("SELECT pg_sleep(600)", &[]);
        timeout(Duration::from_millis(20), connection.run(&statement, &mut Rows::default()))
            .await
            .unwrap_err();
        connection.recover().await.unwrap();
        assert_eq!(value(&mut connection, "SELECT 1").await, "1");
    }
    assert_eq!(pool.counts().cancels_sent, 3);
}

#[tokio::test]
async fn tls_that_the_server_does_not_offer_is_required_or_not() {
    let server = TestServer::start().unwrap();
    let url = server.url("postgres");
    assert_eq!(tls_version(&url).await.unwrap(), "none");
    let error = tls_version(&format!("{url}?sslmode=require")).await.unwrap_err();
    assert!(error.to_string().contains("does not offer TLS"), "{error}");
}
