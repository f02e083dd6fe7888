//! Sends one request and reads its reply, with a deadline and a size limit.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use thiserror::Error;
use ureq::http::{HeaderMap, HeaderName, Request, StatusCode};

use super::PROXY_VARIABLES;
use super::error::HttpConfigError;

/// Maximum bytes of response headers.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// How often a waiting request checks whether its work was stopped.
const TICK: Duration = Duration::from_millis(50);

/// Options of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientOptions {
    /// Connection timeout, including TLS.
    pub(crate) connect_timeout: Duration,
    /// Maximum bytes read of a body.
    pub(crate) max_body_bytes: usize,
    /// What happens to a connection after its reply.
    pub(crate) connections: Connections,
    /// Whether the server is on this machine, so that the environment's proxy is not used.
    pub(crate) is_loopback: bool,
}

/// What happens to a connection after its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connections {
    /// Closed, so no later request can use a connection that the server has dropped.
    Closed,
    /// Kept for the next request.
    Kept,
}

/// Sends requests; can be shared between threads.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    agent: ureq::Agent,
    max_body_bytes: usize,
    connect_timeout: Duration,
}

/// A reply with any status.
#[derive(Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// The body up to the limit; the rest is not read.
    pub(crate) body: Vec<u8>,
    /// Whether the body exceeds the limit.
    pub(crate) is_cut: bool,
}

impl HttpReply {
    /// The value of a header; `None` if it is absent or not ASCII.
    pub(crate) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HttpFault {
    /// Connection timeout.
    #[error("no connection within {within:?}")]
    ConnectTimeout {
        /// The timeout.
        within: Duration,
    },
    /// Timeout before the reply was complete.
    #[error("no complete answer within {within:?}")]
    Timeout {
        /// The timeout.
        within: Duration,
    },
    /// This machine has no network, or the server name cannot be resolved.
    #[error("no network: {reason}")]
    NoNetwork {
        /// The system's error.
        reason: String,
    },
    /// The server could not be reached.
    #[error("no connection: {reason}")]
    NoConnection {
        /// The system's error.
        reason: String,
    },
    /// The connection ended before the reply did, or the reply is not HTTP.
    #[error("the answer broke off: {reason}")]
    Broken {
        /// What was wrong with it.
        reason: String,
    },
    /// The work was stopped before the reply was complete.
    #[error("the work was stopped")]
    Stopped,
}

impl HttpClient {
    /// Creates a client.
    ///
    /// # Errors
    ///
    /// A proxy environment variable is not UTF-8.
    pub(crate) fn new(options: &ClientOptions) -> Result<Self, HttpConfigError> {
        let is_unreadable =
            |name: &&&str| std::env::var_os(name).is_some_and(|value| value.into_string().is_err());
        let proxy = PROXY_VARIABLES.iter().find(is_unreadable);
        if let Some(name) = proxy.filter(|_| !options.is_loopback) {
            return Err(HttpConfigError::VariableNotUtf8 {
                variable: (*name).to_owned(),
            });
        }
        let n_kept = match options.connections {
            Connections::Closed => 0,
            Connections::Kept => 64,
        };
        let mut config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(options.connect_timeout))
            .max_response_header_size(MAX_HEADER_BYTES)
            .max_idle_connections(n_kept)
            .max_idle_connections_per_host(n_kept)
            .user_agent(concat!("tooltune/", env!("CARGO_PKG_VERSION")));
        if options.is_loopback {
            config = config.proxy(None);
        }
        Ok(Self {
            agent: config.build().new_agent(),
            max_body_bytes: options.max_body_bytes,
            connect_timeout: options.connect_timeout,
        })
    }

    /// Sends a request and reads the reply, all within `timeout`.
    ///
    /// # Errors
    ///
    /// The connection fails or breaks, or the reply is not complete in time. A status is never an
    /// error.
    pub(crate) fn send(
        &self,
        request: Request<Option<Vec<u8>>>,
        timeout: Duration,
    ) -> Result<HttpReply, HttpFault> {
        let to_fault = |error| self.fault(error, timeout);
        let (parts, body) = request.into_parts();
        let result = match body {
            Some(body) => self.run(Request::from_parts(parts, body), timeout),
            None => self.run(Request::from_parts(parts, ()), timeout),
        };
        let (parts, mut body) = result.map_err(to_fault)?.into_parts();
        // One byte beyond the limit shows whether there is more.
        let limit = self.max_body_bytes as u64;
        let reader = body.with_config().limit(u64::MAX).reader();
        let mut bytes = Vec::new();
        let read_result = reader.take(limit.saturating_add(1)).read_to_end(&mut bytes);
        read_result.map_err(|error| to_fault(ureq::Error::from(error)))?;
        let is_cut = bytes.len() > self.max_body_bytes;
        bytes.truncate(self.max_body_bytes);
        Ok(HttpReply {
            status: parts.status,
            headers: parts.headers,
            body: bytes,
            is_cut,
        })
    }

