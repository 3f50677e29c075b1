//! Decides what becomes of a call's arguments when the answer has ended.
//!
//! A usable call has a complete JSON object as its arguments: as it was sent, or taken out of a form in which some
//! servers send it (nothing at all, the object within a string, the object twice). Every other call is marked as
//! unusable, with a sentence for the model, and must not be executed. Servers reject a request with invalid arguments,
//! so such arguments go back to the server wrapped in a valid object.

use std::borrow::Cow;
use std::fmt;

use harness_protocol::run::CallRequest;
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::{RawValue, to_raw_value};

use super::call_ids;
use super::json_text::Gathered;
use super::tool_name;
use crate::inference::errors::classify::broken;
use crate::prompt::{InferenceError, RequestedCall};

/// Bytes of the arguments of one call; a longer call is not executed.
const MOST: usize = 2 * 1024 * 1024;
/// And of all calls of one answer.
const MOST_TOGETHER: usize = 3 * 1024 * 1024;
/// Bytes that are kept of arguments that cannot be used, and that are sent back of them.
const KEPT: usize = 16 * 1024;
const SENT_BACK: usize = 2 * 1024;

/// What was gathered of one call.
#[derive(Debug, Default)]
pub(in crate::inference) struct Called {
    /// The id that the server gave it.
    pub(in crate::inference) id: String,
    /// The name of the tool.
    pub(in crate::inference) name: String,
    /// The text of its arguments.
    pub(in crate::inference) args: Gathered,
}

/// Turns what was gathered of the calls of one answer into calls. `cut` says that the limit of output tokens ended the
/// answer.
///
/// # Errors
/// Where a call has no name, though nothing cut the answer: what it was to be is not known, so nothing of the answer
/// can be used.
pub(in crate::inference) fn calls(
    gathered: impl IntoIterator<Item = Called>,
    cut: bool,
) -> Result<Vec<RequestedCall>, InferenceError> {
    let mut room = MOST_TOGETHER;
    let call = |Called { id, name, args }: Called| {
        let tool = tool_name::meant(&name).to_owned();
        if tool.is_empty() && !cut {
            return Err(broken("the provider sent a call that does not name its tool"));
        }
        let given = if id.len() > call_ids::LONGEST { String::new() } else { id };
        let (text, broken) = args.finish();
        let judged = if broken { Err(HALF_A_PAIR.to_owned()) } else { judge(&text, cut, room.min(MOST)) };
        match judged {
            Ok(args) => {
                room -= args.len();
                Ok(RequestedCall { given, ..RequestedCall::new(tool, args) })
            }
            Err(why) => {
                let unusable = Some(format!("Not run: the arguments of {tool} {why}."));
                Ok(RequestedCall { tool, args: head(&text, KEPT).to_owned(), unusable, given, ask: None })
            }
        }
    };
    gathered.into_iter().map(call).collect()
}

const HALF_A_PAIR: &str = "hold half of a UTF-16 surrogate pair, which no text can hold";
const CUT: &str = "were cut off by the limit of output tokens";

/// The arguments as they can be executed, or why they cannot be.
fn judge(text: &str, cut: bool, most: usize) -> Result<String, String> {
    let bytes = text.len();
    if bytes > most {
        return Err(format!("have {bytes} bytes, and there is room for {most}: write less at once"));
    }
    let (text, kind) = match kind(text) {
        Err(error) => match once(text) {
            Some(text) => (text, kind(text)),
            None => (text, Err(error)),
        },
        kind => (text, kind),
    };
    match kind {
        // Nothing may be the beginning of something, and an empty object what some servers say ahead of it.
        Ok(Kind::Nothing) if cut => Err(format!("{CUT} before they began: say it in fewer words")),
        Ok(Kind::Nothing) => Ok("{}".to_owned()),
        Ok(Kind::Object) if cut && is_empty(text) => Err(format!("{CUT} before they began: say it in fewer words")),
        Ok(Kind::Object) => Ok(text.trim().to_owned()),
        Ok(Kind::Text(inner)) => match self::kind(&inner) {
            Ok(Kind::Nothing) => Ok("{}".to_owned()),
            Ok(Kind::Object) => Ok(inner.trim().to_owned()),
            _ => Err("must be a JSON object, and are a string".to_owned()),
        },
        Ok(Kind::Other(what)) => Err(format!("must be a JSON object, and are {what}")),
        Err(error) if error.is_eof() && cut => {
            Err(format!("{CUT} after {bytes} bytes: say it in fewer words, or in several calls"))
        }
        Err(error) if error.is_eof() => Err(format!("are not whole, they end after {bytes} bytes: {error}")),
        Err(error) => {
            let error = error.to_string();
            // So serde_json says that one half comes first, or that the other does not follow.
            let half = error.contains("surrogate") || error.contains("end of hex escape");
            Err(if half { HALF_A_PAIR.to_owned() } else { format!("are not valid JSON: {error}") })
        }
    }
}

