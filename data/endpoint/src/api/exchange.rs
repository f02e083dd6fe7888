//! Sends a request and follows its redirects, within one deadline and the allowed hosts.

use std::time::Instant;

use ureq::http::{HeaderValue, Method, Request, Uri, header};

use super::HttpExecutor;
use super::request::CallRequest;
use crate::http::{HttpFault, HttpReply, Origin, redirect_target};

/// Why a call has no reply.
pub(super) enum CallFailure {
    /// The call or the server's redirects are invalid.
    Refused(String),
    /// There is no reply, and the server may have executed the call.
    Unanswered(String),
}

impl From<String> for CallFailure {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}

impl HttpExecutor {
    /// Sends a request and follows its redirects. Returns the first reply that is not a redirect,
    /// or the reason there is none.
    ///
    /// Configured headers are sent only to the origin of the base URL.
    pub(super) fn exchange(&self, mut request: CallRequest) -> Result<HttpReply, CallFailure> {
        let deadline = Instant::now() + self.timeout;
        let url = self.base.join(&request.target);
        let mut url: Uri = url.parse().map_err(|_| "its URL is too long".to_owned())?;
        let mut n_followed = 0;
        loop {
            let remaining_time = deadline.saturating_duration_since(Instant::now());
            let too_late = || HttpFault::Timeout {
                within: self.timeout,
            };
            if remaining_time.is_zero() {
                return Err(CallFailure::Unanswered(too_late().to_string()));
            }
            let built = self.build_request(&request, &url)?;
            let reply = self
                .client
                .send_unless(built, remaining_time, &self.stop)
                .map_err(|fault| {
                    CallFailure::Unanswered(match fault {
                        // The time left after a redirect is not a configured value, so report the
                        // whole timeout.
                        HttpFault::Timeout { .. } => too_late().to_string(),
                        fault => self.redactor.redact(fault.to_string()),
                    })
                })?;
            let location = reply.header(&header::LOCATION);
            let is_redirect = matches!(reply.status.as_u16(), 301 | 302 | 303 | 307 | 308);
            let Some(location) = location.filter(|_| is_redirect) else {
                return Ok(reply);
            };
            if n_followed == self.max_redirects {
                let n = self.max_redirects;
                return Err(format!("the server redirects more than {n} times").into());
            }
            n_followed += 1;
            url = self.allowed_target(&url, location)?;
            request = redirect_request(request, reply.status.as_u16());
        }
    }

    fn allowed_target(&self, current: &Uri, location: &str) -> Result<Uri, String> {
        const NO_URL: &str = "the server redirects to something that is not an http or https URL";
        let target = redirect_target(current, location).ok_or(NO_URL)?;
        let origin = Origin::from_url(&target).ok_or(NO_URL)?;
        if !self.allowed.allows(&origin) {
            return Err(format!(
                "the server redirects to {origin}, which is not in allowed_hosts"
            ));
        }
        if Origin::from_url(current).is_some_and(|current| current.is_weakened_by(&origin)) {
            return Err(format!("the server redirects to {origin} without TLS"));
        }
        Ok(target)
    }

    fn build_request(
        &self,
        request: &CallRequest,
        url: &Uri,
    ) -> Result<Request<Option<Vec<u8>>>, String> {
        let mut builder = Request::builder()
            .method(request.method.clone())
            .uri(url.clone())
            .header(header::ACCEPT, HeaderValue::from_static("application/json"));
        for (name, value) in &request.headers {
            builder = builder.header(name, value);
        }
        let is_home = Origin::from_url(url).as_ref() == Some(self.base.origin());
        for (name, value) in self.secrets.headers().iter().filter(|_| is_home) {
            builder = builder.header(name, value);
        }
        let takes_body = [Method::POST, Method::PUT, Method::PATCH].contains(&request.method);
        let body = match &request.body {
            Some((media_type, bytes)) => {
                builder = builder.header(header::CONTENT_TYPE, media_type);
                Some(bytes.clone())
            }
            // These methods are sent with a length of 0 if they have no body.
            None => takes_body.then(Vec::new),
        };
        let built = builder.body(body);
        built.map_err(|error| format!("the request cannot be sent: {error}"))
    }
}

/// The request after a redirect with this status.
///
/// # Source
///
/// RFC 9110, section 15.4.
fn redirect_request(request: CallRequest, status: u16) -> CallRequest {
    let becomes_get = match status {
        303 => request.method != Method::HEAD,
        301 | 302 => request.method == Method::POST,
        _ => false,
    };
    if becomes_get {
        CallRequest {
            method: Method::GET,
            body: None,
            ..request
        }
    } else {
        request
    }
}
