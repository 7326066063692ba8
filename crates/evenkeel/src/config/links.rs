//! `[[links]]`: links to other sites, over which nodes are reached.

use std::path::PathBuf;

use evenkeel_link::identity::Fingerprint;
use evenkeel_link::quic::PathTarget;
use evenkeel_link::relay::RelayTarget;
use evenkeel_link::{LINK_PATHS_MAX, RouteSettings};

use super::llm::check_name;
use super::reader::Section;
use super::source::ValueSource;
use super::suggest::closest;

/// Maximum number of links; each has sockets and connections of its own.
const LINKS_MAX: usize = 64;

/// One of `[[links]]`: this gateway connects, the other side runs `evenkeel link listen`.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    pub name: String,
    /// Directory with the key pair of this side.
    pub keys: PathBuf,
    /// Public key of the other side.
    pub peer: Fingerprint,
    pub paths: Vec<PathTarget>,
    /// Relays of the routes; none if the paths are direct.
    pub relays: Vec<RelayTarget>,
    /// Line of `keys`.
    pub(crate) keys_origin: ValueSource,
}

impl LinkSettings {
    /// Reports whether both describe the same link in the same way.
    pub fn is_same(&self, other: &Self) -> bool {
        self.name == other.name
            && self.keys == other.keys
            && self.peer == other.peer
            && self.paths == other.paths
            && self.relays == other.relays
    }
}

/// Reads the links; `routes` has the settings for the number of relays.
pub(super) fn read(root: &mut Section<'_>, routes: &RouteSettings) -> Vec<LinkSettings> {
    let mut links: Vec<(ValueSource, LinkSettings)> = Vec::new();
    for (origin, mut table) in root.sections("links") {
        let Some(link) = read_link(&mut table, &origin, routes) else { continue };
        if let Some((first, _)) = links.iter().find(|(_, other)| other.name == link.name) {
            root.error(&origin, format!("two links are named {:?}; the first is at {first}", link.name));
        }
        links.push((origin, link));
    }
    if let Some((origin, _)) = links.get(LINKS_MAX) {
        root.error(origin, format!("more than {LINKS_MAX} links"));
    }
    links.into_iter().map(|(_, link)| link).collect()
}

fn read_link(table: &mut Section<'_>, origin: &ValueSource, routes: &RouteSettings) -> Option<LinkSettings> {
    let name = table.optional::<String>("name");
    let keys = table.optional::<PathBuf>("keys");
    let peer = table.optional::<String>("peer");
    let paths = table.optional::<Vec<String>>("paths");
    let relays = read_relays(table, routes);
    let (Some(name), Some(keys), Some(peer), Some(paths)) = (name, keys, peer, paths) else {
        table.error(origin, "a link needs a name, keys, a peer and paths");
        return None;
    };
    if let Err(message) = check_name(&name.value) {
        table.error(&name.origin, message);
    }
    let fingerprint = peer.value.parse::<Fingerprint>();
    if let Err(error) = &fingerprint {
        table.error(&peer.origin, format!("peer: {error}"));
    }
    if !(1..=LINK_PATHS_MAX).contains(&paths.value.len()) {
        table.error(&paths.origin, format!("paths must list 1 to {LINK_PATHS_MAX} paths"));
    }
    let mut targets: Vec<PathTarget> = Vec::new();
    for text in &paths.value {
        match text.parse::<PathTarget>() {
            Ok(target) if targets.contains(&target) => {
                table.error(&paths.origin, format!("paths: {target} is given twice"));
            }
            Ok(target) => targets.push(target),
            Err(error) => table.error(&paths.origin, format!("paths: {error}")),
        }
    }
    let peer = fingerprint.ok()?;
    Some(LinkSettings {
        name: name.value,
        keys: keys.value,
        peer,
        paths: targets,
        relays,
        keys_origin: keys.origin,
    })
}

fn read_relays(table: &mut Section<'_>, routes: &RouteSettings) -> Vec<RelayTarget> {
    let Some(texts) = table.optional::<Vec<String>>("relays") else { return Vec::new() };
    let mut relays = Vec::new();
    for text in &texts.value {
        match text.parse::<RelayTarget>() {
            Ok(relay) => relays.push(relay),
            Err(error) => table.error(&texts.origin, format!("relays: {error}")),
        }
    }
    if relays.len() == texts.value.len()
        && let Err(error) = (RouteSettings { relays: relays.clone(), ..routes.clone() }).check()
    {
        table.error(&texts.origin, format!("relays: {error}"));
    }
    relays
}

