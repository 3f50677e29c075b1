//! Builds the content blocks of a message, from the pieces of a stream or from a whole message.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Map, Value};

use crate::inference::common::answer_limit::{ITEM, Room};
use crate::inference::common::json_text::{Gathered, Text};
use crate::inference::common::opaque_blocks::Part;
use crate::inference::common::repeated_text::Announced;
use crate::inference::common::tool_args::Called;
use crate::inference::errors::classify::broken;
use crate::prompt::InferenceError;

/// A block as a server sends it.
#[derive(Deserialize, Default)]
struct Sent<'a> {
    #[serde(borrow, default, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(borrow, default)]
    text: Option<Text<'a>>,
    #[serde(borrow, default)]
    thinking: Option<Text<'a>>,
    #[serde(borrow, default)]
    signature: Option<Text<'a>>,
    #[serde(borrow, default)]
    id: Option<Text<'a>>,
    #[serde(borrow, default)]
    name: Option<Text<'a>>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    /// Of a result of the server's own tool: the call that it is of.
    #[serde(borrow, default)]
    tool_use_id: Option<Text<'a>>,
}

/// Thinking as it goes back.
#[derive(Serialize)]
#[serde(tag = "type", rename = "thinking")]
struct Thinking<'a> {
    thinking: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    signature: Option<&'a str>,
}

/// A text as it goes back.
#[derive(Serialize)]
#[serde(tag = "type", rename = "text")]
struct Said<'a> {
    text: &'a str,
}

#[derive(Debug)]
struct Block {
    /// None where it is of a part of the answer that came before: nothing more comes for it.
    index: Option<u64>,
    inside: Inside,
    /// Its end has come, or it came whole.
    ended: bool,
    /// Something of it came after its beginning.
    grown: bool,
}

#[derive(Debug)]
enum Inside {
    Text(Announced),
    Thinking {
        text: Announced,
        signature: Option<Announced>,
    },
    Call {
        id: String,
        name: String,
        /// Where the arguments came whole, with the beginning of the block.
        whole: Option<String>,
        args: Gathered,
    },
    /// Sealed thinking, as it came.
    Sealed(Box<RawValue>),
    /// A call that the server executes itself, as it began, and its input as it grows; it is none of ours, and goes
    /// back with its result.
    Theirs {
        id: String,
        raw: Box<RawValue>,
        input: Gathered,
    },
    /// The result of such a call, as it came.
    Result {
        of: String,
        raw: Box<RawValue>,
    },
    /// A block of a kind that is not known: whatever comes for it is none of ours.
    Unknown,
}

/// What a piece adds to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Thinking,
    Signature,
    Args,
}

/// The blocks of an answer, in order.
#[derive(Debug, Default)]
pub(super) struct Blocks(Vec<Block>);

impl Blocks {
    /// A block began, or is whole. Gives back what can be shown of it.
    pub(super) fn begin(
        &mut self,
        index: u64,
        raw: &RawValue,
        room: &mut Room,
    ) -> Result<Option<(Kind, &str)>, InferenceError> {
        room.take_bytes(ITEM + raw.get().len())?;
        // A block of an unknown form contributes nothing to the answer.
        let sent = serde_json::from_str::<Sent<'_>>(raw.get()).unwrap_or_default();
        let word = |text: Option<Text<'_>>| text.unwrap_or_default().to_str().into_owned();
        let announced = |text: Option<Text<'_>>| Announced::new(&text.unwrap_or_default());
        let mut inside = match sent.kind.as_ref().map(Text::to_str).as_deref() {
            Some("text") => Inside::Text(announced(sent.text)),
            Some("thinking") => Inside::Thinking {
                text: announced(sent.thinking),
                signature: sent.signature.map(|signature| Announced::new(&signature)),
            },
            Some("redacted_thinking") => Inside::Sealed(raw.to_owned()),
            Some("tool_use") => Inside::Call {
                id: word(sent.id),
                name: word(sent.name),
                whole: sent.input.map(RawValue::get).filter(|input| !is_empty(input)).map(str::to_owned),
                args: Gathered::default(),
            },
            Some("server_tool_use" | "mcp_tool_use") => {
                Inside::Theirs { id: word(sent.id), raw: raw.to_owned(), input: Gathered::default() }
            }
            Some(kind) if kind.ends_with("_tool_result") => {
                Inside::Result { of: word(sent.tool_use_id), raw: raw.to_owned() }
            }
            _ => Inside::Unknown,
        };
        // A block that was in the message already, or a call that begins by the same id: it begins once more.
        if let Some(at) = self.0.iter().rposition(|block| block.index == Some(index) && block.is_begun_again(&inside))
            && let (Inside::Call { whole: before, .. }, Inside::Call { whole, .. }) =
                (self.0.remove(at).inside, &mut inside)
        {
            *whole = whole.take().or(before);
        }
        self.0.push(Block { index: Some(index), inside, ended: false, grown: false });
        Ok(self.0.last().and_then(|block| match &block.inside {
            Inside::Text(text) => Some((Kind::Text, text.as_str())),
            Inside::Thinking { text, .. } => Some((Kind::Thinking, text.as_str())),
            Inside::Call { .. }
            | Inside::Sealed(_)
            | Inside::Theirs { .. }
            | Inside::Result { .. }
            | Inside::Unknown => None,
        }))
    }

