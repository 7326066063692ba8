//! Renamed configuration keys. Using an old name is an error that gives the new one.
//!
//! Files that evenkeel wrote itself, in the data directory, still load with the old names.

struct RenamedKey {
    /// Without brackets, as in `llm.breaker`.
    section: &'static str,
    old: &'static str,
    new: &'static str,
}

const RENAMED_KEYS: &[RenamedKey] = &[
    RenamedKey { section: "llm.affinity", old: "look_max", new: "lookahead_max" },
    RenamedKey { section: "llm.breaker", old: "spare_max_secs", new: "cooldown_max_secs" },
    RenamedKey { section: "llm.breaker", old: "spare_secs", new: "cooldown_secs" },
    RenamedKey { section: "tenants", old: "standing", new: "state" },
];

/// Returns the new name of a key that was renamed.
pub(super) fn new_key(section: &str, old: &str) -> Option<&'static str> {
    let renamed = RENAMED_KEYS.iter().find(|key| key.section == section && key.old == old)?;
    Some(renamed.new)
}

/// Returns the name that a key of this section had before it was renamed.
pub(super) fn old_key(section: &str, new: &str) -> Option<&'static str> {
    let renamed = RENAMED_KEYS.iter().find(|key| key.section == section && key.new == new)?;
    Some(renamed.old)
}

/// Returns the section and new key of the renamed setting that an environment variable used to set.
pub(super) fn new_setting(
    variable: &str,
    variable_of: impl Fn(&str, &str) -> String,
) -> Option<(&'static str, &'static str)> {
    let renamed = RENAMED_KEYS.iter().find(|key| variable_of(key.section, key.old) == variable)?;
    Some((renamed.section, renamed.new))
}

#[cfg(test)]
mod tests {
    use crate::config::{Config, ConfigSources, read_tenant, read_tenants};
    use evenkeel_server::tenant::TenantState;
    use serde_json::json;

    fn errors(text: &str, env: &[(&str, &str)]) -> String {
        let sources = ConfigSources {
            file: Some(("evenkeel.toml".to_owned(), text.to_owned())),
            env: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            ..ConfigSources::default()
        };
        Config::read(&sources).unwrap_err().to_string()
    }

    #[test]
    fn an_old_key_in_a_file_is_an_error_that_gives_the_new_name() {
        for (section, old, value, new) in [
            ("[llm.breaker]", "spare_secs", "1", "cooldown_secs"),
            ("[llm.breaker]", "spare_max_secs", "60", "cooldown_max_secs"),
            ("[llm.affinity]", "look_max", "8", "lookahead_max"),
        ] {
            let text = format!("{section}\n{old} = {value}\n");
            let message = format!("evenkeel.toml:2: {old:?} in {section} was renamed to {new:?}");
            assert_eq!(errors(&text, &[]), message);
        }
        assert_eq!(
            errors("[[tenants]]\nname = 'a'\nstanding = 'active'\n", &[]),
            "evenkeel.toml:3: \"standing\" in [tenants] was renamed to \"state\""
        );
    }

    #[test]
    fn an_old_environment_variable_is_an_error_that_gives_the_new_name() {
        for (old, new) in [
            ("EVENKEEL_LLM_BREAKER_SPARE_SECS", "EVENKEEL_LLM_BREAKER_COOLDOWN_SECS"),
            ("EVENKEEL_LLM_BREAKER_SPARE_MAX_SECS", "EVENKEEL_LLM_BREAKER_COOLDOWN_MAX_SECS"),
            ("EVENKEEL_LLM_AFFINITY_LOOK_MAX", "EVENKEEL_LLM_AFFINITY_LOOKAHEAD_MAX"),
        ] {
            assert_eq!(errors("", &[(old, "1")]), format!("{old}: was renamed to {new}"));
        }
    }

    #[test]
    fn an_old_key_sent_to_the_api_is_an_error_that_gives_the_new_name() {
        let settings = json!({"name": "a", "standing": "active"});
        let error = read_tenant(settings.as_object().unwrap()).unwrap_err().to_string();
        assert_eq!(error, "\"standing\" in [tenants] was renamed to \"state\"");
    }

    #[test]
    fn tenants_stored_under_the_old_key_still_load() {
        let stored = "[[tenants]]\n\"name\" = \"a\"\n\"standing\" = \"disabled\"\n";
        assert_eq!(read_tenants("tenants.toml", stored).unwrap()[0].state, TenantState::Disabled);
        let both = format!("{stored}\"state\" = \"active\"\n");
        let error = read_tenants("tenants.toml", &both).unwrap_err().to_string();
        assert_eq!(error, "tenants.toml:3: \"standing\" in [tenants] was renamed to \"state\"");
    }
}
