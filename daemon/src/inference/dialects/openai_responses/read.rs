//! Reads answers of OpenAI's Responses API.
//!
//! An answer is complete only with `response.completed` or `response.incomplete`. The streamed items count; where the
//! list at the end has more, the list counts, because some servers stream only a part and some send an empty list.

use harness_protocol::run::Usage;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::{Ended, Piece, ReadAnswer, Show, shown, too_early};
use super::NAME;
use super::fast::{self, About, Delta};
use super::items::{Items, Kind, Place, Stage};
use crate::inference::common::answer_limit::Room;
use crate::inference::common::finish_reason::{self, Reason};
use crate::inference::common::json_text::{Gathered, Text};
use crate::inference::common::lenient::{Number, Object, Odd, said};
use crate::inference::common::opaque_blocks;
use crate::inference::common::tool_args;
use crate::inference::common::usage_counts::Counts;
use crate::inference::errors::classify::{broken, in_answer, refused, unreadable};
use crate::inference::errors::envelope;
use crate::inference::fast_path::repeated_form::Form;
use crate::prompt::{Completion, InferenceError};

#[derive(Deserialize)]
struct Event<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Text<'a>>,
    /// A string in the events that are read here; other events have objects.
    #[serde(borrow, default)]
    delta: Option<&'a RawValue>,
    #[serde(borrow, default)]
    item_id: Option<Text<'a>>,
    #[serde(default)]
    output_index: Number,
    #[serde(borrow, default)]
    item: Option<&'a RawValue>,
    #[serde(borrow, default)]
    response: Option<&'a RawValue>,
    #[serde(borrow, default)]
    arguments: Option<Text<'a>>,
    #[serde(borrow, default)]
    text: Option<Text<'a>>,
    #[serde(borrow, default)]
    part: Object<SentPart<'a>>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct SentPart<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(borrow, default)]
    text: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Response<'a> {
    #[serde(borrow, default)]
    status: Option<Text<'a>>,
    #[serde(borrow, default)]
    incomplete_details: Object<Incomplete<'a>>,
    #[serde(borrow, default)]
    output: Odd<Vec<&'a RawValue>>,
    #[serde(default)]
    usage: Odd<SentUsage>,
    #[serde(borrow, default)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Incomplete<'a> {
    #[serde(borrow, default)]
    reason: Option<Text<'a>>,
}

#[derive(Deserialize, Clone, Copy)]
struct SentUsage {
    #[serde(default)]
    input_tokens: Number,
    #[serde(default)]
    output_tokens: Number,
    #[serde(default)]
    input_tokens_details: Odd<Details>,
    #[serde(default)]
    output_tokens_details: Odd<Details>,
}

#[derive(Deserialize, Default, Clone, Copy)]
struct Details {
    #[serde(default)]
    cached_tokens: Number,
    #[serde(default)]
    reasoning_tokens: Number,
}

/// Reads one streamed answer.
#[derive(Debug, Default)]
pub(in crate::inference::dialects) struct Reader {
    items: Items,
    reasoning: Gathered,
    over: Option<Reason>,
    /// The model thought.
    thought: bool,
    usage: Counts,
    room: Room,
    form: Form<About>,
}

/// A whole answer.
pub(super) fn plain(body: &str) -> Result<Completion, InferenceError> {
    if !body.trim_start().starts_with('{') {
        return Err(in_answer(body));
    }
    let mut reader = Reader::default();
    reader.response(body, None, &mut |_| {})?;
    reader.finish(Ended::Clean)
}

impl ReadAnswer for Reader {
    fn is_over(&self) -> bool {
        self.over.is_some()
    }

    #[inline]
    fn event(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        let Some(Delta { kind, id, index, text }) = fast::delta(&mut self.form, data) else {
            return self.any(name, data, show);
        };
        if kind == Kind::Reasoning {
            self.thought |= !text.is_empty();
            shown(self.reasoning.pass(&text), Piece::Reasoning, show);
            return Ok(());
        }
        let piece = self.items.piece(kind, Place { id, index }, &text, &mut self.room)?;
        shown_of(kind, piece, show);
        Ok(())
    }

