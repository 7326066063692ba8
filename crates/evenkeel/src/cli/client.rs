//! Talks to a running server's API, as an administrator.

use std::env;
use std::path::PathBuf;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use evenkeel::data_dir::DataDir;
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_telemetry::Secret;
use evenkeel_upstream::{Origin, TlsRoots, Upstream};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use super::CliError;
use super::settings::SettingsArgs;

/// Where an administrator puts the key; a flag would show it to everybody on the machine.
const KEY_VARIABLE: &str = "EVENKEEL_ADMIN_KEY";
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
const ANSWER_WAIT_MAX: Duration = Duration::from_secs(30);

/// Which server to talk to.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// The server's address; EVENKEEL_ADMIN_KEY is its admin key, if it has one
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    /// A file of certificates to trust besides the usual ones
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

/// Which server to talk to, or where it says where it is.
#[derive(Debug, Args)]
pub(super) struct ConnectArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl ConnectArgs {
    /// Finds the server: the one named, or the one that has the data folder, or the one at the usual address.
    pub(super) fn client(&self) -> Result<AdminClient, CliError> {
        if let Some(url) = &self.server.url {
            return AdminClient::new(url, &self.server);
        }
        let config = self.settings.read()?;
        let found = DataDir::server_of(&config.server.data_dir);
        let usual = || format!("http://{}", config.server.listen);
        AdminClient::new(&found.unwrap_or_else(usual), &self.server)
    }
}

/// A running server, as an administrator sees it.
pub(super) struct AdminClient {
    upstream: Upstream,
    origin: Origin,
    key: Option<Secret<String>>,
}

impl AdminClient {
    /// Prepares to talk to the server at `url`.
    pub(super) fn new(url: &str, args: &ServerArgs) -> Result<Self, CliError> {
        let origin = Origin::parse(url).map_err(|error| format!("{url}: {error}"))?;
        let roots = match &args.ca_file {
            Some(file) => TlsRoots::public().with_file(file)?,
            None => TlsRoots::public(),
        };
        let settings = ConnectionPoolConfig { request_timeout: ANSWER_WAIT_MAX, ..Default::default() };
        let key = env::var(KEY_VARIABLE).ok().map(Secret::new);
        Ok(Self { upstream: Upstream::new(settings, roots), origin, key })
    }

    /// Asks something, and waits for the answer.
    pub(super) fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.exchange(method, path, body))
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, CliError> {
        let mut request = Request::builder().method(method).uri(path);
        if let Some(key) = &self.key {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose()))
                .map_err(|_| format!("{KEY_VARIABLE} holds no key"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let bytes = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let request = request.body(bytes)?;
        let unreached = |error: &dyn std::fmt::Display| format!("{}: {error}", self.origin.authority());
        let response = self.upstream.send(&self.origin, &request).await.map_err(|error| unreached(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
        let bytes = body.map_err(|error| unreached(&error))?.to_bytes();
        let answer = serde_json::from_slice(&bytes).unwrap_or(Value::Null);
        if status.is_success() { Ok(answer) } else { Err(refusal(status, &answer).into()) }
    }
}

fn refusal(status: StatusCode, answer: &Value) -> String {
    let said = answer["error"]["message"].as_str().map_or_else(|| status.to_string(), str::to_owned);
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            format!("{said}; {KEY_VARIABLE} is where it goes")
        }
        _ => said,
    }
}

/// Writes a name as one part of a path.
pub(super) fn segment(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@:".contains(&byte);
    let written = |byte: u8| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(written).collect()
}
