//! Decodes a line into a request. Invalid JSON, an invalid request and an unknown method are errors, each with its own
//! code.

use std::sync::Arc;

use harness_protocol::id::RunId;
use harness_protocol::rpc::{
    AnswerParams, Call, Empty, ErrorKind, Hello, HelloParams, INVALID_REQUEST, PARSE_ERROR, RawRequest, Reason,
    RequestId, RpcError,
};
use harness_protocol::{MAX_FRAME_BYTES, PROTOCOL_MAJOR, PROTOCOL_MINOR};

use crate::blob;
use crate::world::api::{Command, LaneChange, Sent, Settlement};

/// JSON-RPC: the request is too large to be one.
pub(in crate::control) const OVERSIZED: i32 = INVALID_REQUEST;

/// Bytes of the longest id of a request. The id is kept until the answer, and comes back with it.
const LONGEST_ID: usize = 256;

/// A decoded line.
#[derive(Debug, PartialEq)]
pub(in crate::control) enum Line {
    /// A valid call, to be answered under this id.
    Call(RequestId, Box<Call>),
    /// A notification: no method of ours is one, so it is ignored.
    Notification,
    /// Not a call; the error goes to its id, where it had one.
    Bad(Option<RequestId>, RpcError),
}

/// The error for a line that is no request.
pub(super) fn bad_request(code: i32, message: impl Into<String>) -> RpcError {
    RpcError::new(ErrorKind::Invalid, message).with_code(code).because(Reason::BadRequest, None)
}

/// Decodes a line.
pub(in crate::control) fn read(line: &[u8]) -> Line {
    let bad = |code, message: String| Line::Bad(None, bad_request(code, message));
    let first = line.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[') {
        return bad(INVALID_REQUEST, "batches are not taken; send one request a line".to_owned());
    }
    let raw: RawRequest<'_> = match serde_json::from_slice(line) {
        Ok(raw) => raw,
        Err(error) if error.is_data() => return bad(INVALID_REQUEST, format!("this is no request: {error}")),
        Err(error) => return bad(PARSE_ERROR, format!("this is no JSON: {error}")),
    };
    if let Some(RequestId::Text(id)) = &raw.id
        && id.len() > LONGEST_ID
    {
        return bad(INVALID_REQUEST, format!("the id of a request has at most {LONGEST_ID} bytes"));
    }
    let method = raw.method.map(|method| serde_json::from_str::<String>(method.get()));
    let method = match (method, &raw.id) {
        (Some(Ok(method)), _) => method,
        (Some(Err(_)) | None, id) => {
            return Line::Bad(id.clone(), bad_request(INVALID_REQUEST, "a request names its \"method\""));
        }
    };
    let Some(id) = raw.id else { return Line::Notification };
    if raw.jsonrpc.as_deref() != Some("2.0") {
        return Line::Bad(Some(id), bad_request(INVALID_REQUEST, "a request has \"jsonrpc\": \"2.0\""));
    }
    match Call::parse(&method, raw.params) {
        Ok(mut call) => {
            if let Call::RunSubmit(params) = &mut call {
                // Here, because a large request is read where it holds up nothing.
                blob::name_anew(&mut params.spec);
            }
            Line::Call(id, Box::new(call))
        }
        Err(error) => Line::Bad(Some(id), error.into()),
    }
}

/// The error for a line that could not be decoded, because of an internal error.
pub(super) fn lost() -> Line {
    let error = RpcError::new(ErrorKind::Internal, "the request could not be read");
    Line::Bad(None, error.because(Reason::Fault, None))
}

/// Answers `daemon.hello`: peers of the same major work together.
pub(in crate::control) fn hello(params: &HelloParams) -> Result<Hello, RpcError> {
    let hello = Hello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol_major: PROTOCOL_MAJOR,
        protocol_minor: PROTOCOL_MINOR,
        max_frame_bytes: MAX_FRAME_BYTES as u64,
    };
    // The version 0 means a caller that only wants to know ours.
    if [0, PROTOCOL_MAJOR].contains(&params.protocol_major) {
        return Ok(hello);
    }
    let message = format!(
        "this daemon ({}) speaks protocol {PROTOCOL_MAJOR}.{PROTOCOL_MINOR}, the caller {}.{}; \
         update the older of the two",
        hello.version, params.protocol_major, params.protocol_minor
    );
    Err(RpcError::new(ErrorKind::Version, message).because(Reason::OtherVersion, None))
}

