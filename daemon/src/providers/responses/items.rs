//! The items of a response, as they grow with a stream or come whole.

use serde::Deserialize;
use serde_json::value::RawValue;

use super::super::arguments::Called;
use super::super::carried::Part;
use super::super::room::{ITEM, Room};
use super::super::text::{Gathered, Text};
use crate::prompt::InferenceError;

/// An item as a server sends it.
#[derive(Deserialize)]
pub(super) struct Sent<'a> {
    #[serde(borrow, default)]
    id: Option<Text<'a>>,
    #[serde(borrow, default)]
    call_id: Option<Text<'a>>,
    #[serde(borrow, default, rename = "type")]
    kind: Option<Text<'a>>,
    #[serde(borrow, default)]
    phase: Option<Text<'a>>,
    #[serde(borrow, default)]
    name: Option<Text<'a>>,
    #[serde(borrow, default)]
    arguments: Option<&'a RawValue>,
    #[serde(borrow, default)]
    content: Option<Vec<Content<'a>>>,
    #[serde(borrow, default)]
    encrypted_content: Option<Text<'a>>,
}

#[derive(Deserialize)]
struct Content<'a> {
    #[serde(borrow, default)]
    text: Option<Text<'a>>,
    #[serde(borrow, default)]
    refusal: Option<Text<'a>>,
}

/// What an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Message,
    Call,
    Reasoning,
}

/// An item so far.
#[derive(Debug)]
struct Item {
    kind: Kind,
    id: String,
    call_id: String,
    index: Option<u64>,
    /// Of a message: what the provider calls the phase in which it was said.
    phase: String,
    name: String,
    /// Text of a message, arguments of a call.
    text: Gathered,
    refusal: Gathered,
    /// As it came, where it must go back so.
    raw: Option<Box<RawValue>>,
}

impl Item {
    fn new(kind: Kind, place: Place<'_>) -> Self {
        let (text, refusal) = (Gathered::default(), Gathered::default());
        let (call_id, name, phase) = (String::new(), String::new(), String::new());
        Self { kind, id: place.id.to_owned(), call_id, index: place.index, phase, name, text, refusal, raw: None }
    }
}

/// How an event names the item that it is about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) id: &'a str,
    pub(super) index: Option<u64>,
}

/// The items of an answer, in order.
#[derive(Debug, Default)]
pub(super) struct Items(Vec<Item>);

impl Items {
    /// An item began, or is whole: what is said of it here takes the place of what was known.
    pub(super) fn item(&mut self, raw: &RawValue, index: Option<u64>, room: &mut Room) -> Result<(), InferenceError> {
        // An item of a form that is not known is nothing that an answer of ours has.
        let Ok(sent) = serde_json::from_str::<Sent<'_>>(raw.get()) else { return Ok(()) };
        let kind = match sent.kind.as_ref().map(Text::to_str).as_deref() {
            Some("message") => Kind::Message,
            Some("function_call") => Kind::Call,
            Some("reasoning") => Kind::Reasoning,
            _ => return Ok(()),
        };
        let id = sent.id.as_ref().map(Text::to_str).unwrap_or_default();
        let call_id = sent.call_id.as_ref().map(Text::to_str).unwrap_or_default();
        let place = Place { id: &id, index };
        // Servers are known that give an item another id at its end.
        let found = self.find(kind, place).or_else(|| {
            self.0.iter().rposition(|item| item.kind == kind && !call_id.is_empty() && item.call_id == call_id)
        });
        let item = self.found_or_new(found, kind, place, room)?;
        if item.call_id.is_empty() {
            item.call_id = call_id.into_owned();
        }
        if let Some(name) = &sent.name {
            item.name = name.to_str().into_owned();
        }
        if let Some(phase) = sent.phase.as_ref().filter(|phase| !phase.is_empty()) {
            item.phase = phase.to_str().into_owned();
        }
        let content = || sent.content.iter().flatten();
        match kind {
            Kind::Call => replace(&mut item.text, sent.arguments.map(argument_text), room)?,
            Kind::Message => {
                replace(&mut item.text, content().filter_map(|part| part.text.clone()), room)?;
                replace(&mut item.refusal, content().filter_map(|part| part.refusal.clone()), room)?;
            }
            Kind::Reasoning => {
                room.take_bytes(raw.get().len())?;
                // What is neither sealed nor said cannot be sent back: nobody would know it again.
                let worth =
                    sent.encrypted_content.is_some_and(|sealed| !sealed.is_empty()) || content().next().is_some();
                item.raw = worth.then(|| raw.to_owned());
            }
        }
        Ok(())
    }