    /// All of the content, where it is a text and no blocks.
    pub(super) fn text(&mut self, text: &Text<'_>, room: &mut Room) -> Result<(), InferenceError> {
        room.take(text)?;
        if !text.is_empty() {
            self.0.push(Block { index: None, inside: Inside::Text(Announced::new(text)), ended: true, grown: false });
        }
        Ok(())
    }

    /// Whether the end of each that is known has come.
    pub(super) fn have_ended(&self) -> bool {
        self.0.iter().all(|block| block.ended || matches!(block.inside, Inside::Result { .. } | Inside::Unknown))
    }

    /// The block that began last at this index has ended; with none, all have.
    pub(super) fn end(&mut self, index: Option<u64>) {
        match index {
            None => self.0.iter_mut().for_each(|block| block.ended = true),
            Some(index) => {
                if let Some(block) = self.0.iter_mut().rfind(|block| block.index == Some(index)) {
                    block.ended = true;
                }
            }
        }
    }

    /// Adds a piece to the block that is meant. Gives back what can be shown of it.
    ///
    /// # Errors
    /// Where that block never began: what the piece belongs to is not known, and it may be a call.
    pub(super) fn add(
        &mut self,
        index: u64,
        kind: Kind,
        piece: &Text<'_>,
        room: &mut Room,
    ) -> Result<&str, InferenceError> {
        room.take(piece)?;
        let block = self.0.iter_mut().rfind(|block| block.index == Some(index) && block.inside.takes(kind));
        let Some(block) = block else {
            return Err(broken("the provider sent a piece of a block that never began"));
        };
        block.grown = true;
        Ok(match (&mut block.inside, kind) {
            (Inside::Thinking { signature, .. }, Kind::Signature) => {
                signature.get_or_insert_default().push(piece);
                ""
            }
            (Inside::Text(text) | Inside::Thinking { text, .. }, _) => text.push(piece),
            (Inside::Call { args, .. }, _) => {
                args.push(piece);
                ""
            }
            (Inside::Theirs { input, .. }, Kind::Args) => {
                input.push(piece);
                ""
            }
            (Inside::Sealed(_) | Inside::Theirs { .. } | Inside::Result { .. } | Inside::Unknown, _) => "",
        })
    }

    /// Whether the answer has a call that the daemon must execute.
    pub(super) fn have_calls(&self) -> bool {
        self.0.iter().any(|block| matches!(block.inside, Inside::Call { .. }))
    }

    /// From here on blocks of the rest of the answer come, which count from the first index again.
    pub(super) fn go_on(&mut self) {
        self.0.iter_mut().for_each(|block| (block.index, block.ended) = (None, true));
    }

    /// The answer so far, as it is sent back to have the rest: in the order in which it came, and whole, also a call of
    /// the server's own whose result is still to come.
    pub(super) fn as_said(&self) -> Vec<Box<RawValue>> {
        let mut said: Vec<_> = self.0.iter().filter_map(|block| block.inside.as_said()).collect();
        // What ends in a blank text is refused.
        if let Some(Inside::Text(text)) = self.0.last().map(|block| &block.inside) {
            said.truncate(said.len() - usize::from(!text.as_str().trim().is_empty()));
            said.extend(said_text(text.as_str().trim_end()));
        }
        said
    }

