//! `[queue]`: the store, defaults of new queues, and the AWS region and account in ARNs and queue URLs.

use evenkeel_policy::account::AccountNumber;
use evenkeel_queue::store::disk::{DiskOptions, RESERVE_BYTES_MIN};
use evenkeel_queue::{Durability, QueueSettings};

use super::reader::Section;
use super::value::Integer;

const QUEUES_MAX_DEFAULT: i64 = 10_000;
const INTERVAL_MS_DEFAULT: i64 = 100;

/// `[queue]`.
#[derive(Clone, Debug)]
pub struct QueueConfig {
    pub store: StoreKind,
    /// Size of the read cache.
    pub cache_bytes: u64,
    /// New messages are rejected while free disk space is below this.
    pub reserve_bytes: u64,
    /// Value of `reserve_bytes` that was raised to the minimum.
    pub reserve_raised_from: Option<u64>,
    /// Maximum number of fairness keys per tenant.
    pub tenant_keys_max: u32,
    pub queues_max: usize,
    /// Settings of new queues.
    pub defaults: QueueSettings,
    /// AWS region in queue ARNs.
    pub region: String,
    /// AWS account in the ARNs and URLs of shared queues.
    pub account: AccountNumber,
}

/// Storage of queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StoreKind {
    /// On disk, in the data directory.
    Fjall,
    /// In memory; lost when the server stops.
    Memory,
}

impl StoreKind {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Fjall => "fjall",
            Self::Memory => "memory",
        }
    }
}

pub(super) fn read(section: &mut Section<'_>) -> QueueConfig {
    let kinds = [("fjall", StoreKind::Fjall), ("memory", StoreKind::Memory)];
    let store = section.one_of("store", "fjall", &kinds);
    let disk = DiskOptions::default();
    let integer = |value: u64| Integer(i64::try_from(value).unwrap_or(i64::MAX));
    let cache_range = Integer(1 << 20)..=Integer(1 << 50);
    let cache_bytes = section.within("cache_bytes", integer(disk.cache_bytes), cache_range).as_u64();
    let reserve_range = integer(RESERVE_BYTES_MIN)..=Integer(1 << 50);
    let reserve = section.raised_to("reserve_bytes", integer(disk.reserve_bytes), &reserve_range);
    let interval =
        section.within("durability_interval_ms", Integer(INTERVAL_MS_DEFAULT), Integer(1)..=Integer(60_000));
    let durabilities = [
        ("fsync", Durability::Fsync),
        ("interval", Durability::Interval(interval.as_u32())),
        ("os", Durability::Os),
    ];
    let durability = section.one_of("durability", "fsync", &durabilities);
    let settings = QueueSettings::default();
    let mut count = |key, default: u64, max: i64| {
        let default = i64::try_from(default).unwrap_or(max);
        section.within(key, Integer(default), Integer(1)..=Integer(max)).as_u64()
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
        section.within("queues_max", Integer(QUEUES_MAX_DEFAULT), Integer(1)..=Integer(1_000_000)).as_usize();
    let keys_range = Integer(1)..=Integer(1 << 24);
    let tenant_keys_max =
        section.within("tenant_keys_max", integer(disk.tenant_keys_max.into()), keys_range).as_u32();
    let (region, account) = sqs_names(&mut section.section("sqs"));
    QueueConfig {
        store,
        cache_bytes,
        reserve_bytes: reserve.value.as_u64(),
        reserve_raised_from: reserve.from.map(Integer::as_u64),
        tenant_keys_max,
        queues_max,
        defaults,
        region,
        account,
    }
}

/// Reads the region and account, which are part of every queue ARN.
fn sqs_names(section: &mut Section<'_>) -> (String, AccountNumber) {
    let region = section.read("region", "us-east-1".to_owned());
    let is_allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if !(1..=64).contains(&region.value.len()) || !region.value.bytes().all(is_allowed) {
        section.error(
            &region.origin,
            "region must be lowercase letters, digits and hyphens, such as \"us-east-1\"",
        );
    }
    let account = section.read("account", AccountNumber::ZERO.to_string());
    let number = account.value.parse().unwrap_or_else(|_| {
        section.error(&account.origin, "account must be 12 digits");
        AccountNumber::ZERO
    });
    (region.value, number)
}