    /// Like [`HttpClient::send`], but the request is abandoned as soon as `is_stopped` is set. An
    /// abandoned request continues in its own thread until its timeout or the end of the process.
    ///
    /// # Errors
    ///
    /// As for [`HttpClient::send`], or the work was stopped, or no thread can be started.
    pub(crate) fn send_unless(
        &self,
        request: Request<Option<Vec<u8>>>,
        timeout: Duration,
        is_stopped: &AtomicBool,
    ) -> Result<HttpReply, HttpFault> {
        let (sender, receiver) = channel();
        let client = self.clone();
        let work = move || {
            // The receiver is gone if the work was stopped.
            let _ = sender.send(client.send(request, timeout));
        };
        let thread = std::thread::Builder::new().name("request".to_owned());
        thread
            .spawn(work)
            .map_err(|error| HttpFault::NoConnection {
                reason: format!("cannot start a thread for it: {error}"),
            })?;
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(reply) => return reply,
                Err(RecvTimeoutError::Timeout) if is_stopped.load(Ordering::Relaxed) => {
                    return Err(HttpFault::Stopped);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let reason = "its thread ended without a result".to_owned();
                    return Err(HttpFault::Broken { reason });
                }
            }
        }
    }

    fn run<B: ureq::AsSendBody>(
        &self,
        request: Request<B>,
        timeout: Duration,
    ) -> Result<ureq::http::Response<ureq::Body>, ureq::Error> {
        let request = self.agent.configure_request(request);
        self.agent
            .run(request.timeout_global(Some(timeout)).build())
    }

    fn fault(&self, error: ureq::Error, timeout: Duration) -> HttpFault {
        HttpFault::from_error(error, self.connect_timeout.min(timeout), timeout)
    }
}

impl HttpFault {
    /// Converts an error of the client. `connect_timeout` is the connection timeout, `timeout` the
    /// timeout of the whole request.
    pub fn from_error(error: ureq::Error, connect_timeout: Duration, timeout: Duration) -> Self {
        use std::io::ErrorKind;
        match error {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                HttpFault::ConnectTimeout {
                    within: connect_timeout,
                }
            }
            ureq::Error::Timeout(_) => HttpFault::Timeout { within: timeout },
            ureq::Error::HostNotFound => HttpFault::NoNetwork {
                reason: "the server name has no address".to_owned(),
            },
            ureq::Error::Io(error) if error.kind() == ErrorKind::TimedOut => {
                HttpFault::Timeout { within: timeout }
            }
            ureq::Error::Io(error) if is_without_network(&error) => HttpFault::NoNetwork {
                reason: error.to_string(),
            },
            ureq::Error::Io(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused
                        | ErrorKind::HostUnreachable
                        | ErrorKind::AddrNotAvailable
                        // This kind means an untrusted certificate.
                        | ErrorKind::InvalidData
                ) =>
            {
                HttpFault::Broken {
                    reason: error.to_string(),
                }
            }
            ureq::Error::Protocol(error) => HttpFault::Broken {
                reason: error.to_string(),
            },
            ureq::Error::Io(error) => HttpFault::NoConnection {
                reason: error.to_string(),
            },
            other => HttpFault::NoConnection {
                reason: other.to_string(),
            },
        }
    }

    /// Whether no server was reached and the system reported this at once.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::NoNetwork { .. } | Self::NoConnection { .. })
    }
}

/// Whether the system has no route to the server, or no address for its name.
fn is_without_network(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NetworkDown, NetworkUnreachable};
    // The standard library has no error kind for a failed lookup.
    let is_lookup = || {
        let text = error.to_string();
        error.raw_os_error().is_none() && text.starts_with("failed to lookup address")
    };
    matches!(error.kind(), NetworkDown | NetworkUnreachable) || is_lookup()
}
