//! Tests the HTTP client against sockets of their own: certificates, and bounds on reading.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{Environment, Providers, Question};
use crate::config::{Config, Endpoint, Provider};
use crate::inference::dialects::HttpDialect;
use crate::prompt::{Completion, ErrorClass, InferenceError, Prompt};

const ANSWER: &str = r#"{"choices":[{"message":{"content":"hi"},"finish_reason":"stop"}]}"#;

fn answer(kind: &str, body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}", body.len())
}

/// Reads the head and the body of a request, and says something.
fn say(mut stream: impl Read + Write, words: &[u8]) -> std::io::Result<()> {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    let is_whole = |read: &[u8]| {
        let text = String::from_utf8_lossy(read);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
        let length =
            head.lines().find_map(|line| line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok());
        body.len() >= length.unwrap_or(0usize)
    };
    while !is_whole(&read) {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            bytes => read.extend_from_slice(&buffer[..bytes]),
        }
    }
    stream.write_all(words)?;
    stream.flush()
}

/// A server that sends the same bytes to every client, plainly or over TLS.
fn server(words: Vec<u8>, tls: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let certificates = CertificateDer::pem_slice_iter(include_bytes!("../../../tests/certificates/leaf.pem"))
        .map(Result::unwrap)
        .collect();
    let key = PrivateKeyDer::from_pem_slice(include_bytes!("../../../tests/certificates/leaf.key")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(config.with_no_client_auth().with_single_cert(certificates, key).unwrap());
    thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let (words, config) = (words.clone(), Arc::clone(&config));
            thread::spawn(move || {
                if tls {
                    let connection = rustls::ServerConnection::new(config).unwrap();
                    return say(rustls::StreamOwned::new(connection, stream), &words);
                }
                say(stream, &words)
            });
        }
    });
    address
}

async fn ask(url: String, ca_file: Option<PathBuf>) -> Result<Completion, InferenceError> {
    let endpoint = Endpoint { ca_file, ..Endpoint::new(url) };
    let provider = Provider {
        dialect: HttpDialect::OpenAi.rules(),
        model: Some("m".into()),
        endpoint: Some(Arc::new(endpoint)),
        ..Provider::scripted(1)
    };
    let providers = Providers::new(&of(provider), Environment::default()).unwrap();
    let client = providers.get("p").unwrap().client.unwrap();
    let prompt = Prompt::from_transcript(&[]);
    let question = Question { model: None, prompt: &prompt, tools: &[], max_output_tokens: None, is_budgeted: false };
    client.ask(&question, &mut |_| {}).await
}

/// A configuration with one provider more, `p`.
fn of(provider: Provider) -> Config {
    let mut config = Config::default();
    config.providers.insert("p".into(), provider);
    config
}

fn authority(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/certificates").join(name)
}

#[tokio::test]
async fn a_certificate_of_ones_own_authority_is_trusted_where_that_is_configured_and_nowhere_else() {
    let address = server(answer("application/json", ANSWER).into_bytes(), true);
    let url = format!("https://{address}/v1");
    assert_eq!(ask(url.clone(), Some(authority("ca.pem"))).await.unwrap().text, "hi");
    // The system may have no authorities at all.
    let error = ask(url, Some(authority("other-ca.pem"))).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Retry);
    assert!(error.message.contains("cannot connect") && error.message.contains("certificate"), "{}", error.message);
}

#[tokio::test]
async fn certificates_that_cannot_be_read_are_told_with_their_key() {
    let provider = |ca_file: PathBuf| {
        let endpoint = Endpoint { ca_file: Some(ca_file), ..Endpoint::new("https://x/v1") };
        Provider { dialect: HttpDialect::OpenAi.rules(), endpoint: Some(Arc::new(endpoint)), ..Provider::scripted(1) }
    };
    for path in ["/no/such.pem", concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")] {
        let config = of(provider(path.into()));
        let error = Providers::new(&config, Environment::default()).err().unwrap();
        assert_eq!(error.key(), "provider.p.ca_file");
        assert!(error.to_string().starts_with("`provider.p.ca_file`: cannot read"), "{error}");
    }
}

#[tokio::test]
async fn an_answer_without_end_is_not_read_without_end() {
    // One event, or one text of JSON, that is larger than any answer; the server would go on.
    for begin in ["data: ", "{\"x\":\""] {
        let mut words = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n".to_vec();
        words.extend_from_slice(begin.as_bytes());
        words.resize(words.len() + (48 << 20), b'x');
        let error = ask(format!("http://{}/v1", server(words, false)), None).await.unwrap_err();
        assert_eq!(error.class, ErrorClass::Never, "{}", error.message);
        assert!(error.message.contains("more than 40 MiB"), "{}", error.message);
    }
}

