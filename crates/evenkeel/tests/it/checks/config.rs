//! Checks that any bytes are read as a config file or rejected as a whole.

use evenkeel::config::{Config, ConfigErrors, ConfigSources, ValueSource, read_tenants};

/// Secret in the files of the corpus; it must not appear in any output.
const SECRET: &str = "sk-secret";

/// Reads bytes as a config file and checks the guarantees of the reader.
pub(crate) fn check(bytes: &[u8]) {
    let Ok(text) = core::str::from_utf8(bytes) else { return };
    let read = |text: &str| {
        let file = Some(("a.toml".to_owned(), text.to_owned()));
        Config::read(&ConfigSources { file, ..ConfigSources::default() })
    };
    match read(text) {
        Ok(config) => {
            let printed = config.effective.to_toml();
            assert!(!printed.contains(SECRET), "a secret is printed: {printed}");
            // Hashes are abbreviated; everything else reads back as the same configuration.
            if !printed.contains("sha256:") {
                let again = read(&printed)
                    .unwrap_or_else(|errors| panic!("{errors}\n in the printed config: {printed}"));
                let lines = |text: &str| -> Vec<String> {
                    text.lines()
                        .map(|line| line.split("  # a.toml:").next().unwrap_or("").to_owned())
                        .collect()
                };
                assert_eq!(lines(&again.effective.to_toml()), lines(&printed));
            }
        }
        Err(errors) => check_errors(&errors, text),
    }
    if let Err(errors) = read_tenants("a.toml", text) {
        check_errors(&errors, text);
    }
}

fn check_errors(ConfigErrors(errors): &ConfigErrors, text: &str) {
    assert!(!errors.is_empty(), "rejected without a reason");
    let lines_max = text.split('\n').count();
    for error in errors {
        assert!(!error.message.is_empty() && !error.message.contains(SECRET), "{error}");
        match &error.origin {
            ValueSource::File { line, .. } => {
                assert!((1..=lines_max).contains(line), "{error} of {lines_max}");
            }
            ValueSource::Default | ValueSource::Env(_) | ValueSource::Flag(_) => {}
        }
    }
}
