//! The chunk that comes by the thousand: one choice with a piece of text, of thinking, or of the arguments of one call.

use super::super::skim::Skim;
use super::super::text::Text;

/// A chunk of which nothing else need be known.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Plain<'a> {
    pub(super) content: Option<Text<'a>>,
    pub(super) reasoning: Option<Text<'a>>,
    /// A piece of the arguments of the call with this index.
    pub(super) args: Option<(u64, Text<'a>)>,
}

/// Reads such a chunk; `None` for every other.
pub(super) fn plain(data: &str) -> Option<Plain<'_>> {
    let mut plain = Plain::default();
    let mut begun = false;
    let mut skim = Skim::new(data);
    skim.object(|skim, key| match key {
        "choices" => {
            begun = true;
            skim.only(|skim| choice(skim, &mut plain))
        }
        "usage" | "error" => skim.null(),
        "object" => (skim.string()? == r#""chat.completion.chunk""#).then_some(()),
        _ if key.contains('\\') => None,
        _ => skim.skip(),
    })?;
    skim.end()?;
    begun.then_some(plain)
}

fn choice<'a>(skim: &mut Skim<'a>, plain: &mut Plain<'a>) -> Option<()> {
    skim.object(|skim, key| match key {
        "delta" => delta(skim, plain),
        "index" => (skim.number()? == 0).then_some(()),
        "finish_reason" | "error" => skim.null(),
        "message" => None,
        _ => skim.skip(),
    })
}

fn delta<'a>(skim: &mut Skim<'a>, plain: &mut Plain<'a>) -> Option<()> {
    skim.object(|skim, key| match key {
        "content" => text(skim, &mut plain.content),
        "reasoning_content" | "reasoning" if plain.reasoning.is_none() => text(skim, &mut plain.reasoning),
        "reasoning_content" | "reasoning" | "reasoning_details" | "refusal" | "function_call" => skim.null(),
        "tool_calls" => skim.null().or_else(|| skim.only(|skim| call(skim, &mut plain.args))),
        _ => skim.skip(),
    })
}

/// A piece that only continues: it has neither id nor name.
fn call<'a>(skim: &mut Skim<'a>, args: &mut Option<(u64, Text<'a>)>) -> Option<()> {
    let mut index = None;
    let mut piece = None;
    skim.object(|skim, key| match key {
        "index" => skim.number().map(|number| index = Some(number)),
        "function" => skim.object(|skim, key| match key {
            "arguments" => text(skim, &mut piece),
            _ => skim.null(),
        }),
        "type" => skim.skip(),
        _ => skim.null(),
    })?;
    *args = Some((index?, piece?));
    Some(())
}

fn text<'a>(skim: &mut Skim<'a>, into: &mut Option<Text<'a>>) -> Option<()> {
    *into = match skim.string_or_null()? {
        Some(json) => Some(Text::of_json(json)?),
        None => None,
    };
    Some(())
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
            (r#"{"choices":[]}"#, None),
            (r#"{"choices":null}"#, None),
            ("{}", None),
            (r#"{"choices":[{"delta":{"content":"hi"}}]"#, None),
        ] {
            assert_eq!(plain(data), expected, "{data}");
        }
    }
}
