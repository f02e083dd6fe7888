//! One endpoint, asked once or many times at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use tooltune_rows::text::Message;
use ureq::http::{Request, Uri, header};

use super::answer::{self, ChatAnswer, NoAnswer};
use super::error::EndpointError;
use super::fault::FaultKind;
use super::formats;
use super::options::{ChatOptions, EndpointOptions, OptionNames};
use super::pool::in_parallel;
use super::waits::{Backoff, pause, retry_after, wait};
use super::wire;
use crate::http::{
    BaseUrl, Blots, ClientOptions, Connections, Environment, HttpClient, HttpConfigError,
    HttpFault, HttpReply, SecretHeaders, checked_bytes, checked_secs, excerpt, process_environment,
};

/// Attempts after the first that any configuration may ask for.
const MOST_RETRIES: usize = 20;

/// A server of chat completions with one of its models.
#[derive(Debug)]
pub struct ChatEndpoint {
    client: HttpClient,
    url: String,
    target: Uri,
    model: String,
    secrets: SecretHeaders,
    blots: Blots,
    timeout: Duration,
    total: Duration,
    retries: usize,
    backoff: Backoff,
    names: OptionNames,
    /// Whether the server has refused `json_schema` and is asked in the older spelling.
    is_older: AtomicBool,
}

/// How far many requests are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndpointProgress {
    /// Requests that have their answer or have failed.
    pub n_done: usize,
    /// Those of them that failed.
    pub n_failed: usize,
    /// All requests.
    pub n_all: usize,
}

/// Messages and what is asked of the text after them.
#[derive(Debug, Clone, Copy)]
pub struct ChatRequest<'a> {
    /// The messages.
    pub messages: &'a [Message],
    /// What the request says beside them.
    pub options: &'a ChatOptions,
}

/// How far many requests are, and what has just come.
#[derive(Debug, Clone, Copy)]
pub struct Answered<'a> {
    /// How far they are.
    pub progress: EndpointProgress,
    /// A request by its number with its answer, if one has just got it.
    pub latest: Option<(usize, &'a Result<ChatAnswer, EndpointError>)>,
}

/// What one attempt came to.
enum Attempt {
    Answer(ChatAnswer),
    /// Another attempt may do better, after this wait if the server names one.
    Again(FaultKind, String, Option<Duration>),
    /// The server knows another spelling of the format.
    OtherFormat(EndpointError),
    Never(EndpointError),
    /// The work was stopped.
    Stopped,
}

impl ChatEndpoint {
    /// Makes an endpoint whose key comes from the environment of this process.
    ///
    /// # Errors
    ///
    /// - those of [`ChatEndpoint::with_environment`]
    pub fn new(options: &EndpointOptions) -> Result<Self, EndpointError> {
        Self::with_environment(options, &process_environment)
    }

    /// Makes an endpoint; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// - the base URL is none, or the model has no name
    /// - the variable of the key is not set, or its value cannot be sent
    /// - a time, a number of retries or a limit is out of its range
    pub fn with_environment(
        options: &EndpointOptions,
        environment: Environment<'_>,
    ) -> Result<Self, EndpointError> {
        let bad = |field, reason: String| HttpConfigError::BadOption { field, reason };
        if options.model.trim().is_empty() {
            let reason = "is empty; give the server's name for the model".to_owned();
            return Err(bad(options.names.model, reason).into());
        }
        if options.retries > MOST_RETRIES {
            let reason = format!("is {}; give at most {MOST_RETRIES}", options.retries);
            return Err(bad("retries", reason).into());
        }
        let base = BaseUrl::parse(options.names.base_url, &options.base_url)?;
        let url = base.join("/chat/completions");
        let secrets = match &options.api_key_env {
            Some(variable) => {
                SecretHeaders::bearer(options.names.api_key_env, variable, environment)?
            }
            None => SecretHeaders::none(),
        };
        let target = url.parse();
        let client = ClientOptions {
            connect_timeout: checked_secs("connect_timeout_secs", options.connect_timeout_secs)?,
            max_body_bytes: checked_bytes("max_body_bytes", options.max_body_bytes)?,
            connections: Connections::Kept,
            is_loopback: base.origin().is_loopback(),
        };
        Ok(Self {
            client: HttpClient::new(&client),
            target: target.map_err(|_| bad(options.names.base_url, "is too long".to_owned()))?,
            url,
            model: options.model.clone(),
            blots: secrets.blots(),
            secrets,
            timeout: checked_secs("timeout_secs", options.timeout_secs)?,
            total: checked_secs("total_secs", options.total_secs)?,
            retries: options.retries,
            backoff: Backoff {
                first: checked_secs("first_wait_secs", options.first_wait_secs)?,
                longest: checked_secs("max_wait_secs", options.max_wait_secs)?,
            },
            names: options.names,
            is_older: AtomicBool::new(false),
        })
    }

    /// The URL that is asked.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The model.
    pub fn model(&self) -> &str {
        &self.model
    }

