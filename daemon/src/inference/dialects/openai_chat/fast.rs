//! Reads the most frequent chunk without the JSON parser: one choice with a piece of text, of reasoning, or of the
//! arguments of one call.

use crate::inference::common::json_text::Text;
use crate::inference::fast_path::repeated_form::Form;
use crate::inference::fast_path::skim::{Once, Skim};

/// A chunk of which nothing else need be known.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plain<'a> {
    pub(super) content: Option<Text<'a>>,
    pub(super) reasoning: Option<(Named, Text<'a>)>,
    /// A piece of the arguments of the call with this index.
    pub(super) args: Option<(u64, Text<'a>)>,
}

/// Under which of its names reasoning came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// `reasoning_content`, which its servers want back with the calls that it led to.
    Content,
    /// The field `reasoning`, which some gateways use.
    Plain,
    /// The field `reasoning_text`, which some gateways use.
    Words,
}

/// What the piece of a chunk is one of.
#[derive(Debug, Clone, Copy)]
pub(super) enum Slot {
    Content,
    Reasoning(Named),
    Args(u64),
}

/// Reads such a chunk; `None` for every other.
#[inline]
pub(super) fn plain<'a>(form: &mut Form<Slot>, data: &'a str) -> Option<Plain<'a>> {
    match form.again(data) {
        Some(piece) => Some(form.read()?.plain(Text::of_quoted(piece)?)),
        None => anew(form, data),
    }
}

fn anew<'a>(form: &mut Form<Slot>, data: &'a str) -> Option<Plain<'a>> {
    let mut plain = Plain::default();
    let (mut once, mut begun) = (Once::default(), false);
    let mut skim = form.skim(data);
    skim.object(|skim, key| match key {
        b"choices" => {
            once.first(0)?;
            begun = true;
            skim.only(|skim| choice(skim, &mut plain))
        }
        b"object" => {
            once.first(1)?;
            (skim.string()?.json == r#""chat.completion.chunk""#).then_some(())
        }
        b"usage" => once.first(2).and_then(|()| skim.null()),
        b"error" => once.first(3).and_then(|()| skim.null()),
        b"x_groq" => once.first(4).and_then(|()| skim.null()),
        b"base_resp" => once.first(5).and_then(|()| skim.null()),
        b"detail" => None,
        _ => skim.skip(),
    })?;
    skim.end()?;
    if !begun {
        return None;
    }
    if let Some(slot) = plain.slot() {
        form.keep(data, slot);
    }
    Some(plain)
}

fn choice<'a>(skim: &mut Skim<'a, '_>, plain: &mut Plain<'a>) -> Option<()> {
    let mut once = Once::default();
    skim.object(|skim, key| match key {
        b"delta" => once.first(0).and_then(|()| delta(skim, plain)),
        b"index" => {
            once.first(1)?;
            (skim.number()? == 0).then_some(())
        }
        b"finish_reason" => once.first(2).and_then(|()| skim.null()),
        b"error" => once.first(3).and_then(|()| skim.null()),
        b"usage" => once.first(4).and_then(|()| skim.null()),
        b"message" => None,
        _ => skim.skip(),
    })
}

fn delta<'a>(skim: &mut Skim<'a, '_>, plain: &mut Plain<'a>) -> Option<()> {
    let mut once = Once::default();
    skim.object(|skim, key| match key {
        b"content" => once.first(0).and_then(|()| text(skim, &mut plain.content)),
        b"reasoning_content" => once.first(1).and_then(|()| reasoning(skim, plain, Named::Content)),
        b"reasoning" => once.first(2).and_then(|()| reasoning(skim, plain, Named::Plain)),
        b"tool_calls" => {
            once.first(3)?;
            skim.null().or_else(|| skim.only(|skim| call(skim, &mut plain.args)))
        }
        b"refusal" => once.first(4).and_then(|()| skim.null()),
        b"function_call" => once.first(5).and_then(|()| skim.null()),
        b"reasoning_details" => once.first(6).and_then(|()| skim.null()),
        b"reasoning_text" => once.first(7).and_then(|()| reasoning(skim, plain, Named::Words)),
        b"reasoning_opaque" | b"thinking_blocks" | b"extra_content" => skim.null(),
        _ => skim.skip(),
    })
}

/// Under one of its names: which counts where several are there is not for here.
fn reasoning<'a>(skim: &mut Skim<'a, '_>, plain: &mut Plain<'a>, named: Named) -> Option<()> {
    if plain.reasoning.is_some() {
        return skim.null();
    }
    let mut piece = None;
    text(skim, &mut piece)?;
    plain.reasoning = piece.map(|piece| (named, piece));
    Some(())
}

