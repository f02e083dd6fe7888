//! A request and its redirects, within one deadline and the allowed hosts.

use std::time::Instant;

use ureq::http::{HeaderValue, Method, Request, Uri, header};

use super::HttpExecutor;
use super::request::CallRequest;
use crate::http::{HttpFault, HttpReply, Origin, redirect_target};

/// Why there is no reply to a call.
pub(super) enum NoReply {
    /// The call or what was answered is at fault.
    Refused(String),
    /// Nobody knows what would have been answered.
    Unanswered(String),
}

impl From<String> for NoReply {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}

impl HttpExecutor {
    /// Sends a request and follows its redirects; the reply that is none, or why there is none.
    ///
    /// Configured headers go to the base URL's own origin alone.
    pub(super) fn exchange(&self, mut request: CallRequest) -> Result<HttpReply, NoReply> {
        let deadline = Instant::now() + self.timeout;
        let url = self.base.join(&request.target);
        let mut url: Uri = url.parse().map_err(|_| "its URL is too long".to_owned())?;
        let mut n_followed = 0;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let too_late = || HttpFault::Timeout {
                within: self.timeout,
            };
            if left.is_zero() {
                return Err(NoReply::Unanswered(too_late().to_string()));
            }
            let built = self.built(&request, &url)?;
            let reply = self
                .client
                .send_unless(built, left, &self.stop)
                .map_err(|fault| {
                    NoReply::Unanswered(match fault {
                        // What is left after a redirect is no time that anyone configured.
                        HttpFault::Timeout { .. } => too_late().to_string(),
                        fault => self.blots.blot(fault.to_string()),
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
            request = redirected(request, reply.status.as_u16());
        }
    }

    fn allowed_target(&self, current: &Uri, location: &str) -> Result<Uri, String> {
        const NO_URL: &str = "the server redirects to what is no URL of http or https";
        let target = redirect_target(current, location).ok_or(NO_URL)?;
        let origin = Origin::of(&target).ok_or(NO_URL)?;
        if !self.allowed.holds(&origin) {
            return Err(format!(
                "the server redirects to {origin}, which is not in allowed_hosts"
            ));
        }
        if Origin::of(current).is_some_and(|current| current.is_weakened_by(&origin)) {
            return Err(format!("the server redirects to {origin} without TLS"));
        }
        Ok(target)
    }

    fn built(&self, request: &CallRequest, url: &Uri) -> Result<Request<Option<Vec<u8>>>, String> {
        let mut builder = Request::builder()
            .method(request.method.clone())
            .uri(url.clone())
            .header(header::ACCEPT, HeaderValue::from_static("application/json"));
        for (name, value) in &request.headers {
            builder = builder.header(name, value);
        }
        let is_home = Origin::of(url).as_ref() == Some(self.base.origin());
        for (name, value) in self.secrets.headers().iter().filter(|_| is_home) {
            builder = builder.header(name, value);
        }
        let takes_body = [Method::POST, Method::PUT, Method::PATCH].contains(&request.method);
        let body = match &request.body {
            Some((media_type, bytes)) => {
                builder = builder.header(header::CONTENT_TYPE, media_type);
                Some(bytes.clone())
            }
            // These are sent with a length of 0 where there is nothing to send.
            None => takes_body.then(Vec::new),
        };
        let built = builder.body(body);
        built.map_err(|error| format!("the request cannot be sent: {error}"))
    }
}

/// The request after a redirect of this status.
///
/// # Source
///
/// RFC 9110, section 15.4.
fn redirected(request: CallRequest, status: u16) -> CallRequest {
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
