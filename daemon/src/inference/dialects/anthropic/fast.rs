//! Reads the most frequent event of a stream without the JSON parser: a piece of a content block.

use super::blocks::Kind;
use crate::inference::common::json_text::Text;
use crate::inference::fast_path::repeated_form::Form;
use crate::inference::fast_path::skim::{Once, Quoted, Skim};

/// Reads such an event; `None` for every other.
#[inline]
pub(super) fn delta<'a>(form: &mut Form<(u64, Kind)>, data: &'a str) -> Option<(u64, Kind, Text<'a>)> {
    match form.again(data) {
        Some(piece) => form.read().and_then(|(index, kind)| Some((*index, *kind, Text::of_quoted(piece)?))),
        None => anew(form, data),
    }
}

fn anew<'a>(form: &mut Form<(u64, Kind)>, data: &'a str) -> Option<(u64, Kind, Text<'a>)> {
    let (mut once, mut is_delta, mut index, mut piece) = (Once::default(), false, None, None);
    let mut skim = form.skim(data);
    skim.object(|skim, key| match key {
        b"type" => {
            once.first(0)?;
            is_delta = true;
            (skim.string()?.json == r#""content_block_delta""#).then_some(())
        }
        b"index" => {
            once.first(1)?;
            skim.number().map(|number| index = Some(number))
        }
        b"delta" => {
            once.first(2)?;
            inside(skim).map(|inside| piece = Some(inside))
        }
        b"error" => once.first(3).and_then(|()| skim.null()),
        b"message" => once.first(4).and_then(|()| skim.null()),
        b"content_block" => once.first(5).and_then(|()| skim.null()),
        b"usage" => once.first(6).and_then(|()| skim.null()),
        _ => skim.skip(),
    })?;
    skim.end()?;
    let (kind, quoted) = piece.filter(|_| is_delta)?;
    let (index, piece) = (index?, Text::of_quoted(quoted)?);
    form.keep(data, (index, kind));
    Some((index, kind, piece))
}

fn inside<'a>(skim: &mut Skim<'a, '_>) -> Option<(Kind, Quoted<'a>)> {
    let mut kind = None;
    let mut text = None;
    skim.object(|skim, key| match key {
        b"type" if kind.is_none() => {
            kind = Some(match skim.string()?.json {
                r#""text_delta""# => (Kind::Text, &b"text"[..]),
                r#""input_json_delta""# => (Kind::Args, &b"partial_json"[..]),
                r#""thinking_delta""# => (Kind::Thinking, &b"thinking"[..]),
                _ => return None,
            });
            Some(())
        }
        b"text" | b"partial_json" | b"thinking" if text.is_none() => {
            skim.piece().map(|quoted| text = Some((key, quoted)))
        }
        _ => None,
    })?;
    let ((kind, name), (key, quoted)) = (kind?, text?);
    (key == name).then_some((kind, quoted))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delta(data: &str) -> Option<(u64, Kind, Text<'_>)> {
        super::delta(&mut Form::default(), data)
    }

    #[test]
    fn pieces_are_read_and_all_else_is_left() {
        let event = |inside: &str| format!(r#"{{"type":"content_block_delta","index":1,"delta":{inside}}}"#);
        for (inside, expected) in [
            (r#"{"type":"text_delta","text":"a\nb"}"#, Some((Kind::Text, "a\nb"))),
            (r#"{ "partial_json" : "{", "type" : "input_json_delta" }"#, Some((Kind::Args, "{"))),
            (r#"{"type":"thinking_delta","thinking":"hm"}"#, Some((Kind::Thinking, "hm"))),
            (r#"{"type":"text_delta","thinking":"hm"}"#, None),
            (r#"{"type":"signature_delta","signature":"x"}"#, None),
            (r#"{"type":"text_delta","text":null}"#, None),
            (r#"{"type":"text_delta"}"#, None),
        ] {
            let expected = expected.map(|(kind, text)| (1, kind, Text::from(text)));
            assert_eq!(delta(&event(inside)), expected, "{inside}");
        }
        let other = r#"{"type":"message_delta","index":1,"delta":{"type":"text_delta","text":"a"}}"#;
        assert_eq!(delta(other), None);
        assert_eq!(delta(&event(r#"{"type":"text_delta","text":"a"}"#).replace("index", "place")), None);
    }
}
