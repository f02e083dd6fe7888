//! A server on 127.0.0.1 for tests: HTTP/1.1 by hand, so that it can also break the protocol.
//!
//! Each connection has a thread and one request. What hangs or drips continues until the client
//! leaves, so that a fault of the client's own tells that it left by itself, however slow the
//! machine is. Dropping the server ends its accepting.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Longer than any client of a test waits: it has left before the server gives it up.
const LONGEST: Duration = Duration::from_secs(60);

/// A request as it arrived.
#[derive(Debug, Clone)]
pub struct Received {
    /// Such as `POST`.
    pub method: String,
    /// Path and query, still encoded.
    pub target: String,
    /// By name in lower case.
    pub headers: HashMap<String, String>,
    /// As it was sent.
    pub body: String,
    /// The same, where it is no text.
    pub bytes: Vec<u8>,
}

/// What the server does with a request.
#[derive(Debug, Clone)]
pub enum Answer {
    /// Status, further header lines and body; the length is added.
    Reply(u16, Vec<(String, String)>, Vec<u8>),
    /// These bytes, then the end of the connection.
    Raw(Vec<u8>),
    /// These bytes, then one byte after each pause for as long as anyone listens.
    Drip(Vec<u8>, Duration),
    /// Nothing until the client gives up.
    Hang,
}

impl Answer {
    /// An answer with a JSON body.
    pub fn json(status: u16, body: &serde_json::Value) -> Self {
        let kind = ("Content-Type".to_owned(), "application/json".to_owned());
        Self::Reply(status, vec![kind], body.to_string().into_bytes())
    }

    /// An answer with a page.
    pub fn html(status: u16, body: &str) -> Self {
        let kind = ("Content-Type".to_owned(), "text/html".to_owned());
        Self::Reply(status, vec![kind], body.as_bytes().to_vec())
    }

    /// An answer that leads to another address.
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
    /// Starts a server; `answer` is given each request and its number, from 0.
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
                    // A client that goes away is what some tests are about.
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

    /// The requests so far, in the order of their arrival.
    pub fn received(&self) -> Vec<Received> {
        self.received.lock().expect("no panic").clone()
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the loop, which then ends.
        let _ = TcpStream::connect_timeout(&self.address, LONGEST);
    }
}

/// A port on which nobody listens: that of a service of 1988. Ports that were free a moment ago are
/// given to the servers of other tests.
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
        let mut all = received.lock().expect("no panic");
        all.push(request.clone());
        all.len() - 1
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
    let mut reader = BufReader::new(stream.take(1 << 20));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, target) = (words.next(), words.next());
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
    let mut body = vec![0; length.unwrap_or(0).min(1 << 20)];
    reader.read_exact(&mut body)?;
    Ok(Received {
        method: method.unwrap_or_default(),
        target: target.unwrap_or_default(),
        headers,
        body: String::from_utf8_lossy(&body).into_owned(),
        bytes: body,
    })
}
