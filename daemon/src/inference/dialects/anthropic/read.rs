//! Reads answers of Anthropic's Messages API.
//!
//! An answer is complete with `message_stop`. It is also complete with `[DONE]` or a clean end of the stream, if the
//! stop reason was given and every block has ended. Any other end makes the answer an error.

use harness_protocol::run::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::{Ended, Piece, ReadAnswer, Show, shown, too_early};
use super::NAME;
use super::blocks::{Blocks, Finished, Kind};
use super::fast;
use crate::inference::common::answer_limit::Room;
use crate::inference::common::finish_reason::{self, Reason};
use crate::inference::common::json_text::Text;
use crate::inference::common::lenient::{Number, Object, Odd, said};
use crate::inference::common::opaque_blocks;
use crate::inference::common::tool_args;
use crate::inference::common::usage_counts::Counts;
use crate::inference::errors::classify::{broken, in_answer, unreadable};
use crate::inference::errors::envelope;
use crate::inference::fast_path::repeated_form::Form;
use crate::prompt::{Completion, InferenceError};

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(default)]
    index: Number,
    #[serde(borrow, default)]
    delta: Object<Delta<'a>>,
    #[serde(borrow, default)]
    content_block: Option<&'a RawValue>,
    #[serde(borrow, default)]
    message: Option<&'a RawValue>,
    #[serde(default)]
    usage: Odd<SentUsage>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Delta<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(borrow, default)]
    text: Option<Text<'a>>,
    #[serde(borrow, default)]
    partial_json: Option<Text<'a>>,
    #[serde(borrow, default)]
    thinking: Option<Text<'a>>,
    #[serde(borrow, default)]
    signature: Option<Text<'a>>,
    #[serde(borrow, default)]
    stop_reason: Option<Text<'a>>,
    #[serde(borrow, default)]
    stop_details: Object<Details<'a>>,
}

/// Why it ended, in words.
#[derive(Deserialize)]
struct Details<'a> {
    #[serde(borrow, default)]
    explanation: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Message<'a> {
    /// Blocks, or a text.
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    #[serde(borrow, default)]
    stop_reason: Option<Text<'a>>,
    #[serde(borrow, default)]
    stop_details: Object<Details<'a>>,
    #[serde(default)]
    usage: Odd<SentUsage>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize, Default, Clone, Copy)]
struct SentUsage {
    #[serde(default)]
    input_tokens: Number,
    #[serde(default)]
    output_tokens: Number,
    #[serde(default)]
    cache_read_input_tokens: Number,
    #[serde(default)]
    cache_creation_input_tokens: Number,
}

/// Reads one streamed answer.
#[derive(Debug, Default)]
pub(in crate::inference::dialects) struct Reader {
    blocks: Blocks,
    stop_reason: Option<Reason>,
    /// Why it ended, in the server's words.
    explanation: String,
    usage: Counts,
    /// What the parts of the answer used that came before, where it was paused.
    before: Usage,
    stopped: bool,
    room: Room,
    form: Form<(u64, Kind)>,
}

/// A whole answer.
pub(super) fn plain(body: &str) -> Result<Completion, InferenceError> {
    if !body.trim_start().starts_with('{') {
        return Err(in_answer(body));
    }
    let mut reader = Reader::default();
    let message: Message<'_> = serde_json::from_str(body).map_err(|error| unreadable("an answer", body, &error))?;
    if said(message.error).is_some() {
        return Err(in_answer(body));
    }
    if message.content.is_none() {
        let nothing = || broken("the provider sent an answer without any content");
        return Err(envelope::error(body).unwrap_or_else(nothing));
    }
    reader.message(message)?;
    reader.blocks.end(None);
    reader.stopped = true;
    reader.finish(Ended::Clean)
}

impl ReadAnswer for Reader {
    fn is_over(&self) -> bool {
        self.stopped
    }

    fn event(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        match fast::delta(&mut self.form, data) {
            Some((index, kind, piece)) => self.piece(index, kind, &piece, show),
            None => self.any(name, data, show),
        }
    }

    /// Any event, in whatever form.
    fn any(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        if data.trim().eq_ignore_ascii_case("[DONE]") {
            self.stopped = self.is_complete();
            return Ok(());
        }
        let event: Event<'_> = serde_json::from_str(data).map_err(|error| unreadable("an event", data, &error))?;
        let index = event.index.0.unwrap_or_default();
        let kind = event.kind.as_ref().map(Text::to_str);
        match kind.as_deref().unwrap_or(name) {
            "content_block_delta" => {
                if let Some(delta) = &event.delta.0 {
                    self.delta(index, delta, show)?;
                }
            }
            "content_block_start" => {
                if let Some(block) = event.content_block {
                    match self.blocks.begin(index, block, &mut self.room)? {
                        Some((Kind::Text, text)) => shown(text, Piece::Text, show),
                        Some((Kind::Thinking, text)) => shown(text, Piece::Reasoning, show),
                        _ => {}
                    }
                }
            }
            "content_block_stop" => self.blocks.end(Some(index)),
            "message_start" => {
                if let Some(json) = event.message.map(RawValue::get).filter(|json| json.starts_with('{')) {
                    let message = serde_json::from_str(json).map_err(|error| unreadable("an event", json, &error))?;
                    self.message(message)?;
                }
            }
            "message_delta" => {
                self.update(event.usage);
                if let Some(delta) = event.delta.0 {
                    self.stop(delta.stop_reason.as_ref(), delta.stop_details.0);
                }
            }
            "message_stop" => self.stopped = true,
            "error" => return Err(in_answer(data)),
            _ if event.kind.is_none() && said(event.error).is_some() => return Err(in_answer(data)),
            _ if event.kind.is_none() => return envelope::error(data).map_or(Ok(()), Err),
            _ => {}
        }
        Ok(())
    }

