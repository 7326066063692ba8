//! Serves a request in either protocol: authentication, audit record, operation, response, metrics.

use std::sync::Arc;
use std::time::Instant;

use evenkeel_server::api_error::ApiError;
use evenkeel_server::audit_trail::{AuditGuard, AuditScope};
use evenkeel_server::body::Response;
use evenkeel_server::route::{Handler, RateLimit, Route, RouteError, Routes, ServerRequest, handler};
use evenkeel_server::sigv4::{ALGORITHM, SignedRequest};
use evenkeel_server::tenant::{Access, Caller, Tenant};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderName, Method};
use serde_json::Value;

use crate::api::{RequestContext, SqsApi, header_text, host_of};
use crate::chunked_body::chunked;
use crate::error::{REQUEST_ID, SqsError, get_error, post_error};
use crate::form::Form;
use crate::operation::Operation;
use crate::protocol::{Parameters, Protocol, TARGET, has_action};

const TRACE: HeaderName = HeaderName::from_static("x-amzn-trace-id");
/// Version of the query protocol that every SDK sends.
const VERSION: &str = "2012-11-05";

/// Result of a request.
struct ServeResult {
    /// `None` if the request names no operation, or was refused before its body was read.
    operation: Option<Operation>,
    audit: Option<AuditGuard>,
    result: Result<Response, SqsError>,
}

impl ServeResult {
    fn refused(error: SqsError) -> Self {
        Self { operation: None, audit: None, result: Err(error) }
    }
}

impl SqsApi {
    /// Adds the routes of SQS clients: `/` and queue URLs, by `POST` and by `GET`.
    ///
    /// `about` responds to `GET /` without an operation.
    pub fn add_routes(self: &Arc<Self>, routes: &mut Routes, about: Handler) -> Result<(), RouteError> {
        for (method, path) in
            [(Method::POST, "/"), (Method::POST, "/{account}/*"), (Method::GET, "/{account}/*")]
        {
            let sqs = self.clone();
            routes.add_route(path, route(method, handler(move |request| sqs.clone().serve(request))))?;
        }
        let sqs = self.clone();
        let root: Handler = Arc::new(move |request| {
            let is_get = request.request.method() == Method::GET;
            if is_get && has_action(&request) {
                return Box::pin(sqs.clone().serve(request));
            }
            let about = about(request);
            Box::pin(async { Ok(about.await.unwrap_or_else(ApiError::into_response)) })
        });
        routes.add_route("/", route(Method::GET, root))
    }

    async fn serve(self: Arc<Self>, mut request: ServerRequest) -> Result<Response, ApiError> {
        let started = Instant::now();
        let request_id = request.request_id.clone();
        let protocol = Protocol::of(&request);
        let ServeResult { operation, audit, result } = match protocol {
            Protocol::Json => self.serve_json(&mut request).await,
            Protocol::Query => self.serve_query(&mut request).await,
        };
        match (&result, operation) {
            (Ok(_), Some(operation)) => self.metrics.succeeded(operation, started.elapsed()),
            (Ok(_), None) => {}
            (Err(error), operation) => self.metrics.failed(operation, error.code()),
        }
        let error = result.as_ref().err().filter(|_| audit.is_some()).map(ToString::to_string);
        let id = request_id.to_str().unwrap_or_default();
        let mut response = result.unwrap_or_else(|error| error.to_response(protocol, id));
        if let Some(audit) = audit {
            audit.finish(response.status(), error);
        }
        response.headers_mut().insert(REQUEST_ID, request_id);
        Ok(response)
    }

    async fn serve_json(&self, request: &mut ServerRequest) -> ServeResult {
        let target = header_text(request, &TARGET);
        let Some(operation) = target.and_then(Operation::from_target) else {
            return ServeResult::refused(SqsError::UnknownOperation);
        };
        // Before authentication, so that refused requests are recorded too.
        let audit = self.begin_audit(operation, request);
        let result = match self.authenticate(request).await {
            Ok(SignedRequest { tenant, body }) => {
                self.run_for(operation, Protocol::Json, &tenant, request, Parameters::Json(&body.bytes)).await
            }
            Err(error) => Err(error),
        };
        ServeResult { operation: Some(operation), audit, result }
    }

    /// The operation is known only after authentication, because it is part of the body.
    async fn serve_query(&self, request: &mut ServerRequest) -> ServeResult {
        let SignedRequest { tenant, body } = match self.authenticate(request).await {
            Ok(signed) => signed,
            Err(error) => {
                let audit = self.audit(request, "SQS".to_owned());
                return ServeResult { audit, ..ServeResult::refused(error) };
            }
        };
        let (operation, parameters) = match parse(request, &body.bytes) {
            Ok(parsed) => parsed,
            Err(error) => return ServeResult::refused(error),
        };
        let audit = self.begin_audit(operation, request);
        request.audit.set_caller(&request.caller);
        request.audit.set_request(&parameters);
        let result = match check_cross_site(operation, &tenant, request) {
            Ok(()) => {
                let parameters = Parameters::Query(parameters);
                self.run_for(operation, Protocol::Query, &tenant, request, parameters).await
            }
            Err(error) => Err(error),
        };
        ServeResult { operation: Some(operation), audit, result }
    }

