//! Reads answers of chat completions.
//!
//! An answer has ended well where a finish reason came and then the end of the stream, or `[DONE]`. A finish reason may come before the
//! last delta, and usage after it; so a connection that breaks before `[DONE]` is a broken answer. Calls are wanted wherever there are calls, whatever the finish reason says.

use harness_protocol::run::Usage;
use serde_json::value::to_raw_value;

use super::super::arguments;
use super::super::carried::{self, Part};
use super::super::dialect::{Ended, Piece, Quirks, Show, shown, too_early};
use super::super::finish::{self, Reason};
use super::super::form::Form;
use super::super::refusal::{broken, in_answer, refused, unreadable};
use super::super::room::Room;
use super::super::text::{Gathered, Text};
use super::calls::Calls;
use super::details::Details;
use super::fast::{self, Plain, Slot};
use super::wire::{self, Chunk};
use super::{NAME, Returned};
use crate::prompt::{Completion, InferenceError};

/// Reads one streamed answer.
#[derive(Debug, Default)]
pub(in super::super) struct Reader {
    text: Gathered,
    refusal: Gathered,
    reasoning: Gathered,
    details: Details,
    calls: Calls,
    usage: wire::Usage,
    finish: Option<Reason>,
    done: bool,
    /// A choice was seen, be it an empty one.
    begun: bool,
    /// The model thought.
    thought: bool,
    room: Room,
    form: Form<Slot>,
    quirks: Quirks,
}

/// A whole answer.
pub(in super::super) fn plain(body: &str, quirks: Quirks) -> Result<Completion, InferenceError> {
    let mut reader = Reader::new(quirks);
    if !body.trim_start().starts_with('{') {
        return Err(in_answer(body));
    }
    reader.chunk(body, "an answer", &mut |_| {})?;
    reader.finish(Ended::Clean)
}

impl Reader {
    pub(in super::super) fn new(quirks: Quirks) -> Self {
        Self { quirks, ..Self::default() }
    }

    pub(in super::super) fn is_over(&self) -> bool {
        self.done
    }

    pub(in super::super) fn may_be_over(&self) -> bool {
        self.finish.is_some()
    }

    pub(in super::super) fn event(&mut self, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        match fast::plain(&mut self.form, data) {
            Some(plain) => self.plain(plain, show),
            None => self.any(data, show),
        }
    }

    /// Any event, in whatever form.
    pub(in super::super) fn any(&mut self, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        if data.trim().eq_ignore_ascii_case("[DONE]") {
            self.done = true;
            return Ok(());
        }
        self.chunk(data, "an event", show)
    }

    fn plain(&mut self, plain: Plain<'_>, show: Show<'_>) -> Result<(), InferenceError> {
        self.begun = true;
        if let Some(text) = &plain.reasoning {
            self.reasoning(text, show)?;
        }
        if let Some(text) = &plain.content {
            self.content(text, show)?;
        }
        plain.args.map_or(Ok(()), |(index, args)| self.calls.add_args(index, args, &mut self.room))
    }