    /// The model's answer after `messages`, within `total_secs`. One without a text is an answer
    /// whose text is empty.
    ///
    /// Too many requests (429), a fault of the server (5xx), an answer with an empty list of
    /// choices, a timeout and a broken connection are tried again, after a wait that doubles, or the
    /// longer one that the server asks for in `Retry-After`. A server that refuses `json_schema` and names `json_object` is from then on
    /// given the schema beside that type; whether it keeps to the schema is for the caller to
    /// check, as always.
    ///
    /// # Errors
    ///
    /// - the server refuses the request (any other status)
    /// - the answer is no chat completion
    /// - the attempts or the time are used up, or the server asks for a longer wait than is left
    pub fn complete(
        &self,
        messages: &[Message],
        options: &ChatOptions,
    ) -> Result<ChatAnswer, EndpointError> {
        self.complete_unless(messages, options, &AtomicBool::new(false))
    }

    /// The answers after many lists of messages, in their order, at most `concurrency` (1 to
    /// [`MAX_CONCURRENCY`](crate::MAX_CONCURRENCY)) at once.
    ///
    /// `watch` is called in the caller's thread after each answer and at least ten times a
    /// second. It may end the work by returning `false`: requests under way are given up at once,
    /// and those that have no answer are [`EndpointError::Stopped`].
    pub fn complete_all(
        &self,
        requests: &[Vec<Message>],
        options: &ChatOptions,
        concurrency: usize,
        watch: &mut dyn FnMut(EndpointProgress) -> bool,
    ) -> Vec<Result<ChatAnswer, EndpointError>> {
        let requests: Vec<ChatRequest<'_>> = requests
            .iter()
            .map(|messages| ChatRequest { messages, options })
            .collect();
        self.complete_each(&requests, concurrency, &mut |answered| {
            watch(answered.progress)
        })
    }

