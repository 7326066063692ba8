//! A received request: its tenant, its body, and the ticket with which a peer handed it over.

use core::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use evenkeel_cluster::{TICKET_HEADER, Ticket};
use evenkeel_pipeline::RequestId;
use evenkeel_policy::time::Instant;
use evenkeel_server::api_error::ApiError;
use evenkeel_server::body_budget::BodyPermit;
use evenkeel_server::received_body::ReceivedBody;
use evenkeel_server::route::ServerRequest;
use evenkeel_server::sigv4::SignedRequest;
use evenkeel_server::tenant::{Authenticator, Tenant};
use evenkeel_telemetry::RequestName;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};

use crate::api::SqlApi;
use crate::database::Database;
use crate::error::SqlError;

/// Response header of a refused request; a node that forwards it may send it to another peer.
pub(crate) const NOT_SERVED: HeaderName = HeaderName::from_static("x-evenkeel-not-served");
/// Query parameter with the ticket of a redirected request.
pub(crate) const TICKET_PARAMETER: &str = "ticket";

/// A request whose sender is known and whose body was read.
pub(crate) struct ReceivedRequest {
    pub(crate) tenant: Arc<Tenant>,
    /// Set if a peer handed the request over.
    pub(crate) ticket: Option<Ticket>,
    pub(crate) version: Version,
    pub(crate) method: Method,
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    /// Counts the body in the server's budget.
    _permit: BodyPermit,
    pub(crate) ids: RequestIds,
    accepted_at: Instant,
}

/// Ids of a request in the request log.
#[derive(Clone)]
pub(crate) struct RequestIds {
    /// Id that the client sees.
    pub(crate) client: HeaderValue,
    /// Id under which its steps outside the pipeline are recorded.
    pub(crate) outside: RequestId,
}

impl RequestIds {
    pub(crate) fn name(&self) -> RequestName<'_> {
        RequestName { client_id: self.client.as_bytes(), earlier: Some(self.outside) }
    }
}

impl ReceivedRequest {
    /// Reads a request whose API key is in one of the usual headers.
    pub(crate) async fn read(api: &SqlApi, call: ServerRequest) -> Result<Self, ApiError> {
        Self::read_as(api, call, Authenticator::tenant).await
    }

    /// Reads a request; `authenticate` finds its tenant unless it has a ticket, which names the tenant.
    pub(crate) async fn read_as(
        api: &SqlApi,
        mut call: ServerRequest,
        authenticate: impl FnOnce(&Authenticator, &HeaderMap) -> Result<Arc<Tenant>, ApiError>,
    ) -> Result<Self, ApiError> {
        let ticket = call.request.extensions().get::<Ticket>().cloned();
        let tenant = match &ticket {
            Some(ticket) => api.auth.tenant_named(&ticket.tenant)?,
            None => authenticate(&api.auth, call.request.headers())?,
        };
        call.set_tenant(&tenant);
        let body = call.read_body().await?;
        if let Some(ticket) = &ticket {
            ticket.check_body(&body.bytes).map_err(|error| invalid(&error))?;
        }
        Ok(Self::new(api, call, tenant, ticket, body))
    }

    /// Reads a request that an AWS client has signed.
    pub(crate) async fn read_signed(api: &SqlApi, mut call: ServerRequest) -> Result<Self, SqlError> {
        if call.request.extensions().get::<Ticket>().is_some() {
            return Ok(Self::read(api, call).await?);
        }
        let SignedRequest { tenant, body } = api.rds_signatures.authenticate::<SqlError>(&mut call).await?;
        Ok(Self::new(api, call, tenant, None, body))
    }

    fn new(
        api: &SqlApi,
        call: ServerRequest,
        tenant: Arc<Tenant>,
        ticket: Option<Ticket>,
        body: ReceivedBody,
    ) -> Self {
        let ReceivedBody { bytes, permit } = body;
        let (head, _) = call.request.into_parts();
        Self {
            tenant,
            ticket,
            version: head.version,
            method: head.method,
            path: head.uri.path().to_owned(),
            headers: head.headers,
            body: bytes,
            _permit: permit,
            ids: RequestIds { client: call.request_id, outside: api.scheduler.outside_id() },
            accepted_at: call.accepted_at,
        }
    }

    /// Rejects a request that a peer handed over for another database than the one that it names here.
    pub(crate) fn check_database(&self, database: &Database) -> Result<(), ApiError> {
        let Some(ticket) = &self.ticket else { return Ok(()) };
        if ticket.database_id.is_empty() || database.shared_id() == Some(ticket.database_id.as_str()) {
            return Ok(());
        }
        let name = &database.options.name;
        Err(invalid(&format_args!(
            "datasource {name:?} of this node is another database than that of the sender"
        )))
    }

    /// Counts the request against its tenant's requests per minute, unless a peer has counted it.
    pub(crate) fn take_request(&self) -> Result<(), ApiError> {
        match self.ticket {
            Some(_) => Ok(()),
            None => self.tenant.take_request(self.accepted_at),
        }
    }
}

/// The way in which a ticket arrived.
enum TicketSource<'a> {
    /// A peer forwards the request.
    Header(&'a str),
    /// The client follows a redirect.
    Query(&'a str),
}

/// Accepts the ticket of a request that a peer hands over, and keeps it with the request.
///
/// Returns the ticket only if a peer forwarded the request, because only a peer gets a report with the response.
pub(crate) fn accept_ticket(api: &SqlApi, call: &mut ServerRequest) -> Result<Option<Ticket>, ApiError> {
    let request = &call.request;
    let Some(source) = find_ticket(request.uri(), request.headers()) else { return Ok(None) };
    let (TicketSource::Header(text) | TicketSource::Query(text)) = source;
    let Some(cluster) = &api.cluster else { return Err(invalid(&"this node has no peers")) };
    let accepted = cluster.accept_ticket(text, request.method(), request.uri().path());
    let ticket = accepted.map_err(|error| invalid(&error))?;
    let is_forwarded = matches!(source, TicketSource::Header(_));
    call.request.extensions_mut().insert(ticket.clone());
    Ok(is_forwarded.then_some(ticket))
}

fn invalid(reason: &dyn Display) -> ApiError {
    ApiError::InvalidTicket { reason: reason.to_string() }
}

fn find_ticket<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<TicketSource<'a>> {
    if let Some(ticket) = headers.get(TICKET_HEADER) {
        // An unreadable ticket is rejected as malformed.
        return Some(TicketSource::Header(ticket.to_str().unwrap_or_default()));
    }
    let parameters = uri.query()?.split('&').filter_map(|pair| pair.split_once('='));
    parameters
        .filter(|(name, _)| *name == TICKET_PARAMETER)
        .map(|(_, value)| TicketSource::Query(value))
        .next()
}
