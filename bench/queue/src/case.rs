//! What is asked of everybody.

/// A case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Producers that send again once all of a batch is confirmed.
    Send { batch: usize, producers: usize },
    /// Four consumers empty a queue: they receive a batch, acknowledge it, and receive again once that is confirmed.
    Take { batch: usize },
}

/// How many consumers empty a queue.
pub(crate) const CONSUMERS: usize = 4;

impl Case {
    /// Every case, in the order of the tables.
    pub(crate) const ALL: &[Self] = &[
        Self::Send { batch: 1, producers: 1 },
        Self::Send { batch: 1, producers: 4 },
        Self::Send { batch: 1, producers: 16 },
        Self::Send { batch: 10, producers: 1 },
        Self::Send { batch: 10, producers: 4 },
        Self::Send { batch: 10, producers: 16 },
        Self::Take { batch: 1 },
        Self::Take { batch: 10 },
    ];

    pub(crate) fn name(self) -> String {
        match self {
            Self::Send { batch, producers } => format!("send{batch}x{producers}"),
            Self::Take { batch } => format!("take{batch}"),
        }
    }

    pub(crate) fn about(self) -> String {
        match self {
            Self::Send { batch, producers } => format!("{producers} producers, batches of {batch}"),
            Self::Take { batch } => {
                format!("{CONSUMERS} consumers receive and acknowledge, batches of {batch}")
            }
        }
    }
}
