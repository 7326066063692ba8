//! HTTP client of a running server.

use std::env;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use evenkeel::admin_key;
use evenkeel::data_dir::DataDir;
use evenkeel_policy::backpressure::ConnectionPoolConfig;
use evenkeel_telemetry::Secret;
use evenkeel_upstream::{LinkLocalPolicy, Origin, TlsRoots, Upstream, UpstreamBody};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use serde_json::Value;

use super::CliError;
use super::settings::SettingsArgs;

/// Environment variable with the admin key; a flag would be visible in `ps`.
const KEY_VARIABLE: &str = "EVENKEEL_ADMIN_KEY";
const RESPONSE_BYTES_MAX: usize = 64 * 1024 * 1024;
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// URL of the server, and the certificate authorities to trust.
#[derive(Debug, Args)]
pub(super) struct ServerArgs {
    /// URL of the server; its admin key is read from EVENKEEL_ADMIN_KEY [default: the running server that uses
    /// --data-dir, with the admin key that it stored there if the variable is not set; if none runs, the configured
    /// listen address, except that `tenant` uses the directory directly; EVENKEEL_ADMIN_KEY is sent to a listen address
    /// only if it is on this machine]
    #[arg(long, value_name = "URL")]
    pub(super) url: Option<String>,
    /// PEM file with certificate authorities to trust in addition to the public ones
    #[arg(long, value_name = "FILE")]
    ca_file: Option<PathBuf>,
}

/// URL of the server, or the configuration from which it is derived.
#[derive(Debug, Args)]
pub(super) struct ConnectArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    settings: SettingsArgs,
}

impl ConnectArgs {
    /// Creates a client for the given URL, or else for the server that uses the data directory, or else for the
    /// configured listen address.
    pub(super) fn client(&self) -> Result<AdminClient, CliError> {
        if let Some(url) = &self.server.url {
            return AdminClient::for_url(url, &self.server, &self.settings);
        }
        let config = self.settings.read()?;
        match DataDir::server_urls(&config.server.data_dir) {
            Some(urls) => AdminClient::announced(&urls.admin, &config.server.data_dir, &self.server),
            None => {
                let address = config.server.admin_listen.unwrap_or(config.server.listen);
                AdminClient::configured(address, &self.server)
            }
        }
    }

    /// Creates a client that sends another key and has another time limit.
    pub(super) fn http_client(
        &self,
        key: Option<Secret<String>>,
        response_timeout: Duration,
    ) -> Result<HttpClient, CliError> {
        HttpClient::new(&self.url()?, &self.server, key, response_timeout)
    }

    fn url(&self) -> Result<String, CliError> {
        if let Some(url) = &self.server.url {
            return Ok(url.clone());
        }
        let config = self.settings.read()?;
        let running = DataDir::server_urls(&config.server.data_dir).map(|urls| urls.public);
        Ok(running.unwrap_or_else(|| format!("http://{}", config.server.listen)))
    }
}

/// Client of one server.
pub(super) struct HttpClient {
    upstream: Upstream,
    origin: Origin,
    key: Option<Secret<String>>,
}

impl HttpClient {
    fn new(
        url: &str,
        args: &ServerArgs,
        key: Option<Secret<String>>,
        response_timeout: Duration,
    ) -> Result<Self, CliError> {
        let origin = Origin::parse(url).map_err(|error| format!("{url}: {error}"))?;
        let roots = match &args.ca_file {
            Some(file) => TlsRoots::public().with_file(file)?,
            None => TlsRoots::public(),
        };
        let settings = ConnectionPoolConfig { request_timeout: response_timeout, ..Default::default() };
        // The user names the server.
        let upstream = Upstream::new(settings, roots).with_link_local(LinkLocalPolicy::Allow);
        Ok(Self { upstream, origin, key })
    }

    /// Adds the key to a request, sends it, and waits for the head of the response.
    pub(super) async fn send(&self, mut request: Request<Bytes>) -> Result<Response<UpstreamBody>, CliError> {
        if let Some(key) = &self.key {
            let mut value = HeaderValue::try_from(format!("Bearer {}", key.expose()))
                .map_err(|_| "the API key contains characters that no key has")?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        let sent = self.upstream.send(&self.origin, &request).await;
        sent.map_err(|error| self.with_authority(&error))
    }

    /// Returns an error that names the server.
    pub(super) fn with_authority(&self, error: &dyn std::fmt::Display) -> CliError {
        format!("{}: {error}", self.origin.authority()).into()
    }
}

/// Client that sends the admin key.
pub(super) struct AdminClient {
    http: HttpClient,
    key_source: KeySource,
}

/// Origin of the admin key that a client sends.
#[derive(Clone, Debug)]
enum KeySource {
    Environment,
    /// The admin key of the data directory, which goes only to the server that uses the directory.
    File(PathBuf),
    None,
}

impl AdminClient {
    /// Creates a client that sends no key.
    pub(super) fn unauthenticated(url: &str) -> Result<Self, CliError> {
        let args = ServerArgs { url: None, ca_file: None };
        let http = HttpClient::new(url, &args, None, RESPONSE_TIMEOUT)?;
        Ok(Self { http, key_source: KeySource::None })
    }

