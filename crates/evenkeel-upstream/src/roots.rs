//! Whose certificates are believed.

use core::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Whose certificates are believed: the public authorities that Mozilla believes, and those added.
#[derive(Clone, Debug)]
pub struct TlsRoots(RootCertStore);

impl TlsRoots {
    /// Believes the public authorities.
    pub fn public() -> Self {
        Self(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() })
    }

    /// Believes the authorities of a PEM file too.
    pub fn with_file(mut self, path: &Path) -> Result<Self, BadRoots> {
        let bad = |error: String| BadRoots { path: path.to_owned(), error };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        let certificates = certificates.map_err(|error| bad(error.to_string()))?;
        if certificates.is_empty() {
            return Err(bad("holds no certificate".to_owned()));
        }
        for certificate in certificates {
            self.0.add(certificate).map_err(|error| bad(error.to_string()))?;
        }
        Ok(self)
    }

    pub(super) fn into_config(self) -> Arc<ClientConfig> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring offers the versions that rustls thinks safe")
            .with_root_certificates(self.0)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

impl Default for TlsRoots {
    fn default() -> Self {
        Self::public()
    }
}

/// A file that holds no authorities.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadRoots {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub error: String,
}

impl fmt::Display for BadRoots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.error)
    }
}

impl core::error::Error for BadRoots {}