/// A piece that only continues: it has neither id nor name.
fn call<'a>(skim: &mut Skim<'a, '_>, args: &mut Option<(u64, Text<'a>)>) -> Option<()> {
    let (mut once, mut index, mut piece) = (Once::default(), None, None);
    skim.object(|skim, key| match key {
        b"index" => {
            once.first(0)?;
            skim.number().map(|number| index = Some(number))
        }
        b"function" => once.first(1).and_then(|()| function(skim, &mut piece)),
        b"id" => once.first(2).and_then(|()| skim.null()),
        b"extra_content" => once.first(3).and_then(|()| skim.null()),
        b"type" => skim.skip(),
        _ => skim.null(),
    })?;
    *args = Some((index?, piece?));
    Some(())
}

fn function<'a>(skim: &mut Skim<'a, '_>, piece: &mut Option<Text<'a>>) -> Option<()> {
    let mut once = Once::default();
    skim.object(|skim, key| match key {
        b"arguments" => once.first(0).and_then(|()| text(skim, piece)),
        b"name" => once.first(1).and_then(|()| skim.null()),
        _ => skim.null(),
    })
}

fn text<'a>(skim: &mut Skim<'a, '_>, into: &mut Option<Text<'a>>) -> Option<()> {
    *into = match skim.piece_or_null()? {
        Some(quoted) => Some(Text::of_quoted(quoted)?),
        None => None,
    };
    Some(())
}

impl Slot {
    fn plain(self, piece: Text<'_>) -> Plain<'_> {
        let plain = Plain::default();
        match self {
            Self::Content => Plain { content: Some(piece), ..plain },
            Self::Reasoning(named) => Plain { reasoning: Some((named, piece)), ..plain },
            Self::Args(index) => Plain { args: Some((index, piece)), ..plain },
        }
    }
}

impl Plain<'_> {
    /// What the one piece is one of, where there is no other and nothing else that counts.
    fn slot(&self) -> Option<Slot> {
        let is_some = |text: &Option<Text<'_>>| text.as_ref().is_some_and(|text| !text.is_empty());
        let named = self.reasoning.as_ref().filter(|(_, text)| !text.is_empty()).map(|(named, _)| *named);
        match (is_some(&self.content), named, &self.args) {
            (true, None, None) => Some(Slot::Content),
            (false, Some(named), None) => Some(Slot::Reasoning(named)),
            (false, None, Some((index, _))) => Some(Slot::Args(*index)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn plain_chunks_are_read_and_all_others_left() {
        let content = |text| Some(Plain { content: Some(Text::from(text)), ..Plain::default() });
        for (data, expected) in [
            (r#"{"choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}],"usage":null}"#, content("hi")),
            (
                r#"{"object":"chat.completion.chunk","choices":[{"delta":{"role":"assistant","content":"a\nb"}}]}"#,
                content("a\nb"),
            ),
            (
                r#"{"choices":[{"delta":{"content":null,"tool_calls":null}}],"timings":{"a":[1]}}"#,
                Some(Plain::default()),
            ),
            (
                r#"{"choices":[{"delta":{"tool_calls":[{"index":1,"id":null,"function":{"arguments":"{\"a\""}}]}}]}"#,
                Some(Plain { args: Some((1, Text::from("{\"a\""))), ..Plain::default() }),
            ),
            (r#"{"choices":[{"delta":{"content":"hi"},"finish_reason":"stop"}]}"#, None),
            (r#"{"choices":[{"index":1,"delta":{"content":"hi"}}]}"#, None),
            (r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"name":"a","arguments":"{"}}]}}]}"#, None),
            (r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x","function":{"arguments":"{"}}]}}]}"#, None),
            (r#"{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{"}}]}}]}"#, None),
            (r#"{"choices":[{"delta":{"content":["parts"]}}]}"#, None),
            (r#"{"choices":[{"delta":{"content":"hi"}}],"usage":{}}"#, None),
            (r#"{"choices":[{"delta":{"content":"hi"}}],"error":{}}"#, None),
            (r#"{"choices":[{"delta":{"content":"hi"}}],"base_resp":{"status_code":1002}}"#, None),
            (r#"{"choices":[{"delta":{"content":"hi","reasoning_opaque":"x"}}]}"#, None),
            (r#"{"choices":[{"delta":{"content":"hi","extra_content":{"google":{"thought":true}}}}]}"#, None),
            (r#"{"choices":[{"delta":{"content":"","thinking_blocks":[]}}]}"#, None),
            (r#"{"choices":[]}"#, None),
            (r#"{"choices":null}"#, None),
            ("{}", None),
            (r#"{"choices":[{"delta":{"content":"hi"}}]"#, None),
        ] {
            assert_eq!(plain(&mut Form::default(), data), expected, "{data}");
        }
    }
}
