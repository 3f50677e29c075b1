//! Reads answers of chat completions.
//!
//! If a final `message` repeats calls and texts whole, these replace the streamed pieces.
//!
//! An answer is complete with `[DONE]`, or with a finish reason followed by the end of the stream. A finish reason may
//! come before the last delta, and usage after it, so a connection that breaks before `[DONE]` makes a broken answer.
//! Calls count as calls whatever the finish reason says.

use std::borrow::Cow;

use harness_protocol::run::Usage;
use serde_json::value::to_raw_value;

use super::super::{Ended, Piece, Quirks, ReadAnswer, Show, shown, too_early};
use super::calls::Calls;
use super::details::Details;
use super::fast::{self, Named, Plain, Slot};
use super::wire::{self, Chunk};
use super::{NAME, Returned};
use crate::inference::common::answer_limit::Room;
use crate::inference::common::finish_reason::{self, Reason};
use crate::inference::common::json_text::{Gathered, Text};
use crate::inference::common::lenient::{Object, said};
use crate::inference::common::opaque_blocks::{self, Part};
use crate::inference::common::tool_args;
use crate::inference::common::usage_counts::Counts;
use crate::inference::errors::classify::{broken, in_answer, refused, unreadable};
use crate::inference::errors::envelope;
use crate::inference::fast_path::repeated_form::Form;
use crate::prompt::{Completion, InferenceError};

/// Reads one streamed answer.
#[derive(Debug, Default)]
pub(in crate::inference::dialects) struct Reader {
    text: Gathered,
    refusal: Gathered,
    /// What came as `reasoning_content`, or is to go back as such. An empty one that was said goes back, too.
    reasoning: Option<Gathered>,
    /// What came as `reasoning`, and as `reasoning_text`.
    plain: Gathered,
    words: Gathered,
    /// What only the server can read.
    opaque: Gathered,
    blocks: Details,
    /// A content that was thought, which is shown and not kept; and whether its end is still to come.
    passed: Gathered,
    in_thought: bool,
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
pub(super) fn plain(body: &str, quirks: Quirks) -> Result<Completion, InferenceError> {
    let mut reader = Reader::new(quirks);
    if !body.trim_start().starts_with('{') {
        return Err(in_answer(body));
    }
    reader.chunk(body, "an answer", &mut |_| {})?;
    reader.finish(Ended::Clean)
}

impl ReadAnswer for Reader {
    fn is_over(&self) -> bool {
        self.done
    }

    fn may_be_over(&self) -> bool {
        self.finish.is_some()
    }

    fn event(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        match fast::plain(&mut self.form, data) {
            Some(plain) => self.plain(plain, show),
            None => self.any(name, data, show),
        }
    }

    /// Any event, in whatever form.
    fn any(&mut self, _: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
        if data.trim().eq_ignore_ascii_case("[DONE]") {
            self.done = true;
            return Ok(());
        }
        self.chunk(data, "an event", show)
    }

    fn taken(&self) -> usize {
        self.room.taken()
    }

    fn used(&self) -> Usage {
        usage(self.usage)
    }

