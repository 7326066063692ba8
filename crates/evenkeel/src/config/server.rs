//! `[server]`: listener, TLS, admin keys, request limits and graceful shutdown.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use evenkeel_policy::time::Duration;
use evenkeel_server::api_key::KeyHash;
use evenkeel_server::listener::ListenerLimits;
use evenkeel_server::origin::TrustedSites;
use evenkeel_server::tenant::{Exposure, InsecurePolicy};
use evenkeel_upstream::LinkLocalPolicy;

use super::reader::{Section, SourcedValue};
use super::source::ValueSource;
use super::value::{Float, Integer};

pub const LISTEN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);
pub const DATA_DIR_DEFAULT: &str = "./evenkeel-data";

/// Maximum number of `hosts` and of `cors_origins`.
const SITES_MAX: usize = 100;
/// Maximum length of a DNS name.
const NAME_LEN_MAX: usize = 253;
const DAY_SECS: Float = Float(86_400.0);

/// `[server]`.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub listen: SocketAddr,
    /// Address of a second listener, which then serves the native API and the metrics instead of the first.
    pub admin_listen: Option<SocketAddr>,
    /// Names of this server and the sites whose pages may use it.
    pub sites: TrustedSites,
    /// Directory that holds all durable state.
    pub data_dir: PathBuf,
    /// `None`: plain HTTP.
    pub tls: Option<TlsFiles>,
    pub admin_key_hashes: Vec<KeyHash>,
    pub insecure: InsecurePolicy,
    /// Treatment of link-local and metadata addresses of nodes, webhooks, collectors and peers.
    pub link_local: LinkLocalPolicy,
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
    pub(super) admin_listen: ValueSource,
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
    /// Returns how exposed a listener on this address is to other machines.
    pub fn exposure_of(&self, address: SocketAddr) -> Exposure {
        match self.tls {
            _ if address.ip().is_loopback() => Exposure::Loopback,
            Some(_) => Exposure::Tls,
            None => Exposure::Clear,
        }
    }
}

pub(super) fn read(section: &mut Section<'_>) -> ServerConfig {
    let listen = section.read("listen", LISTEN_DEFAULT);
    let admin_listen = section.optional::<SocketAddr>("admin_listen");
    let data_dir = section.read("data_dir", PathBuf::from(DATA_DIR_DEFAULT));
    if data_dir.value.as_os_str().is_empty() {
        section.error(&data_dir.origin, "data_dir must not be empty; \".\" is the working directory");
    }
    let drain = section.within("drain_secs", Float(30.0), Float(0.0)..=DAY_SECS).as_secs();
    let unready = section.within("unready_secs", Float(0.0), Float(0.0)..=DAY_SECS).as_secs();
    let admin_key_hashes = section.read("admin_key_hashes", Vec::<KeyHash>::new()).value;
    let insecure = InsecurePolicy {
        allow_open: section.read("allow_open", false).value,
        allow_plaintext: section.read("allow_plaintext", false).value,
    };
    let link_local = match section.read("allow_link_local", false).value {
        true => LinkLocalPolicy::Allow,
        false => LinkLocalPolicy::Refuse,
    };
    let sites = sites(section);
    let limits = ListenerLimits { drain_max: drain, ..limits(section) };
    let tls = tls(section);
    let tls_origin = tls.as_ref().map_or(ValueSource::Default, |tls| tls.origin.clone());
    ServerConfig {
        listen: listen.value,
        admin_listen: admin_listen.as_ref().map(|address| address.value),
        data_dir: data_dir.value,
        tls: tls.map(|tls| tls.value),
        admin_key_hashes,
        insecure,
        link_local,
        sites,
        unready,
        limits,
        origins: ServerOrigins {
            listen: listen.origin,
            admin_listen: admin_listen.map_or(ValueSource::Default, |address| address.origin),
            data_dir: data_dir.origin,
            tls: tls_origin,
        },
    }
}

