//! Reads the most frequent events without the JSON parser: a piece of text, of reasoning or of arguments.

use super::items::Kind;
use crate::inference::common::json_text::Text;
use crate::inference::fast_path::repeated_form::Form;
use crate::inference::fast_path::skim::Once;

/// Such an event.
#[derive(Debug, PartialEq)]
pub(super) struct Delta<'a> {
    pub(super) kind: Kind,
    pub(super) id: &'a str,
    pub(super) index: Option<u64>,
    pub(super) text: Text<'a>,
}

/// What an event is about, beside its piece.
#[derive(Debug)]
pub(super) struct About {
    kind: Kind,
    id: String,
    index: Option<u64>,
}

/// Reads such an event; `None` for every other.
#[inline]
pub(super) fn delta<'a>(form: &'a mut Form<About>, data: &'a str) -> Option<Delta<'a>> {
    match form.again(data) {
        Some(piece) => {
            let About { kind, id, index } = form.read()?;
            Some(Delta { kind: *kind, id, index: *index, text: Text::of_quoted(piece)? })
        }
        None => anew(form, data),
    }
}

fn anew<'a>(form: &mut Form<About>, data: &'a str) -> Option<Delta<'a>> {
    let (mut once, mut kind, mut id, mut index, mut text) = (Once::default(), None, "", None, None);
    let mut skim = form.skim(data);
    skim.object(|skim, key| match key {
        b"type" => {
            once.first(0)?;
            kind = Some(match skim.string()?.json {
                r#""response.output_text.delta""# => Kind::Message,
                r#""response.function_call_arguments.delta""# => Kind::Call,
                r#""response.reasoning_summary_text.delta""# | r#""response.reasoning_text.delta""# => Kind::Reasoning,
                _ => return None,
            });
            Some(())
        }
        b"item_id" => {
            once.first(1)?;
            skim.string()?.plain().map(|plain| id = plain)
        }
        b"output_index" => {
            once.first(2)?;
            skim.number().map(|number| index = Some(number))
        }
        b"delta" => {
            once.first(3)?;
            skim.piece().map(|quoted| text = Some(quoted))
        }
        b"error" => once.first(4).and_then(|()| skim.null()),
        b"item" => once.first(5).and_then(|()| skim.null()),
        b"response" => once.first(6).and_then(|()| skim.null()),
        b"arguments" => once.first(7).and_then(|()| skim.null()),
        _ => skim.skip(),
    })?;
    skim.end()?;
    let delta = Delta { kind: kind?, id, index, text: Text::of_quoted(text?)? };
    form.keep(data, About { kind: delta.kind, id: id.to_owned(), index });
    Some(delta)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(data: &str, expected: Option<&Delta<'_>>) {
        assert_eq!(delta(&mut Form::default(), data).as_ref(), expected, "{data}");
    }

    #[test]
    fn pieces_are_read_and_all_else_is_left() {
        let text = concat!(
            r#"{"type":"response.output_text.delta","sequence_number":7,"item_id":"m","output_index":1,"logprobs":[],"#,
            r#""delta":"a"}"#,
        );
        check(text, Some(&Delta { kind: Kind::Message, id: "m", index: Some(1), text: Text::from("a") }));
        let args = r#"{"type":"response.function_call_arguments.delta","delta":"{\"","item_id":"f"}"#;
        check(args, Some(&Delta { kind: Kind::Call, id: "f", index: None, text: Text::from("{\"") }));
        let thought = r#"{"type":"response.reasoning_text.delta","delta":"a"}"#;
        check(thought, Some(&Delta { kind: Kind::Reasoning, id: "", index: None, text: Text::from("a") }));
        for other in [
            r#"{"type":"response.refusal.delta","delta":"a"}"#,
            r#"{"type":"response.output_text.delta","delta":"a","delta":"a"}"#,
            r#"{"type":"response.output_text.delta","delta":{}}"#,
            r#"{"type":"response.output_text.delta"}"#,
            r#"{"delta":"a"}"#,
            "[DONE]",
        ] {
            check(other, None);
        }
    }
}