/// A last event without an empty line after it counts if it is complete and the stream ended cleanly (entry P3).
#[tokio::test]
async fn a_last_event_that_nothing_ends_counts_where_it_is_whole_and_the_stream_ended_as_it_should() {
    let begun = "data: {\"choices\":[{\"delta\":{\"content\":\"hi\"}}]}\n\n";
    let last = "data: {\"choices\":[{\"delta\":{\"content\":\"!\"},\"finish_reason\":\"stop\"}]}";
    for (end, more, expected) in [
        (last.to_owned(), 0, Some("hi!")),
        (format!("{last}\n"), 0, Some("hi!")),
        (format!("{last}\n\ndata: [DONE]"), 0, Some("hi!")),
        ("data: [DONE]".to_owned(), 0, Some("hi")),
        (last[..last.len() - 1].to_owned(), 0, None),
        (last[..40].to_owned(), 0, None),
        // The connection breaks.
        (last.to_owned(), 7, None),
        (String::new(), 0, None),
    ] {
        let body = format!("{begun}{end}");
        let head =
            format!("HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {}\r\n", body.len() + more);
        let address = server(format!("{head}\r\n{body}").into_bytes(), false);
        let answer = ask(format!("http://{address}/v1"), None).await;
        assert_eq!(answer.as_ref().ok().map(|answer| answer.text.as_str()), expected, "{end:?} {answer:?}");
    }
}

#[tokio::test]
async fn nobody_at_the_other_end_is_told_with_the_address() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = ask(format!("http://{free}/v1"), None).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Retry);
    assert!(error.message.starts_with(&format!("cannot connect to the provider at {free}: ")), "{}", error.message);
}

#[tokio::test]
async fn a_redirect_is_not_followed_with_the_key() {
    let words = b"HTTP/1.1 307 X\r\nlocation: http://127.0.0.1:1/v1\r\ncontent-length: 0\r\n\r\n".to_vec();
    let error = ask(format!("http://{}/v1", server(words, false)), None).await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Never);
    assert!(error.message.contains("status 307"), "{}", error.message);
}

/// JSON after comment lines of an event stream is found (entry P13).
#[test]
fn json_behind_comments_of_a_stream_is_found_and_nothing_else_is() {
    for (body, json) in [
        ("{}", Some("{}")),
        ("\n\r\n {\"a\":1}\n", Some("{\"a\":1}\n")),
        ("\u{feff}{}", Some("{}")),
        (": PROCESSING\n\n: PROCESSING\n\n{}", Some("{}")),
        (":\n{}", Some("{}")),
        (": {}", None),
        ("data: {}", None),
        ("hello {}", None),
        ("", None),
        (":", None),
    ] {
        assert_eq!(super::exchange::behind_comments(body), json, "{body:?}");
    }
}

/// The thinking budget shrinks to the available room, and is left out below the least that servers accept (entry P14).
#[test]
fn thinking_shrinks_to_what_there_is_room_for_and_ends_where_no_server_takes_it() {
    use crate::config::Thinking::{Adaptive, Budget};
    for (thinking, most, expected) in [
        (Budget(4_096), None, Some(Budget(4_096))),
        (Budget(4_096), Some(8_192), Some(Budget(4_096))),
        (Budget(4_096), Some(5_120), Some(Budget(4_096))),
        (Budget(4_096), Some(5_119), Some(Budget(4_095))),
        (Budget(4_096), Some(2_048), Some(Budget(1_024))),
        (Budget(4_096), Some(2_047), None),
        (Budget(4_096), Some(0), None),
        (Adaptive, Some(0), Some(Adaptive)),
    ] {
        assert_eq!(super::exchange::fitting(thinking, most), expected, "{thinking:?} {most:?}");
    }
    for (thinking, most, answer) in [
        (None, None, None),
        (Some(Budget(4_096)), None, None),
        (None, Some(4_096), Some(4_096)),
        (Some(Budget(2_000)), Some(4_096), Some(4_096)),
        (Some(Budget(4_096)), Some(4_096), Some(8_192)),
        (Some(Budget(u32::MAX)), Some(1), Some(u32::MAX)),
    ] {
        let endpoint = Endpoint { thinking, max_output_tokens: most, ..Endpoint::new("http://x/v1") };
        assert_eq!(endpoint.answer_tokens(), answer, "{thinking:?} {most:?}");
    }
}
