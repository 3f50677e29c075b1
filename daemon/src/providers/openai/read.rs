//! Reads answers of chat completions.
//!
//! An answer has ended well where a finish reason came and then the end of the stream, or `[DONE]`. A finish reason may come before the
//! last delta, and usage after it; so a connection that breaks before `[DONE]` is a broken answer. Calls are wanted wherever there are calls, whatever the finish reason says.

use harness_protocol::run::Usage;
use serde_json::value::to_raw_value;

use super::super::arguments;
use super::super::carried::{self, Part};
use super::super::counts::Counts;
use super::super::dialect::{Ended, Piece, Quirks, Show, shown, too_early};
use super::super::finish::{self, Reason};
use super::super::form::Form;
use super::super::lenient::Object;
use super::super::refusal::{broken, in_answer, refused, unreadable};
use super::super::room::Room;
use super::super::text::{Gathered, Text};
use super::calls::Calls;
use super::details::Details;
use super::fast::{self, Named, Plain, Slot};
use super::wire::{self, Chunk};
use super::{NAME, Returned};
use crate::prompt::{Completion, InferenceError};

/// Reads one streamed answer.
#[derive(Debug, Default)]
pub(in super::super) struct Reader {
    text: Gathered,
    refusal: Gathered,
    /// What came as `reasoning_content`, or is to go back as such.
    reasoning: Gathered,
    /// Other reasoning, which is shown and not kept.
    passed: Gathered,
    /// Parts of contents that were thought.
    thinking: Gathered,
    details: Details,
    calls: Calls,
    usage: Counts,
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
        if let Some((named, text)) = &plain.reasoning {
            self.reasoning(*named, text, show)?;
        }
        if let Some(text) = &plain.content {
            self.content(text, show)?;
        }
        plain.args.map_or(Ok(()), |(index, args)| self.calls.add_args(index, args, &mut self.room))
    }

    fn chunk(&mut self, data: &str, what: &str, show: Show<'_>) -> Result<(), InferenceError> {
        let chunk: Chunk<'_> = serde_json::from_str(data).map_err(|error| unreadable(what, data, &error))?;
        let is_error = chunk.object.is_some_and(|object| object.to_str() == "error");
        if chunk.error.is_some() || is_error || (chunk.detail.is_some() && !chunk.choices.is_said()) {
            return Err(in_answer(data));
        }
        let choice = chunk.choices.first().map_err(|error| unreadable(what, data, &error))?;
        let groq = chunk.x_groq.0.and_then(|groq| groq.usage.0);
        for usage in [groq, choice.as_ref().and_then(|choice| choice.usage.0), chunk.usage.0].into_iter().flatten() {
            self.usage.update(usage.counts());
        }
        let Some(choice) = choice.filter(|choice| choice.index.0.is_none_or(|index| index == 0)) else { return Ok(()) };
        if let Some(error) = choice.error {
            return Err(in_answer(error.get()));
        }
        self.begun = true;
        if let Some(delta) = choice.delta.0.or(choice.message.0) {
            let calls = delta.tool_calls.all().map_err(|error| unreadable(what, data, &error))?;
            self.delta(&delta, &calls, show)?;
        }
        if let Some(reason) = choice.finish_reason.filter(|reason| !reason.is_empty()) {
            self.finish = Some(Reason::of(&reason.to_str()));
        }
        Ok(())
    }

    fn delta(
        &mut self,
        delta: &wire::Delta<'_>,
        calls: &[wire::Call<'_>],
        show: Show<'_>,
    ) -> Result<(), InferenceError> {
        let named = [(Named::Content, &delta.reasoning_content), (Named::Plain, &delta.reasoning)];
        let mut reasoning = named.into_iter().filter_map(|(named, text)| Some((named, text.as_ref()?)));
        if let Some((named, text)) = reasoning.find(|(_, text)| !text.is_empty()) {
            self.reasoning(named, text, show)?;
        }
        if let Some(pieces) = delta.reasoning_details {
            self.details.add(pieces, &mut self.room)?;
        }
        for text in &delta.content.thinking {
            self.room.take(text)?;
            self.thought |= !text.is_empty();
            shown(self.thinking.push(text), Piece::Reasoning, show);
        }
        for text in &delta.content.text {
            self.content(text, show)?;
        }
        if let Some(text) = &delta.refusal {
            self.room.take(text)?;
            shown(self.refusal.push(text), Piece::Text, show);
        }
        self.calls.add(calls, &mut self.room)?;
        if let Some(function) = &delta.function_call.0 {
            let function = Some(wire::Function { name: function.name.clone(), arguments: function.arguments });
            let call = wire::Call { function: Object(function), ..wire::Call::default() };
            self.calls.add(&[call], &mut self.room)?;
        }
        Ok(())
    }

    fn reasoning(&mut self, named: Named, text: &Text<'_>, show: Show<'_>) -> Result<(), InferenceError> {
        self.room.take(text)?;
        self.thought |= !text.is_empty();
        let keep = self.quirks.return_reasoning || named == Named::Content;
        let piece = if keep { self.reasoning.push(text) } else { self.passed.pass(text) };
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
        usage(self.usage)
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
        let ((reasoning, _), (thinking, _)) = (self.reasoning.finish(), self.thinking.finish());
        let mut parts = Vec::new();
        // What led to calls, servers want back with these.
        let returned = Returned {
            reasoning_content: (!reasoning.is_empty()).then_some(reasoning.into()),
            thinking: (!thinking.is_empty()).then_some(thinking.into()),
            reasoning_details: self.details.finish(),
            extra_content: self.calls.take_extras(),
        };
        if !self.calls.is_empty() && !returned.is_empty() {
            parts.extend(to_raw_value(&returned).ok().map(Part::Block));
        }
        let calls = arguments::calls(self.calls.into_gathered(), cut)?;
        let carried = carried::carried(NAME, &parts);
        let completion = Completion { text, calls, usage: usage(self.usage), carried, cut };
        finish::with_something(completion, self.finish.as_ref(), self.thought)
    }
}

fn usage(counts: Counts) -> Usage {
    let count = |count: Option<u64>| count.unwrap_or_default();
    let (input, output, reasoning) = (count(counts.input), count(counts.output), count(counts.reasoning));
    // Where the sum says so, reasoning comes on top of the completion (xAI).
    let apart = reasoning > 0 && counts.total.is_some_and(|total| total == input + output + reasoning);
    Usage {
        input_tokens: input,
        output_tokens: if apart { output + reasoning } else { output },
        cache_read_input_tokens: count(counts.cache_read),
        cache_creation_input_tokens: count(counts.cache_written),
        reasoning_output_tokens: reasoning,
        cost_usd: None,
    }
}