    async fn authenticate(&self, request: &mut ServerRequest) -> Result<SignedRequest, SqsError> {
        self.signatures.authenticate(request).await
    }

    /// Begins the audit record of an operation that changes queues; `None` for others.
    fn begin_audit(&self, operation: Operation, request: &mut ServerRequest) -> Option<AuditGuard> {
        if !operation.is_change() {
            return None;
        }
        self.audit(request, format!("SQS {}", operation.name()))
    }

    fn audit(&self, request: &mut ServerRequest, action: String) -> Option<AuditGuard> {
        let id = request.request_id.to_str().unwrap_or_default().to_owned();
        let audit = self.auth.audit(request.peer.ip(), id, action)?;
        request.audit = audit.note();
        Some(audit)
    }

    async fn run_for(
        &self,
        operation: Operation,
        protocol: Protocol,
        tenant: &Arc<Tenant>,
        request: &ServerRequest,
        parameters: Parameters<'_>,
    ) -> Result<Response, SqsError> {
        tenant.take_request(request.accepted_at)?;
        let context = RequestContext {
            host: host_of(request),
            operation,
            protocol,
            request_id: request.request_id.to_str().unwrap_or_default().to_owned(),
            caller: Caller::Tenant(tenant.clone()),
            trace: header_text(request, &TRACE).map(str::to_owned),
            disconnect: request.disconnect.clone(),
        };
        let encoded = self.run(&context, parameters).await?;
        let mut response = Response::new(chunked(encoded));
        response.headers_mut().insert(CONTENT_TYPE, protocol.content_type());
        Ok(response)
    }
}

fn route(method: Method, handler: Handler) -> Route {
    Route {
        error_format: if method == Method::GET { get_error } else { post_error },
        method,
        // The API verifies the SigV4 signatures itself.
        access: Access::Public,
        rate_limit: RateLimit::Server,
        handler,
        audit: AuditScope::All,
    }
}

/// Parses a request of the query protocol: the operation, and its parameters as JSON.
fn parse(request: &ServerRequest, body: &[u8]) -> Result<(Operation, Value), SqsError> {
    let uri = request.request.uri();
    let mut form = Form::parse(uri.query().unwrap_or_default(), body)?;
    if let Some(version) = form.text("Version").filter(|version| *version != VERSION) {
        return Err(SqsError::NoVersion { version: version.to_owned() });
    }
    let missing = match *request.request.method() {
        Method::POST => SqsError::NoAction,
        _ => SqsError::UnknownOperation,
    };
    // The routes of GET also match HEAD, whose response could not carry messages.
    let action = form.text("Action").filter(|_| request.request.method() != Method::HEAD).ok_or(missing)?;
    let is_queue_url = uri.path() != "/";
    let operation = Operation::from_name(action).filter(|operation| !is_queue_url || operation.is_on_queue());
    let operation = operation.ok_or_else(|| SqsError::UnknownAction { action: action.to_owned() })?;
    if is_queue_url {
        form.set_default("QueueUrl", queue_path(uri.path())?);
    }
    Ok((operation, form.into_json()?))
}

/// Returns a path that names a queue, unless it has dot segments or double slashes.
///
/// The signature is over the path without them, so with them the path could name another queue than the signed one.
fn queue_path(path: &str) -> Result<&str, SqsError> {
    let mut segments = path.trim_matches('/').split('/');
    let is_canonical = !path.starts_with("//") && segments.all(|part| !matches!(part, "" | "." | ".."));
    if is_canonical { Ok(path) } else { Err(SqsError::NoQueue) }
}

/// Rejects a change by `GET` that a web page of another site may have sent to a server without tenants.
///
/// Browsers send `Origin` or `Sec-Fetch-Site`, which the server checks, with forms and scripts, but to a plain HTTP address
/// not with images and links. No page can add a signature to the header `Authorization` of those.
fn check_cross_site(operation: Operation, tenant: &Tenant, request: &ServerRequest) -> Result<(), SqsError> {
    let is_get = request.request.method() == Method::GET;
    let is_signed = header_text(request, &AUTHORIZATION).is_some_and(|value| value.starts_with(ALGORITHM));
    if is_get && tenant.is_open() && !operation.is_read() && !is_signed {
        return Err(SqsError::UnsignedGet);
    }
    Ok(())
}
