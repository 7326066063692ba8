//! The database as clients beside the gateway see it, and random numbers for the tests' schedules.

use core::str::FromStr;

use evenkeel_test_postgres::{SharedDatabase, TestServer, shared};

/// Connections of the gateway to one database, as PostgreSQL counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Backends {
    pub(crate) open: u32,
    pub(crate) active: u32,
    pub(crate) idle: u32,
    /// Idle in a transaction, be it a failed one.
    pub(crate) idle_in_transaction: u32,
}

/// Statement that counts the connections of other programs than `psql` to the current database.
const COUNT_BACKENDS: &str = "select count(*), count(*) filter (where state = 'active'), \
     count(*) filter (where state = 'idle'), count(*) filter (where state like 'idle in transaction%') \
     from pg_stat_activity where datname = current_database() and application_name <> 'psql'";

/// A database that `psql` can reach without the gateway.
pub(crate) trait Outside: Sync {
    fn run_psql(&self, sql: &str) -> String;

    /// Runs SQL with `psql` and returns its rows: a line each, columns separated by `|`.
    async fn sql(&self, sql: &str) -> String {
        tokio::task::block_in_place(|| self.run_psql(sql)).trim_end_matches('\n').to_owned()
    }

    /// Runs SQL with `psql` and returns its only value.
    async fn value<T: FromStr>(&self, sql: &str) -> T {
        let text = self.sql(sql).await;
        text.parse().unwrap_or_else(|_| panic!("{sql}: {text:?}"))
    }

    async fn backends(&self) -> Backends {
        let text = self.sql(COUNT_BACKENDS).await;
        let counts: Vec<u32> = text.split('|').map(|count| count.parse().unwrap()).collect();
        let [open, active, idle, idle_in_transaction] = counts[..] else { panic!("{text}") };
        Backends { open, active, idle, idle_in_transaction }
    }

    /// Counts the statements with a comment `/* mark */` at their end that the database executes now.
    async fn running(&self, mark: &str) -> u32 {
        let sql = format!(
            "select count(*) from pg_stat_activity where datname = current_database() and state = 'active' \
             and query like '%/* {mark} */' and application_name <> 'psql'"
        );
        self.value(&sql).await
    }
}

impl Outside for SharedDatabase {
    fn run_psql(&self, sql: &str) -> String {
        SharedDatabase::psql(self, sql).unwrap()
    }
}

impl Outside for TestServer {
    fn run_psql(&self, sql: &str) -> String {
        TestServer::psql(self, "postgres", sql).unwrap()
    }
}

/// Creates a database and runs SQL in it.
pub(crate) async fn database_with(sql: &str) -> SharedDatabase {
    let database = tokio::task::spawn_blocking(|| shared().unwrap()).await.unwrap();
    database.sql(sql).await;
    database
}

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Seeds a test from the environment or the clock, and prints the seed.
    pub(crate) fn from_environment() -> Self {
        let clock = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
        let seed = std::env::var("EVENKEEL_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(clock);
        println!("EVENKEEL_TEST_SEED={seed}");
        Self(seed)
    }

    /// Returns a generator with a sequence of its own.
    pub(crate) fn split(&mut self) -> Self {
        Self(self.below(u64::MAX))
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}