/// The arguments without what some servers say beside them: nothing or an empty object ahead of them, or all of them
/// once more.
fn once(text: &str) -> Option<&str> {
    let (mut found, mut empty): (Option<&str>, _) = (None, None);
    for object in serde_json::Deserializer::from_str(text).into_iter::<&RawValue>() {
        let object = object.ok()?.get();
        match found {
            None if says_nothing(object) => empty = empty.or(Some("{}")),
            _ if !object.starts_with('{') => return None,
            _ if is_empty(object) => empty = Some(object),
            None => found = Some(object),
            Some(before) if are_the_same(before, object) => {}
            Some(_) => return None,
        }
    }
    found.or(empty)
}

/// Whether this stands for arguments that are still to come.
pub(in crate::inference) fn says_nothing(json: &str) -> bool {
    matches!(json.trim(), "" | "null" | r#""""#)
}

/// Whether nothing stands between the braces.
fn is_empty(object: &str) -> bool {
    object.bytes().all(|byte| byte.is_ascii_whitespace() || byte == b'{' || byte == b'}')
}

/// Whether two texts are the same, also as JSON.
pub(in crate::inference) fn are_the_same(one: &str, other: &str) -> bool {
    let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).ok();
    one == other || value(one).is_some_and(|one| value(other) == Some(one))
}

/// The arguments of an earlier call as an object that any server can read.
pub(in crate::inference) fn object(call: &CallRequest) -> Cow<'_, RawValue> {
    if call.unusable.is_none()
        && let Ok(Kind::Object) = kind(&call.args)
        && let Ok(raw) = serde_json::from_str::<&RawValue>(&call.args)
    {
        return Cow::Borrowed(raw);
    }
    let unparsed = serde_json::json!({ "unparsed_arguments": head(&call.args, SENT_BACK) });
    to_raw_value(&unparsed).map_or_else(|_| Cow::Owned(RawValue::NULL.to_owned()), Cow::Owned)
}

