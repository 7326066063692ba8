//! `[server]`: listener, TLS, admin keys, request limits and graceful shutdown.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use evenkeel_policy::time::Duration;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::listener::ListenerLimits;
use evenkeel_server::tenant::{Exposure, InsecurePolicy};

use super::reader::{Section, SourcedValue};
use super::source::ValueSource;
use super::value::{Float, Integer};

pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);
pub const DATA_DIR_DEFAULT: &str = "./evenkeel-data";

const DAY_SECS: Float = Float(86_400.0);

/// `[server]`.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    /// Directory that holds all durable state.
    pub data_dir: PathBuf,
    /// `None`: plain HTTP.
    pub tls: Option<TlsFiles>,
    pub admin_key_hashes: Vec<KeyHash>,
    /// Policy for a non-loopback listener without tenants or without TLS.
    pub insecure: InsecurePolicy,
    /// Delay during shutdown between reporting "not ready" and closing the listener.
    pub unready: Duration,
    /// `drain_max` is the setting `drain_secs`.
    pub limits: ListenerLimits,
    pub(super) origins: ServerOrigins,
}

/// Sources of settings that are validated later, for error messages.
#[derive(Clone, Debug)]
pub(super) struct ServerOrigins {
    pub(super) listen: ValueSource,
    pub(super) data_dir: ValueSource,
    pub(super) tls: ValueSource,
}

/// PEM files of a certificate chain and its private key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's own certificate first, then the intermediates.
    pub cert: PathBuf,
    pub key: PathBuf,
}

impl ServerConfig {
    /// Returns how exposed the listener is to other machines.
    pub fn exposure(&self) -> Exposure {
        match self.tls {
            _ if self.listen.ip().is_loopback() => Exposure::Loopback,
            Some(_) => Exposure::Tls,
            None => Exposure::Clear,
        }
    }
}

pub(super) fn read(section: &mut Section<'_>) -> ServerConfig {
    let listen = section.read("listen", LISTEN_DEFAULT);
    let data_dir = section.read("data_dir", PathBuf::from(DATA_DIR_DEFAULT));
    if data_dir.value.as_os_str().is_empty() {
        section.error(&data_dir.origin, "data_dir must not be empty; \".\" is the working directory");
    }
    let drain = section.within("drain_secs", Float(30.0), Float(0.0)..=DAY_SECS).as_secs();
    let unready = section.within("unready_secs", Float(0.0), Float(0.0)..=DAY_SECS).as_secs();
    let admin_key_hashes = section.read("admin_key_hashes", Vec::<KeyHash>::new()).value;
    let allow_open = section.read("allow_open", false).value;
    let limits = ListenerLimits { drain_max: drain, ..limits(section) };
    let tls = tls(section);
    let tls_origin = tls.as_ref().map_or(ValueSource::Default, |tls| tls.origin.clone());
    ServerConfig {
        listen: listen.value,
        data_dir: data_dir.value,
        tls: tls.map(|tls| tls.value),
        admin_key_hashes,
        insecure: if allow_open { InsecurePolicy::Allow } else { InsecurePolicy::Refuse },
        unready,
        limits,
        origins: ServerOrigins { listen: listen.origin, data_dir: data_dir.origin, tls: tls_origin },
    }
}

fn limits(section: &mut Section<'_>) -> ListenerLimits {
    let default = ListenerLimits::default();
    let mut count = |key, default: usize, min, max| {
        section.within(key, Integer(default as i64), Integer(min)..=Integer(max)).as_usize()
    };
    let connections_max = count("connections_max", default.connections_max, 1, 1_000_000);
    let head_bytes_max = count("head_bytes_max", default.head_bytes_max, 8 * 1024, 1024 * 1024);
    let headers_max = count("headers_max", default.headers_max, 16, 1_000);
    let body_bytes_max = count("body_bytes_max", default.body_bytes_max, 1024, 1024 * 1024 * 1024);
    let bodies_bytes_max = bodies_bytes_max(section, default.bodies_bytes_max, body_bytes_max);
    let streams_max =
        section.within("streams_max", Integer(i64::from(default.streams_max)), Integer(1)..=Integer(10_000));
    let mut secs = |key, default: Duration| {
        section.within(key, Float(default.as_secs_f64()), Float(0.1)..=DAY_SECS).as_secs()
    };
    ListenerLimits {
        connections_max,
        head_bytes_max,
        headers_max,
        head_wait_max: secs("head_wait_secs", default.head_wait_max),
        body_bytes_max,
        bodies_bytes_max,
        body_wait_max: secs("body_wait_secs", default.body_wait_max),
        write_wait_max: secs("write_wait_secs", default.write_wait_max),
        streams_max: streams_max.as_u32(),
        drain_max: default.drain_max,
    }
}

/// Reads the budget of all bodies. By default it has room for at least two bodies of the maximum size.
fn bodies_bytes_max(section: &mut Section<'_>, default: usize, body_bytes_max: usize) -> usize {
    let default = Integer(default.max(2 * body_bytes_max) as i64);
    let max = section.read("bodies_bytes_max", default);
    let least = 2 * body_bytes_max;
    let bytes = max.value.as_usize();
    if max.value.0 < 0 || bytes < least {
        section
            .error(&max.origin, format!("bodies_bytes_max must be at least {least}, twice body_bytes_max"));
    }
    bytes
}

fn tls(section: &mut Section<'_>) -> Option<SourcedValue<TlsFiles>> {
    let mut tls = section.section("tls");
    match (tls.optional::<PathBuf>("cert"), tls.optional::<PathBuf>("key")) {
        (Some(cert), Some(key)) => {
            let value = TlsFiles { cert: cert.value, key: key.value };
            Some(SourcedValue { value, origin: cert.origin })
        }
        (None, None) => None,
        (Some(cert), None) => {
            tls.error(&cert.origin, "[server.tls] has a cert but no key");
            None
        }
        (None, Some(key)) => {
            tls.error(&key.origin, "[server.tls] has a key but no cert");
            None
        }
    }
}
