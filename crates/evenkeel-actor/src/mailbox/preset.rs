//! Mailbox presets, named so that a configuration can refer to them.

use core::fmt;
use core::num::NonZeroUsize;
use core::str::FromStr;

use super::{MailboxOptions, OverflowStrategy};

/// A predefined set of mailbox options.
///
/// For another size use [`MailboxOptions::bounded`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MailboxPreset {
    /// Capacity 1024; an overflowing message is returned to its sender.
    #[default]
    Default,
    /// Capacity 64; for many actors, and for small machines.
    Small,
    /// Capacity 65 536; for bursts.
    Large,
    /// Capacity 1, keeping only the latest message; for state updates, where older values are worthless.
    Latest,
    /// Capacity 256, dropping the oldest; for readings, where newer values are worth more.
    Recent,
    /// Capacity 1024, dead-lettering the newest (load shedding); messages accepted first are served.
    Shedding,
    /// Capacity 1024, producers outside actors wait for capacity; for the stages of a pipeline.
    Blocking,
}

impl MailboxPreset {
    /// All presets.
    pub const ALL: [Self; 7] =
        [Self::Default, Self::Small, Self::Large, Self::Latest, Self::Recent, Self::Shedding, Self::Blocking];

    /// Returns the preset's name in a configuration.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Small => "small",
            Self::Large => "large",
            Self::Latest => "latest",
            Self::Recent => "recent",
            Self::Shedding => "shedding",
            Self::Blocking => "blocking",
        }
    }

    /// Returns the options of the preset.
    pub const fn options(self) -> MailboxOptions {
        let (capacity, overflow) = match self {
            Self::Default => (1024, OverflowStrategy::Reject),
            Self::Small => (64, OverflowStrategy::Reject),
            Self::Large => (65_536, OverflowStrategy::Reject),
            Self::Latest => (1, OverflowStrategy::DropOldest),
            Self::Recent => (256, OverflowStrategy::DropOldest),
            Self::Shedding => (1024, OverflowStrategy::DropNewest),
            Self::Blocking => (1024, OverflowStrategy::BlockProducer),
        };
        let capacity = NonZeroUsize::new(capacity).expect("every preset has capacity");
        MailboxOptions::bounded(capacity).overflow(overflow)
    }
}

impl From<MailboxPreset> for MailboxOptions {
    fn from(preset: MailboxPreset) -> Self {
        preset.options()
    }
}

impl FromStr for MailboxPreset {
    type Err = UnknownPreset;

    fn from_str(name: &str) -> Result<Self, UnknownPreset> {
        Self::ALL.into_iter().find(|preset| preset.as_str() == name).ok_or(UnknownPreset)
    }
}

/// No preset has that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown mailbox preset; the presets are {}", PresetNames)]
pub struct UnknownPreset;

/// Displays the names of all presets, separated by commas.
struct PresetNames;

impl fmt::Display for PresetNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, preset) in MailboxPreset::ALL.into_iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{}", preset.as_str())?;
        }
        Ok(())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use alloc::string::ToString;

    #[test]
    fn every_preset_is_valid_and_found_by_its_name() {
        for preset in MailboxPreset::ALL {
            assert_eq!(preset.options().validate(), Ok(()), "{preset:?}");
            assert_eq!(preset.as_str().parse(), Ok(preset));
        }
        assert_eq!(MailboxPreset::default().options(), MailboxOptions::default());
    }

    #[test]
    fn the_error_for_an_unknown_name_lists_the_presets() {
        let unknown = "Latest".parse::<MailboxPreset>().unwrap_err();
        let expected = "unknown mailbox preset; the presets are \
                        default, small, large, latest, recent, shedding, blocking";
        assert_eq!(unknown.to_string(), expected);
    }

    #[test]
    fn the_latest_preset_holds_one_message() {
        assert_eq!(MailboxPreset::Latest.options().user_capacity(), 1);
    }
}
