//! From bytes to typed deltas: our decoder with structures that borrow, beside `eventsource-stream` with `serde_json::Value`.

use std::borrow::Cow;
use std::fmt;
use std::hint::black_box;

use eventsource_stream::Eventsource as _;
use harness_protocol::sse::Decoder;
use serde::{Deserialize, Deserializer, de};
use serde_json::Value;

use super::{Chunks, Decode, drain};

/// The way, the stream that it reads, and itself.
pub const TYPED: &[(&str, &str, Decode)] = &[
    ("typed, harness", "openai", completions),
    ("typed, Value", "openai", completion_values),
    ("typed, harness", "anthropic", messages),
    ("typed, Value", "anthropic", message_values),
];

/// What is read of a chunk of a chat completion.
#[derive(Deserialize)]
struct Completion<'a> {
    #[serde(borrow)]
    choices: First<'a>,
}

/// The first of the choices, the only one that is asked for: a list would need memory for each event.
struct First<'a>(Option<Choice<'a>>);

impl<'de: 'a, 'a> Deserialize<'de> for First<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl<'de> de::Visitor<'de> for Visitor {
            type Value = First<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of choices")
            }
            fn visit_seq<A: de::SeqAccess<'de>>(self, mut choices: A) -> Result<First<'de>, A::Error> {
                let first = choices.next_element()?;
                while choices.next_element::<de::IgnoredAny>()?.is_some() {}
                Ok(First(first))
            }
        }
        deserializer.deserialize_seq(Visitor)
    }
}

#[derive(Deserialize)]
struct Choice<'a> {
    index: u32,
    #[serde(borrow)]
    delta: Delta<'a>,
    #[serde(borrow)]
    finish_reason: Option<Cow<'a, str>>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow)]
    content: Option<Text<'a>>,
}

/// A text that is borrowed where it holds no escapes: an `Option<Cow<str>>` would always be owned.
#[derive(Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// What is read of an event of the messages API. One flat structure: an enum by tag would be read into a buffer first.
#[derive(Deserialize)]
struct Message<'a> {
    #[serde(rename = "type", borrow)]
    kind: Cow<'a, str>,
    index: Option<u32>,
    #[serde(borrow)]
    delta: Option<Block<'a>>,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow)]
    text: Option<Text<'a>>,
}

fn completions(chunks: Chunks<'_>) -> usize {
    each(chunks, |data| {
        let completion: Completion<'_> = serde_json::from_str(data).unwrap();
        if let Some(choice) = &completion.choices.0 {
            black_box((choice.index, choice.delta.content.as_ref().map(|text| &*text.0), &choice.finish_reason));
        }
    })
}

fn completion_values(chunks: Chunks<'_>) -> usize {
    drain(chunks.eventsource(), |event| {
        let value: Value = serde_json::from_str(&event.unwrap().data).unwrap();
        for choice in value["choices"].as_array().unwrap() {
            black_box((
                choice["index"].as_u64(),
                choice["delta"]["content"].as_str(),
                choice["finish_reason"].as_str(),
            ));
        }
    })
}

fn messages(chunks: Chunks<'_>) -> usize {
    each(chunks, |data| {
        let message: Message<'_> = serde_json::from_str(data).unwrap();
        assert_eq!(message.kind, "content_block_delta");
        let text = message.delta.and_then(|delta| delta.text);
        black_box((message.index, text.as_ref().map(|text| &*text.0)));
    })
}

fn message_values(chunks: Chunks<'_>) -> usize {
    drain(chunks.eventsource(), |event| {
        let value: Value = serde_json::from_str(&event.unwrap().data).unwrap();
        assert_eq!(value["type"].as_str(), Some("content_block_delta"));
        black_box((value["index"].as_u64(), value["delta"]["text"].as_str()));
    })
}

fn each(chunks: Chunks<'_>, mut look: impl FnMut(&str)) -> usize {
    let mut decoder = Decoder::new(1 << 20);
    let mut found = 0;
    for chunk in chunks {
        let mut events = decoder.push(chunk);
        while let Some(event) = events.next() {
            look(event.unwrap().data);
            found += 1;
        }
    }
    found
}
