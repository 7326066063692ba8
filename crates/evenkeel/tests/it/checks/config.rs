//! A config file of any bytes: read or refused, never in part.

use evenkeel::config::{Config, ConfigErrors, ConfigSources, ValueSource, read_tenants};

/// What stands for a secret in files of the corpus; shown and told is everything but this.
const SECRET: &str = "sk-secret";

/// Reads bytes as a config file, and holds what comes of it to what is claimed.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    let read = |text: &str| {
        let file = Some(("a.toml".to_owned(), text.to_owned()));
        Config::read(&ConfigSources { file, ..ConfigSources::default() })
    };
    match read(text) {
        Ok(config) => {
            let shown = config.shown.to_toml();
            assert!(!shown.contains(SECRET), "a secret is shown: {shown}");
            // Hashes are shown by their first digits, which is no hash; everything else means the same again.
            if !shown.contains("sha256:") {
                let again =
                    read(&shown).unwrap_or_else(|wrong| panic!("{wrong}\n in what is shown: {shown}"));
                let lines = |text: &str| -> Vec<String> {
                    text.lines()
                        .map(|line| line.split("  # a.toml:").next().unwrap_or("").to_owned())
                        .collect()
                };
                assert_eq!(lines(&again.shown.to_toml()), lines(&shown));
            }
        }
        Err(wrong) => told_by_line(&wrong, text),
    }
    if let Err(wrong) = read_tenants("a.toml", text) {
        told_by_line(&wrong, text);
    }
}

fn told_by_line(ConfigErrors(mistakes): &ConfigErrors, text: &str) {
    assert!(!mistakes.is_empty(), "refused without a reason");
    let lines_max = text.split('\n').count();
    for mistake in mistakes {
        assert!(!mistake.what.is_empty() && !mistake.what.contains(SECRET), "{mistake}");
        match &mistake.origin {
            ValueSource::File { line, .. } => {
                assert!((1..=lines_max).contains(line), "{mistake} of {lines_max}")
            }
            ValueSource::Default | ValueSource::Env(_) | ValueSource::Flag(_) => {}
        }
    }
}
