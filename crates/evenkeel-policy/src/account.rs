//! Account numbers: twelve digits that identify the owner of a queue in names that clients keep, such as ARNs and URLs.

use core::fmt;
use core::str::FromStr;

/// Number of digits of an account number.
const DIGITS: usize = 12;
/// One more than the largest account number.
const END: u64 = 1_000_000_000_000;

/// Number of an account, at most twelve digits; formatted with leading zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountNumber(u64);

impl AccountNumber {
    /// The account of everything that has no owner.
    pub const ZERO: Self = Self(0);

    /// Maps a random number to an account number without leading zeros.
    pub const fn from_random(random: u64) -> Self {
        const MIN: u64 = END / 10;
        Self(MIN + random % (END - MIN))
    }
}

impl fmt::Display for AccountNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:012}", self.0)
    }
}

impl FromStr for AccountNumber {
    type Err = AccountNumberError;

    fn from_str(text: &str) -> Result<Self, AccountNumberError> {
        let is_number = text.len() == DIGITS && text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number {
            return Err(AccountNumberError);
        }
        text.parse().map(Self).map_err(|_| AccountNumberError)
    }
}

/// Error of parsing a text that is not an account number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccountNumberError;

impl fmt::Display for AccountNumberError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an account number has 12 digits")
    }
}

impl core::error::Error for AccountNumberError {}

#[cfg(test)]
mod tests {
    extern crate alloc;

    use super::*;
    use alloc::string::ToString;

    #[test]
    fn an_account_number_has_exactly_twelve_digits() {
        for text in ["000000000000", "000000000042", "999999999999"] {
            assert_eq!(text.parse::<AccountNumber>().unwrap().to_string(), text);
        }
        for text in ["", "1", "1000000000000", "+00000000001", "00000000000x", "00000000000\u{0661}"] {
            assert_eq!(text.parse::<AccountNumber>(), Err(AccountNumberError), "{text:?}");
        }
    }

    #[test]
    fn a_random_account_number_has_no_leading_zero() {
        for random in [0, 1, END, u64::MAX] {
            let text = AccountNumber::from_random(random).to_string();
            assert!(text.len() == 12 && !text.starts_with('0'), "{text}");
        }
    }
}