    fn taken(&self) -> usize {
        self.room.taken()
    }

    fn used(&self) -> Usage {
        let (mut used, last) = (self.before, usage(self.usage));
        used.add(&last);
        used
    }

    /// Whether the server wants to be sent what it has said so far, and goes on then.
    fn is_paused(&self) -> bool {
        self.stop_reason.as_ref().is_some_and(Reason::is_paused)
            && self.blocks.have_ended()
            && !self.blocks.have_calls()
    }

    /// The answer so far, as it is sent back.
    fn as_said(&self) -> Vec<Box<RawValue>> {
        self.blocks.as_said()
    }

    /// From here on the rest of the answer comes.
    fn go_on(&mut self) {
        self.before = self.used();
        (self.usage, self.stop_reason, self.stopped, self.form) = Default::default();
        self.blocks.go_on();
    }

    fn finish(self, ended: Ended) -> Result<Completion, InferenceError> {
        let ended_well = self.stopped || (ended == Ended::Clean && self.is_complete());
        if !ended_well {
            return Err(too_early(ended));
        }
        let used = self.used();
        let reason = self.stop_reason;
        let cut = reason.as_ref().is_some_and(Reason::is_cut);
        let Finished { text, calls, parts, thought } = match reason.as_ref().and_then(|reason| reason.fault("")) {
            Some(_) => {
                let text = Some(self.blocks.finish(true)?.text).filter(|text| !text.is_empty());
                let text = text.unwrap_or(self.explanation);
                return Err(reason.and_then(|reason| reason.fault(&text)).unwrap_or_else(|| too_early(ended)));
            }
            None => self.blocks.finish(cut)?,
        };
        let completion = Completion {
            text,
            calls: tool_args::calls(calls, cut)?,
            usage: used,
            carried: opaque_blocks::carried(NAME, &parts),
            cut,
            doubt: None,
        };
        finish_reason::with_something(completion, reason.as_ref(), thought)
    }
}

impl Reader {
    fn delta(&mut self, index: u64, delta: &Delta<'_>, show: Show<'_>) -> Result<(), InferenceError> {
        let (kind, piece) = match delta.kind.as_ref().map(Text::to_str).as_deref() {
            Some("text_delta") => (Kind::Text, &delta.text),
            Some("input_json_delta") => (Kind::Args, &delta.partial_json),
            Some("thinking_delta") => (Kind::Thinking, &delta.thinking),
            Some("signature_delta") => (Kind::Signature, &delta.signature),
            _ => return Ok(()),
        };
        piece.as_ref().map_or(Ok(()), |piece| self.piece(index, kind, piece, show))
    }

    fn piece(&mut self, index: u64, kind: Kind, piece: &Text<'_>, show: Show<'_>) -> Result<(), InferenceError> {
        let text = self.blocks.add(index, kind, piece, &mut self.room)?;
        shown(text, if kind == Kind::Thinking { Piece::Reasoning } else { Piece::Text }, show);
        Ok(())
    }

    fn update(&mut self, usage: Odd<SentUsage>) {
        if let Some(sent) = usage.0 {
            self.usage.update(Counts {
                input: sent.input_tokens.0,
                output: sent.output_tokens.0,
                cache_read: sent.cache_read_input_tokens.0,
                cache_written: sent.cache_creation_input_tokens.0,
                ..Counts::default()
            });
        }
    }

    fn message(&mut self, message: Message<'_>) -> Result<(), InferenceError> {
        let content = message.content.map_or("null", RawValue::get);
        let unreadable = |error| unreadable("an answer", content, &error);
        match content.as_bytes().first() {
            Some(b'[') => {
                let blocks: Vec<&RawValue> = serde_json::from_str(content).map_err(unreadable)?;
                for (index, block) in (0..).zip(blocks) {
                    self.blocks.begin(index, block, &mut self.room)?;
                }
            }
            Some(b'"') => self.blocks.text(&serde_json::from_str(content).map_err(unreadable)?, &mut self.room)?,
            _ => {}
        }
        self.update(message.usage);
        self.stop(message.stop_reason.as_ref(), message.stop_details.0);
        Ok(())
    }

    /// Notes why it ended, where that is said.
    fn stop(&mut self, reason: Option<&Text<'_>>, details: Option<Details<'_>>) {
        self.stop_reason = reason.and_then(|reason| Reason::said(&reason.to_str())).or(self.stop_reason.take());
        if let Some(explanation) = details.and_then(|details| details.explanation) {
            self.explanation = explanation.to_str().into_owned();
        }
    }

    /// Whether all has come but the word that it has.
    fn is_complete(&self) -> bool {
        self.stop_reason.is_some() && self.blocks.have_ended()
    }
}

/// Here the input leaves out what a cache had to do with; ours is all of it.
fn usage(counts: Counts) -> Usage {
    let (read, written) = (counts.cache_read.unwrap_or_default(), counts.cache_written.unwrap_or_default());
    Usage {
        input_tokens: counts.input.unwrap_or_default() + read + written,
        output_tokens: counts.output.unwrap_or_default(),
        cache_read_input_tokens: read,
        cache_creation_input_tokens: written,
        reasoning_output_tokens: 0,
        cost_usd: None,
    }
}
