//! The cases that every contender runs.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    /// Producers send the next batch once the previous one is confirmed.
    Send { batch: usize, producers: usize },
    /// Four consumers drain a queue: each receives a batch, acknowledges it, and receives the next once that is confirmed.
    Take { batch: usize },
}

/// Number of consumers in a take case.
pub(crate) const CONSUMERS: usize = 4;

impl Case {
    /// All cases, in table order.
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

    /// Parses a case name.
    pub(crate) fn parse(name: &str) -> Result<Self, &'static str> {
        Self::ALL.iter().copied().find(|case| case.name() == name).ok_or("unknown case")
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Send { batch, producers } => format!("send{batch}x{producers}"),
            Self::Take { batch } => format!("take{batch}"),
        }
    }

    pub(crate) fn about(self) -> String {
        match self {
            Self::Send { batch, producers: 1 } => format!("1 producer, batches of {batch}"),
            Self::Send { batch, producers } => format!("{producers} producers, batches of {batch}"),
            Self::Take { batch } => {
                format!("{CONSUMERS} consumers receive and acknowledge, batches of {batch}")
            }
        }
    }
}
