//! Builds requests for chat completions.
//!
//! Uses forms that all known servers accept: contents are plain strings, the roles alternate, and names and arguments
//! of earlier calls are valid.

use std::borrow::Cow;
use std::sync::Arc;

use harness_protocol::id::CallId;
use harness_protocol::run::{CallRequest, CallResult};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::super::{Quirks, Settings};
use super::calls::Others;
use super::{NAME, Returned};
use crate::inference::common::call_ids::{self, CallIds};
use crate::inference::common::opaque_blocks::{self, Piece};
use crate::inference::common::tool_args;
use crate::inference::common::tool_name::{NO_TEXT, tool_name};
use crate::prompt::{Message as Neutral, Prompt};
use crate::tools::ToolSpec;

/// Letters of a short id.
const SHORT_ID: usize = 9;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    messages: Vec<Message<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream_options: Option<StreamOptions>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_completion_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_effort: Option<&'a str>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct StreamOptions {
    include_usage: bool,
}

#[derive(Serialize)]
#[serde(tag = "role", rename_all = "snake_case")]
enum Message<'a> {
    System {
        content: &'a str,
    },
    User {
        content: Cow<'a, str>,
    },
    Assistant {
        /// Null beside calls, as servers give it themselves.
        content: Option<Content<'a>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_content: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_details: Option<Box<RawValue>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_text: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        reasoning_opaque: Option<Cow<'a, str>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        thinking_blocks: Option<Box<RawValue>>,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        tool_calls: Vec<Call<'a>>,
    },
    Tool {
        tool_call_id: String,
        content: &'a str,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Text(&'a str),
    Parts(Vec<Part<'a>>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Part<'a> {
    Thinking { thinking: [Box<Part<'a>>; 1] },
    Text { text: Cow<'a, str> },
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "function")]
struct Call<'a> {
    id: String,
    function: Function<'a>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra_content: Option<Box<RawValue>>,
    #[serde(flatten)]
    others: Others,
}

#[derive(Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    arguments: Cow<'a, str>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "function")]
struct Tool<'a> {
    function: Declaration<'a>,
}

#[derive(Serialize)]
struct Declaration<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
}

pub(super) fn body(settings: &Settings, prompt: &Prompt, tools: &[ToolSpec]) -> Result<Vec<u8>, serde_json::Error> {
    let quirks = settings.quirks;
    let ids = match quirks.short_call_ids {
        true => CallIds::new(prompt, is_short, short_id),
        false => CallIds::new(prompt, call_ids::is_visible, |call| call.to_string()),
    };
    let mut messages = Vec::with_capacity(prompt.messages.len() + 1);
    messages.extend(prompt.system.as_deref().map(|content| Message::System { content }));
    for message in &prompt.messages {
        match message {
            Neutral::User { results, texts } => {
                messages.extend(results.iter().map(|result| answer(result, &ids)));
                // An empty turn of the user only where there is nothing else to answer.
                if results.is_empty() || texts.iter().any(|text| !text.trim().is_empty()) {
                    messages.push(Message::User { content: joined(texts) });
                }
            }
            Neutral::Assistant { text, calls, carried } => {
                messages.push(said(
                    text,
                    calls,
                    &opaque_blocks::pieces(NAME, text, calls, carried.as_deref()),
                    quirks,
                    &ids,
                ));
            }
        }
    }
    let body = Body {
        model: &settings.model,
        messages,
        tools: tools.iter().map(declaration).collect::<Result<_, _>>()?,
        stream: true,
        stream_options: (!quirks.no_stream_options).then_some(StreamOptions { include_usage: true }),
        max_tokens: settings.max_output_tokens.filter(|_| !quirks.max_completion_tokens),
        max_completion_tokens: settings.max_output_tokens.filter(|_| quirks.max_completion_tokens),
        temperature: settings.temperature,
        reasoning_effort: settings.effort.as_deref(),
        extra: &settings.extra,
    };
    serde_json::to_vec(&body)
}

fn declaration(spec: &ToolSpec) -> Result<Tool<'_>, serde_json::Error> {
    let parameters = serde_json::from_str(&spec.parameters)?;
    Ok(Tool { function: Declaration { name: &spec.name, description: &spec.description, parameters } })
}

/// One turn: many chat templates want the roles to alternate.
fn joined(texts: &[Arc<str>]) -> Cow<'_, str> {
    match texts {
        _ if texts.iter().all(|text| text.trim().is_empty()) => Cow::Borrowed(NO_TEXT),
        [text] => Cow::Borrowed(text),
        texts => Cow::Owned(texts.join("\n\n")),
    }
}

fn answer<'a>(result: &'a CallResult, ids: &CallIds<'_>) -> Message<'a> {
    Message::Tool { tool_call_id: ids.get(result.call), content: &result.envelope }
}

fn said<'a>(
    text: &'a str,
    calls: &'a [CallRequest],
    pieces: &[Piece<'a>],
    quirks: Quirks,
    ids: &CallIds<'_>,
) -> Message<'a> {
    let returned = pieces.iter().find_map(|piece| match piece {
        Piece::Block(block) => serde_json::from_str::<Returned<'a>>(block.get()).ok(),
        Piece::Text(_) | Piece::Said(..) | Piece::Call(_) => None,
    });
    let mut returned = returned.unwrap_or_default();
    let call = |(place, request): (usize, &'a CallRequest)| Call {
        extra_content: returned.extra_content.remove(&place),
        others: returned.call_fields.remove(&place).unwrap_or_default(),
        id: ids.get(request.call),
        function: Function {
            name: tool_name(&request.tool),
            arguments: match tool_args::object(request) {
                Cow::Borrowed(raw) => Cow::Borrowed(raw.get()),
                Cow::Owned(raw) => Cow::Owned(raw.get().to_owned()),
            },
        },
    };
    // An empty one is refused (vLLM, Mistral); beside calls there need be none.
    let text = match calls {
        _ if !text.trim().is_empty() => Some(text),
        [] => Some(NO_TEXT),
        _ => None,
    };
    Message::Assistant {
        content: match returned.thinking.take() {
            Some(thinking) => {
                let thought = Part::Thinking { thinking: [Box::new(Part::Text { text: thinking })] };
                let said = text.map(|text| Part::Text { text: Cow::Borrowed(text) });
                Some(Content::Parts(std::iter::once(thought).chain(said).collect()))
            }
            None => text.map(Content::Text),
        },
        tool_calls: calls.iter().enumerate().map(call).collect(),
        reasoning_content: returned.reasoning_content.filter(|_| !quirks.drop_reasoning),
        reasoning_details: returned.reasoning_details,
        reasoning: returned.reasoning.filter(|_| !quirks.drop_reasoning),
        reasoning_text: returned.reasoning_text.filter(|_| !quirks.drop_reasoning),
        reasoning_opaque: returned.reasoning_opaque,
        thinking_blocks: returned.thinking_blocks,
    }
}

/// Ours where ids must be short: its end, which differs most.
fn short_id(call: CallId) -> String {
    let mut id = call.to_string();
    id.drain(..id.len().saturating_sub(SHORT_ID));
    id
}

fn is_short(id: &str) -> bool {
    id.len() == SHORT_ID && id.bytes().all(|byte| byte.is_ascii_alphanumeric())
}
