//! TLS trust store for upstream connections.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};

/// Trusted certificate authorities: Mozilla's list, and those added from files.
#[derive(Clone, Debug)]
pub struct TlsRoots(RootCertStore);

impl TlsRoots {
    /// Trusts Mozilla's list of public authorities.
    pub fn public() -> Self {
        Self(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() })
    }

    /// Also trusts the authorities in a PEM file.
    pub fn with_file(mut self, path: &Path) -> Result<Self, TlsRootsError> {
        let invalid = |error: String| TlsRootsError { path: path.to_owned(), error };
        let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
        let certificates = certificates.map_err(|error| invalid(error.to_string()))?;
        if certificates.is_empty() {
            return Err(invalid("contains no certificate".to_owned()));
        }
        for certificate in certificates {
            self.0.add(certificate).map_err(|error| invalid(error.to_string()))?;
        }
        Ok(self)
    }

    pub(super) fn into_client_config(self) -> Arc<ClientConfig> {
        let mut config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports rustls's default protocol versions")
            .with_root_certificates(self.0)
            .with_no_client_auth();
        // Upstream connections speak HTTP/1.1 only.
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Arc::new(config)
    }
}

impl Default for TlsRoots {
    fn default() -> Self {
        Self::public()
    }
}

/// A CA file that could not be read, or does not contain valid certificates.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}: {error}", path.display())]
pub struct TlsRootsError {
    pub path: PathBuf,
    pub error: String,
}