/// Reads the names of this server and the origins of pages that may use it.
fn sites(section: &mut Section<'_>) -> TrustedSites {
    let hosts = section.read("hosts", Vec::<String>::new());
    let is_name = |host: &String| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        (1..=NAME_LEN_MAX).contains(&host.len()) && host.bytes().all(is_allowed)
    };
    if hosts.value.len() > SITES_MAX || !hosts.value.iter().all(is_name) {
        let message =
            format!("hosts must list at most {SITES_MAX} names such as \"llm.example\", without ports");
        section.error(&hosts.origin, message);
    }
    let origins = section.read("cors_origins", Vec::<String>::new());
    let is_origin = |origin: &String| {
        let authority = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        authority.is_some_and(|authority| !authority.is_empty() && !authority.contains(['/', '*', '?', '@']))
    };
    if origins.value.len() > SITES_MAX || !origins.value.iter().all(is_origin) {
        let message =
            format!("cors_origins must list at most {SITES_MAX} origins such as \"https://console.example\"");
        section.error(&origins.origin, message);
    }
    let lower = |names: Vec<String>| names.iter().map(|name| name.to_ascii_lowercase()).collect();
    TrustedSites { hosts: lower(hosts.value), origins: lower(origins.value) }
}

fn limits(section: &mut Section<'_>) -> ListenerLimits {
    let default = ListenerLimits::default();
    let mut count = |key, default: usize, min, max| {
        section.within(key, Integer(default as i64), Integer(min)..=Integer(max)).as_usize()
    };
    let connections_max = count("connections_max", default.connections_max, 1, 1_000_000);
    let per_address_max = count("connections_per_address_max", 0, 0, 1_000_000);
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
        // 0 means no limit.
        connections_per_address_max: (0 < per_address_max).then_some(per_address_max),
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

#[cfg(test)]
mod tests {
    use crate::config::{Config, ConfigSources};

    fn try_read(text: &str) -> Result<Config, String> {
        let file = Some(("evenkeel.toml".to_owned(), text.to_owned()));
        Config::read(&ConfigSources { file, ..ConfigSources::default() }).map_err(|errors| errors.to_string())
    }

    fn read(text: &str) -> Config {
        try_read(text).unwrap()
    }

    #[test]
    fn a_listener_beyond_loopback_needs_tenants_and_tls_or_an_explicit_permission() {
        let exposed = |text: &str, tenants| {
            let config = read(&format!("\n[server]\nlisten = '0.0.0.0:7070'\n{text}"));
            config.check_exposure(tenants).err().map(|errors| errors.to_string())
        };
        let open = "evenkeel.toml:3: no tenants, and the listener is not on loopback; allow_open (--allow-open) allows it"
            .to_owned();
        let clear = "no TLS, and the listener is not on loopback, so that API keys travel in clear text; \
                     allow_plaintext (--allow-plaintext) allows it, allow_open does not";
        let at = |line: u32| Some(format!("evenkeel.toml:{line}: {clear}"));
        let tls = "[server.tls]\ncert = 'a'\nkey = 'b'\n";
        assert_eq!(exposed("", 0), Some(open.clone()));
        assert_eq!(exposed(tls, 0), Some(open));
        assert_eq!(exposed("", 1), at(3));
        assert_eq!(exposed("allow_open = true", 1), at(3));
        assert_eq!(exposed("allow_plaintext = true", 1), None);
        assert_eq!(exposed(tls, 1), None);
        assert_eq!(exposed("allow_open = true", 0), None);
        // The admin key travels on the admin listener even without tenants.
        let admin = "allow_open = true\nadmin_listen = '0.0.0.0:7071'\n";
        assert_eq!(exposed(admin, 0), at(5));
        assert_eq!(exposed(&format!("{admin}allow_plaintext = true"), 0), None);
        assert_eq!(exposed(&format!("{admin}{tls}"), 0), None);
        assert_eq!(exposed("allow_open = true\nadmin_listen = '127.0.0.1:7071'\n", 0), None);
    }

    #[test]
    fn hosts_and_origins_are_names_and_origins() {
        let sites =
            read("[server]\nhosts = ['LLM.example']\ncors_origins = ['https://Console.example:8443']\n");
        assert_eq!(sites.server.sites.hosts, ["llm.example"]);
        assert_eq!(sites.server.sites.origins, ["https://console.example:8443"]);
        let error = |text: &str| try_read(&format!("[server]\n{text}\n")).unwrap_err();
        for host in ["llm.example:7070", "http://a", "", "*"] {
            let message = error(&format!("hosts = ['{host}']"));
            assert!(message.contains("hosts must list at most 100 names"), "{host}: {message}");
        }
        for origin in ["console.example", "https://a/b", "*", "null", "https://", "https://*.example"] {
            let message = error(&format!("cors_origins = ['{origin}']"));
            assert!(message.contains("cors_origins must list at most 100 origins"), "{origin}: {message}");
        }
        let many: Vec<String> = (0..=100).map(|n| format!("h{n}")).collect();
        assert!(error(&format!("hosts = {many:?}")).contains("at most 100"));
    }
}
