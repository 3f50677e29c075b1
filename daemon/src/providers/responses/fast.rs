//! The event that comes by the thousand: a piece of a text or of arguments.

use super::super::skim::Skim;
use super::super::text::Text;
use super::items::Kind;

/// Such an event.
#[derive(Debug, PartialEq)]
pub(super) struct Delta<'a> {
    pub(super) kind: Kind,
    pub(super) id: &'a str,
    pub(super) index: Option<u64>,
    pub(super) text: Text<'a>,
}

/// Reads such an event; `None` for every other.
pub(super) fn delta(data: &str) -> Option<Delta<'_>> {
    let (mut kind, mut id, mut index, mut text) = (None, "", None, None);
    let mut skim = Skim::new(data);
    skim.object(|skim, key| match key {
        "type" => {
            kind = Some(match skim.string()? {
                r#""response.output_text.delta""# => Kind::Message,
                r#""response.function_call_arguments.delta""# => Kind::Call,
                _ => return None,
            });
            Some(())
        }
        "item_id" => {
            let json = skim.string()?;
            id = json.get(1..json.len() - 1).filter(|id| !id.contains('\\'))?;
            Some(())
        }
        "output_index" => skim.number().map(|number| index = Some(number)),
        "delta" => skim.string().map(|json| text = Some(json)),
        "error" | "item" | "response" | "arguments" => skim.null(),
        _ if key.contains('\\') => None,
        _ => skim.skip(),
    })?;
    skim.end()?;
    Some(Delta { kind: kind?, id, index, text: Text::of_json(text?)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_and_all_else_is_left() {
        let text = r#"{"type":"response.output_text.delta","sequence_number":7,"item_id":"m","output_index":1,"logprobs":[],"delta":"a"}"#;
        assert_eq!(delta(text), Some(Delta { kind: Kind::Message, id: "m", index: Some(1), text: Text::from("a") }));
        let args = r#"{"type":"response.function_call_arguments.delta","delta":"{\"","item_id":"f"}"#;
        assert_eq!(delta(args), Some(Delta { kind: Kind::Call, id: "f", index: None, text: Text::from("{\"") }));
        for other in [
            r#"{"type":"response.reasoning_text.delta","delta":"a"}"#,
            r#"{"type":"response.output_text.delta","delta":{}}"#,
            r#"{"type":"response.output_text.delta"}"#,
            r#"{"delta":"a"}"#,
            "[DONE]",
        ] {
            assert_eq!(delta(other), None, "{other}");
        }
    }
}
