//! The cases that every contender runs, and their metrics.

/// Rows of one result in [`SqlCase::Rows`].
pub(crate) const RESULT_ROWS: usize = 5_000;
/// Client connections in [`SqlCase::Rows`].
const ROWS_CONNECTIONS: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SqlCase {
    /// Each connection looks up one row by its primary key, then the next.
    Lookup { connections: usize },
    /// Each connection reads many whole rows per query.
    Rows,
}

/// A metric and its table column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SqlMetric {
    pub(crate) name: &'static str,
    pub(crate) heading: &'static str,
    pub(crate) comparison: Comparison,
}

/// Use of a metric's ratio to the baseline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Comparison {
    /// No ratio.
    None,
    /// A ratio in the table.
    Table,
    /// A ratio in the table, and in the JSON results under this name; lower is better.
    TableAndJson(&'static str),
    /// A ratio in the JSON results under this name; lower is better.
    Json(&'static str),
}

const LOOKUP_METRICS: &[SqlMetric] = &[
    SqlMetric { name: "rate", heading: "queries/s", comparison: Comparison::Table },
    SqlMetric { name: "wall_us", heading: "", comparison: Comparison::Json("wall") },
    SqlMetric { name: "cpu_us", heading: "CPU µs/query", comparison: Comparison::TableAndJson("cpu") },
    SqlMetric { name: "p50_us", heading: "p50 µs", comparison: Comparison::Table },
    SqlMetric { name: "p99_us", heading: "p99 µs", comparison: Comparison::Table },
];
const ROWS_METRICS: &[SqlMetric] = &[
    SqlMetric { name: "row_rate", heading: "rows/s", comparison: Comparison::Table },
    SqlMetric { name: "wall_us", heading: "", comparison: Comparison::Json("wall") },
    SqlMetric { name: "mb_rate", heading: "MB/s", comparison: Comparison::None },
    SqlMetric { name: "cpu_us_per_row", heading: "CPU µs/row", comparison: Comparison::TableAndJson("cpu") },
    SqlMetric { name: "cpu_ns_per_byte", heading: "CPU ns/byte", comparison: Comparison::Table },
    SqlMetric { name: "p50_us", heading: "p50 µs", comparison: Comparison::None },
    SqlMetric { name: "p99_us", heading: "p99 µs", comparison: Comparison::None },
];

impl SqlCase {
    /// All cases, in table order.
    pub(crate) const ALL: &[Self] = &[
        Self::Lookup { connections: 1 },
        Self::Lookup { connections: 16 },
        Self::Lookup { connections: 64 },
        Self::Rows,
    ];

    /// Parses a case name.
    pub(crate) fn parse(name: &str) -> Result<Self, &'static str> {
        Self::ALL.iter().copied().find(|case| case.name() == name).ok_or("unknown case")
    }

    pub(crate) fn name(self) -> String {
        match self {
            Self::Lookup { connections } => format!("lookup{connections}"),
            Self::Rows => "rows".to_owned(),
        }
    }

    pub(crate) fn about(self) -> String {
        match self {
            Self::Lookup { connections: 1 } => "one row by primary key, 1 connection".to_owned(),
            Self::Lookup { connections } => format!("one row by primary key, {connections} connections"),
            Self::Rows => format!("{RESULT_ROWS} whole rows per query, {ROWS_CONNECTIONS} connections"),
        }
    }

    pub(crate) fn connections(self) -> usize {
        match self {
            Self::Lookup { connections } => connections,
            Self::Rows => ROWS_CONNECTIONS,
        }
    }

    pub(crate) fn metrics(self) -> &'static [SqlMetric] {
        match self {
            Self::Lookup { .. } => LOOKUP_METRICS,
            Self::Rows => ROWS_METRICS,
        }
    }
}

impl SqlMetric {
    /// Reports whether the table has a column with the ratio to the baseline.
    pub(crate) fn has_ratio_column(self) -> bool {
        matches!(self.comparison, Comparison::Table | Comparison::TableAndJson(_))
    }

    /// Reports whether the table has a column with the value.
    pub(crate) fn has_column(self) -> bool {
        !matches!(self.comparison, Comparison::Json(_))
    }

    /// Returns the name under which the JSON results compare the metric.
    pub(crate) fn json_group(self) -> Option<&'static str> {
        match self.comparison {
            Comparison::None | Comparison::Table => None,
            Comparison::TableAndJson(group) | Comparison::Json(group) => Some(group),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_to_their_cases() {
        for case in SqlCase::ALL {
            assert_eq!(SqlCase::parse(&case.name()), Ok(*case));
        }
        assert_eq!(SqlCase::parse("lookup2"), Err("unknown case"));
    }
}
