//! `[server]`: where to listen, who administers, how much is let in, how it ends.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use evenkeel_policy::time::Duration;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::listener::ListenerLimits;
use evenkeel_server::tenant::{Exposure, InsecurePolicy};

use super::reader::Section;
use super::source::ValueSource;
use super::value::{Float, Integer};

/// Where a server listens that nobody told where.
pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);
/// Where a server keeps what it must not forget, if nobody told where.
pub const DATA_DIR_DEFAULT: &str = "./evenkeel-data";

const DAY_SECS: Float = Float(86_400.0);

/// `[server]`.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Where it keeps what it must not forget.
    pub data_dir: PathBuf,
    /// The files of its certificate; without, it speaks in the clear.
    pub tls: Option<TlsFiles>,
    /// The hashes of the admin keys.
    pub admin: Vec<KeyHash>,
    /// Whether others may reach it unprotected.
    pub unprotected: InsecurePolicy,
    /// How long it says that it is not ready before it stops accepting.
    pub unready: Duration,
    /// The limits of its listener; `drain_max` is `drain_secs`.
    pub limits: ListenerLimits,
    /// Where `listen` was set, to tell what is wrong with it.
    pub(super) listen_origin: ValueSource,
}

/// A certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The chain of certificates, the server's first.
    pub cert: PathBuf,
    /// The key of the first.
    pub key: PathBuf,
}

impl ServerConfig {
    /// Who can reach the listener.
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
    let data_dir = section.read("data_dir", PathBuf::from(DATA_DIR_DEFAULT)).value;
    let drain = section.within("drain_secs", Float(30.0), Float(0.0)..=DAY_SECS).as_secs();
    let unready = section.within("unready_secs", Float(0.0), Float(0.0)..=DAY_SECS).as_secs();
    let admin = section.read("admin_key_hashes", Vec::<KeyHash>::new()).value;
    let allow_open = section.read("allow_open", false).value;
    let limits = ListenerLimits { drain_max: drain, ..limits(section) };
    ServerConfig {
        listen: listen.value,
        data_dir,
        tls: tls(section),
        admin,
        unprotected: if allow_open { InsecurePolicy::Allow } else { InsecurePolicy::Refuse },
        unready,
        limits,
        listen_origin: listen.origin,
    }
}

fn limits(section: &mut Section<'_>) -> ListenerLimits {
    let default = ListenerLimits::default();
    let mut count = |key, default: usize, least, most| {
        section.within(key, Integer(default as i64), Integer(least)..=Integer(most)).as_usize()
    };
    let connections_max = count("connections_max", default.connections_max, 1, 1_000_000);
    let head_bytes_max = count("head_bytes_max", default.head_bytes_max, 8 * 1024, 1024 * 1024);
    let headers_max = count("headers_max", default.headers_max, 16, 1_000);
    let body_bytes_max = count("body_bytes_max", default.body_bytes_max, 1024, 1024 * 1024 * 1024);
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
        body_wait_max: secs("body_wait_secs", default.body_wait_max),
        write_wait_max: secs("write_wait_secs", default.write_wait_max),
        streams_max: streams_max.as_u32(),
        drain_max: default.drain_max,
    }
}

fn tls(section: &mut Section<'_>) -> Option<TlsFiles> {
    let mut tls = section.section("tls");
    match (tls.optional::<PathBuf>("cert"), tls.optional::<PathBuf>("key")) {
        (Some(cert), Some(key)) => Some(TlsFiles { cert: cert.value, key: key.value }),
        (None, None) => None,
        (Some(lone), None) => {
            tls.error(&lone.origin, "[server.tls] has a cert and no key");
            None
        }
        (None, Some(lone)) => {
            tls.error(&lone.origin, "[server.tls] has a key and no cert");
            None
        }
    }
}
