//! TLS settings per `sslmode`, and channel binding.
//!
//! `prefer` and `require` encrypt without checking the certificate, as in libpq; `verify-full` checks the chain and the
//! host name.

use std::path::Path;
use std::sync::Arc;

use ring::digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

/// Trusts Mozilla's list of public authorities.
pub(crate) fn verify_public() -> Arc<ClientConfig> {
    verify(RootCertStore { roots: webpki_roots::TLS_SERVER_ROOTS.to_vec() })
}

/// Trusts only the authorities in a PEM file.
pub(crate) fn verify_file(path: &Path) -> Result<Arc<ClientConfig>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let mut roots = RootCertStore::empty();
    for certificate in certificates.map_err(|error| error.to_string())? {
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("contains no certificate".to_owned()) } else { Ok(verify(roots)) }
}

fn verify(roots: RootCertStore) -> Arc<ClientConfig> {
    Arc::new(builder().with_root_certificates(roots).with_no_client_auth())
}

/// Encrypts without checking the certificate.
pub(crate) fn encrypt_only() -> Arc<ClientConfig> {
    let verifier = Arc::new(AnyCertificate(Arc::new(provider::default_provider())));
    Arc::new(builder().dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    ClientConfig::builder_with_provider(Arc::new(provider::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring supports rustls's default protocol versions")
}

/// Accepts any certificate, but checks that the server has its private key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// Returns the channel binding data `tls-server-end-point` of a certificate (RFC 5929): its hash, by the hash function of
/// its signature.
///
/// `None` if that function is not known; the login then goes without channel binding.
pub(crate) fn server_end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    let algorithm = match signature_algorithm(certificate)? {
        // md5WithRSA, sha1WithRSA, sha256WithRSA; ecdsa-with-SHA1, ecdsa-with-SHA256
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 4 | 5 | 11]
        | [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x01]
        | [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 2] => &digest::SHA256,
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 12]
        | [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 3] => &digest::SHA384,
        [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 13]
        | [0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 4] => &digest::SHA512,
        _ => return None,
    };
    Some(digest::digest(algorithm, certificate).as_ref().to_vec())
}

/// Returns the object identifier of a certificate's signature algorithm.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    const SEQUENCE: u8 = 0x30;
    const OBJECT_IDENTIFIER: u8 = 0x06;
    let (fields, _) = der_value(certificate, SEQUENCE)?;
    let (_signed_part, rest) = der_value(fields, SEQUENCE)?;
    let (algorithm, _) = der_value(rest, SEQUENCE)?;
    let (identifier, _) = der_value(algorithm, OBJECT_IDENTIFIER)?;
    Some(identifier)
}

/// Splits DER into the contents of its first value, which must have the given tag, and the rest.
fn der_value(der: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&[found, first], mut rest) = der.split_first_chunk::<2>()?;
    let mut length = usize::from(first);
    if first >= 0x80 {
        let (digits, after) =
            rest.split_at_checked(usize::from(first & 0x7f)).filter(|(d, _)| d.len() <= 4)?;
        length = digits.iter().fold(0, |length, &digit| length << 8 | usize::from(digit));
        rest = after;
    }
    rest.split_at_checked(length).filter(|_| found == tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A certificate with the fields that are read: an empty signed part and an algorithm.
    fn certificate(identifier: &[u8]) -> Vec<u8> {
        let length = u8::try_from(identifier.len()).unwrap();
        let algorithm = [&[0x30, length + 2, 0x06, length], identifier].concat();
        [&[0x30, length + 6, 0x30, 0][..], &algorithm].concat()
    }

    #[test]
    fn the_hash_is_that_of_the_signature_but_at_least_sha_256() {
        let rsa = [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
        for (last, length) in [(4, 32), (5, 32), (11, 32), (12, 48), (13, 64)] {
            let certificate = certificate(&[&rsa[..], &[last]].concat());
            assert_eq!(server_end_point(&certificate).map(|hash| hash.len()), Some(length), "{last}");
        }
        assert_eq!(
            server_end_point(&certificate(&[0x2b, 0x65, 0x70])),
            None,
            "Ed25519 has no hash of its own"
        );
    }

    #[test]
    fn a_truncated_certificate_has_no_channel_binding() {
        let certificate = certificate(&[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 2]);
        assert!(server_end_point(&certificate).is_some());
        for end in 0..certificate.len() {
            assert_eq!(server_end_point(&certificate[..end]), None, "{end}");
        }
    }
}
