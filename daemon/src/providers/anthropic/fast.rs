//! The event that comes by the thousand: a piece of a block.

use super::super::skim::Skim;
use super::super::text::Text;
use super::blocks::Kind;

/// Reads such an event; `None` for every other.
pub(super) fn delta(data: &str) -> Option<(u64, Kind, Text<'_>)> {
    let mut is_delta = false;
    let mut index = None;
    let mut piece = None;
    let mut skim = Skim::new(data);
    skim.object(|skim, key| match key {
        "type" => {
            is_delta = true;
            (skim.string()? == r#""content_block_delta""#).then_some(())
        }
        "index" => skim.number().map(|number| index = Some(number)),
        "delta" => inside(skim).map(|inside| piece = Some(inside)),
        "error" | "message" | "content_block" | "usage" => skim.null(),
        _ if key.contains('\\') => None,
        _ => skim.skip(),
    })?;
    skim.end()?;
    let (kind, json) = piece.filter(|_| is_delta)?;
    Some((index?, kind, Text::of_json(json)?))
}

fn inside<'a>(skim: &mut Skim<'a>) -> Option<(Kind, &'a str)> {
    let mut kind = None;
    let mut text = None;
    skim.object(|skim, key| match key {
        "type" => {
            kind = Some(match skim.string()? {
                r#""text_delta""# => (Kind::Text, "text"),
                r#""input_json_delta""# => (Kind::Args, "partial_json"),
                r#""thinking_delta""# => (Kind::Thinking, "thinking"),
                _ => return None,
            });
            Some(())
        }
        "text" | "partial_json" | "thinking" if text.is_none() => skim.string().map(|json| text = Some((key, json))),
        _ => None,
    })?;
    let ((kind, name), (key, json)) = (kind?, text?);
    (key == name).then_some((kind, json))
}

#[cfg(test)]
mod tests {
    use super::*;

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
