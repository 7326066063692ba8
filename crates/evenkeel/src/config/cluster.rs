//! `[cluster]`: the name of this node, its peers, and the secret that they share.

use evenkeel_policy::weight::Weight;
use evenkeel_telemetry::Secret;
use evenkeel_upstream::{LinkLocalPolicy, Origin};

use super::llm::check_name;
use super::reader::{Section, SourcedValue};
use super::source::ValueSource;

/// Maximum number of peers.
const PEERS_MAX: usize = 64;
/// Shortest secret, so that it cannot be guessed.
const SECRET_LEN_MIN: usize = 16;

/// `[cluster]`.
#[derive(Clone, Debug, Default)]
pub struct ClusterConfig {
    /// Name by which the peers know this node; `None` means the name of the host.
    pub name: Option<String>,
    /// Set if there are peers.
    pub secret: Option<Secret<String>>,
    /// Nodes of the cluster; this node skips its own entry.
    pub peers: Vec<PeerConfig>,
}

/// One of `[[cluster.peers]]`.
#[derive(Clone, Debug)]
pub struct PeerConfig {
    pub name: String,
    /// URL by which clients and peers reach the node, without a trailing slash.
    pub url: String,
    pub origin: Origin,
    pub weight: Weight,
}

impl ClusterConfig {
    /// Reports whether both configurations have the same peers.
    pub fn has_same_peers(&self, other: &Self) -> bool {
        let is_same = |one: &PeerConfig, other: &PeerConfig| {
            one.name == other.name && one.url == other.url && one.weight == other.weight
        };
        self.peers.len() == other.peers.len()
            && self.peers.iter().zip(&other.peers).all(|(one, other)| is_same(one, other))
    }
}

pub(super) fn read(section: &mut Section<'_>, link_local: LinkLocalPolicy) -> ClusterConfig {
    let name = section.optional::<String>("name");
    if let Some(SourcedValue { value, origin }) = &name
        && let Err(message) = check_name(value)
    {
        section.error(origin, message);
    }
    let secret = section.optional::<Secret<String>>("secret");
    if let Some(SourcedValue { value, origin }) = &secret
        && value.expose().len() < SECRET_LEN_MIN
    {
        section.error(origin, format!("secret must have at least {SECRET_LEN_MIN} characters"));
    }
    let mut peers: Vec<(ValueSource, PeerConfig)> = Vec::new();
    for (origin, mut table) in section.sections("peers") {
        let Some(peer) = read_peer(&mut table, &origin) else { continue };
        if let Err(error) = peer.origin.check_literal(link_local) {
            section.error(&origin, format_args!("peer {:?}: {error}", peer.name));
        }
        if let Some(message) = conflict(&peers, &peer) {
            section.error(&origin, message);
        }
        peers.push((origin, peer));
    }
    if let Some((origin, _)) = peers.get(PEERS_MAX) {
        section.error(origin, format!("more than {PEERS_MAX} peers"));
    }
    if let (Some((origin, _)), None) = (peers.first(), &secret) {
        let message = "peers need a secret that all nodes of the cluster share: set secret in [cluster], or EVENKEEL_CLUSTER_SECRET";
        section.error(origin, message);
    }
    ClusterConfig {
        name: name.map(|setting| setting.value),
        secret: secret.map(|setting| setting.value),
        peers: peers.into_iter().map(|(_, peer)| peer).collect(),
    }
}

fn read_peer(table: &mut Section<'_>, origin: &ValueSource) -> Option<PeerConfig> {
    let name = table.optional::<String>("name");
    let url = table.optional::<String>("url");
    let weight = table.read("weight", Weight::ONE).value;
    let (Some(name), Some(url)) = (name, url) else {
        table.error(origin, "a peer needs a name and a url");
        return None;
    };
    if let Err(message) = check_name(&name.value) {
        table.error(&name.origin, message);
    }
    match Origin::parse(&url.value) {
        Ok(peer) => {
            let url = url.value.trim_end_matches('/').to_owned();
            Some(PeerConfig { name: name.value, url, origin: peer, weight })
        }
        Err(error) => {
            table.error(&url.origin, format!("url: {error}"));
            None
        }
    }
}