    fn finish(mut self, ended: Ended) -> Result<Completion, InferenceError> {
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
        let kept = |text: Gathered| Some(text.finish().0).filter(|text| !text.is_empty()).map(Cow::Owned);
        let mut parts = Vec::new();
        // What led to calls, servers want back with these.
        let returned = Returned {
            reasoning_content: self.reasoning.map(|reasoning| reasoning.finish().0.into()),
            thinking: kept(self.thinking),
            reasoning_details: self.details.finish(),
            reasoning: kept(self.plain),
            reasoning_text: kept(self.words),
            reasoning_opaque: kept(self.opaque),
            thinking_blocks: self.blocks.finish(),
            extra_content: self.calls.take_extras(),
            call_fields: self.calls.take_others(),
        };
        if !self.calls.is_empty() && !returned.is_empty() {
            parts.extend(to_raw_value(&returned).ok().map(Part::Block));
        }
        let calls = tool_args::calls(self.calls.into_gathered(), cut)?;
        let carried = opaque_blocks::carried(NAME, &parts);
        let completion = Completion { text, calls, usage: usage(self.usage), carried, cut, doubt: None };
        finish_reason::with_something(completion, self.finish.as_ref(), self.thought)
    }
}

impl Reader {
    pub(super) fn new(quirks: Quirks) -> Self {
        Self { quirks, ..Self::default() }
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
        if said(chunk.error).is_some() || is_error || (chunk.detail.is_some() && !chunk.choices.is_said()) {
            return Err(in_answer(data));
        }
        let groq = chunk.x_groq.0;
        if let Some(error) = groq.and_then(|groq| said(groq.error)) {
            return Err(in_answer(&format!(r#"{{"error":{}}}"#, error.get())));
        }
        let mut choices = chunk.choices.all().map_err(|error| unreadable(what, data, &error))?;
        let went_wrong = chunk.base_resp.0.is_some_and(|base| base.status_code.0.is_some_and(|code| code > 0));
        if (choices.is_empty() || went_wrong)
            && let Some(error) = envelope::error(data)
        {
            return Err(error);
        }
        // The first, and parts of it that have its index.
        let first = choices.first().map(|choice| choice.index.0);
        choices.retain(|choice| choice.index.0.is_none_or(|index| index == 0) && Some(choice.index.0) == first);
        let of_choices = choices.iter().map(|choice| choice.usage.0);
        for usage in std::iter::once(groq.and_then(|groq| groq.usage.0)).chain(of_choices).chain([chunk.usage.0]) {
            self.usage.update(usage.map_or(Counts::default(), wire::Usage::counts));
        }
        self.begun |= !choices.is_empty();
        let mut whole = None;
        for choice in choices {
            if let Some(error) = said(choice.error) {
                return Err(in_answer(error.get()));
            }
            let is_whole = choice.delta.0.is_none();
            if let Some(delta) = choice.delta.0.or(choice.message.0) {
                let calls = delta.tool_calls.all().map_err(|error| unreadable(what, data, &error))?;
                if is_whole {
                    let whole = whole.get_or_insert_with(|| self.beside());
                    whole.delta(&delta, &calls, &mut |_| {})?;
                } else {
                    self.delta(&delta, &calls, show)?;
                }
            }
            self.finish = choice.finish_reason.and_then(|reason| Reason::said(&reason.to_str())).or(self.finish.take());
        }
        if let Some(whole) = whole {
            self.say_again(whole, show);
        }
        Ok(())
    }

    /// Who reads what is said whole, with the room of this one.
    fn beside(&mut self) -> Self {
        Self { room: std::mem::take(&mut self.room), ..Self::new(self.quirks) }
    }

    /// Takes what is said once more, whole, in the place of what came in pieces. Shows what is new of it.
    fn say_again(&mut self, whole: Self, show: Show<'_>) {
        self.room = whole.room;
        if !self.thought {
            for reasoning in whole.reasoning.iter().chain([&whole.plain, &whole.words, &whole.thinking]) {
                shown(reasoning.as_str(), Piece::Reasoning, &mut *show);
            }
        }
        for (mine, new) in [(&self.text, &whole.text), (&self.refusal, &whole.refusal)] {
            let new = new.as_str().strip_prefix(mine.as_str()).unwrap_or_default();
            shown(new, Piece::Text, &mut *show);
        }
        self.thought |= whole.thought;
        let before = self.reasoning.take();
        self.reasoning = whole.reasoning.filter(|new| !new.is_empty() || before.is_none()).or(before);
        for (mine, new) in [
            (&mut self.text, whole.text),
            (&mut self.refusal, whole.refusal),
            (&mut self.plain, whole.plain),
            (&mut self.words, whole.words),
            (&mut self.opaque, whole.opaque),
            (&mut self.thinking, whole.thinking),
        ] {
            if !new.is_empty() {
                *mine = new;
            }
        }
        for (mine, new) in [(&mut self.details, whole.details), (&mut self.blocks, whole.blocks)] {
            if !new.is_empty() {
                *mine = new;
            }
        }
        self.calls.say_again(whole.calls);
    }

    fn delta(
        &mut self,
        delta: &wire::Delta<'_>,
        calls: &[wire::Call<'_>],
        show: Show<'_>,
    ) -> Result<(), InferenceError> {
        let named = [
            (Named::Content, &delta.reasoning_content),
            (Named::Plain, &delta.reasoning),
            (Named::Words, &delta.reasoning_text),
        ];
        let named = named.into_iter().filter_map(|(named, text)| Some((named, text.as_ref()?)));
        let (says, empty): (Vec<_>, Vec<_>) = named.partition(|(_, text)| !text.is_empty());
        for (named, text) in says.into_iter().take(1).chain(empty) {
            self.reasoning(named, text, show)?;
        }
        if let Some(opaque) = &delta.reasoning_opaque {
            self.room.take(opaque)?;
            self.opaque.push(opaque);
        }
        if let Some(pieces) = delta.thinking_blocks {
            self.blocks.add(pieces, &mut self.room)?;
        }
        if let Some(pieces) = delta.reasoning_details {
            self.details.add(pieces, &mut self.room)?;
        }
        for text in &delta.content.thinking {
            self.room.take(text)?;
            self.thought |= !text.is_empty();
            shown(self.thinking.push(text), Piece::Reasoning, show);
        }
        let is_thought = delta.extra_content.0.is_some_and(wire::Extra::is_thought);
        for text in &delta.content.text {
            if is_thought {
                self.thought_content(text, show)?;
            } else {
                self.content(text, show)?;
            }
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
        let piece = match named {
            Named::Content => self.reasoning.get_or_insert_default().push(text),
            Named::Plain | Named::Words if text.is_empty() => "",
            Named::Plain | Named::Words if self.quirks.return_reasoning => {
                self.reasoning.get_or_insert_default().push(text)
            }
            Named::Plain => self.plain.push(text),
            Named::Words => self.words.push(text),
        };
        shown(piece, Piece::Reasoning, show);
        Ok(())
    }

    /// A content that was thought, between signs of which the first stands in it.
    fn thought_content(&mut self, text: &Text<'_>, show: Show<'_>) -> Result<(), InferenceError> {
        self.room.take(text)?;
        let said = text.to_str();
        let said = if self.in_thought { &said } else { said.strip_prefix("<thought>").unwrap_or(&said) };
        self.thought |= !said.is_empty();
        self.in_thought = true;
        shown(self.passed.pass(&Text::from(said)), Piece::Reasoning, show);
        Ok(())
    }

    fn content(&mut self, text: &Text<'_>, show: Show<'_>) -> Result<(), InferenceError> {
        self.room.take(text)?;
        if std::mem::take(&mut self.in_thought) {
            let said = text.to_str();
            let said = said.strip_prefix("</thought>").unwrap_or(&said);
            shown(self.text.push(&Text::from(said)), Piece::Text, show);
            return Ok(());
        }
        shown(self.text.push(text), Piece::Text, show);
        Ok(())
    }
}

fn usage(counts: Counts) -> Usage {
    let count = |count: Option<u64>| count.unwrap_or_default();
    let (input, output, reasoning) = (count(counts.input), count(counts.output), count(counts.reasoning));
    let cached =
        [count(counts.cache_read), count(counts.cache_written), count(counts.cache_read) + count(counts.cache_written)];
    // Where the sum says so, more came than is counted as the completion: reasoning (xAI), or what is counted nowhere
    // (Gemini). What was cached may be left out of the input, and is none of it.
    let rest = counts.total.filter(|_| input > 0).map_or(0, |total| total.saturating_sub(input));
    let more = rest.saturating_sub(output);
    let is_cached = more != reasoning && cached.contains(&more);
    Usage {
        input_tokens: input,
        output_tokens: if is_cached { output } else { output.max(rest) },
        cache_read_input_tokens: count(counts.cache_read),
        cache_creation_input_tokens: count(counts.cache_written),
        reasoning_output_tokens: reasoning,
        cost_usd: None,
    }
}
