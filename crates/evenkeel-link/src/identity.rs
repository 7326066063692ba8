//! Key pair of a gateway, and the fingerprint by which the other side knows it.
//!
//! A directory holds the key (`link.key`, mode 0600) and a self-signed certificate (`link.crt`). Nobody checks names or
//! dates of the certificate: each side is configured with the fingerprint of the other side's public key, which stays
//! the same when a certificate is issued again for the same key.

mod fingerprint;

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ED25519};
use rustls::crypto::ring::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::ParsedCertificate;
use rustls::sign::CertifiedKey;

pub use fingerprint::{Fingerprint, FingerprintError};

const KEY_FILE: &str = "link.key";
const CERTIFICATE_FILE: &str = "link.crt";
/// Maximum number of bytes read from a key or certificate file.
const FILE_LEN_MAX: u64 = 64 * 1024;

/// Handling of a key pair that is already in the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExistingKey {
    /// Keep it; creating a new one is an error.
    Keep,
    /// Replace it.
    Replace,
}

/// Key pair and certificate of one side of a link.
#[derive(Debug)]
pub struct Identity {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    fingerprint: Fingerprint,
}

impl Identity {
    /// Creates an Ed25519 key pair with a certificate, and stores both in `dir`, which is created if needed.
    pub fn create(dir: &Path, existing: ExistingKey) -> Result<Self, IdentityError> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "evenkeel link");
        let certificate = params.self_signed(&key)?;
        let key_path = dir.join(KEY_FILE);
        let certificate_path = dir.join(CERTIFICATE_FILE);
        DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(at(dir))?;
        match existing {
            ExistingKey::Replace => {
                remove(&key_path)?;
                remove(&certificate_path)?;
            }
            ExistingKey::Keep if certificate_path.exists() => {
                return Err(IdentityError::Exists { path: certificate_path });
            }
            ExistingKey::Keep => {}
        }
        write_new(&key_path, 0o600, &key.serialize_pem())?;
        write_new(&certificate_path, 0o644, &certificate.pem())?;
        Self::load(dir)
    }

    /// Reads the key pair and the certificate of `dir`, and checks that they belong together.
    pub fn load(dir: &Path) -> Result<Self, IdentityError> {
        let key_path = dir.join(KEY_FILE);
        let certificate_path = dir.join(CERTIFICATE_FILE);
        let key_file = open(&key_path)?;
        let mode = key_file.metadata().map_err(at(&key_path))?.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(IdentityError::AccessibleToOthers { path: key_path, mode });
        }
        let key_pem = read(key_file, &key_path)?;
        let certificate_pem = read(open(&certificate_path)?, &certificate_path)?;
        let key = PrivateKeyDer::from_pem_slice(&key_pem)
            .map_err(|error| IdentityError::Corrupt { path: key_path.clone(), reason: error.to_string() })?;
        let signing_key = any_supported_type(&key)
            .map_err(|error| IdentityError::Corrupt { path: key_path.clone(), reason: error.to_string() })?;
        let corrupt = |reason| IdentityError::Corrupt { path: certificate_path.clone(), reason };
        let certificate =
            CertificateDer::from_pem_slice(&certificate_pem).map_err(|error| corrupt(error.to_string()))?;
        let fingerprint = Fingerprint::of(&certificate).map_err(|error| corrupt(error.to_string()))?;
        CertifiedKey::new(vec![certificate.clone()], signing_key)
            .keys_match()
            .map_err(|_| IdentityError::KeysDiffer { dir: dir.to_owned() })?;
        Ok(Self { certificate, key, fingerprint })
    }

    /// Returns the fingerprint that the other side must be configured with.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    pub(crate) fn certificate_chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }

    /// Returns the public key; `None` if it is not an Ed25519 key.
    pub(crate) fn ed25519_public_key(&self) -> Option<[u8; 32]> {
        let certificate = ParsedCertificate::try_from(&self.certificate).ok()?;
        certificate.subject_public_key_info().strip_prefix(fingerprint::ED25519_PREFIX)?.try_into().ok()
    }

    pub(crate) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key()
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> IdentityError + '_ {
    |source| IdentityError::File { path: path.to_owned(), source }
}

fn remove(path: &Path) -> Result<(), IdentityError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(at(path)(error)),
        _ => Ok(()),
    }
}

fn write_new(path: &Path, mode: u32, text: &str) -> Result<(), IdentityError> {
    let mut file = match OpenOptions::new().write(true).create_new(true).mode(mode).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(IdentityError::Exists { path: path.to_owned() });
        }
        opened => opened.map_err(at(path))?,
    };
    file.write_all(text.as_bytes()).and_then(|()| file.sync_all()).map_err(at(path))
}

fn open(path: &Path) -> Result<File, IdentityError> {
    File::open(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => IdentityError::Missing { path: path.to_owned() },
        _ => at(path)(error),
    })
}

