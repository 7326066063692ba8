//! `[queue]`: where queues live, how durable they are, what a new one is like, and how they are called.

use evenkeel_queue::store::disk::DiskOptions;
use evenkeel_queue::{Durability, QueueSettings};

use super::reader::Section;
use super::value::Integer;

/// How many queues there may be if nobody says.
const QUEUES_MAX: i64 = 10_000;
const INTERVAL_MS: i64 = 100;

/// `[queue]`.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    /// Where queues live.
    pub store: StoreKind,
    /// Memory for what was read from disk.
    pub cache_bytes: u64,
    /// Messages are refused while less than this is free on the disk.
    pub reserve_bytes: u64,
    /// How many there may be.
    pub queues_max: usize,
    /// What a new queue is like.
    pub defaults: QueueSettings,
    /// The region in the names of queues.
    pub region: String,
    /// The account in the names and URLs of queues.
    pub account: String,
}

/// Where queues live.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// On disk, in the data folder.
    Fjall,
    /// In memory: forgotten when the server ends.
    Memory,
}

impl StoreKind {
    /// What it is called.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fjall => "fjall",
            Self::Memory => "memory",
        }
    }
}

pub(super) fn read(section: &mut Section<'_>) -> QueueConfig {
    let kinds = [("fjall", StoreKind::Fjall), ("memory", StoreKind::Memory)];
    let store = section.word("store", "fjall", &kinds);
    let disk = DiskOptions::default();
    let mut bytes = |key, default: u64, least: i64| {
        let default = i64::try_from(default).unwrap_or(least);
        section.within(key, Integer(default), Integer(least)..=Integer(1 << 50)).as_u64()
    };
    let cache_bytes = bytes("cache_bytes", disk.cache_bytes, 1 << 20);
    let reserve_bytes = bytes("reserve_bytes", disk.reserve_bytes, 0);
    let interval =
        section.within("durability_interval_ms", Integer(INTERVAL_MS), Integer(1)..=Integer(60_000));
    let durabilities = [
        ("fsync", Durability::Fsync),
        ("interval", Durability::Interval(interval.as_u32())),
        ("os", Durability::Os),
    ];
    let durability = section.word("durability", "fsync", &durabilities);
    let settings = QueueSettings::default();
    let mut count = |key, default: u64, most: i64| {
        let default = i64::try_from(default).unwrap_or(most);
        section.within(key, Integer(default), Integer(1)..=Integer(most)).as_u64()
    };
    let defaults = QueueSettings {
        durability,
        quantum: count("quantum", settings.quantum, 1_000_000_000),
        messages_max: count("messages_max", settings.messages_max, 1_000_000_000_000),
        in_flight_max: count("in_flight_max", settings.in_flight_max, 10_000_000),
        keys_max: u32::try_from(count("keys_max", u64::from(settings.keys_max), 1 << 24)).unwrap_or(u32::MAX),
        bytes_max: section
            .within("bytes_max", Integer(1 << 40), Integer(2 << 20)..=Integer(1 << 50))
            .as_u64(),
        ..settings
    };
    let queues_max =
        section.within("queues_max", Integer(QUEUES_MAX), Integer(1)..=Integer(1_000_000)).as_usize();
    let (region, account) = names(&mut section.section("sqs"));
    QueueConfig { store, cache_bytes, reserve_bytes, queues_max, defaults, region, account }
}

/// Reads what is part of every queue's name.
fn names(section: &mut Section<'_>) -> (String, String) {
    let region = section.read("region", "us-east-1".to_owned());
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(1..=64).contains(&region.value.len()) || !region.value.bytes().all(plain) {
        section.error(&region.origin, "region must be small letters, digits and hyphens, like \"us-east-1\"");
    }
    let account = section.read("account", "000000000000".to_owned());
    if account.value.len() != 12 || !account.value.bytes().all(|byte| byte.is_ascii_digit()) {
        section.error(&account.origin, "account must be twelve digits");
    }
    (region.value, account.value)
}
