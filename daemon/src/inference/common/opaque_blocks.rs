//! Keeps the blocks that a provider wants back unchanged, and their places in the answer.
//!
//! The daemon stores an answer as a text and calls. A provider's own blocks stand before, between and after pieces of
//! these. Their place matters: thinking is signed together with the content after it.

use harness_protocol::run::{CallRequest, Carried};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// A part of an answer, in the order in which they came.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::inference) enum Part<B> {
    /// A block of the provider's own.
    Block(B),
    /// As many bytes of the text, after those of the part before.
    Text(usize),
    /// As many bytes of the text, said in a phase of the provider's own (responses).
    Said {
        /// How many bytes of the text.
        bytes: usize,
        /// The phase, by the provider's word.
        phase: String,
    },
    /// The next call.
    Call,
}

/// The parts, where there is something among them that text and calls do not have.
pub(in crate::inference) fn carried(dialect: &str, parts: &[Part<Box<RawValue>>]) -> Option<Carried> {
    let has_blocks = parts.iter().any(|part| matches!(part, Part::Block(_) | Part::Said { .. }));
    let parts = has_blocks.then(|| serde_json::to_string(parts).ok())??;
    Some(Carried { dialect: dialect.into(), provider: None, parts: parts.into() })
}

/// A piece of an answer on its way back.
#[derive(Debug, Clone)]
pub(in crate::inference) enum Piece<'a> {
    Block(&'a RawValue),
    Text(&'a str),
    /// A text, and the phase in which it was said.
    Said(&'a str, String),
    Call(&'a CallRequest),
}

/// An answer in the order in which it came, as far as that is known in this dialect.
pub(in crate::inference) fn pieces<'a>(
    dialect: &str,
    text: &'a str,
    calls: &'a [CallRequest],
    carried: Option<&'a Carried>,
) -> Vec<Piece<'a>> {
    let own = carried.filter(|carried| &*carried.dialect == dialect);
    let parts: Vec<Part<&'a RawValue>> = own.and_then(|c| serde_json::from_str(&c.parts).ok()).unwrap_or_default();
    let mut pieces = Vec::with_capacity(parts.len() + calls.len() + 1);
    let (mut text, mut calls) = (text, calls.iter());
    for part in parts {
        match part {
            Part::Block(block) => pieces.push(Piece::Block(block)),
            Part::Text(bytes) => {
                let Some((piece, rest)) = text.split_at_checked(bytes) else { continue };
                pieces.push(Piece::Text(piece));
                text = rest;
            }
            Part::Said { bytes, phase } => {
                let Some((piece, rest)) = text.split_at_checked(bytes) else { continue };
                pieces.push(Piece::Said(piece, phase));
                text = rest;
            }
            Part::Call => pieces.extend(calls.next().map(Piece::Call)),
        }
    }
    pieces.push(Piece::Text(text));
    pieces.extend(calls.map(Piece::Call));
    // Providers refuse a text without a word in it.
    pieces.retain(|piece| !matches!(piece, Piece::Text(text) | Piece::Said(text, _) if text.trim().is_empty()));
    // And a block that nothing follows, which is what a limit of tokens leaves.
    while let Some(Piece::Block(_)) = pieces.last() {
        pieces.pop();
    }
    pieces
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use harness_protocol::id::CallId;

    fn shown(text: &str, calls: usize, carried: Option<&Carried>) -> Vec<String> {
        let calls: Vec<_> =
            (0..calls as u64).map(|n| CallRequest::new(CallId::from_u64(n), format!("t{n}"), "{}")).collect();
        let show = |piece| match piece {
            Piece::Block(block) => block.get().to_owned(),
            Piece::Text(text) | Piece::Said(text, _) => text.to_owned(),
            Piece::Call(call) => call.tool.to_string(),
        };
        pieces("anthropic", text, &calls, carried).into_iter().map(show).collect()
    }

    fn block(json: &str) -> Part<Box<RawValue>> {
        Part::Block(RawValue::from_string(json.to_owned()).unwrap())
    }

    #[test]
    fn blocks_stand_where_they_stood() {
        let parts = [block(r#"{"a": 1}"#), Part::Text(2), Part::Call, block("[]"), Part::Call];
        let carried = carried("anthropic", &parts);
        assert_eq!(shown("hm", 2, carried.as_ref()), [r#"{"a": 1}"#, "hm", "t0", "[]", "t1"]);
    }

    #[test]
    fn without_blocks_nothing_is_carried_and_the_text_comes_first() {
        assert_eq!(carried("anthropic", &[Part::Call, Part::Text(2)]), None);
        assert_eq!(shown("hm", 1, None), ["hm", "t0"]);
        assert!(shown(" \n", 0, None).is_empty());
    }

    /// A text that was said in a phase goes back with that phase, also without any opaque block (entry P4).
    #[test]
    fn a_text_said_in_a_phase_goes_back_with_it_and_is_kept_without_any_block() {
        let said = |bytes, phase: &str| Part::Said { bytes, phase: phase.to_owned() };
        let parts = [said(2, "commentary"), Part::Call, said(3, "final_answer")];
        let carried = carried("responses", &parts).unwrap();
        let call = CallRequest::new(CallId::from_u64(1), "t", "{}");
        let pieces = |dialect| -> Vec<String> {
            let show = |piece| match piece {
                Piece::Said(text, phase) => format!("{text} ({phase})"),
                Piece::Text(text) => text.to_owned(),
                Piece::Call(call) => call.tool.to_string(),
                Piece::Block(block) => block.get().to_owned(),
            };
            let pieces = pieces(dialect, "hmyes", std::slice::from_ref(&call), Some(&carried));
            pieces.into_iter().map(show).collect()
        };
        assert_eq!(pieces("responses"), ["hm (commentary)", "t", "yes (final_answer)"]);
        assert_eq!(pieces("openai"), ["hmyes", "t"]);
    }

    #[test]
    fn what_another_dialect_wants_back_is_left_out() {
        let carried = carried("responses", &[block("{}"), Part::Text(2)]);
        assert_eq!(shown("hm", 1, carried.as_ref()), ["hm", "t0"]);
    }

    #[test]
    fn a_block_that_nothing_follows_is_left_out_and_nothing_is_lost_where_lengths_do_not_fit() {
        let last = carried("anthropic", &[Part::Text(2), block("{}")]);
        assert_eq!(shown("hm", 0, last.as_ref()), ["hm"]);
        let wrong = carried("anthropic", &[block("{}"), Part::Text(1), Part::Call]);
        assert_eq!(shown("é", 1, wrong.as_ref()), ["{}", "t0", "é"]);
        let garbage = Carried { dialect: "anthropic".into(), provider: None, parts: "garbage".into() };
        assert_eq!(shown("hm", 1, Some(&garbage)), ["hm", "t0"]);
    }
}
