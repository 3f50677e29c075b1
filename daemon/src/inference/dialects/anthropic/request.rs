//! Builds requests for Anthropic's Messages API.
//!
//! Thinking blocks go back unchanged, at their old place. Cache marks cover the tools, the system prompt, and the
//! conversation up to each of the last two user turns. The older mark is where the previous request ended, so that
//! request's cache entry is found again.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::super::{Settings, Thinking};
use super::NAME;
use crate::config::BESIDE_THINKING;
use crate::inference::common::call_ids::{self, CallIds};
use crate::inference::common::opaque_blocks::{self, Piece};
use crate::inference::common::tool_args;
use crate::inference::common::tool_name::{NO_TEXT, tool_name};
use crate::prompt::{Message as Neutral, Prompt};
use crate::tools::ToolSpec;

/// Most tokens of an answer where nothing else is set: the API wants a number.
const MAX_TOKENS: u32 = 8_192;
/// Turns of the user that caches may keep.
const MARKED_TURNS: usize = 2;

#[derive(Serialize)]
struct Body<'a> {
    model: &'a str,
    max_tokens: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    system: Option<[Block<'a>; 1]>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tools: Vec<Tool<'a>>,
    messages: Vec<Message<'a>>,
    stream: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    thinking: Option<Think>,
    #[serde(skip_serializing_if = "Option::is_none")]
    temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_config: Option<OutputConfig<'a>>,
    #[serde(flatten)]
    extra: &'a Map<String, Value>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Think {
    Enabled { budget_tokens: u32 },
    Adaptive,
}

#[derive(Serialize)]
struct OutputConfig<'a> {
    effort: &'a str,
}

#[derive(Serialize)]
struct Tool<'a> {
    name: &'a str,
    description: &'a str,
    input_schema: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    cache_control: Option<CacheControl>,
}

#[derive(Serialize)]
struct Message<'a> {
    role: &'static str,
    content: Vec<Content<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Content<'a> {
    Carried(&'a RawValue),
    Block(Block<'a>),
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum Block<'a> {
    Text {
        text: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
    ToolUse {
        id: String,
        name: Cow<'a, str>,
        input: Cow<'a, RawValue>,
    },
    ToolResult {
        tool_use_id: String,
        content: &'a str,
        is_error: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        cache_control: Option<CacheControl>,
    },
}

#[derive(Serialize, Clone, Copy)]
#[serde(tag = "type", rename_all = "snake_case")]
enum CacheControl {
    Ephemeral,
}

pub(super) fn body(
    settings: &Settings,
    prompt: &Prompt,
    tools: &[ToolSpec],
    so_far: &[Box<RawValue>],
) -> Result<Vec<u8>, serde_json::Error> {
    let mark = settings.cache.then_some(CacheControl::Ephemeral);
    let mut tools: Vec<Tool<'_>> = tools.iter().map(declaration).collect::<Result<_, _>>()?;
    if let Some(last) = tools.last_mut() {
        last.cache_control = mark;
    }
    let ids = CallIds::new(prompt, call_ids::is_word, |call| call.to_string());
    let mut messages: Vec<Message<'_>> = prompt.messages.iter().map(|said| message(said, &ids)).collect();
    let turns = messages.iter_mut().rev().filter(|message| message.role == "user");
    for last in turns.take(MARKED_TURNS).filter_map(|turn| turn.content.last_mut()) {
        last.mark(mark);
    }
    if !so_far.is_empty() {
        messages
            .push(Message { role: "assistant", content: so_far.iter().map(|said| Content::Carried(said)).collect() });
    }
    let system = prompt.system.as_deref().filter(|text| !text.trim().is_empty());
    let thinking = settings.thinking.filter(|_| may_think(prompt));
    let max_tokens = settings.max_output_tokens.unwrap_or(MAX_TOKENS);
    let body = Body {
        model: &settings.model,
        // The budget must be less than the whole.
        max_tokens: match thinking {
            Some(Thinking::Budget(budget)) if budget >= max_tokens => budget.saturating_add(BESIDE_THINKING),
            _ => max_tokens,
        },
        system: system.map(|text| [Block::Text { text, cache_control: mark }]),
        tools,
        messages,
        stream: true,
        temperature: settings.temperature.filter(|_| thinking.is_none()),
        thinking: thinking.map(|thinking| match thinking {
            Thinking::Budget(budget_tokens) => Think::Enabled { budget_tokens },
            Thinking::Adaptive => Think::Adaptive,
        }),
        output_config: settings.effort.as_deref().map(|effort| OutputConfig { effort }),
        extra: &settings.extra,
    };
    serde_json::to_vec(&body)
}

/// Calls whose results go back must follow the thinking that led to them; another model's do not.
fn may_think(prompt: &Prompt) -> bool {
    let answers = prompt.messages.iter().rev().filter_map(|message| match message {
        Neutral::Assistant { calls, carried, .. } => Some((calls, carried)),
        Neutral::User { .. } => None,
    });
    match answers.into_iter().next() {
        Some((calls, carried)) if !calls.is_empty() => carried.as_ref().is_some_and(|c| &*c.dialect == NAME),
        _ => true,
    }
}

fn declaration(spec: &ToolSpec) -> Result<Tool<'_>, serde_json::Error> {
    let input_schema = serde_json::from_str(&spec.parameters)?;
    Ok(Tool { name: &spec.name, description: &spec.description, input_schema, cache_control: None })
}

fn message<'a>(message: &'a Neutral, ids: &CallIds<'_>) -> Message<'a> {
    let (role, mut content): (_, Vec<Content<'_>>) = match message {
        Neutral::User { results, texts } => {
            // Results come first: the API refuses them after a text.
            let results = results.iter().map(|result| Block::ToolResult {
                tool_use_id: ids.get(result.call),
                content: &result.envelope,
                is_error: result.is_error,
                cache_control: None,
            });
            let texts = texts.iter().filter(|text| !text.trim().is_empty()).map(|text| Block::text(text));
            ("user", results.chain(texts).map(Content::Block).collect())
        }
        Neutral::Assistant { text, calls, carried } => {
            let pieces = opaque_blocks::pieces(NAME, text, calls, carried.as_deref());
            ("assistant", pieces.iter().map(|said| piece(said, ids)).collect())
        }
    };
    if content.is_empty() {
        content.push(Content::Block(Block::text(NO_TEXT)));
    }
    Message { role, content }
}

fn piece<'a>(piece: &Piece<'a>, ids: &CallIds<'_>) -> Content<'a> {
    match piece {
        Piece::Block(block) => Content::Carried(block),
        Piece::Text(text) | Piece::Said(text, _) => Content::Block(Block::text(text)),
        Piece::Call(request) => Content::Block(Block::ToolUse {
            id: ids.get(request.call),
            name: tool_name(&request.tool),
            input: tool_args::object(request),
        }),
    }
}

impl<'a> Block<'a> {
    const fn text(text: &'a str) -> Self {
        Self::Text { text, cache_control: None }
    }
}

impl Content<'_> {
    fn mark(&mut self, mark: Option<CacheControl>) {
        match self {
            Self::Block(Block::Text { cache_control, .. } | Block::ToolResult { cache_control, .. }) => {
                *cache_control = mark;
            }
            Self::Block(Block::ToolUse { .. }) | Self::Carried(_) => {}
        }
    }
}