/// Turns a call into a command; gives the call back if it is not a change of the world.
pub(in crate::control) fn command(call: Call) -> Result<Command, Box<Call>> {
    Ok(match call {
        Call::RunSubmit(params) => {
            let sent = Sent {
                key: params.submit_key,
                first: params.first,
                asks_variables: params.asks_variables,
                ..Sent::default()
            };
            Command::Submit { spec: Arc::new(params.spec), idempotency_key: params.idempotency_key, known: None, sent }
        }
        Call::RunRetry(params) => {
            let sent = Sent { key: params.submit_key, first: params.first, ..Sent::default() };
            // A run may give a child any name and labels: who means it says so, or has its id from having looked at it.
            let by_id = params.run.parse::<RunId>().is_ok() && params.changes.env.is_empty();
            let takes_child = params.children || by_id;
            Command::Retry { run: params.run, changes: params.changes, takes_child, left: None, sent }
        }
        Call::RunMessage(params) => {
            let sent = Sent { key: params.submit_key, first: params.first, ..Sent::default() };
            Command::Message { run: params.run, text: params.text, left: None, sent }
        }
        Call::RunCancel(params) => Command::Cancel { select: params.select, force: params.force },
        Call::RunPause(params) => Command::Pause(params.select),
        Call::RunResume(params) => Command::Resume(params.select),
        Call::InteractionAnswer(AnswerParams { interaction, answer: text, resolution, scope }) => {
            Command::Answer { interaction, settlement: Settlement { resolution, text, scope } }
        }
        Call::LaneRelieve(params) => {
            let change = match params.undo {
                Some(id) => LaneChange::Undo(id),
                None => LaneChange::Relieve { by: params.by, during: params.for_seconds },
            };
            Command::Lane { lane: params.lane, change }
        }
        Call::LaneResize(params) => Command::Lane { lane: params.lane, change: LaneChange::Resize(params.width) },
        Call::LanePause(params) => Command::Lane { lane: params.lane, change: LaneChange::Pause },
        Call::LaneResume(params) => Command::Lane { lane: params.lane, change: LaneChange::Resume },
        Call::DaemonUndrain(Empty {}) => Command::Drain(false),
        other => return Err(Box::new(other)),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;

    fn code(line: &str) -> (Option<RequestId>, i32) {
        match read(line.as_bytes()) {
            Line::Bad(id, error) => (id, error.code),
            other => panic!("{other:?}"),
        }
    }

    /// Entry A7 in `tests/README.md`.
    #[test]
    fn an_id_without_end_is_no_id() {
        for (bytes, is_taken) in [(0, true), (1, true), (255, true), (256, true), (257, false), (100_000, false)] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":"{}","method":"daemon.status"}}"#, "x".repeat(bytes));
            match read(line.as_bytes()) {
                Line::Call(RequestId::Text(id), _) => assert!(is_taken && id.len() == bytes, "{bytes}"),
                Line::Bad(None, error) => assert!(!is_taken && error.code == INVALID_REQUEST, "{bytes}: {error:?}"),
                other => panic!("{bytes}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_no_request_has_the_code_that_says_so() {
        assert_eq!(code("not json"), (None, PARSE_ERROR));
        assert_eq!(code("{\"jsonrpc\":"), (None, PARSE_ERROR));
        assert_eq!(code("[{}]"), (None, INVALID_REQUEST));
        assert_eq!(code("7"), (None, INVALID_REQUEST));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":5}"#), (Some(RequestId::Number(5)), INVALID_REQUEST));
        assert_eq!(code(r#"{"jsonrpc":"2.0","id":null,"method":7}"#), (Some(RequestId::Null), INVALID_REQUEST));
        assert_eq!(code(r#"{"id":1,"method":"daemon.status"}"#), (Some(RequestId::Number(1)), INVALID_REQUEST));
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","id":"a","method":"no.such"}"#),
            (Some(RequestId::Text("a".into())), -32601)
        );
        assert_eq!(
            code(r#"{"jsonrpc":"2.0","id":2,"method":"run.wait","params":{"run":"x","colour":1}}"#),
            (Some(RequestId::Number(2)), -32602)
        );
    }

    #[test]
    fn a_notification_is_not_a_call() {
        assert_eq!(read(br#"{"jsonrpc":"2.0","method":"daemon.stop"}"#), Line::Notification);
    }

    #[test]
    fn a_call_without_parameters_needs_none() {
        let line = read(br#"{"jsonrpc":"2.0","id":1,"method":"daemon.status"}"#);
        assert_eq!(line, Line::Call(RequestId::Number(1), Box::new(Call::DaemonStatus(Empty {}))));
    }

    #[test]
    fn another_major_is_told_what_to_do() {
        let error = hello(&HelloParams { protocol_major: PROTOCOL_MAJOR + 1, ..HelloParams::default() }).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Version);
        assert!(hello(&HelloParams { protocol_major: PROTOCOL_MAJOR, ..HelloParams::default() }).is_ok());
    }
}