/// As much of the beginning of a text as fits into `most` bytes.
fn head(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// What a JSON text is.
enum Kind {
    Nothing,
    Object,
    Text(String),
    Other(&'static str),
}

fn kind(text: &str) -> Result<Kind, serde_json::Error> {
    if text.trim().is_empty() { Ok(Kind::Nothing) } else { serde_json::from_str(text) }
}

impl<'de> Deserialize<'de> for Kind {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Kinds;
        impl<'de> Visitor<'de> for Kinds {
            type Value = Kind;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Kind, A::Error> {
                while map.next_entry::<Sound, Sound>()?.is_some() {}
                Ok(Kind::Object)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Kind, A::Error> {
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Kind::Other("an array"))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Kind, E> {
                Ok(Kind::Text(text.to_owned()))
            }

            fn visit_unit<E: Error>(self) -> Result<Kind, E> {
                Ok(Kind::Nothing)
            }

            fn visit_bool<E: Error>(self, _: bool) -> Result<Kind, E> {
                Ok(Kind::Other("a truth value"))
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Kind, E> {
                Ok(Kind::Other("a number"))
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Kind, E> {
                Ok(Kind::Other("a number"))
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Kind, E> {
                Ok(Kind::Other("a number"))
            }
        }
        deserializer.deserialize_any(Kinds)
    }
}

/// Any JSON whose strings are texts: [`IgnoredAny`] does not look into them.
struct Sound;

impl<'de> Deserialize<'de> for Sound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Anything;
        impl<'de> Visitor<'de> for Anything {
            type Value = Sound;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("JSON")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Sound, A::Error> {
                while map.next_entry::<Sound, Sound>()?.is_some() {}
                Ok(Sound)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Sound, A::Error> {
                while seq.next_element::<Sound>()?.is_some() {}
                Ok(Sound)
            }

            fn visit_str<E: Error>(self, _: &str) -> Result<Sound, E> {
                Ok(Sound)
            }

            fn visit_unit<E: Error>(self) -> Result<Sound, E> {
                Ok(Sound)
            }

            fn visit_bool<E: Error>(self, _: bool) -> Result<Sound, E> {
                Ok(Sound)
            }

            fn visit_u64<E: Error>(self, _: u64) -> Result<Sound, E> {
                Ok(Sound)
            }

            fn visit_i64<E: Error>(self, _: i64) -> Result<Sound, E> {
                Ok(Sound)
            }

            fn visit_f64<E: Error>(self, _: f64) -> Result<Sound, E> {
                Ok(Sound)
            }
        }
        deserializer.deserialize_any(Anything)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use harness_protocol::id::CallId;

    fn call(args: &str, cut: bool) -> RequestedCall {
        let mut gathered = Gathered::default();
        gathered.push(&args.into());
        let called = Called { id: String::new(), name: "shell".to_owned(), args: gathered };
        calls([called], cut).unwrap().pop().unwrap()
    }

    fn why(args: &str, cut: bool) -> String {
        call(args, cut).unusable.unwrap()
    }

    #[test]
    fn an_object_is_used_and_nothing_is_an_empty_one() {
        for (args, used) in [
            (
                r#"{"a": [1, -1.5, true, null, {"b": "\ud83d\ude00"}]}"#,
                r#"{"a": [1, -1.5, true, null, {"b": "\ud83d\ude00"}]}"#,
            ),
            (" {} \n", "{}"),
            ("", "{}"),
            (" ", "{}"),
            ("null", "{}"),
            (r#""{\"a\":1}""#, r#"{"a":1}"#),
            (r#""""#, "{}"),
        ] {
            assert_eq!(call(args, false), RequestedCall::new("shell", used), "{args}");
        }
    }

    #[test]
    fn what_is_no_object_is_told_and_not_run() {
        for (args, told) in [
            ("[]", "must be a JSON object, and are an array."),
            (r#"[{"a":1}]"#, "must be a JSON object, and are an array."),
            (r#""ls""#, "must be a JSON object, and are a string."),
            ("7", "must be a JSON object, and are a number."),
            ("true", "must be a JSON object, and are a truth value."),
            (r#"{"a":1}{"a":2}"#, "are not valid JSON: trailing characters at line 1 column 8."),
            ("ls -l", "are not valid JSON: expected value at line 1 column 1."),
            (r#"{"a":"\ud800"}"#, "hold half of a UTF-16 surrogate pair, which no text can hold."),
            (r#"{"a":"\udc00"}"#, "hold half of a UTF-16 surrogate pair, which no text can hold."),
            (r#"{"a":1"#, "are not whole, they end after 6 bytes: EOF while parsing an object at line 1 column 6."),
        ] {
            assert_eq!(why(args, false), format!("Not run: the arguments of shell {told}"), "{args}");
        }
        assert!(why(&r#"{"a":"#.repeat(1000), false).contains("recursion limit"));
    }

    #[test]
    fn arguments_cut_at_any_byte_are_never_used() {
        let whole = r#"{"command":"rm -rf /tmp/x","list":[1,{"b":"é"}],"n":-1.5e3}"#;
        for end in (0..whole.len()).filter(|&end| whole.is_char_boundary(end)) {
            assert!(why(&whole[..end], true).contains("were cut off by the limit of output tokens"), "{end}");
            assert!(end == 0 || call(&whole[..end], false).unusable.is_some(), "{end}");
        }
        assert_eq!(call(whole, true).unusable, None);
    }

    #[test]
    fn ten_megabytes_are_told_and_only_their_beginning_is_kept() {
        let args = format!(r#"{{"command":"{}"}}"#, "x".repeat(10 << 20));
        let call = call(&args, false);
        assert!(call.unusable.unwrap().contains("have 10485774 bytes"));
        assert_eq!(call.args.len(), KEPT);
    }

    #[test]
    fn what_could_not_be_read_goes_back_inside_an_object() {
        let sent = |args: &str, unusable: Option<&str>| {
            let request = CallRequest {
                unusable: unusable.map(Into::into),
                ..CallRequest::new(CallId::from_u64(1), "shell", args)
            };
            object(&request).get().to_owned()
        };
        assert_eq!(sent(r#"{"a": 1}"#, None), r#"{"a": 1}"#);
        assert_eq!(sent(r#"{"a": "#, Some("cut")), r#"{"unparsed_arguments":"{\"a\": "}"#);
        assert_eq!(sent("not json", None), r#"{"unparsed_arguments":"not json"}"#);
        assert_eq!(sent(r#"{"a":"\ud800"}"#, None), r#"{"unparsed_arguments":"{\"a\":\"\\ud800\"}"}"#);
    }
}