    /// Any event, in whatever form.
    fn any(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        if data.trim().eq_ignore_ascii_case("[DONE]") {
            return Ok(());
        }
        let event: Event<'_> = serde_json::from_str(data).map_err(|error| unreadable("an event", data, &error))?;
        let kind = event.kind.as_ref().map(Text::to_str);
        let kind = kind.as_deref().unwrap_or(name);
        let id = event.item_id.as_ref().map(Text::to_str).unwrap_or_default();
        let place = Place { id: &id, index: event.output_index.0 };
        let delta = || event.delta.and_then(|raw| serde_json::from_str::<Text<'_>>(raw.get()).ok()).unwrap_or_default();
        match kind {
            "response.output_text.delta" => self.piece(Kind::Message, place, &delta(), show)?,
            "response.function_call_arguments.delta" => self.piece(Kind::Call, place, &delta(), show)?,
            "response.refusal.delta" => shown(self.items.refusal(place, &delta(), &mut self.room)?, Piece::Text, show),
            "response.reasoning_summary_text.delta" | "response.reasoning_text.delta" => {
                let text = delta();
                self.thought |= !text.is_empty();
                shown(self.reasoning.pass(&text), Piece::Reasoning, show);
            }
            "response.output_item.added" | "response.output_item.done" => {
                let stage = if kind == "response.output_item.added" { Stage::Begun } else { Stage::Done };
                if let Some(item) = event.item {
                    let text = self.items.item(item, event.output_index.0, stage, &mut self.room)?;
                    shown(text, Piece::Text, show);
                }
            }
            "response.function_call_arguments.done" => {
                if let Some(arguments) = event.arguments {
                    self.items.arguments(place, &arguments, &mut self.room)?;
                }
            }
            "response.output_text.done" => self.whole_text(place, event.text.as_ref(), show)?,
            "response.content_part.done" => {
                let part =
                    event.part.0.filter(|part| part.kind.as_ref().is_some_and(|kind| kind.to_str() == "output_text"));
                self.whole_text(place, part.and_then(|part| part.text).as_ref(), show)?;
            }
            "response.completed" | "response.incomplete" | "response.done" => {
                let response = event.response.map_or("{}", RawValue::get);
                let status = (kind == "response.incomplete").then_some("incomplete");
                self.response(response, status, show)?;
            }
            "response.failed" | "response.cancelled" | "error" => return Err(in_answer(data)),
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
        usage(self.usage)
    }

    fn finish(self, ended: Ended) -> Result<Completion, InferenceError> {
        let Some(over) = self.over else { return Err(too_early(ended)) };
        let items = self.items.finish();
        if let Some(fault) = over.fault(&items.text) {
            return Err(fault);
        }
        if !items.refusal.is_empty() {
            return Err(refused("the model refused", &items.refusal));
        }
        let cut = over.is_cut();
        let completion = Completion {
            text: items.text,
            calls: tool_args::calls(items.calls, cut)?,
            usage: usage(self.usage),
            carried: opaque_blocks::carried(NAME, &items.parts),
            cut,
            doubt: None,
        };
        finish_reason::with_something(completion, Some(&over), self.thought || items.thought)
    }
}

impl Reader {
    fn piece(&mut self, kind: Kind, place: Place<'_>, text: &Text<'_>, show: Show<'_>) -> Result<(), InferenceError> {
        shown_of(kind, self.items.piece(kind, place, text, &mut self.room)?, show);
        Ok(())
    }

    /// The text of a part of a message, whole: it counts where it goes on from its pieces.
    fn whole_text(&mut self, place: Place<'_>, text: Option<&Text<'_>>, show: Show<'_>) -> Result<(), InferenceError> {
        let Some(text) = text else { return Ok(()) };
        shown(self.items.whole_text(place, text, &mut self.room)?, Piece::Text, show);
        Ok(())
    }

    /// The response as a whole. `status` is what the event says of it, where it says so itself.
    fn response(&mut self, json: &str, status: Option<&str>, show: Show<'_>) -> Result<(), InferenceError> {
        let response: Response<'_> =
            serde_json::from_str(json).map_err(|error| unreadable("an answer", json, &error))?;
        if said(response.error).is_some() {
            return Err(in_answer(json));
        }
        if response.output.0.as_ref().is_none_or(Vec::is_empty)
            && self.items.is_empty()
            && let Some(error) = envelope::error(json)
        {
            return Err(error);
        }
        let mut listed = Items::default();
        for (index, item) in (0..).zip(response.output.0.into_iter().flatten()) {
            listed.item(item, Some(index), Stage::Done, &mut self.room)?;
        }
        if listed.calls() > self.items.calls() || (self.items.is_empty() && !listed.is_empty()) {
            if self.items.texts().all(str::is_empty) {
                listed.texts().for_each(|text| shown(text, Piece::Text, &mut *show));
            }
            self.items = listed;
        } else {
            self.items.take_more(listed, &mut |text| shown(text, Piece::Text, show));
        }
        if let Some(usage) = response.usage.0 {
            self.usage.update(usage.counts());
        }
        let said = response.status.as_ref().map(Text::to_str);
        let reason = response.incomplete_details.0.and_then(|details| details.reason).unwrap_or_default();
        self.over = Some(match status.or(said.as_deref()) {
            Some("failed" | "cancelled") => return Err(in_answer(json)),
            Some("incomplete") if reason.is_empty() => Reason::of("max_output_tokens"),
            Some("incomplete") => Reason::of(&reason.to_str()),
            Some(status) => Reason::of(status),
            // No object that has a status is no response.
            None if status.is_none() && self.items.is_empty() => {
                return Err(envelope::error(json)
                    .unwrap_or_else(|| broken("the provider sent an answer that has no status and says nothing")));
            }
            None => Reason::of(""),
        });
        Ok(())
    }
}

/// Of calls nothing is shown.
fn shown_of(kind: Kind, piece: &str, show: Show<'_>) {
    if kind == Kind::Message {
        shown(piece, Piece::Text, show);
    }
}

impl SentUsage {
    fn counts(self) -> Counts {
        let details = |details: Odd<Details>| details.0.unwrap_or_default();
        Counts {
            input: self.input_tokens.0,
            output: self.output_tokens.0,
            cache_read: details(self.input_tokens_details).cached_tokens.0,
            reasoning: details(self.output_tokens_details).reasoning_tokens.0,
            ..Counts::default()
        }
    }
}

fn usage(counts: Counts) -> Usage {
    Usage {
        input_tokens: counts.input.unwrap_or_default(),
        output_tokens: counts.output.unwrap_or_default(),
        cache_read_input_tokens: counts.cache_read.unwrap_or_default(),
        cache_creation_input_tokens: 0,
        reasoning_output_tokens: counts.reasoning.unwrap_or_default(),
        cost_usd: None,
    }
}