    /// As [`ChatEndpoint::complete_all`], with options for each request; `watch` is shown the answer
    /// that has just come.
    pub fn complete_each(
        &self,
        requests: &[ChatRequest<'_>],
        concurrency: usize,
        watch: &mut dyn FnMut(Answered<'_>) -> bool,
    ) -> Vec<Result<ChatAnswer, EndpointError>> {
        let mut n_failed = 0;
        let numbered: Vec<(usize, ChatRequest<'_>)> =
            requests.iter().copied().enumerate().collect();
        let results = in_parallel(
            &numbered,
            concurrency,
            &mut |watched| {
                let latest: Option<&(usize, Result<ChatAnswer, EndpointError>)> = watched.latest;
                n_failed += usize::from(latest.is_some_and(|(_, result)| result.is_err()));
                watch(Answered {
                    progress: EndpointProgress {
                        n_done: watched.n_done,
                        n_failed,
                        n_all: requests.len(),
                    },
                    latest: latest.map(|(number, result)| (*number, result)),
                })
            },
            |(number, request), is_stopped| {
                let ChatRequest { messages, options } = request;
                (*number, self.complete_unless(messages, options, is_stopped))
            },
        );
        let given = results.into_iter();
        given
            .map(|result| result.map_or_else(|| Err(self.stopped()), |(_, result)| result))
            .collect()
    }

    /// As [`ChatEndpoint::complete`], but given up once `is_stopped`.
    pub fn complete_unless(
        &self,
        messages: &[Message],
        options: &ChatOptions,
        is_stopped: &AtomicBool,
    ) -> Result<ChatAnswer, EndpointError> {
        let deadline = Instant::now() + self.total;
        let mut is_older = self.is_older.load(Ordering::Relaxed);
        let mut body = self.body(messages, options, is_older);
        let mut n_attempts = 0;
        loop {
            if is_stopped.load(Ordering::Relaxed) {
                return Err(self.stopped());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            n_attempts += 1;
            let timeout = left.min(self.timeout);
            let (kind, reason, asked) = match self.attempt(body.clone(), timeout, is_stopped) {
                Attempt::Answer(answer) => return Ok(answer),
                Attempt::Never(error) => return Err(error),
                Attempt::Stopped => return Err(self.stopped()),
                Attempt::OtherFormat(error) => {
                    let format = options.response_format.as_ref();
                    if is_older || format.and_then(formats::older).is_none() {
                        return Err(error);
                    }
                    is_older = true;
                    self.is_older.store(true, Ordering::Relaxed);
                    body = self.body(messages, options, is_older);
                    continue;
                }
                Attempt::Again(kind, reason, asked) => (kind, reason, asked),
            };
            let no_answer = |reason| EndpointError::NoAnswer {
                url: self.url.clone(),
                n_attempts,
                reason,
                advice: self.advice(kind),
                kind,
            };
            if n_attempts > self.retries {
                return Err(no_answer(reason));
            }
            let pause = pause(&self.backoff, n_attempts, asked);
            let left = deadline.saturating_duration_since(Instant::now());
            if pause >= left {
                let total = self.total;
                return Err(no_answer(format!(
                    "{reason}, and a wait of {pause:?} is longer than what is left of {total:?}"
                )));
            }
            if !wait(pause, is_stopped) {
                return Err(self.stopped());
            }
        }
    }

    /// The request, with its format in the older spelling if there is one and `is_older`.
    fn body(&self, messages: &[Message], options: &ChatOptions, is_older: bool) -> String {
        let mut request = wire::request(&self.model, messages, options);
        if is_older && let Some(format) = request.get_mut("response_format") {
            *format = formats::older(format).unwrap_or_else(|| format.take());
        }
        request.to_string()
    }

    fn stopped(&self) -> EndpointError {
        EndpointError::Stopped {
            url: self.url.clone(),
        }
    }

    fn attempt(&self, body: String, timeout: Duration, is_stopped: &AtomicBool) -> Attempt {
        let mut request = Request::post(self.target.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json");
        for (name, value) in self.secrets.headers() {
            request = request.header(name, value);
        }
        let request = match request.body(Some(body.into_bytes())) {
            Ok(request) => request,
            Err(error) => {
                let reason = format!("is no address to send a request to: {error}");
                let field = self.names.base_url;
                return Attempt::Never(HttpConfigError::BadOption { field, reason }.into());
            }
        };
        let fault = match self.client.send_unless(request, timeout, is_stopped) {
            Ok(reply) => return self.read(reply),
            Err(fault) => fault,
        };
        let kind = match fault {
            HttpFault::Stopped => return Attempt::Stopped,
            HttpFault::ConnectTimeout { .. } | HttpFault::NoConnection { .. } => {
                FaultKind::Connection
            }
            HttpFault::Timeout { .. } => FaultKind::Timeout,
            HttpFault::Broken { .. } => FaultKind::Broken,
        };
        Attempt::Again(kind, self.blots.blot(fault.to_string()), None)
    }

    fn read(&self, mut reply: HttpReply) -> Attempt {
        let first_bad = std::str::from_utf8(&reply.body).err();
        let first_bad = first_bad.map(|error| error.valid_up_to());
        // Taken and not copied: many replies may be read at once, and each may be long.
        let body = String::from_utf8(std::mem::take(&mut reply.body));
        let body = body.unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into_owned());
        let n_bytes = body.len();
        let body = self.blots.blot(body);
        let status = reply.status.as_u16();
        let said = match excerpt(&body) {
            said if said.is_empty() => "with an empty body".to_owned(),
            said => format!("with: {said}"),
        };
        let refused = EndpointError::Refused {
            url: self.url.clone(),
            status,
            said: said.clone(),
            hint: self.hint(status),
            kind: FaultKind::of_refusal(status, &body),
        };
        if !reply.status.is_success() && formats::names_older(&body) {
            return Attempt::OtherFormat(refused);
        }
        if status == 429 || reply.status.is_server_error() {
            let asked = reply.header(&header::RETRY_AFTER);
            let asked = asked.and_then(|text| retry_after(text, SystemTime::now()));
            let kind = FaultKind::of_refusal(status, &body);
            return Attempt::Again(kind, format!("the status {status} {said}"), asked);
        }
        if !reply.status.is_success() {
            return Attempt::Never(refused);
        }
        let no_protocol = |kind, reason| {
            Attempt::Never(EndpointError::NotTheProtocol {
                url: self.url.clone(),
                status,
                reason,
                base_url: self.names.base_url,
                kind,
            })
        };
        if reply.is_cut {
            let reason = format!("with more than {n_bytes} bytes, the most that is read, {said}");
            return no_protocol(FaultKind::NoCompletion, reason);
        }
        if let Some(place) = first_bad {
            let reason = format!("with what is not UTF-8 from byte {} on, {said}", place + 1);
            return no_protocol(FaultKind::NotUtf8, reason);
        }
        match answer::read(&body) {
            Ok(answer) => Attempt::Answer(answer),
            Err(NoAnswer::NoChoice(reason)) => Attempt::Again(FaultKind::NoChoice, reason, None),
            Err(NoAnswer::Other(reason)) => no_protocol(FaultKind::NoCompletion, reason),
        }
    }

    /// What to check when no attempt has an answer.
    fn advice(&self, kind: FaultKind) -> String {
        let check = match kind {
            FaultKind::Connection => {
                format!("check {} and that the server runs", self.names.base_url)
            }
            _ => "check that the server runs and what it logs".to_owned(),
        };
        match self.names.patience {
            Some(options) => format!("{check}, or raise {options}"),
            None => check,
        }
    }

    /// What to check when the server refuses.
    fn hint(&self, status: u16) -> String {
        let OptionNames {
            base_url,
            model,
            api_key_env,
            ..
        } = self.names;
        match status {
            300..=399 => format!("give the address that it redirects to as {base_url}"),
            401 | 403 => {
                format!("check the key in the environment variable that {api_key_env} names")
            }
            404 | 405 => format!("check {base_url}, which usually ends in /v1, and {model}"),
            413 => "the request is too long for the server".to_owned(),
            _ => format!("check {model}, the length of the messages and the options"),
        }
    }
}
