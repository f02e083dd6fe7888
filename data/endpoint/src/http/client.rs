//! One request, one reply, within one deadline and one limit of size.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use thiserror::Error;
use ureq::http::{HeaderMap, HeaderName, Request, StatusCode};

/// Bytes of a response's headers that are read.
const MAX_HEADER_BYTES: usize = 64 << 10;

/// How often a request that waits looks whether its work was stopped.
const TICK: Duration = Duration::from_millis(50);

/// What a client is made of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ClientOptions {
    /// Until a connection stands, TLS included.
    pub(crate) connect_timeout: Duration,
    /// Bytes of a body that are read.
    pub(crate) max_body_bytes: usize,
    /// What becomes of a connection after its reply.
    pub(crate) connections: Connections,
    /// Whether the server is on this machine, so that no proxy of the environment is used.
    pub(crate) is_loopback: bool,
}

/// What becomes of a connection after its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Connections {
    /// It is closed: no later request can meet one that the server has given up.
    Closed,
    /// It waits for the next request.
    Kept,
}

/// Sends requests; may be shared between threads.
#[derive(Debug, Clone)]
pub(crate) struct HttpClient {
    agent: ureq::Agent,
    max_body_bytes: usize,
    connect_timeout: Duration,
}

/// What came back, whatever its status.
#[derive(Debug)]
pub(crate) struct HttpReply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    /// At most the limit; the rest was not read.
    pub(crate) body: Vec<u8>,
    /// Whether there was more.
    pub(crate) is_cut: bool,
}

impl HttpReply {
    /// The text of a header; nothing where it is absent or no ASCII.
    pub(crate) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Why nothing came back.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum HttpFault {
    /// The server could not be reached in time.
    #[error("no connection within {within:?}")]
    ConnectTimeout {
        /// How long it was waited for.
        within: Duration,
    },
    /// The reply was not there in time, or not all of it.
    #[error("no whole answer within {within:?}")]
    Timeout {
        /// How long it was waited for.
        within: Duration,
    },
    /// The server could not be reached.
    #[error("no connection: {reason}")]
    NoConnection {
        /// What the system says.
        reason: String,
    },
    /// The connection ended before the reply did, or what came is no HTTP.
    #[error("the answer broke off: {reason}")]
    Broken {
        /// What was wrong with it.
        reason: String,
    },
    /// The work was stopped before the reply was there.
    #[error("the work was stopped")]
    Stopped,
}

impl HttpClient {
    pub(crate) fn new(options: &ClientOptions) -> Self {
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
        Self {
            agent: config.build().new_agent(),
            max_body_bytes: options.max_body_bytes,
            connect_timeout: options.connect_timeout,
        }
    }

    /// Sends a request and reads the reply, all within `timeout`.
    ///
    /// # Errors
    ///
    /// - no connection, a broken one, or no whole reply in time; a status is never an error
    pub(crate) fn send(
        &self,
        request: Request<Option<Vec<u8>>>,
        timeout: Duration,
    ) -> Result<HttpReply, HttpFault> {
        let fault = |error| self.fault(error, timeout);
        let (parts, body) = request.into_parts();
        let sent = match body {
            Some(body) => self.run(Request::from_parts(parts, body), timeout),
            None => self.run(Request::from_parts(parts, ()), timeout),
        };
        let (parts, mut body) = sent.map_err(fault)?.into_parts();
        // One byte beyond the limit tells whether there is more.
        let limit = self.max_body_bytes as u64;
        let reader = body.with_config().limit(u64::MAX).reader();
        let mut bytes = Vec::new();
        let read = reader.take(limit.saturating_add(1)).read_to_end(&mut bytes);
        read.map_err(|error| fault(ureq::Error::from(error)))?;
        let is_cut = bytes.len() > self.max_body_bytes;
        bytes.truncate(self.max_body_bytes);
        Ok(HttpReply {
            status: parts.status,
            headers: parts.headers,
            body: bytes,
            is_cut,
        })
    }

    /// As [`HttpClient::send`], but given up at once when `is_stopped`: the request is then left to
    /// a thread of its own, which ends with its timeout or with the process.
    ///
    /// # Errors
    ///
    /// - those of [`HttpClient::send`]
    /// - the work was stopped, or the system gives no thread
    pub(crate) fn send_unless(
        &self,
        request: Request<Option<Vec<u8>>>,
        timeout: Duration,
        is_stopped: &AtomicBool,
    ) -> Result<HttpReply, HttpFault> {
        let (sender, receiver) = channel();
        let client = self.clone();
        let work = move || {
            // Nobody listens any more where the work was stopped.
            let _ = sender.send(client.send(request, timeout));
        };
        let thread = std::thread::Builder::new().name("request".to_owned());
        thread
            .spawn(work)
            .map_err(|error| HttpFault::NoConnection {
                reason: format!("the system gives no thread for it: {error}"),
            })?;
        loop {
            match receiver.recv_timeout(TICK) {
                Ok(reply) => return reply,
                Err(RecvTimeoutError::Timeout) if is_stopped.load(Ordering::Relaxed) => {
                    return Err(HttpFault::Stopped);
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    let reason = "its thread ended without a word".to_owned();
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
        HttpFault::of(error, self.connect_timeout.min(timeout), timeout)
    }
}

impl HttpFault {
    /// What an error of the client means, where a connection had `to_connect` and all of the request
    /// `timeout`.
    pub fn of(error: ureq::Error, to_connect: Duration, timeout: Duration) -> Self {
        use std::io::ErrorKind;
        match error {
            ureq::Error::Timeout(ureq::Timeout::Connect | ureq::Timeout::Resolve) => {
                HttpFault::ConnectTimeout { within: to_connect }
            }
            ureq::Error::Timeout(_) => HttpFault::Timeout { within: timeout },
            ureq::Error::Io(error) if error.kind() == ErrorKind::TimedOut => {
                HttpFault::Timeout { within: timeout }
            }
            ureq::Error::Io(error)
                if !matches!(
                    error.kind(),
                    ErrorKind::ConnectionRefused
                        | ErrorKind::HostUnreachable
                        | ErrorKind::NetworkUnreachable
                        | ErrorKind::AddrNotAvailable
                        // A certificate that is not trusted.
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
}