    /// What the blocks come to. `cut` says that the answer was ended before its end.
    ///
    /// # Errors
    /// Where a call has no input and its end never came, though nothing cut it: its input may have come for another
    /// block.
    pub(super) fn finish(self, cut: bool) -> Result<Finished, InferenceError> {
        let mut finished = Finished::default();
        // One without the other is refused.
        let (calls, results): (BTreeSet<_>, BTreeSet<_>) = self.0.iter().fold(Default::default(), |mut ids, block| {
            match &block.inside {
                Inside::Theirs { id, .. } => _ = ids.0.insert(id.clone()),
                Inside::Result { of, .. } => _ = ids.1.insert(of.clone()),
                _ => {}
            }
            ids
        });
        for block in self.0 {
            match block.inside {
                Inside::Text(text) => {
                    let (text, _) = text.finish().finish();
                    finished.parts.push(Part::Text(text.len()));
                    finished.text.push_str(&text);
                }
                Inside::Thinking { text, signature } => {
                    let (thinking, _) = text.finish().finish();
                    finished.thought = true;
                    let block = Thinking { thinking: &thinking, signature: signature.as_ref().map(Announced::as_str) };
                    finished.parts.extend(to_raw_value(&block).ok().map(Part::Block));
                }
                Inside::Call { id, name, whole, mut args } => {
                    if args.is_empty() && whole.is_none() && !block.ended && !cut {
                        return Err(broken("the provider sent a call of which neither input nor end came"));
                    }
                    if let Some(whole) = whole.filter(|_| args.is_empty()) {
                        args.push(&Text::from(whole.as_str()));
                    }
                    finished.parts.push(Part::Call);
                    finished.calls.push(Called { id, name, args });
                }
                Inside::Sealed(raw) => {
                    finished.thought = true;
                    finished.parts.push(Part::Block(raw));
                }
                Inside::Theirs { id, raw, input } => {
                    let block = results.contains(&id).then(|| with_input(raw, &input)).flatten();
                    finished.parts.extend(block.map(Part::Block));
                }
                Inside::Result { of, raw } => finished.parts.extend(calls.contains(&of).then_some(Part::Block(raw))),
                Inside::Unknown => {}
            }
        }
        Ok(finished)
    }
}

/// The blocks once all have come.
#[derive(Debug, Default)]
pub(super) struct Finished {
    pub(super) text: String,
    pub(super) calls: Vec<Called>,
    pub(super) parts: Vec<Part<Box<RawValue>>>,
    /// The model thought.
    pub(super) thought: bool,
}

impl Block {
    /// Whether what begins at its index is this block once more: nothing came of it since, and it says as much.
    fn is_begun_again(&self, now: &Inside) -> bool {
        let same = match (&self.inside, now) {
            (Inside::Text(before), Inside::Text(now)) => repeats(before, now),
            (Inside::Thinking { text: before, .. }, Inside::Thinking { text: now, .. }) => repeats(before, now),
            (Inside::Call { id: before, .. }, Inside::Call { id: now, .. }) => !now.is_empty() && before == now,
            _ => false,
        };
        same && !self.grown && !self.ended
    }
}

/// Whether a text that begins says again what was there, or begins where nothing was.
fn repeats(before: &Announced, now: &Announced) -> bool {
    before.is_empty() || now.as_str() == before.as_str()
}

/// A text as it goes back. One without a word in it is refused.
fn said_text(text: &str) -> Option<Box<RawValue>> {
    let block = Said { text };
    (!text.trim().is_empty()).then(|| to_raw_value(&block).ok()).flatten()
}

impl Inside {
    /// The block as it goes back within its own answer; none where it is not ours to send.
    fn as_said(&self) -> Option<Box<RawValue>> {
        match self {
            Self::Text(text) => said_text(text.as_str()),
            Self::Thinking { text, signature } => {
                let signature = signature.as_ref().map(Announced::as_str);
                to_raw_value(&Thinking { thinking: text.as_str(), signature }).ok()
            }
            Self::Sealed(raw) | Self::Result { raw, .. } => Some(raw.clone()),
            Self::Theirs { raw, input, .. } => with_input(raw.clone(), input),
            Self::Call { .. } | Self::Unknown => None,
        }
    }

    const fn takes(&self, kind: Kind) -> bool {
        matches!(
            (self, kind),
            (Self::Text(_), Kind::Text)
                | (Self::Thinking { .. }, Kind::Thinking | Kind::Signature)
                | (Self::Call { .. }, Kind::Args)
                | (Self::Theirs { .. } | Self::Result { .. } | Self::Unknown, _)
        )
    }
}

/// A call of the server's own with the input that came for it.
fn with_input(raw: Box<RawValue>, input: &Gathered) -> Option<Box<RawValue>> {
    if input.is_empty() {
        return Some(raw);
    }
    let mut block: Map<String, Value> = serde_json::from_str(raw.get()).ok()?;
    block.insert("input".to_owned(), serde_json::from_str(input.as_str()).ok()?);
    to_raw_value(&block).ok()
}

/// `{}` stands at the beginning of every block whose arguments are still to come.
fn is_empty(input: &str) -> bool {
    input.bytes().filter(|byte| !byte.is_ascii_whitespace()).eq(*b"{}") || input == "null"
}