    /// A piece of a text or of arguments. Gives back what can be shown of it.
    pub(super) fn piece(
        &mut self,
        kind: Kind,
        place: Place<'_>,
        piece: &Text<'_>,
        room: &mut Room,
    ) -> Result<&str, InferenceError> {
        room.take(piece)?;
        Ok(self.at(kind, place, room)?.text.push(piece))
    }

    /// The arguments of a call, whole.
    pub(super) fn arguments(
        &mut self,
        place: Place<'_>,
        arguments: &Text<'_>,
        room: &mut Room,
    ) -> Result<(), InferenceError> {
        replace(&mut self.at(Kind::Call, place, room)?.text, [arguments.clone()], room)
    }

    /// A piece of a refusal.
    pub(super) fn refusal(
        &mut self,
        place: Place<'_>,
        piece: &Text<'_>,
        room: &mut Room,
    ) -> Result<&str, InferenceError> {
        room.take(piece)?;
        Ok(self.at(Kind::Message, place, room)?.refusal.push(piece))
    }

    /// The item that a piece belongs to. Where it says nothing that is known, it is the last of its kind.
    fn at(&mut self, kind: Kind, place: Place<'_>, room: &mut Room) -> Result<&mut Item, InferenceError> {
        let found = self.find(kind, place).or_else(|| self.0.iter().rposition(|item| item.kind == kind));
        self.found_or_new(found, kind, place, room)
    }

    fn find(&self, kind: Kind, place: Place<'_>) -> Option<usize> {
        let find = |is: &dyn Fn(&Item) -> bool| self.0.iter().rposition(|item| item.kind == kind && is(item));
        let by_id = if place.id.is_empty() { None } else { find(&|item| item.id == place.id) };
        by_id.or_else(|| place.index.and_then(|_| find(&|item| item.index == place.index)))
    }

    fn found_or_new(
        &mut self,
        found: Option<usize>,
        kind: Kind,
        place: Place<'_>,
        room: &mut Room,
    ) -> Result<&mut Item, InferenceError> {
        let at = found.unwrap_or(self.0.len());
        if at == self.0.len() {
            room.take_bytes(ITEM + place.id.len())?;
            self.0.push(Item::new(kind, place));
        }
        Ok(&mut self.0[at])
    }

    pub(super) fn calls(&self) -> usize {
        self.0.iter().filter(|item| item.kind == Kind::Call).count()
    }

    /// Whether nothing was said and nothing is to be called.
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(|item| item.kind == Kind::Reasoning || (item.kind == Kind::Message && item.text.is_empty()))
    }

    pub(super) fn finish(self) -> Finished {
        let mut finished = Finished::default();
        for item in self.0 {
            match item.kind {
                Kind::Message => {
                    let (text, _) = item.text.finish();
                    finished.parts.push(match item.phase {
                        phase if phase.is_empty() => Part::Text(text.len()),
                        phase => Part::Said { bytes: text.len(), phase },
                    });
                    finished.text.push_str(&text);
                    finished.refusal.push_str(&item.refusal.finish().0);
                }
                Kind::Call => {
                    finished.parts.push(Part::Call);
                    finished.calls.push(Called { id: item.call_id, name: item.name, args: item.text });
                }
                Kind::Reasoning => {
                    finished.thought = true;
                    finished.parts.extend(item.raw.map(Part::Block));
                }
            }
        }
        finished
    }
}

/// The items once all have come.
#[derive(Debug, Default)]
pub(super) struct Finished {
    pub(super) text: String,
    pub(super) refusal: String,
    pub(super) calls: Vec<Called>,
    pub(super) parts: Vec<Part<Box<RawValue>>>,
    /// The model thought.
    pub(super) thought: bool,
}

fn argument_text(arguments: &RawValue) -> Text<'_> {
    match arguments.get() {
        "null" => Text::default(),
        json if json.starts_with('"') => serde_json::from_str(json).unwrap_or_default(),
        json => Text::from(json),
    }
}

/// An item that is announced is empty, and must not take away what has come of it already.
fn replace<'a>(
    gathered: &mut Gathered,
    texts: impl IntoIterator<Item = Text<'a>>,
    room: &mut Room,
) -> Result<(), InferenceError> {
    let mut whole = Gathered::default();
    for text in texts {
        room.take(&text)?;
        whole.push(&text);
    }
    if !whole.is_empty() {
        *gathered = whole;
    }
    Ok(())
}
