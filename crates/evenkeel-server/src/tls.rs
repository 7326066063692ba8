//! TLS configuration from PEM files, with rustls on ring; a reload does not affect open connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate chain and its private key, reloadable from their files.
#[derive(Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Loads a certificate chain, the server's certificate first, and the private key.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = RwLock::new(read(cert, key)?);
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), config })
    }

    /// Reloads the files, for new connections; on an error the previous configuration stays.
    pub fn reload(&self) -> Result<(), TlsError> {
        let config = read(&self.cert, &self.key)?;
        *self.config.write() = config;
        Ok(())
    }

    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config.read().clone()
    }
}

fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let bad = |path: &Path| {
        let path = path.to_owned();
        move |error| match error {
            pem::Error::NoItemsFound => TlsError::Empty { path },
            error => TlsError::File { path, error },
        }
    };
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(cert).map_err(bad(cert))?.collect();
    let chain = chain.map_err(bad(cert))?;
    if chain.is_empty() {
        return Err(TlsError::Empty { path: cert.to_owned() });
    }
    let private = PrivateKeyDer::from_pem_file(key).map_err(bad(key))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, private))
        .map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                TlsError::Mismatch { cert: cert.to_owned(), key: key.to_owned() }
            }
            error => TlsError::Unusable(error),
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Reason why certificate files cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The file cannot be read, or is not PEM.
    #[error("{}: {error}", .path.display())]
    File {
        path: PathBuf,
        #[source]
        error: pem::Error,
    },
    #[error("{}: contains no certificate or key", .path.display())]
    Empty { path: PathBuf },
    #[error("{} is not the key of {}", .key.display(), .cert.display())]
    Mismatch { cert: PathBuf, key: PathBuf },
    /// rustls rejects the certificate or the key.
    #[error("certificate or key is not usable: {0}")]
    Unusable(#[source] rustls::Error),
}
