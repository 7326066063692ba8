//! Mailboxes by purpose, named so that a configuration can choose one.

use core::fmt;
use core::num::NonZeroUsize;
use core::str::FromStr;

use super::{MailboxOptions, OverflowStrategy};

/// A mailbox by what it is for.
///
/// Where the size does not fit, [`MailboxOptions::bounded`] takes another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MailboxPreset {
    /// 1024 places; a message too many goes back to its sender.
    #[default]
    Default,
    /// 64 places; for many actors, and for small machines.
    Small,
    /// 65 536 places; for bursts.
    Large,
    /// One place, for the latest message only; for states, where an older one is worth nothing.
    Latest,
    /// 256 places, the oldest gives way; for readings, where the newer are worth more.
    Recent,
    /// 1024 places, a message too many becomes a dead letter; what came first is served.
    Shedding,
    /// 1024 places, producers outside of actors wait for one; for the stages of a pipeline.
    Blocking,
}

impl MailboxPreset {
    /// Every preset.
    pub const ALL: [Self; 7] =
        [Self::Default, Self::Small, Self::Large, Self::Latest, Self::Recent, Self::Shedding, Self::Blocking];

    /// The preset's name in a configuration.
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

    /// Spells the preset out.
    pub const fn options(self) -> MailboxOptions {
        let (places, overflow) = match self {
            Self::Default => (1024, OverflowStrategy::Reject),
            Self::Small => (64, OverflowStrategy::Reject),
            Self::Large => (65_536, OverflowStrategy::Reject),
            Self::Latest => (1, OverflowStrategy::DropOldest),
            Self::Recent => (256, OverflowStrategy::DropOldest),
            Self::Shedding => (1024, OverflowStrategy::DropNewest),
            Self::Blocking => (1024, OverflowStrategy::BlockProducer),
        };
        let capacity = NonZeroUsize::new(places).expect("every preset has places");
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownPreset;

impl fmt::Display for UnknownPreset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no mailbox preset of that name; there are")?;
        for (at, preset) in MailboxPreset::ALL.into_iter().enumerate() {
            let comma = if at == 0 { "" } else { "," };
            write!(f, "{comma} {}", preset.as_str())?;
        }
        Ok(())
    }
}

impl core::error::Error for UnknownPreset {}

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
    fn a_name_that_is_no_preset_is_answered_with_those_that_are() {
        let unknown = "Latest".parse::<MailboxPreset>().unwrap_err();
        let expected = "no mailbox preset of that name; there are \
                        default, small, large, latest, recent, shedding, blocking";
        assert_eq!(unknown.to_string(), expected);
    }

    #[test]
    fn the_latest_needs_one_place() {
        assert_eq!(MailboxPreset::Latest.options().user_capacity(), 1);
    }
}
