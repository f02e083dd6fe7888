//! A minimal HTTP/1.1 server on 127.0.0.1 for tests. It uses no HTTP library, so that it can also
//! violate the protocol.
//!
//! Each connection has a thread and one request. Hanging and dripping replies continue until the
//! client disconnects, so a timeout error shows that the client gave up by itself, however slow the
//! machine is. Dropping the server stops accepting connections.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than any test client waits, so the client always gives up first.
const LONGEST: Duration = Duration::from_secs(60);

/// Maximum bytes of a request.
const MAX_REQUEST_BYTES: u64 = 64 << 20;

/// A received request.
#[derive(Debug, Clone)]
pub struct Received {
    /// The method, such as `POST`.
    pub method: String,
    /// Path and query, still encoded.
    pub target: String,
    /// The headers, by lower-case name.
    pub headers: HashMap<String, String>,
    /// The body as sent.
    pub body: String,
    /// The body, if it is not text.
    pub bytes: Vec<u8>,
}

/// The server's reaction to a request.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Status, additional headers and body; the length is added.
    Reply(u16, Vec<(String, String)>, Vec<u8>),
    /// Sends these bytes, then closes the connection.
    Raw(Vec<u8>),
    /// Sends these bytes, then one byte after each pause until the client disconnects.
    Drip(Vec<u8>, Duration),
    /// No reply until the client gives up.
    Hang,
}

impl Answer {
    /// A reply with a JSON body.
    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        let kind = ("Content-Type".to_owned(), "application/json".to_owned());
        Self::Reply(status, vec![kind], body.to_string().into_bytes())
    }

    /// A reply with an HTML page.
    pub fn html(status: u16, body: &str) -> Self {
        let kind = ("Content-Type".to_owned(), "text/html".to_owned());
        Self::Reply(status, vec![kind], body.as_bytes().to_vec())
    }

    /// A redirect.
    pub fn redirect(status: u16, location: &str) -> Self {
        let to = ("Location".to_owned(), location.to_owned());
        Self::Reply(status, vec![to], Vec::new())
    }
}

/// A running server.
#[derive(Debug)]
pub struct TestServer {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    is_over: Arc<AtomicBool>,
}

impl TestServer {
    /// Starts a server. `answer` receives each request and its index, from 0.
    pub fn start(answer: impl Fn(&Received, usize) -> Answer + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let server = Self {
            address: listener.local_addr().expect("an address"),
            received: Arc::default(),
            is_over: Arc::default(),
        };
        let (received, is_over) = (server.received.clone(), server.is_over.clone());
        let answer = Arc::new(answer);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                let (received, answer) = (received.clone(), answer.clone());
                let Ok(stream) = stream else { continue };
                std::thread::spawn(move || {
                    // Some tests are about clients that disconnect.
                    let _ = serve(stream, &received, &*answer);
                });
            }
        });
        server
    }

    /// `http://127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The requests so far, in order of arrival.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().expect("no panic").clone()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the accept loop, which then ends.
        let _ = TcpStream::connect_timeout(&self.address, LONGEST);
    }
}

/// A port without a listener: it is assigned to a service of 1988. An unassigned free port would
/// not do, because another test's server may use it a moment later.
pub const CLOSED_PORT: u16 = 1;

fn serve(
    mut stream: TcpStream,
    received: &Mutex<Vec<Received>>,
    answer: &(impl Fn(&Received, usize) -> Answer + ?Sized),
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LONGEST))?;
    stream.set_write_timeout(Some(LONGEST))?;
    let request = read(&stream)?;
    let number = {
        let mut received_requests = received.lock().expect("no panic");
        received_requests.push(request.clone());
        received_requests.len() - 1
    };
    match answer(&request, number) {
        Answer::Reply(status, headers, body) => {
            let lines = headers
                .iter()
                .map(|(name, value)| format!("{name}: {value}\r\n"));
            let lines: String = lines.collect();
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status} Status\r\n{lines}Content-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(head.as_bytes())?;
            stream.write_all(&body)
        }
        Answer::Raw(bytes) => stream.write_all(&bytes),
        Answer::Drip(bytes, pause) => {
            stream.write_all(&bytes)?;
            let n_drops = LONGEST.as_millis() / pause.as_millis().max(1);
            for _ in 0..n_drops {
                std::thread::sleep(pause);
                stream.write_all(b" ")?;
            }
            Ok(())
        }
        Answer::Hang => stream.read(&mut [0]).map(|_| ()),
    }
}

fn read(stream: &TcpStream) -> std::io::Result<Received> {
    let mut reader = BufReader::new(stream.take(MAX_REQUEST_BYTES));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut request_words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (request_words.next(), request_words.next());
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let Some((name, value)) = line.split_once(':') else {
            break;
        };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|n| n.parse().ok());
    let mut body = vec![0; length.unwrap_or(0).min(MAX_REQUEST_BYTES as usize)];
    reader.read_exact(&mut body)?;
    Ok(Received {
        method: method.unwrap_or_default(),
        target: target.unwrap_or_default(),
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
        bytes: body,
    })
}
