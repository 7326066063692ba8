//! TLS from PEM files, with rustls on ring; reloaded without touching connections that stand.

use core::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A certificate and its key, as files and as loaded.
#[derive(Debug)]
pub struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    /// Loads a chain of certificates, the server's first, and the key of that one.
    pub fn load(cert: &Path, key: &Path) -> Result<Self, TlsError> {
        let config = RwLock::new(read(cert, key)?);
        Ok(Self { cert: cert.to_owned(), key: key.to_owned(), config })
    }

    /// Loads the files again, for connections from here on; on an error the old ones stay.
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
            error => TlsError::File { path, error: error.to_string() },
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
            error => TlsError::Unusable { error: error.to_string() },
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Files that TLS cannot be served with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: String,
    },
    /// A file holds no certificate, or no key.
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The key is not that of the certificate.
    Mismatch {
        /// The file of the certificate.
        cert: PathBuf,
        /// The file of the key.
        key: PathBuf,
    },
    /// rustls does not take them.
    Unusable {
        /// What it says.
        error: String,
    },
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, error } => write!(f, "{}: {error}", path.display()),
            Self::Empty { path } => write!(f, "{}: holds no certificate or key", path.display()),
            Self::Mismatch { cert, key } => {
                write!(f, "{} is not the key of {}", key.display(), cert.display())
            }
            Self::Unusable { error } => write!(f, "certificate or key not usable: {error}"),
        }
    }
}

impl core::error::Error for TlsError {}