/// Checks that a link of this name is configured.
pub fn check_link(name: &str, links: &[LinkSettings]) -> Result<(), String> {
    if links.iter().any(|link| link.name == name) {
        return Ok(());
    }
    let suggestion = closest(name, links.iter().map(|link| link.name.as_str()));
    let hint = suggestion.map_or("add it to [[links]]".to_owned(), |name| format!("did you mean {name:?}?"));
    Err(format!("via: no link is named {name:?}; {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, ConfigSources, nodes_to_toml, read_nodes};

    const PEER: &str = "sha256:-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_v7-_s";

    fn read(text: &str) -> Result<Config, String> {
        let file = Some(("evenkeel.toml".to_owned(), text.to_owned()));
        Config::read(&ConfigSources { file, ..ConfigSources::default() }).map_err(|errors| errors.to_string())
    }

    fn link(name: &str, paths: &str) -> String {
        format!("[[links]]\nname = '{name}'\nkeys = 'keys'\npeer = '{PEER}'\npaths = {paths}\n")
    }

    #[test]
    fn links_and_the_nodes_behind_them_are_read_and_printed() {
        let link = link("site-b", "['wan0=198.51.100.7:7443', 'core.example:7443']");
        let text = format!("{link}[[llm.nodes]]\nurl = 'http://10.0.0.5:8000'\nvia = 'site-b'\n");
        let config = read(&text).unwrap();
        let [link] = &config.links[..] else { panic!("{:?}", config.links) };
        assert_eq!((link.name.as_str(), link.keys.to_str(), link.paths.len()), ("site-b", Some("keys"), 2));
        assert_eq!(link.paths[0].to_string(), "wan0=198.51.100.7:7443");
        assert_eq!(config.llm.options.nodes[0].via.as_deref(), Some("site-b"));
        let printed = config.effective.to_toml();
        for line in [
            "[[links]]\nname = \"site-b\"  # evenkeel.toml:2",
            "paths = [\"wan0=198.51.100.7:7443\", \"core.example:7443\"]  # evenkeel.toml:5",
            "via = \"site-b\"  # evenkeel.toml:8",
        ] {
            assert!(printed.contains(line), "{line} in {printed}");
        }
    }

    #[test]
    fn an_invalid_link_is_rejected_with_its_line() {
        let one = link("a", "['10.0.0.1:7443']");
        for (text, error) in [
            ("[[links]]\nname = 'a'\n".to_owned(), "1: a link needs a name, keys, a peer and paths"),
            (
                link("a b", "['10.0.0.1:1']"),
                "2: a name must be 1 to 64 letters, digits and characters of `._-@:`",
            ),
            (link("a", "[]"), "5: paths must list 1 to 128 paths"),
            (link("a", "['10.0.0.1']"), "5: paths: \"10.0.0.1\" has no port (expected 198.51.100.7:7443)"),
            (link("a", "['10.0.0.1:1', '10.0.0.1:1']"), "5: paths: 10.0.0.1:1 is given twice"),
            (
                one.replace(PEER, "md5:1"),
                "4: peer: a fingerprint starts with `sha256:`, as `evenkeel link keys` prints it",
            ),
            (format!("{one}{one}"), "6: two links are named \"a\"; the first is at evenkeel.toml:1"),
            (
                format!("{one}relays = ['10.0.0.9:7500']\n"),
                "6: relays: expected HOST:PORT=FINGERPRINT, such as 198.51.100.9:7500=sha256:..., not \"10.0.0.9:7500\"",
            ),
            (
                format!("{one}relays = ['10.0.0.9:7500={PEER}']\n"),
                "6: relays: a route needs at least 3 relays (hops_min), but the link has 1; add relays, or set hops_min in [link]",
            ),
            (format!("{one}path = []\n"), "6: unknown key \"path\" in [links]; did you mean \"paths\"?"),
        ] {
            assert_eq!(read(&text).err(), Some(format!("evenkeel.toml:{error}")), "{text}");
        }
        let many: String =
            (0..=LINKS_MAX).map(|number| link(&format!("l{number}"), "['10.0.0.1:1']")).collect();
        assert_eq!(read(&many).err().as_deref(), Some("evenkeel.toml:321: more than 64 links"));
    }

    #[test]
    fn a_node_names_a_link_that_exists_and_has_one_url() {
        let link = link("site-b", "['10.0.0.1:7443']");
        let node = |settings: &str| read(&format!("{link}[[llm.nodes]]\n{settings}\n")).err();
        for (settings, error) in [
            (
                "url = 'http://a'\nvia = 'site-c'",
                "8: via: no link is named \"site-c\"; did you mean \"site-b\"?",
            ),
            ("url = 'http://a'\nvia = 'x'", "8: via: no link is named \"x\"; add it to [[links]]"),
            (
                "paths = ['http://a']\nvia = 'site-b'",
                "8: via goes with url: the link has the paths to the node",
            ),
        ] {
            assert_eq!(node(settings), Some(format!("evenkeel.toml:{error}")), "{settings}");
        }
    }

    #[test]
    fn a_stored_node_behind_a_link_reads_back_unchanged() {
        let stored = read_nodes("", "[[nodes]]\nname = 'a'\nurl = 'http://a'\nvia = 'site-b'\n").unwrap();
        let reread = read_nodes("", &nodes_to_toml(&stored)).unwrap();
        assert_eq!(reread.nodes[0].via.as_deref(), Some("site-b"));
        assert_eq!(reread.nodes[0].paths, ["http://a"]);
    }
}
