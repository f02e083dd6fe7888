//! Tests the client against servers that reply, break off, hang and never end.

use std::time::Duration;

use ureq::http::Request;

use super::test_server::{Answer, CLOSED_PORT, TestServer};
use super::*;

/// Timeout for replies that never end.
const SHORT: Duration = Duration::from_millis(250);
/// Timeout for replies that end by themselves, even on a busy machine.
const LONG: Duration = Duration::from_secs(40);

fn get_within(url: &str, timeout: Duration, max_body_bytes: usize) -> Result<HttpReply, HttpFault> {
    let client = HttpClient::new(&ClientOptions {
        connect_timeout: LONG,
        max_body_bytes,
        connections: Connections::Closed,
        is_loopback: true,
    })
    .expect("a client");
    client.send(Request::get(url).body(None).expect("a request"), timeout)
}

fn get(url: &str) -> Result<HttpReply, HttpFault> {
    get_within(url, LONG, 100)
}

fn get_from(answer: Answer) -> Result<HttpReply, HttpFault> {
    let server = TestServer::start(move |_, _| answer.clone());
    get(&server.url())
}

#[test]
fn every_status_is_a_reply_and_no_redirect_is_followed() {
    for status in [200, 204, 302, 404, 500] {
        let server = TestServer::start(move |_, _| Answer::redirect(status, "/again"));
        let reply = get(&server.url()).expect("a reply");
        assert_eq!(reply.status.as_u16(), status);
        assert_eq!(reply.header(&ureq::http::header::LOCATION), Some("/again"));
        assert_eq!(server.received().len(), 1);
    }
}

#[test]
fn a_body_is_read_up_to_its_limit() {
    for (n_bytes, is_cut) in [(0, false), (100, false), (101, true), (3_000_000, true)] {
        let reply = get_from(Answer::Reply(200, vec![], vec![b'x'; n_bytes]));
        let reply = reply.expect("a reply");
        assert_eq!((reply.body.len(), reply.is_cut), (n_bytes.min(100), is_cut));
    }
    let lie = b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n";
    let reply = get_from(Answer::Raw([&lie[..], &[b'x'; 5_000]].concat()));
    assert!(reply.expect("a reply").is_cut);
}

#[test]
fn a_chunked_body_is_joined() {
    let complete_body =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nab\r\n\r\n2\r\ncd\r\n0\r\n\r\n";
    let reply = get_from(Answer::Raw(complete_body.to_vec())).expect("a reply");
    assert_eq!(
        (reply.body.as_slice(), reply.is_cut),
        (&b"ab\r\ncd"[..], false)
    );
    let cut = get_from(Answer::Raw(
        complete_body[..complete_body.len() - 9].to_vec(),
    ));
    let error = cut.expect_err("no last chunk");
    assert!(matches!(error, HttpFault::Broken { .. }), "{error}");
}

#[test]
fn hanging_and_dripping_replies_end_at_the_deadline() {
    let timeout = HttpFault::Timeout { within: SHORT };
    let slowly = |bytes: &[u8]| Answer::Drip(bytes.to_vec(), Duration::from_millis(20));
    for answer in [
        Answer::Hang,
        slowly(b"HTTP/1.1 200 OK\r\nContent-Length: 900000\r\n\r\n"),
        slowly(b"HTTP/1.1 200 OK\r\nX: "),
    ] {
        let server = TestServer::start(move |_, _| answer.clone());
        // Only the timeout ends the request: neither the length nor the limit is ever reached.
        let error = get_within(&server.url(), SHORT, 1_000_000).expect_err("no end");
        assert_eq!(error, timeout);
    }
    assert_eq!(timeout.to_string(), "no complete answer within 250ms");
}

#[test]
fn a_connection_that_is_refused_or_breaks_is_a_fault() {
    let url = format!("http://127.0.0.1:{CLOSED_PORT}/");
    let error = get(&url).expect_err("a closed port");
    assert!(matches!(error, HttpFault::NoConnection { .. }), "{error}");
    // A reserved name that is never resolved.
    let error = get("http://tooltune.invalid/").expect_err("an unresolvable name");
    assert!(error.to_string().starts_with("no network: "), "{error}");
    for bytes in [
        &b""[..],
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{\"cut\": ",
        b"this is not HTTP at all\r\n\r\n",
    ] {
        let error = get_from(Answer::Raw(bytes.to_vec())).expect_err("broken");
        assert!(matches!(error, HttpFault::Broken { .. }), "{error}");
    }
}
