//! A server on 127.0.0.1 for tests of the program: HTTP/1.1 by hand, so that it can also be silent.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};

/// Longer than any test waits for an answer.
const LONGEST: Duration = Duration::from_secs(10);

/// A request as it arrived.
#[derive(Debug, Clone, Default)]
pub(crate) struct Received {
    /// Method, path and query.
    pub(crate) target: String,
    /// All header lines in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

/// What the server does with a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Json(u16, Value),
    Html(u16, &'static str),
    /// Bytes as JSON, whatever they are.
    Bytes(u16, Vec<u8>),
    /// Nothing until the client gives up.
    Hang,
}

impl Reply {
    /// A chat completion.
    pub(crate) fn chat(text: &str) -> Self {
        let message = json!({"role": "assistant", "content": text});
        let choice = json!({"index": 0, "message": message, "finish_reason": "stop"});
        Self::Json(
            200,
            json!({"id": "1", "object": "chat.completion", "choices": [choice]}),
        )
    }
}

/// A running server; dropping it ends its accepting.
pub(crate) struct Server {
    address: SocketAddr,
    received: Arc<Mutex<Vec<Received>>>,
    is_over: Arc<AtomicBool>,
}

impl Server {
    /// `answer` is given each request and its number, from 0.
    pub(crate) fn start(
        answer: impl Fn(&Received, usize) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = Self {
            address: listener.local_addr().unwrap(),
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
                // A client that goes away is what some tests are about.
                std::thread::spawn(move || serve(stream, &received, &*answer).ok());
            }
        });
        server
    }

    /// `http://127.0.0.1:PORT`.
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn received(&self) -> Vec<Received> {
        self.received.lock().unwrap().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // Wakes the loop, which then ends.
        TcpStream::connect_timeout(&self.address, LONGEST).ok();
    }
}

fn serve(
    stream: TcpStream,
    received: &Mutex<Vec<Received>>,
    answer: &(impl Fn(&Received, usize) -> Reply + ?Sized),
) -> std::io::Result<()> {
    stream.set_read_timeout(Some(LONGEST))?;
    let mut reader = BufReader::new(stream);
    let request = read(&mut reader)?;
    let number = {
        let mut all = received.lock().unwrap();
        all.push(request.clone());
        all.len() - 1
    };
    let (status, kind, body) = match answer(&request, number) {
        Reply::Json(status, body) => (status, "application/json", body.to_string().into_bytes()),
        Reply::Html(status, body) => (status, "text/html", body.as_bytes().to_vec()),
        Reply::Bytes(status, body) => (status, "application/json", body),
        Reply::Hang => return reader.read(&mut [0]).map(|_| ()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
         Connection: close\r\n\r\n"
    );
    let mut stream = reader.into_inner();
    stream.write_all(head.as_bytes())?;
    stream.write_all(&body)
}

fn read(reader: &mut BufReader<TcpStream>) -> std::io::Result<Received> {
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let target = line.trim().trim_end_matches(" HTTP/1.1").to_string();
    let mut head = String::new();
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            break;
        }
        let line = line.to_lowercase();
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Received {
        target,
        head,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}
