//! Link-local and cloud metadata addresses, which the gateway does not connect to unless the operator allows it.
//!
//! A metadata service hands out the credentials of the machine to everybody who can send it a request, and a URL of a node
//! or webhook makes the gateway send one.
//!
//! Guarantees: the addresses that a host name resolves to are checked and then used for the connection, so that a name
//! cannot change its address in between. A literal is recognized in every spelling that the system's resolver accepts.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::UpstreamError;

/// Metadata services outside the link-local ranges: Alibaba Cloud, Azure's platform agent, Oracle Cloud.
const METADATA_V4: [Ipv4Addr; 3] =
    [Ipv4Addr::new(100, 100, 100, 200), Ipv4Addr::new(168, 63, 129, 16), Ipv4Addr::new(192, 0, 0, 192)];
/// Metadata services of Google Cloud, Oracle Cloud, Scaleway, Akamai and Alibaba Cloud.
const METADATA_V6: [Ipv6Addr; 5] = [
    Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254),
    Ipv6Addr::new(0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe),
    Ipv6Addr::new(0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42),
    Ipv6Addr::new(0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1),
    Ipv6Addr::new(0xfd00, 0x100, 0, 0, 0, 0, 0x100, 0x200),
];
/// First 32 bits of the addresses of AWS's services on the instance: metadata, credentials of pods (EKS).
const AWS: u128 = 0xfd00_0ec2;
/// First 96 bits of the IPv6 addresses that a NAT64 gateway translates to IPv4.
const NAT64: u128 = 0x64_ff9b << 64;
/// First 48 bits of the IPv6 addresses that a network may translate to IPv4 locally.
const NAT64_LOCAL: u128 = 0x64_ff9b_0001;
/// First 16 bits of the IPv6 addresses of 6to4; the IPv4 address follows.
const SIX_TO_FOUR: u128 = 0x2002;

/// Treatment of link-local and metadata addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkLocalPolicy {
    #[default]
    Refuse,
    Allow,
}

/// An address that the policy refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{address} is a link-local or cloud metadata address; allow_link_local = true in [server] allows it")]
pub struct LinkLocalError {
    pub address: IpAddr,
}

impl LinkLocalPolicy {
    /// Rejects a link-local or metadata address.
    pub fn check(self, address: IpAddr) -> Result<(), LinkLocalError> {
        match self {
            Self::Refuse if is_link_local_or_metadata(address) => Err(LinkLocalError { address }),
            Self::Refuse | Self::Allow => Ok(()),
        }
    }

    /// Removes the addresses that the policy refuses; an error if none remains.
    pub(crate) fn retain(self, mut addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>, UpstreamError> {
        let refused = addresses.iter().find_map(|address| self.check(address.ip()).err());
        addresses.retain(|address| self.check(address.ip()).is_ok());
        match refused {
            Some(error) if addresses.is_empty() => Err(UpstreamError::Connect { error: error.to_string() }),
            Some(_) | None => Ok(addresses),
        }
    }
}

/// Reports whether an address is link-local, or that of a cloud provider's metadata service.
pub fn is_link_local_or_metadata(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local() || METADATA_V4.contains(&address),
        IpAddr::V6(address) => {
            let is_embedded = || embedded_v4(address).is_some_and(|v4| is_link_local_or_metadata(v4.into()));
            address.is_unicast_link_local()
                || METADATA_V6.contains(&address)
                || address.to_bits() >> 96 == AWS
                || is_embedded()
        }
    }
}

/// Returns the IPv4 address that a mapped, compatible, NAT64 or 6to4 address stands for.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let bits = address.to_bits();
    let is_translated = bits >> 32 == NAT64 || bits >> 80 == NAT64_LOCAL;
    if bits >> 112 == SIX_TO_FOUR {
        return Some(Ipv4Addr::from_bits((bits >> 80) as u32));
    }
    // The last 32 bits.
    if is_translated { Some(Ipv4Addr::from_bits(bits as u32)) } else { address.to_ipv4() }
}

/// Returns the address of a host that is a literal, as the system's resolver reads it; `None` for a name.
///
/// The resolver accepts IPv6 addresses with a zone (`fe80::1%eth0`), and IPv4 addresses of one to four decimal, octal or
/// hexadecimal numbers, the last of which fills the remaining bytes (`0xa9fea9fe`, `169.254.43518`).
pub(crate) fn literal(host: &str) -> Option<IpAddr> {
    let (address, _) = host.split_once('%').unwrap_or((host, ""));
    address.parse().ok().or_else(|| parse_v4(host).map(IpAddr::V4))
}

