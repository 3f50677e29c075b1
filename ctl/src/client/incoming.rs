//! Parses the frames that come from the daemon into replies and notifications. Pure.
//!
//! Events and results stay the JSON text that came: no unknown field and no unknown kind of event is lost. Deltas and
//! gaps are parsed completely. An unknown notification is an error.

use harness_protocol::event::{Delta, Event, Gap};
use harness_protocol::id::{RunId, Seq};
use harness_protocol::rpc::{ErrorKind, RequestId, RpcError};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A frame, as far as it was read.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A reply, with its result as JSON text. It has no id if the daemon could not read the id of the request.
    Reply {
        /// Id of the request.
        id: Option<u64>,
        /// The result as JSON text, or the error.
        result: Result<String, RpcError>,
    },
    /// A notification: the daemon sent it without a request.
    Note(Note),
}

/// A message of the daemon without a request.
#[derive(Debug)]
pub(crate) enum Note {
    /// An event of the subscription.
    Event(RawEvent),
    /// A piece of live output.
    Delta(Delta),
    /// A gap: events that this subscriber does not get.
    Gap(Gap),
}

/// An event, as the daemon sent it.
#[derive(Debug, Clone)]
pub(crate) struct RawEvent {
    /// Number of the event.
    pub(crate) seq: Seq,
    /// The run that it belongs to; `None` for the daemon, lanes and providers.
    pub(crate) run: Option<RunId>,
    /// Kind of the event, as on the wire.
    pub(crate) kind: String,
    /// Time of the event, as on the wire.
    pub(crate) at: String,
    /// The whole event, as JSON text.
    pub(crate) json: String,
}

impl RawEvent {
    /// The event; `None` for kinds that this program does not know.
    pub(crate) fn event(&self) -> Option<Event> {
        serde_json::from_str(&self.json).ok()
    }

    /// Whether both are the same event. A daemon that reads the event from its journal may write a number in another
    /// form.
    pub(crate) fn is(&self, other: &Self) -> bool {
        (self.seq, self.run, &self.kind, &self.at) == (other.seq, other.run, &other.kind, &other.at)
    }
}

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(default)]
    id: Option<RequestId>,
    #[serde(default, borrow)]
    result: Option<&'a RawValue>,
    #[serde(default, borrow)]
    error: Option<&'a RawValue>,
    #[serde(default, borrow)]
    method: Option<&'a str>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct EventParams<'a> {
    #[serde(borrow)]
    event: &'a RawValue,
}

#[derive(Deserialize)]
struct Head {
    seq: Seq,
    #[serde(default)]
    run: Option<RunId>,
    kind: String,
    #[serde(default)]
    at: String,
}

#[derive(Deserialize)]
struct DeltaParams {
    delta: Delta,
}

#[derive(Deserialize)]
struct GapParams {
    gap: Gap,
}

/// The fields of an error that every JSON-RPC peer gives.
#[derive(Deserialize)]
struct BareError {
    code: i32,
    message: String,
}

/// Parses a frame.
///
/// # Errors
/// The reason why the bytes are not a valid frame.
pub(crate) fn parse(frame: &[u8]) -> Result<Incoming, String> {
    let envelope: Envelope<'_> = serde_json::from_slice(frame).map_err(|e| e.to_string())?;
    let Some(method) = envelope.method else {
        let id = match envelope.id {
            None | Some(RequestId::Null) => None,
            Some(RequestId::Number(number)) => {
                Some(u64::try_from(number).map_err(|_| "a reply to nothing".to_owned())?)
            }
            Some(RequestId::Text(_)) => return Err("a reply to nothing".to_owned()),
        };
        let result = match (envelope.result, envelope.error) {
            (_, Some(error)) => Err(rpc_error(error.get())),
            (Some(result), None) => Ok(result.get().to_owned()),
            (None, None) => Ok("{}".to_owned()),
        };
        return Ok(Incoming::Reply { id, result });
    };
    let params = envelope.params.map_or("{}", RawValue::get);
    let why = |e: serde_json::Error| format!("{method}: {e}");
    let note = match method {
        "event" => {
            let json = serde_json::from_str::<EventParams<'_>>(params).map_err(why)?.event.get().to_owned();
            let head: Head = serde_json::from_str(&json).map_err(why)?;
            Note::Event(RawEvent { seq: head.seq, run: head.run, kind: head.kind, at: head.at, json })
        }
        "delta" => Note::Delta(serde_json::from_str::<DeltaParams>(params).map_err(why)?.delta),
        "gap" => Note::Gap(serde_json::from_str::<GapParams>(params).map_err(why)?.gap),
        other => return Err(format!("an unknown notification {other:?}")),
    };
    Ok(Incoming::Note(note))
}

fn rpc_error(text: &str) -> RpcError {
    serde_json::from_str(text).unwrap_or_else(|_| match serde_json::from_str::<BareError>(text) {
        Ok(bare) => RpcError::new(ErrorKind::Internal, bare.message).with_code(bare.code),
        Err(_) => RpcError::new(ErrorKind::Internal, format!("an error without a message: {text}")),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn note(text: &str) -> Note {
        match parse(text.as_bytes()).unwrap() {
            Incoming::Note(note) => note,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_event_of_an_unknown_kind_passes_through_whole() {
        let json = r#"{"seq":7,"version":9,"at":"x","run":null,"kind":"new","more":[1]}"#;
        let Note::Event(event) =
            note(&format!(r#"{{"jsonrpc":"2.0","method":"event","params":{{"subscription":1,"event":{json}}}}}"#))
        else {
            panic!("no event");
        };
        assert_eq!((event.seq, event.json.as_str(), event.kind.as_str()), (Seq(7), json, "new"));
        assert!(event.event().is_none());
    }

    #[test]
    fn a_gap_names_the_missing_events() {
        let Note::Gap(gap) =
            note(r#"{"jsonrpc":"2.0","method":"gap","params":{"subscription":1,"gap":{"from":3,"to":9}}}"#)
        else {
            panic!("no gap");
        };
        assert_eq!((gap.from, gap.to), (Seq(3), Seq(9)));
    }

    #[test]
    fn an_error_of_an_unknown_kind_keeps_its_message() {
        let text = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"no","data":{"kind":"new"}}}"#;
        let Incoming::Reply { id: Some(1), result: Err(error) } = parse(text.as_bytes()).unwrap() else {
            panic!("no error");
        };
        assert_eq!((error.code, error.message.as_str()), (-1, "no"));
    }

    #[test]
    fn a_line_that_is_no_frame_is_an_error() {
        assert!(parse(b"hello").is_err());
        assert!(parse(br#"{"id":"x","result":{}}"#).is_err());
        assert!(parse(br#"{"method":"party","params":{}}"#).is_err());
    }
}