fn read(file: File, path: &Path) -> Result<Vec<u8>, IdentityError> {
    let mut text = Vec::new();
    file.take(FILE_LEN_MAX).read_to_end(&mut text).map_err(at(path))?;
    Ok(text)
}

/// Error of creating or loading a key pair.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file of the key pair does not exist.
    #[error("{path} does not exist; create a key pair with `evenkeel link keys`", path = path.display())]
    Missing {
        /// Path of the file.
        path: PathBuf,
    },
    /// The directory already holds a key pair.
    #[error("{path} already exists; --replace creates another key pair in its place, --show prints the fingerprint", path = path.display())]
    Exists {
        /// Path of the file.
        path: PathBuf,
    },
    /// Other users have access to the key.
    #[error("{path} has mode {mode:03o}; other users must have no access to the key; run `chmod 600 {path}`", path = path.display())]
    AccessibleToOthers {
        /// Path of the key.
        path: PathBuf,
        /// Permission bits.
        mode: u32,
    },
    /// A file is not a key or certificate that can be used.
    #[error("{path} is not usable: {reason}", path = path.display())]
    Corrupt {
        /// Path of the file.
        path: PathBuf,
        /// The parser's message.
        reason: String,
    },
    /// The certificate belongs to another key.
    #[error("{KEY_FILE} and {CERTIFICATE_FILE} in {dir} do not belong together", dir = dir.display())]
    KeysDiffer {
        /// The directory.
        dir: PathBuf,
    },
    /// A file or directory cannot be read or written.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// Path of the file or directory.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No key could be generated.
    #[error("cannot generate a key pair: {0}")]
    Generate(#[from] rcgen::Error),
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use tempfile::TempDir;

    use super::*;

    #[test]
    fn a_created_key_pair_loads_with_the_same_fingerprint() {
        let dir = TempDir::new().unwrap();
        let dir = dir.path().join("site-a/keys");
        let created = Identity::create(&dir, ExistingKey::Keep).unwrap();
        assert_eq!(Identity::load(&dir).unwrap().fingerprint(), created.fingerprint());
        assert_eq!(mode(&dir.join(KEY_FILE)), 0o600);
        assert_eq!(mode(&dir), 0o700);
    }

    #[test]
    fn an_existing_key_is_kept_unless_it_is_to_be_replaced() {
        let (dir, identity) = created();
        let error = Identity::create(dir.path(), ExistingKey::Keep).unwrap_err().to_string();
        assert!(error.ends_with("link.crt already exists; --replace creates another key pair in its place, --show prints the fingerprint"), "{error}");
        assert_eq!(Identity::load(dir.path()).unwrap().fingerprint(), identity.fingerprint());
        let replaced = Identity::create(dir.path(), ExistingKey::Replace).unwrap();
        assert_ne!(replaced.fingerprint(), identity.fingerprint());
    }

    #[test]
    fn a_key_without_a_certificate_is_not_overwritten() {
        let (dir, _) = created();
        fs::remove_file(dir.path().join(CERTIFICATE_FILE)).unwrap();
        let error = Identity::create(dir.path(), ExistingKey::Keep).unwrap_err().to_string();
        assert!(error.ends_with("link.key already exists; --replace creates another key pair in its place, --show prints the fingerprint"), "{error}");
    }

    #[test]
    fn a_missing_file_is_named_with_the_command_that_creates_it() {
        let dir = TempDir::new().unwrap();
        let error = Identity::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("link.key does not exist; create a key pair with"), "{error}");
    }

    #[test]
    fn a_key_that_others_can_read_is_refused() {
        let (dir, _) = created();
        let key = dir.path().join(KEY_FILE);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
        let error = Identity::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("has mode 640") && error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_corrupt_file_is_named() {
        let (dir, _) = created();
        fs::write(dir.path().join(CERTIFICATE_FILE), "no certificate").unwrap();
        let error = Identity::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("link.crt is not usable: "), "{error}");
        fs::write(dir.path().join(KEY_FILE), "").unwrap();
        let error = Identity::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("link.key is not usable: "), "{error}");
    }

    #[test]
    fn a_certificate_of_another_key_is_refused() {
        let (dir, _) = created();
        let (other, _) = created();
        fs::copy(other.path().join(CERTIFICATE_FILE), dir.path().join(CERTIFICATE_FILE)).unwrap();
        let error = Identity::load(dir.path()).unwrap_err().to_string();
        assert!(error.contains("do not belong together"), "{error}");
    }

    #[test]
    fn debug_output_does_not_contain_the_key() {
        let (dir, identity) = created();
        let pem = fs::read_to_string(dir.path().join(KEY_FILE)).unwrap();
        let line = pem.lines().nth(1).unwrap();
        let text = format!("{identity:?}");
        assert!(!text.contains(&line[..20]) && text.contains("[secret key elided]"), "{text}");
    }

    fn created() -> (TempDir, Identity) {
        let dir = TempDir::new().unwrap();
        let identity = Identity::create(dir.path(), ExistingKey::Keep).unwrap();
        (dir, identity)
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }
}
