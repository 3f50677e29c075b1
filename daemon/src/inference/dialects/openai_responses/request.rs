//! Builds requests for OpenAI's Responses API.

use std::borrow::Cow;

use harness_protocol::run::CallRequest;
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::super::Settings;
use super::NAME;
use crate::inference::common::call_ids::{self, CallIds};
use crate::inference::common::opaque_blocks::{self, Piece};
use crate::inference::common::tool_args;
use crate::inference::common::tool_name::{NO_TEXT, tool_name};
use crate::prompt::{Message as Neutral, Prompt};
use crate::tools::ToolSpec;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instructions: Option<&'a str>,
    input: Vec<Input<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    stream: bool,
    store: bool,
    /// Without it reasoning could not be sent back, as nothing is stored.
    include: [&'static str; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    max_output_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<Reasoning<'a>>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
struct Reasoning<'a> {
    effort: &'a str,
    summary: &'static str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Input<'a> {
    Carried(&'a RawValue),
    Said(Said<'a>),
    Item(Item<'a>),
}

/// What the model said, in the one form that every server takes: without a type, id or status it is no item of theirs.
#[derive(Serialize)]
struct Said<'a> {
    role: &'static str,
    content: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    phase: Option<String>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Item<'a> {
    Message { role: &'static str, content: [Content<'a>; 1] },
    FunctionCall { call_id: String, name: Cow<'a, str>, arguments: Cow<'a, str> },
    FunctionCallOutput { call_id: String, output: &'a str },
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Content<'a> {
    InputText { text: &'a str },
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "function")]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    parameters: &'a RawValue,
    /// Strict schemas must require all of their properties; ours do not.
    strict: bool,
}

pub(super) fn body(settings: &Settings, prompt: &Prompt, tools: &[ToolSpec]) -> Result<Vec<u8>, serde_json::Error> {
    let ids = CallIds::new(prompt, call_ids::is_visible, |call| call.to_string());
    let mut input = Vec::with_capacity(2 * prompt.messages.len());
    for message in &prompt.messages {
        match message {
            Neutral::User { results, texts } => {
                let outputs = results.iter().map(|result| {
                    let call_id = ids.get(result.call);
                    Input::Item(Item::FunctionCallOutput { call_id, output: &result.envelope })
                });
                input.extend(outputs);
                let said = texts.iter().filter(|text| !text.trim().is_empty());
                input.extend(said.clone().map(|text| user(text)));
                if results.is_empty() && said.count() == 0 {
                    input.push(user(NO_TEXT));
                }
            }
            Neutral::Assistant { text, calls, carried } => {
                let pieces = opaque_blocks::pieces(NAME, text, calls, carried.as_deref());
                input.extend(pieces.into_iter().map(|said| piece(said, &ids)));
            }
        }
    }
    let body = Body {
        model: &settings.model,
        instructions: prompt.system.as_deref(),
        input,
        tools: tools.iter().map(declaration).collect::<Result<_, _>>()?,
        stream: true,
        store: false,
        include: ["reasoning.encrypted_content"],
        max_output_tokens: settings.max_output_tokens,
        temperature: settings.temperature,
        reasoning: settings.effort.as_deref().map(|effort| Reasoning { effort, summary: "auto" }),
        extra: &settings.extra,
    };
    serde_json::to_vec(&body)
}

fn declaration(spec: &ToolSpec) -> Result<Tool<'_>, serde_json::Error> {
    let parameters = serde_json::from_str(&spec.parameters)?;
    Ok(Tool { name: &spec.name, description: &spec.description, parameters, strict: false })
}

fn user(text: &str) -> Input<'_> {
    Input::Item(Item::Message { role: "user", content: [Content::InputText { text }] })
}

fn piece<'a>(piece: Piece<'a>, ids: &CallIds<'_>) -> Input<'a> {
    match piece {
        Piece::Block(block) => Input::Carried(block),
        Piece::Text(content) => Input::Said(Said { role: "assistant", content, phase: None }),
        Piece::Said(content, phase) => Input::Said(Said { role: "assistant", content, phase: Some(phase) }),
        Piece::Call(request) => Input::Item(call(request, ids)),
    }
}

fn call<'a>(request: &'a CallRequest, ids: &CallIds<'_>) -> Item<'a> {
    let arguments = match tool_args::object(request) {
        Cow::Borrowed(raw) => Cow::Borrowed(raw.get()),
        Cow::Owned(raw) => Cow::Owned(raw.get().to_owned()),
    };
    Item::FunctionCall { call_id: ids.get(request.call), name: tool_name(&request.tool), arguments }
}