    fn chunk(&mut self, data: &str, what: &str, show: Show<'_>) -> Result<(), InferenceError> {
        let chunk: Chunk<'_> = serde_json::from_str(data).map_err(|error| unreadable(what, data, &error))?;
        let is_error = chunk.object.is_some_and(|object| object.to_str() == "error");
        if chunk.error.is_some() || is_error || (chunk.detail.is_some() && chunk.choices.is_none()) {
            return Err(in_answer(data));
        }
        if let Some(usage) = chunk.usage {
            self.usage = usage;
        }
        let Some(choice) = chunk.choices.and_then(|choices| choices.0) else { return Ok(()) };
        if choice.index.is_some_and(|index| index.0 != 0) {
            return Ok(());
        }
        if let Some(error) = choice.error {
            return Err(in_answer(error.get()));
        }
        self.begun = true;
        if let Some(delta) = choice.delta.or(choice.message) {
            self.delta(&delta, show)?;
        }
        if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
            self.finish = Some(Reason::of(&reason.to_str()));
        }
        Ok(())
    }

    fn delta(&mut self, delta: &wire::Delta<'_>, show: Show<'_>) -> Result<(), InferenceError> {
        let reasoning =
            [&delta.reasoning_content, &delta.reasoning].into_iter().flatten().find(|text| !text.is_empty());
        if let Some(text) = reasoning {
            self.reasoning(text, show)?;
        }
        if let Some(pieces) = delta.reasoning_details {
            self.details.add(pieces, &mut self.room)?;
        }
        if let Some(text) = &delta.content {
            self.content(text, show)?;
        }
        if let Some(text) = &delta.refusal {
            self.room.take(text)?;
            shown(self.refusal.push(text), Piece::Text, show);
        }
        if let Some(calls) = &delta.tool_calls {
            self.calls.add(calls, &mut self.room)?;
        }
        if let Some(function) = &delta.function_call {
            let function = Some(wire::Function { name: function.name.clone(), arguments: function.arguments });
            self.calls.add(&[wire::Call { function, ..wire::Call::default() }], &mut self.room)?;
        }
        Ok(())
    }

    fn reasoning(&mut self, text: &Text<'_>, show: Show<'_>) -> Result<(), InferenceError> {
        self.room.take(text)?;
        self.thought |= !text.is_empty();
        let keep = self.quirks.return_reasoning;
        let piece = if keep { self.reasoning.push(text) } else { self.reasoning.pass(text) };
        shown(piece, Piece::Reasoning, show);
        Ok(())
    }

    fn content(&mut self, text: &Text<'_>, show: Show<'_>) -> Result<(), InferenceError> {
        self.room.take(text)?;
        shown(self.text.push(text), Piece::Text, show);
        Ok(())
    }

    pub(in super::super) const fn taken(&self) -> usize {
        self.room.taken()
    }

    pub(in super::super) fn used(&self) -> Usage {
        self.usage.usage()
    }

    pub(in super::super) fn finish(mut self, ended: Ended) -> Result<Completion, InferenceError> {
        let ended_well = self.done || (self.finish.is_some() && ended != Ended::Broken);
        if !ended_well {
            return Err(too_early(ended));
        }
        let (refusal, _) = self.refusal.finish();
        let (text, _) = self.text.finish();
        if self.finish.is_none() && !self.begun {
            return Err(broken("the provider ended its answer before it began"));
        }
        if let Some(fault) = self.finish.as_ref().and_then(|reason| reason.fault(&text)) {
            return Err(fault);
        }
        if !refusal.is_empty() {
            return Err(refused("the model refused", &refusal));
        }
        let cut = self.finish.as_ref().is_some_and(Reason::is_cut);
        let (reasoning, _) = self.reasoning.finish();
        let mut parts = Vec::new();
        // What led to calls, servers want back with these.
        let returned = Returned {
            reasoning_content: (self.quirks.return_reasoning && !reasoning.is_empty()).then_some(reasoning.into()),
            reasoning_details: self.details.finish(),
            extra_content: self.calls.take_extras(),
        };
        if !self.calls.is_empty() && !returned.is_empty() {
            parts.extend(to_raw_value(&returned).ok().map(Part::Block));
        }
        let calls = arguments::calls(self.calls.into_gathered(), cut)?;
        let carried = carried::carried(NAME, &parts);
        let completion = Completion { text, calls, usage: self.usage.usage(), carried, cut };
        finish::with_something(completion, self.finish.as_ref(), self.thought)
    }
}

impl wire::Usage {
    fn usage(self) -> Usage {
        let prompt = self.prompt_tokens_details.unwrap_or_default();
        let completion = self.completion_tokens_details.unwrap_or_default();
        let cached = [prompt.cached_tokens, self.prompt_cache_hit_tokens, self.cache_read_input_tokens];
        let written = [prompt.cache_write_tokens, self.cache_creation_input_tokens];
        let most = |counts: &[Option<u64>]| counts.iter().flatten().copied().max().unwrap_or_default();
        let (input, output) = (self.prompt_tokens.unwrap_or_default(), self.completion_tokens.unwrap_or_default());
        let reasoning = completion.reasoning_tokens.unwrap_or_default();
        // Where the sum says so, reasoning comes on top of the completion (xAI).
        let apart = reasoning > 0 && self.total_tokens.is_some_and(|total| total == input + output + reasoning);
        Usage {
            input_tokens: input,
            output_tokens: if apart { output + reasoning } else { output },
            cache_read_input_tokens: most(&cached),
            cache_creation_input_tokens: most(&written),
            reasoning_output_tokens: reasoning,
            cost_usd: None,
        }
    }
}
