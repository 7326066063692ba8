//! `evenkeel tenant statement`: a tenant's usage by day and model, from the server or, if none runs, its data directory.

use clap::Args;
use evenkeel::data_dir::DataDir;
use evenkeel::statement::{COLUMNS, days, to_csv, to_json};
use evenkeel::usage_store::UsageStore;
use evenkeel_server::calendar::Day;
use evenkeel_server::unix_seconds::UnixSeconds;
use evenkeel_server::usage_ledger::UsageLedger;
use http::Method;
use serde_json::Value;

use super::{AdminClient, CliError, NamedArgs, Table, path, print};

#[derive(Debug, Args)]
pub(super) struct StatementArgs {
    #[command(flatten)]
    named: NamedArgs,
    /// Calendar month in UTC, such as 2026-11 [default: this month until today]
    #[arg(long, value_name = "MONTH", conflicts_with_all = ["from", "to"])]
    month: Option<String>,
    /// First day in UTC, such as 2026-11-01 [default: the first of the month of the last day]
    #[arg(long, value_name = "DAY")]
    from: Option<String>,
    /// Last day in UTC [default: today]
    #[arg(long, value_name = "DAY")]
    to: Option<String>,
    /// Print CSV
    #[arg(long)]
    csv: bool,
    /// Print JSON
    #[arg(long, conflicts_with = "csv")]
    json: bool,
}

pub(super) fn run(args: &StatementArgs) -> Result<(), CliError> {
    let today = Day::of(UnixSeconds::now());
    let days = days(args.month.as_deref(), args.from.as_deref(), args.to.as_deref(), today)?;
    let statement = args.read(days)?;
    if args.csv {
        return print(&to_csv(&statement));
    }
    if args.json {
        return print(&format!("{statement:#}\n"));
    }
    let rows = statement["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
    if rows.is_empty() {
        let (from, to) = days;
        return print(&format!("no usage from {from} to {to}\n"));
    }
    print(&Table::new(&COLUMNS, rows).to_string())
}

impl StatementArgs {
    fn read(&self, days: (Day, Day)) -> Result<Value, CliError> {
        let NamedArgs { name, store } = &self.named;
        let (from, to) = days;
        let request = |client: AdminClient| {
            client.request(Method::GET, &format!("{}/statement?from={from}&to={to}", path(name)), None)
        };
        if let Some(url) = &store.server.url {
            return request(AdminClient::for_url(url, &store.server, &store.settings)?);
        }
        let data_dir = store.settings.read()?.server.data_dir;
        match DataDir::server_urls(&data_dir) {
            Some(urls) => request(AdminClient::announced(&urls.admin, &data_dir, &store.server)?),
            None => {
                let rows = UsageStore::new(&data_dir).statement(&UsageLedger::default(), name, days)?;
                Ok(to_json(name, days, &rows))
            }
        }
    }
}
