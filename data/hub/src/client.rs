//! Requests to the hub and to where it leads: one exchange, redirects, and tries after faults.
//!
//! The token goes to the hub alone, wherever a redirect leads. A server that is silent is given up
//! after a while, and one that drips is, because a try that brings too little counts as none.

use std::io::Read;
use std::time::Duration;

use tooltune_endpoint::http::{
    Blots, HttpFault, Origin, excerpt, redirect_target, without_secrets,
};
use ureq::http::header::{AUTHORIZATION, LOCATION};
use ureq::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};

use crate::environment::HubSettings;
use crate::error::HubError;
use crate::fetch::{Event, Listener};

/// Redirects that are followed in a row.
const MAX_REDIRECTS: usize = 8;

/// Bytes of the headers of a reply.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// Bytes of an answer of the API; a listing of a thousand files has some 300 KB.
const MAX_ANSWER_BYTES: u64 = 64 << 20;

/// Bytes of an error that are read.
const MAX_ERROR_BYTES: u64 = 16 << 10;

/// Addresses of the one public hub, between which a token may go.
const PUBLIC_HUB: [&str; 2] = ["https://huggingface.co/", "https://hf.co/"];

/// How long what is waited for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Patience {
    /// Until a connection stands.
    pub(crate) connect: Duration,
    /// Without a byte of a reply.
    pub(crate) silence: Duration,
    /// For all of one exchange.
    pub(crate) exchange: Duration,
    /// Between the first two tries; it doubles from one to the next.
    pub(crate) between: Duration,
    /// At most between two tries, also where the hub asks for more.
    pub(crate) longest: Duration,
    /// Tries in a row that may bring nothing.
    pub(crate) tries: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            silence: Duration::from_secs(30),
            exchange: Duration::from_secs(1800),
            between: Duration::from_secs(1),
            longest: Duration::from_secs(120),
            tries: 5,
        }
    }
}

/// Sends requests; may be shared between threads.
#[derive(Debug)]
pub(crate) struct Client {
    agent: ureq::Agent,
    endpoint: String,
    trusted: Vec<Origin>,
    authorization: Option<HeaderValue>,
    blots: Blots,
    pub(crate) patience: Patience,
}

/// What goes out.
#[derive(Debug)]
pub(crate) struct Outgoing<'a> {
    pub(crate) method: Method,
    pub(crate) url: String,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Body<'a>,
}

/// The body of a request, which can be sent again.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Body<'a> {
    /// None.
    Empty,
    /// These bytes.
    Bytes(&'a [u8]),
    /// Bytes that a function opens anew for each try, and their number.
    Opened(&'a dyn Opened, u64),
}

/// Bytes that can be opened more than once.
pub(crate) trait Opened: std::fmt::Debug {
    /// From their beginning.
    ///
    /// # Errors
    ///
    /// They cannot be opened.
    fn open(&self) -> std::io::Result<Box<dyn Read>>;
}

impl<'a> Outgoing<'a> {
    pub(crate) fn get(url: String) -> Self {
        Self {
            method: Method::GET,
            url,
            headers: Vec::new(),
            body: Body::Empty,
        }
    }

    pub(crate) fn post(url: String, kind: &'static str, bytes: &'a [u8]) -> Self {
        Self {
            method: Method::POST,
            url,
            headers: vec![("Content-Type", kind.to_owned())],
            body: Body::Bytes(bytes),
        }
    }
}

/// What came back, its body not read yet.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// Those of the last reply of the hub itself, which says what a file is.
    pub(crate) of_hub: HeaderMap,
    pub(crate) url: String,
    pub(crate) body: ureq::Body,
}

impl Incoming {
    /// The text of a header; nothing where it is absent or no ASCII.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        text_of(&self.headers, name)
    }
}

/// The text of a header.
pub(crate) fn text_of<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Why there is no good reply.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The connection did not stand, or broke.
    Fault(HttpFault),
    /// A status that tells a fault.
    Refused(Box<Refused>),
    /// What no further try changes.
    Final(HubError),
}

/// A reply with a status that tells a fault.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) url: String,
    /// The beginning of its text, without secrets.
    pub(crate) said: String,
}

impl Refused {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        text_of(&self.headers, name)
    }

    /// Seconds that the server asks to wait.
    fn asks_to_wait(&self) -> Option<u64> {
        let after = self
            .header("retry-after")
            .and_then(|text| text.trim().parse().ok());
        let of_limit = || {
            let limit = self.header("ratelimit")?;
            let part = limit
                .split(';')
                .find_map(|part| part.trim().strip_prefix("t="));
            part.and_then(|seconds| seconds.parse().ok())
        };
        after.or_else(of_limit)
    }
}