    /// Creates a client for the server that announced this URL in the data directory.
    pub(super) fn announced(url: &str, data_dir: &Path, args: &ServerArgs) -> Result<Self, CliError> {
        if env::var_os(KEY_VARIABLE).is_some() {
            return Self::without_file(url, args);
        }
        let Some(key) = admin_key::read(data_dir)? else { return Self::without_file(url, args) };
        let http = HttpClient::new(url, args, Some(key), RESPONSE_TIMEOUT)?;
        Ok(Self { http, key_source: KeySource::File(admin_key::path(data_dir)) })
    }

    /// Creates a client for the configured listen address. It sends the admin key only to this machine: the
    /// configuration may come from a working directory of another user, and plain HTTP can be read on the way.
    fn configured(address: SocketAddr, args: &ServerArgs) -> Result<Self, CliError> {
        let url = format!("http://{address}");
        // Connections to the unspecified address reach this machine.
        let is_here = address.ip().to_canonical().is_loopback() || address.ip().is_unspecified();
        if !is_here && env::var_os(KEY_VARIABLE).is_some() {
            return Err(format!(
                "no server runs in the data directory, and {KEY_VARIABLE} is not sent to {address}, which only the \
                 configuration names; pass --url with the server's URL, such as --url {url}"
            )
            .into());
        }
        Self::without_file(&url, args)
    }

    /// Creates a client for a URL that the user gave. It sends the key of the data directory only if the server that
    /// uses the directory announced exactly this URL.
    pub(super) fn for_url(url: &str, args: &ServerArgs, settings: &SettingsArgs) -> Result<Self, CliError> {
        // The URL is enough for a client, so errors in the configuration do not matter.
        let data_dir = settings.read().map(|config| config.server.data_dir).ok();
        let is_announced = |path: &PathBuf| DataDir::server_urls(path).is_some_and(|urls| urls.admin == url);
        let announced = data_dir.filter(is_announced);
        match announced {
            Some(data_dir) => Self::announced(url, &data_dir, args),
            None => Self::without_file(url, args),
        }
    }

    /// Creates a client whose only source of a key is the environment.
    fn without_file(url: &str, args: &ServerArgs) -> Result<Self, CliError> {
        let key = env::var(KEY_VARIABLE).ok().map(Secret::new);
        let key_source = if key.is_some() { KeySource::Environment } else { KeySource::None };
        Ok(Self { http: HttpClient::new(url, args, key, RESPONSE_TIMEOUT)?, key_source })
    }

    /// Sends a request and returns the JSON response, or an error if the status is not 2xx.
    pub(super) fn request(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, CliError> {
        match self.send_blocking(method, path, body)? {
            (status, value) if status.is_success() => Ok(value),
            (status, value) => Err(self.error_message(status, &value).into()),
        }
    }

    /// Returns a resource, or `None` if it does not exist.
    pub(super) fn get_optional(&self, path: &str) -> Result<Option<Value>, CliError> {
        match self.send_blocking(Method::GET, path, None)? {
            (StatusCode::NOT_FOUND, _) => Ok(None),
            (status, value) if status.is_success() => Ok(Some(value)),
            (status, value) => Err(self.error_message(status, &value).into()),
        }
    }

    fn send_blocking(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), CliError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(self.send(method, path, body))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, Value), CliError> {
        let mut request = Request::builder().method(method).uri(path);
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let bytes = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let response = self.http.send(request.body(bytes)?).await?;
        let status = response.status();
        let body = Limited::new(response.into_body(), RESPONSE_BYTES_MAX).collect().await;
        let bytes = body.map_err(|error| self.http.with_authority(&error))?.to_bytes();
        Ok((status, serde_json::from_slice(&bytes).unwrap_or(Value::Null)))
    }

    fn error_message(&self, status: StatusCode, response: &Value) -> String {
        let message = response["error"]["message"].as_str().map_or_else(|| status.to_string(), str::to_owned);
        if !matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            return message;
        }
        match &self.key_source {
            KeySource::Environment => format!("{message}; {KEY_VARIABLE} is not an admin key of this server"),
            KeySource::File(path) => {
                let path = path.display();
                format!(
                    "{message}; the server does not accept the key in {path}, set {KEY_VARIABLE} to the admin key"
                )
            }
            KeySource::None => format!(
                "{message}; set {KEY_VARIABLE} to the admin key, or give the server's --data-dir instead of --url \
                 to use the key that it created there"
            ),
        }
    }
}

/// Percent-encodes a name for use as one path segment.
pub(super) fn encode_segment(name: &str) -> String {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@:".contains(&byte);
    let encode =
        |byte: u8| if is_allowed(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") };
    name.bytes().map(encode).collect()
}