/// Finds an earlier peer with the same name or the same URL.
fn conflict(earlier: &[(ValueSource, PeerConfig)], peer: &PeerConfig) -> Option<String> {
    let same_name = earlier.iter().find(|(_, other)| other.name == peer.name);
    if let Some((first, _)) = same_name {
        return Some(format!("two peers are named {:?}; the first is at {first}", peer.name));
    }
    let (first, _) = earlier.iter().find(|(_, other)| other.url == peer.url)?;
    Some(format!("two peers have the url {:?}; the first is at {first}", peer.url))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigSources};

    fn sources(text: &str) -> ConfigSources {
        let file = Some(("evenkeel.toml".to_owned(), text.to_owned()));
        ConfigSources { file, ..ConfigSources::default() }
    }

    #[test]
    fn peers_are_read_with_all_their_settings() {
        let text = r#"
            [cluster]
            name = "a"
            secret = "0123456789abcdef"
            peers = [{ name = "a", url = "http://10.0.0.1:7070" }, { name = "b", url = "http://10.0.0.2:7070/", weight = 2 }]
        "#;
        let cluster = Config::read(&sources(text)).unwrap().cluster;
        assert_eq!(cluster.name.as_deref(), Some("a"));
        let peers: Vec<_> = cluster.peers.iter().map(|peer| (&*peer.name, &*peer.url)).collect();
        assert_eq!(peers, [("a", "http://10.0.0.1:7070"), ("b", "http://10.0.0.2:7070")]);
        assert_eq!(cluster.peers[1].weight, Weight::whole(2).unwrap());
        assert!(!format!("{cluster:?}").contains("0123456789abcdef"));
    }

    #[test]
    fn the_secret_may_be_an_environment_variable() {
        let mut sources = sources("[[cluster.peers]]\nname = \"b\"\nurl = \"http://10.0.0.2:7070\"\n");
        let error = Config::read(&sources).unwrap_err().to_string();
        assert!(error.contains("evenkeel.toml:1") && error.contains("peers need a secret"), "{error}");
        sources.env.insert("EVENKEEL_CLUSTER_SECRET".to_owned(), "0123456789abcdef".to_owned());
        let secret = Config::read(&sources).unwrap().cluster.secret.unwrap();
        assert_eq!(secret.expose(), "0123456789abcdef");
    }

    #[test]
    fn every_mistake_is_reported() {
        let text = r#"
            [cluster]
            name = "a b"
            secret = "short"
            [[cluster.peers]]
            name = "b"
            [[cluster.peers]]
            name = "b"
            url = "ftp://10.0.0.2"
            [[cluster.peers]]
            name = "c"
            url = "http://10.0.0.3:7070"
            weigth = 2
            [[cluster.peers]]
            name = "c"
            url = "http://10.0.0.4:7070"
            [[cluster.peers]]
            name = "d"
            url = "http://10.0.0.4:7070/"
        "#;
        let errors = Config::read(&sources(text)).unwrap_err().to_string();
        for expected in [
            "evenkeel.toml:3: a name must be",
            "evenkeel.toml:4: secret must have at least 16 characters",
            "evenkeel.toml:5: a peer needs a name and a url",
            "evenkeel.toml:9: url: ",
            "evenkeel.toml:13: unknown key \"weigth\" in [cluster.peers]; did you mean \"weight\"?",
            "two peers are named \"c\"; the first is at evenkeel.toml:10",
            "two peers have the url \"http://10.0.0.4:7070\"",
        ] {
            assert!(errors.contains(expected), "{expected} is not in:\n{errors}");
        }
        let many: String = (0..65)
            .map(|n| format!("[[cluster.peers]]\nname = \"n{n}\"\nurl = \"http://10.0.0.1:{}\"\n", n + 1))
            .collect();
        let errors = Config::read(&sources(&many)).unwrap_err().to_string();
        assert!(errors.contains("more than 64 peers"), "{errors}");
    }
}