impl Client {
    /// # Errors
    ///
    /// The endpoint is no address, or the token cannot be sent.
    pub(crate) fn new(settings: &HubSettings, patience: Patience) -> Result<Self, HubError> {
        let bad_endpoint = || HubError::BadEndpoint {
            given: without_secrets(&settings.endpoint),
        };
        if settings.endpoint.contains(['?', '#']) {
            return Err(bad_endpoint());
        }
        let url: Uri = settings.endpoint.parse().map_err(|_| bad_endpoint())?;
        let origin = Origin::of(&url).ok_or_else(bad_endpoint)?;
        let of_public = PUBLIC_HUB
            .iter()
            .filter_map(|url| Origin::of(&url.parse().ok()?));
        let public: Vec<Origin> = of_public.collect();
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(patience.connect))
            .timeout_per_read(Some(patience.silence))
            .timeout_per_write(Some(patience.silence))
            .timeout_global(Some(patience.exchange))
            .max_response_header_size(MAX_HEADER_BYTES)
            .accept_encoding("identity")
            .user_agent(concat!("tooltune/", env!("CARGO_PKG_VERSION")));
        if origin.is_loopback() {
            config = config.proxy(None);
        }
        let authorization = settings.token.as_ref().map(|token| {
            let is_sendable = token.bytes().all(|byte| (0x21..0x7f).contains(&byte));
            let value = HeaderValue::from_str(&format!("Bearer {token}")).ok();
            let mut value = value.filter(|_| is_sendable).ok_or(HubError::BadToken)?;
            value.set_sensitive(true);
            Ok::<_, HubError>(value)
        });
        Ok(Self {
            agent: config.build().new_agent(),
            endpoint: settings.endpoint.clone(),
            trusted: match public.contains(&origin) {
                true => public,
                false => vec![origin],
            },
            authorization: authorization.transpose()?,
            blots: Blots::new(&settings.token.as_deref().into_iter().collect::<Vec<_>>()),
            patience,
        })
    }

    /// The address of the hub, as messages may show it.
    pub(crate) fn endpoint(&self) -> String {
        without_secrets(&self.endpoint)
    }

    /// Whether a token is sent.
    pub(crate) fn has_token(&self) -> bool {
        self.authorization.is_some()
    }

    /// The address of a path of the hub, which begins without a slash.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}/{path}", self.endpoint)
    }

    /// An address of the public hub as this endpoint has it, which may stand before it.
    pub(crate) fn behind_endpoint(&self, url: &str) -> String {
        let of_public = url.strip_prefix("https://huggingface.co/");
        of_public.map_or_else(|| url.to_owned(), |path| self.url(path))
    }

    fn is_trusted(&self, url: &Uri) -> bool {
        Origin::of(url).is_some_and(|origin| self.trusted.contains(&origin))
    }

    /// One exchange without redirects.
    fn exchange(&self, outgoing: &Outgoing<'_>, url: &Uri) -> Result<Incoming, Failure> {
        let mut request = Request::builder()
            .method(outgoing.method.clone())
            .uri(url.clone());
        for (name, value) in &outgoing.headers {
            request = request.header(*name, value);
        }
        if let Some(authorization) = self.authorization.as_ref().filter(|_| self.is_trusted(url)) {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        let of_request = |error: ureq::http::Error| {
            Failure::Final(HubError::NoHub {
                url: without_secrets(&url.to_string()),
                reason: error.to_string(),
            })
        };
        let reply = match outgoing.body {
            Body::Empty if outgoing.method == Method::POST || outgoing.method == Method::PUT => {
                self.agent.run(request.body(&[][..]).map_err(of_request)?)
            }
            Body::Empty => self.agent.run(request.body(()).map_err(of_request)?),
            Body::Bytes(bytes) => self.agent.run(request.body(bytes).map_err(of_request)?),
            Body::Opened(opened, length) => {
                let mut reader = opened.open().map_err(|error| {
                    Failure::Fault(HttpFault::Broken {
                        reason: error.to_string(),
                    })
                })?;
                let request = request.header("Content-Length", length);
                let body = ureq::SendBody::from_reader(&mut reader);
                self.agent.run(request.body(body).map_err(of_request)?)
            }
        };
        let (parts, body) = reply.map_err(|error| self.fault(error))?.into_parts();
        Ok(Incoming {
            status: parts.status,
            of_hub: parts.headers.clone(),
            headers: parts.headers,
            url: url.to_string(),
            body,
        })
    }

    fn fault(&self, error: ureq::Error) -> Failure {
        Failure::Fault(self.http_fault(error))
    }

    pub(crate) fn http_fault(&self, error: ureq::Error) -> HttpFault {
        HttpFault::of(error, self.patience.connect, self.patience.silence)
    }

    /// One exchange, with the redirects that it leads through.
    pub(crate) fn send(&self, outgoing: &Outgoing<'_>) -> Result<Incoming, Failure> {
        let no_hub = |url: &str, reason: &str| {
            Failure::Final(HubError::NoHub {
                url: without_secrets(url),
                reason: reason.to_owned(),
            })
        };
        let mut url: Uri =
            (outgoing.url.parse()).map_err(|_| no_hub(&outgoing.url, "is no address"))?;
        let mut of_hub = HeaderMap::new();
        for _ in 0..MAX_REDIRECTS {
            let mut incoming = self.exchange(outgoing, &url)?;
            if self.is_trusted(&url) {
                of_hub = incoming.headers.clone();
            }
            if !incoming.status.is_redirection() || incoming.status == StatusCode::NOT_MODIFIED {
                if !incoming.status.is_success() && incoming.status.as_u16() != 416 {
                    return Err(Failure::Refused(Box::new(self.refused(incoming))));
                }
                incoming.of_hub = of_hub;
                return Ok(incoming);
            }
            let location = text_of(&incoming.headers, LOCATION.as_str());
            let target = location.and_then(|location| redirect_target(&url, location));
            let target = target.ok_or_else(|| no_hub(&incoming.url, "leads nowhere"))?;
            self.check_redirect(&url, &target).map_err(Failure::Final)?;
            url = target;
        }
        Err(no_hub(
            &outgoing.url,
            "leads from one address to the next without end",
        ))
    }

    fn check_redirect(&self, from: &Uri, to: &Uri) -> Result<(), HubError> {
        let refused = |reason| HubError::Redirect {
            url: without_secrets(&from.to_string()),
            to: without_secrets(&to.to_string()),
            reason,
        };
        let target = Origin::of(to).ok_or_else(|| refused("is no address of http or https"))?;
        match Origin::of(from).is_some_and(|from| from.is_weakened_by(&target)) {
            true => Err(refused("gives up TLS")),
            false => Ok(()),
        }
    }

    fn refused(&self, mut incoming: Incoming) -> Refused {
        let mut bytes = Vec::new();
        // What cannot be read is no more than missing from a message.
        let _ = incoming
            .body
            .as_reader()
            .take(MAX_ERROR_BYTES)
            .read_to_end(&mut bytes);
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let of_json = serde_json::from_str::<serde_json::Value>(&text).ok();
        let of_json = of_json.and_then(|body| body["error"].as_str().map(str::to_owned));
        let of_header = incoming.header("x-error-message").map(str::to_owned);
        let said = of_header.or(of_json).unwrap_or(text);
        Refused {
            status: incoming.status.as_u16(),
            said: excerpt(&self.blots.blot(said)),
            url: without_secrets(&incoming.url),
            headers: incoming.headers,
        }
    }

    /// Tries `work` until it succeeds, fails for good, or has failed too often in a row; `work` says
    /// with a failure whether it has brought anything.
    pub(crate) fn trying<T>(
        &self,
        told: Listener<'_>,
        mut work: impl FnMut() -> Result<T, (Failure, bool)>,
    ) -> Result<T, Failure> {
        let mut n_failed = 0;
        loop {
            let (failure, is_further) = match work() {
                Ok(done) => return Ok(done),
                Err(failed) => failed,
            };
            n_failed = if is_further { 1 } else { n_failed + 1 };
            let wait = match &failure {
                Failure::Final(_) => return Err(failure),
                Failure::Fault(HttpFault::NoConnection { .. }) if n_failed >= 2 => {
                    return Err(failure);
                }
                Failure::Fault(_) => None,
                Failure::Refused(refused) => match refused.status {
                    408 | 429 | 500 | 502 | 503 | 504 => refused.asks_to_wait(),
                    _ => return Err(failure),
                },
            };
            if n_failed >= self.patience.tries {
                return Err(failure);
            }
            let doubled = self.patience.between * 2_u32.saturating_pow(n_failed - 1);
            let wait = wait
                .map_or(doubled, Duration::from_secs)
                .min(self.patience.longest);
            let why = match &failure {
                Failure::Fault(fault) => fault.to_string(),
                Failure::Refused(refused) => format!("{} answers {}", refused.url, refused.status),
                Failure::Final(_) => String::new(),
            };
            told(Event::Waiting {
                seconds: wait.as_secs(),
                why: &why,
            });
            std::thread::sleep(wait);
        }
    }

    /// The JSON of a reply to a request that may be sent again, and its headers.
    pub(crate) fn json(
        &self,
        outgoing: &Outgoing<'_>,
        told: Listener<'_>,
    ) -> Result<(serde_json::Value, HeaderMap), Failure> {
        self.trying(told, || {
            self.json_once(outgoing).map_err(|failure| (failure, false))
        })
    }

    /// The same, sent once.
    pub(crate) fn json_once(
        &self,
        outgoing: &Outgoing<'_>,
    ) -> Result<(serde_json::Value, HeaderMap), Failure> {
        let mut incoming = self.send(outgoing)?;
        let mut bytes = Vec::new();
        let reader = incoming.body.with_config().limit(u64::MAX).reader();
        reader
            .take(MAX_ANSWER_BYTES + 1)
            .read_to_end(&mut bytes)
            .map_err(|error| self.fault(ureq::Error::from(error)))?;
        let no_hub = |reason: String| {
            Failure::Final(HubError::NoHub {
                url: without_secrets(&incoming.url),
                reason,
            })
        };
        if bytes.len() as u64 > MAX_ANSWER_BYTES {
            return Err(no_hub(format!(
                "answers with more than {MAX_ANSWER_BYTES} bytes"
            )));
        }
        let value = serde_json::from_slice(&bytes);
        let value =
            value.map_err(|error| no_hub(format!("answers with what is no JSON ({error})")))?;
        Ok((value, incoming.headers))
    }
}