fn parse_v4(host: &str) -> Option<Ipv4Addr> {
    let numbers: Vec<u32> = host.split('.').take(5).map(parse_number).collect::<Option<_>>()?;
    let (last, bytes) = numbers.split_last()?;
    let last_bits = 32_u32.checked_sub(8 * u32::try_from(bytes.len()).ok()?).filter(|bits| 0 < *bits)?;
    let last_max = u32::MAX >> (32 - last_bits);
    if *last > last_max || bytes.iter().any(|byte| *byte > 0xff) {
        return None;
    }
    let first = bytes.iter().enumerate().fold(0, |bits, (index, byte)| bits | byte << (24 - 8 * index));
    Some(Ipv4Addr::from_bits(first | last))
}

fn parse_number(text: &str) -> Option<u32> {
    // `from_str_radix` would accept a sign.
    if !text.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
        return None;
    }
    match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None if text.starts_with('0') => u32::from_str_radix(text, 8).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_metadata_address_is_refused() {
        for host in [
            "169.254.169.254",
            "169.254.0.1",
            "2852039166",
            "0xa9fea9fe",
            "0XA9FEA9FE",
            "0251.0376.0251.0376",
            "0xa9.0xfe.0xa9.0xfe",
            "169.254.43518",
            "169.16689662",
            "169.0376.0xa9.254",
            "::ffff:169.254.169.254",
            "::ffff:a9fe:a9fe",
            "::169.254.169.254",
            "64:ff9b::169.254.169.254",
            "64:ff9b:1::169.254.169.254",
            "2002:a9fe:a9fe::1",
            "fe80::1",
            "fe80::1%eth0",
            "febf::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
            "fd00:42::42",
            "fd00:a9fe:a9fe::1",
            "fd00:100::100:200",
            "100.100.100.200",
            "::ffff:100.100.100.200",
            "168.63.129.16",
        ] {
            let address = literal(host).unwrap_or_else(|| panic!("{host} is an address"));
            let error = LinkLocalPolicy::Refuse.check(address).unwrap_err().to_string();
            assert!(error.contains("allow_link_local"), "{host}: {error}");
            assert_eq!(LinkLocalPolicy::Allow.check(address), Ok(()), "{host}");
        }
    }

    #[test]
    fn other_addresses_are_allowed_and_names_are_no_literals() {
        for host in [
            "127.0.0.1",
            "10.0.0.5",
            "169.253.255.255",
            "169.255.0.0",
            "::1",
            "fd00::1",
            "fd00:ec3::254",
            "fec0::1",
            "64:ff9b::10.0.0.5",
            "2002:0a00:0005::1",
            "2130706433",
        ] {
            assert_eq!(LinkLocalPolicy::Refuse.check(literal(host).unwrap()), Ok(()), "{host}");
        }
        for name in [
            "metadata.google.internal",
            "169.254.169.254.example",
            "1.2.3.4.5",
            "1..2",
            "08",
            "0x",
            "",
            "a.1",
        ] {
            assert_eq!(literal(name), None, "{name}");
        }
        for number in ["256.1.1.1", "1.2.65536", "4294967296", "1.16777216", "+1", "1.-2"] {
            assert_eq!(literal(number), None, "{number}");
        }
    }

    #[test]
    fn a_name_with_a_refused_and_an_allowed_address_uses_the_allowed_one_only() {
        let allowed: SocketAddr = "127.0.0.1:80".parse().unwrap();
        let refused: SocketAddr = "[::ffff:169.254.169.254]:80".parse().unwrap();
        assert_eq!(LinkLocalPolicy::Refuse.retain(vec![refused, allowed]), Ok(vec![allowed]));
        assert_eq!(LinkLocalPolicy::Allow.retain(vec![refused]), Ok(vec![refused]));
        let error = LinkLocalPolicy::Refuse.retain(vec![refused]).unwrap_err().to_string();
        assert!(error.contains("169.254.169.254") && error.contains("allow_link_local"), "{error}");
        assert_eq!(LinkLocalPolicy::Refuse.retain(vec![]), Ok(vec![]));
    }
}
