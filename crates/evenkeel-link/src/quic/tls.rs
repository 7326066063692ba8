//! TLS with certificates on both sides, each pinned by its fingerprint.

use std::sync::Arc;

use noq::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::version::TLS13;
use rustls::{DigitallySignedStruct, DistinguishedName, PeerIncompatible, SignatureScheme};

use super::error::KeyMismatch;
use crate::flow::LaneSupport;
use crate::identity::{Fingerprint, Identity};

/// Protocol names of the handshake, the preferred one first; a change that older versions cannot read gets another number.
pub(super) const PROTOCOLS: [&[u8]; 2] = [PROTOCOL_WITH_ALL_LANES, b"evenkeel-link/1"];

/// Version that has the redundant lane and flows of datagrams.
const PROTOCOL_WITH_ALL_LANES: &[u8] = b"evenkeel-link/1.1";

/// Returns the lanes that both sides have, by the protocol that the handshake has chosen.
pub(super) fn lanes_of_peer(connection: &noq::Connection) -> LaneSupport {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    match data.and_then(|data| data.protocol) {
        Some(protocol) if protocol == PROTOCOL_WITH_ALL_LANES => LaneSupport::All,
        _ => LaneSupport::StreamAndBonded,
    }
}

fn protocols() -> Vec<Vec<u8>> {
    PROTOCOLS.map(<[u8]>::to_vec).to_vec()
}

/// Creates the configuration of the connecting side.
pub(super) fn client(identity: &Identity, peer: Fingerprint) -> Result<Arc<QuicClientConfig>, rustls::Error> {
    let verifier = Arc::new(PinnedPeer::new(peer));
    let mut config = rustls::ClientConfig::builder_with_provider(verifier.provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_client_auth_cert(identity.certificate_chain(), identity.key())?;
    config.alpn_protocols = protocols();
    // A resumed connection would skip the certificates.
    config.resumption = Resumption::disabled();
    config.enable_sni = false;
    let config = QuicClientConfig::try_from(config).expect("ring has the cipher suite of initial packets");
    Ok(Arc::new(config))
}

/// Creates the configuration of the accepting side.
pub(super) fn server(identity: &Identity, peer: Fingerprint) -> Result<Arc<QuicServerConfig>, rustls::Error> {
    let verifier = Arc::new(PinnedPeer::new(peer));
    let mut config = rustls::ServerConfig::builder_with_provider(verifier.provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(identity.certificate_chain(), identity.key())?;
    config.alpn_protocols = protocols();
    config.send_tls13_tickets = 0;
    let config = QuicServerConfig::try_from(config).expect("ring has the cipher suite of initial packets");
    Ok(Arc::new(config))
}

/// Accepts exactly the certificates of one public key, and checks that the peer has the private key.
#[derive(Debug)]
pub(super) struct PinnedPeer {
    expected: Fingerprint,
    pub(super) provider: Arc<CryptoProvider>,
}

impl PinnedPeer {
    pub(super) fn new(expected: Fingerprint) -> Self {
        Self { expected, provider: Arc::new(rustls::crypto::ring::default_provider()) }
    }

    fn verify(&self, certificate: &CertificateDer<'_>) -> Result<(), rustls::Error> {
        let presented = Fingerprint::of(certificate)?;
        if presented == self.expected {
            return Ok(());
        }
        Err(KeyMismatch { presented, expected: self.expected }.into())
    }

    fn verify_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl ServerCertVerifier for PinnedPeer {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        self.verify(certificate).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::ServerDoesNotSupportTls12Or13.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verify_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}

impl ClientCertVerifier for PinnedPeer {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.verify(certificate).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Err(PeerIncompatible::Tls12NotOffered.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.verify_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.schemes()
    }
}
