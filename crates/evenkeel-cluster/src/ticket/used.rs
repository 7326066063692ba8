//! Used tickets, remembered until they expire.
//!
//! Limits: `max` tickets; further ones are refused, because forgetting one would let it be used again.

use std::collections::BTreeSet;

use super::TicketError;
use crate::key::Nonce;

#[derive(Debug)]
pub(crate) struct UsedTickets {
    /// By expiry, which is signed like the nonce.
    tickets: BTreeSet<(u64, Nonce)>,
    max: usize,
}

impl UsedTickets {
    pub(crate) fn new(max: usize) -> Self {
        Self { tickets: BTreeSet::new(), max }
    }

    /// Remembers a ticket as used; an error if it was used before.
    pub(crate) fn insert(&mut self, clock_ms: u64, expires_ms: u64, nonce: Nonce) -> Result<(), TicketError> {
        while self.tickets.first().is_some_and(|first| first.0 <= clock_ms) {
            self.tickets.pop_first();
        }
        if self.tickets.contains(&(expires_ms, nonce)) {
            return Err(TicketError::AlreadyUsed);
        }
        if self.max <= self.tickets.len() {
            return Err(TicketError::TooManyUsed { max: self.max });
        }
        self.tickets.insert((expires_ms, nonce));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_memory_refuses_tickets_until_one_expires() {
        let mut used = UsedTickets::new(2);
        assert_eq!(used.insert(0, 10, [1; 16]), Ok(()));
        assert_eq!(used.insert(0, 20, [2; 16]), Ok(()));
        assert_eq!(used.insert(9, 30, [3; 16]), Err(TicketError::TooManyUsed { max: 2 }));
        assert_eq!(used.insert(9, 20, [2; 16]), Err(TicketError::AlreadyUsed));
        assert_eq!(used.insert(10, 30, [3; 16]), Ok(()));
        assert_eq!(used.insert(10, 20, [2; 16]), Err(TicketError::AlreadyUsed));
    }
}
