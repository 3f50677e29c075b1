//! Builds the items of a response, from the pieces of a stream or from the whole list at the end.

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::inference::common::answer_limit::{ITEM, Room};
use crate::inference::common::json_text::{Gathered, Text};
use crate::inference::common::lenient::Objects;
use crate::inference::common::opaque_blocks::Part;
use crate::inference::common::repeated_text::Announced;
use crate::inference::common::tool_args::{Called, are_the_same};
use crate::prompt::InferenceError;

/// An item as a server sends it.
#[derive(Deserialize, Default)]
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
    content: Objects<'a, Content<'a>>,
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
    /// Of a kind that is not known, such as a call that the server executes itself: whatever comes for it is none of
    /// ours.
    Unknown,
}

/// How far an item has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stage {
    /// Pieces of it came, and nothing else.
    Pieces,
    /// It was announced.
    Begun,
    /// It came whole.
    Done,
}

/// An item so far.
#[derive(Debug)]
struct Item {
    kind: Kind,
    stage: Stage,
    id: String,
    call_id: String,
    index: Option<u64>,
    /// Of a message: what the provider calls the phase in which it was said.
    phase: String,
    name: String,
    /// Text of a message, arguments of a call.
    text: Announced,
    refusal: Announced,
    /// As it came, where it must go back so.
    raw: Option<Box<RawValue>>,
}

impl Item {
    /// Whether this is the item that the list has.
    fn is(&self, listed: &Self) -> bool {
        let same = |one: &str, other: &str| !one.is_empty() && one == other;
        self.kind == listed.kind && (same(&self.call_id, &listed.call_id) || same(&self.id, &listed.id))
    }

    /// Takes what the list has more of it. Shows what it adds to a text.
    fn take_more(&mut self, listed: Self, show: &mut dyn FnMut(&str)) {
        match self.kind {
            Kind::Unknown => {}
            Kind::Reasoning => self.raw = self.raw.take().or(listed.raw),
            Kind::Message => {
                show(go_on(&mut self.text, listed.text.finish()));
                go_on(&mut self.refusal, listed.refusal.finish());
            }
            // Whatever it was begun with: its end never came.
            Kind::Call if self.stage < Stage::Done && !listed.text.is_empty() => self.text = listed.text,
            Kind::Call => _ = go_on(&mut self.text, listed.text.finish()),
        }
    }

    fn new(kind: Kind, place: Place<'_>) -> Self {
        let (text, refusal) = (Announced::default(), Announced::default());
        let (call_id, name, phase) = (String::new(), String::new(), String::new());
        Self {
            kind,
            stage: Stage::Pieces,
            id: place.id.to_owned(),
            call_id,
            index: place.index,
            phase,
            name,
            text,
            refusal,
            raw: None,
        }
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
    /// An item began, or is whole: what is said of it here takes the place of what was known. Gives back what can be
    /// shown of it.
    pub(super) fn item(
        &mut self,
        raw: &RawValue,
        index: Option<u64>,
        stage: Stage,
        room: &mut Room,
    ) -> Result<&str, InferenceError> {
        // An item of an unknown form contributes nothing to the answer.
        let sent = serde_json::from_str::<Sent<'_>>(raw.get()).unwrap_or_default();
        let kind = match sent.kind.as_ref().map(Text::to_str).as_deref() {
            Some("message") => Kind::Message,
            Some("function_call") => Kind::Call,
            Some("reasoning") => Kind::Reasoning,
            _ => Kind::Unknown,
        };
        let id = sent.id.as_ref().map(Text::to_str).unwrap_or_default();
        let call_id = sent.call_id.as_ref().map(Text::to_str).unwrap_or_default();
        let place = Place { id: &id, index };
        let content = sent.content.all().unwrap_or_default();
        let content = || content.iter();
        let name = sent.name.as_ref().map(Text::to_str).unwrap_or_default();
        let texts = match kind {
            Kind::Call => whole(sent.arguments.map(argument_text), room)?,
            Kind::Message => whole(content().filter_map(|part| part.text.clone()), room)?,
            Kind::Reasoning | Kind::Unknown => Gathered::default(),
        };
        let found = self.find_item(kind, place, &call_id, stage);
        let found = found.or_else(|| self.find_by_content(kind, place.index, &name, texts.as_str(), stage));
        let item = self.found_or_new(found, kind, place, room)?;
        item.stage = item.stage.max(stage);
        if item.call_id.is_empty() {
            item.call_id = call_id.into_owned();
        }
        if sent.name.is_some() {
            item.name = name.into_owned();
        }
        if let Some(phase) = sent.phase.as_ref().filter(|phase| !phase.is_empty()) {
            item.phase = phase.to_str().into_owned();
        }
        let from = Some(item.text.as_str()).filter(|said| kind == Kind::Message && texts.as_str().starts_with(said));
        let from = from.map(str::len);
        match kind {
            Kind::Unknown => {}
            // Of arguments half is none: what is said of them again is judged when they are whole.
            Kind::Call => replace(&mut item.text, texts, Stage::Done),
            Kind::Message => {
                replace(&mut item.text, texts, stage);
                replace(&mut item.refusal, whole(content().filter_map(|part| part.refusal.clone()), room)?, stage);
            }
            Kind::Reasoning => {
                room.take_bytes(raw.get().len())?;
                // Reasoning without encrypted content and without text is not sent back: the provider could not
                // recognise it.
                let worth =
                    sent.encrypted_content.is_some_and(|sealed| !sealed.is_empty()) || content().next().is_some();
                item.raw = worth.then(|| raw.to_owned());
            }
        }
        Ok(from.and_then(|from| item.text.as_str().get(from..)).unwrap_or_default())
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
        let item = self.at(kind, place, room)?;
        Ok(if item.kind == Kind::Unknown { "" } else { item.text.push(piece) })
    }

    /// The arguments of a call, whole.
    pub(super) fn arguments(
        &mut self,
        place: Place<'_>,
        arguments: &Text<'_>,
        room: &mut Room,
    ) -> Result<(), InferenceError> {
        let found = self.find(Kind::Call, place, Stage::Done);
        let item = self.found_or_new(found, Kind::Call, place, room)?;
        replace(&mut item.text, whole([arguments.clone()], room)?, Stage::Done);
        Ok(())
    }

    /// The text of a message, whole, where it goes on from the pieces of it. Gives back what can be shown of it.
    pub(super) fn whole_text(
        &mut self,
        place: Place<'_>,
        text: &Text<'_>,
        room: &mut Room,
    ) -> Result<&str, InferenceError> {
        let whole = whole([text.clone()], room)?;
        let item = self.at(Kind::Message, place, room)?;
        Ok(if item.kind == Kind::Unknown { "" } else { go_on(&mut item.text, whole) })
    }

    /// A piece of a refusal.
    pub(super) fn refusal(
        &mut self,
        place: Place<'_>,
        piece: &Text<'_>,
        room: &mut Room,
    ) -> Result<&str, InferenceError> {
        room.take(piece)?;
        let item = self.at(Kind::Message, place, room)?;
        Ok(if item.kind == Kind::Unknown { "" } else { item.refusal.push(piece) })
    }

    /// The texts of its messages, in order.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter(|item| item.kind == Kind::Message).map(|item| item.text.as_str())
    }

    /// Takes what the list at the end has more than the items that were streamed. Shows what it adds to texts.
    pub(super) fn take_more(&mut self, listed: Self, show: &mut dyn FnMut(&str)) {
        let of = |items: &[Item], kind| items.iter().filter(|item| item.kind == kind).count();
        let alike = |kind| of(&self.0, kind) == of(&listed.0, kind);
        let alike = [Kind::Message, Kind::Reasoning, Kind::Call].map(|kind| (kind, alike(kind)));
        let says = self.0.iter().any(|item| item.kind == Kind::Message && !item.text.is_empty());
        let thinks = self.0.iter().any(|item| item.kind == Kind::Reasoning);
        let mut counted = [0; 3];
        // Where the next one belongs that was not streamed.
        let mut next = 0;
        for new in listed.0 {
            let Some(which) = alike.iter().position(|(kind, _)| *kind == new.kind) else { continue };
            let count = counted[which];
            counted[which] += 1;
            let same = |item: &&mut Item| item.kind == new.kind;
            let known = self.0.iter().position(|item| item.is(&new)).or_else(|| {
                // Ids of the list's own: where as many were streamed, they are the same in their order.
                let nth = self.0.iter().enumerate().filter(|(_, item)| item.kind == new.kind).nth(count);
                nth.filter(|(_, item)| alike[which].1 && item.name == new.name).map(|(at, _)| at)
            });
            match known.and_then(|at| Some((at, self.0.get_mut(at).filter(same)?))) {
                Some((at, item)) => {
                    next = at + 1;
                    item.take_more(new, show);
                }
                None if new.kind == Kind::Message && !says || new.kind == Kind::Reasoning && !thinks => {
                    show(new.text.as_str());
                    self.0.insert(next, new);
                    next += 1;
                }
                None => {}
            }
        }
    }

    /// The item that is announced, or is whole, where something of it came before. Servers are known that give an item
    /// another id at its end, and some that give all items of an answer the same index: a call is known by its own id,
    /// and an index says no more than that an item that has not gone so far may be meant.
    fn find_item(&self, kind: Kind, place: Place<'_>, call_id: &str, stage: Stage) -> Option<usize> {
        let find = |is: &dyn Fn(&Item) -> bool| self.0.iter().rposition(|item| item.kind == kind && is(item));
        let other = |one: &str, other: &str| !one.is_empty() && !other.is_empty() && one != other;
        let by_call = if call_id.is_empty() { None } else { find(&|item| item.call_id == call_id) };
        let by_id = || {
            // What has gone further by the same id is the same call, whatever else it is called now (vLLM).
            let same = |item: &Item| item.id == place.id && (item.stage < stage || !other(&item.call_id, call_id));
            if place.id.is_empty() { None } else { find(&same) }
        };
        let by_index = || {
            let may_be = |item: &Item| item.stage < stage && !other(&item.call_id, call_id);
            place.index.and_then(|_| find(&|item| item.index == place.index && may_be(item)))
        };
        by_call.or_else(by_id).or_else(by_index)
    }

    /// Finds a streamed item for a whole item whose ids are unknown: the same place and name, and a text that begins
    /// with the streamed text.
    fn find_by_content(&self, kind: Kind, index: Option<u64>, name: &str, text: &str, stage: Stage) -> Option<usize> {
        if stage != Stage::Done || !matches!(kind, Kind::Call | Kind::Message) {
            return None;
        }
        let same = |item: &Item| {
            let said = item.text.as_str();
            // A message that only has no place is known by its words alone.
            let is_begun = item.index.is_some() || (kind == Kind::Message && !said.is_empty());
            let goes_on = text.starts_with(said) || (kind == Kind::Call && are_the_same(said, text));
            item.kind == kind && item.stage < stage && item.index == index && is_begun && item.name == name && goes_on
        };
        self.0.iter().position(same)
    }

    /// The item that a piece belongs to.
    fn at(&mut self, kind: Kind, place: Place<'_>, room: &mut Room) -> Result<&mut Item, InferenceError> {
        let found = self.find(kind, place, Stage::Begun);
        self.found_or_new(found, kind, place, room)
    }

    /// Where a piece belongs: to the item of its id, of its index, or else to the last of its kind that has gone no
    /// further than `most`. What is of an unknown item by id, or by an index that no item of its kind has, is of that.
    fn find(&self, kind: Kind, place: Place<'_>, most: Stage) -> Option<usize> {
        let find = |is: &dyn Fn(&Item) -> bool| self.0.iter().rposition(is);
        let by_id = |kind| {
            let same = |item: &Item| item.kind == kind && item.id == place.id;
            if place.id.is_empty() { None } else { find(&same) }
        };
        let is_open = |item: &Item| item.kind == kind && item.stage <= most;
        let by_index = || place.index.and_then(|_| find(&|item| item.index == place.index && is_open(item)));
        let unknown_by_index = || {
            let same = |item: &Item| item.kind == Kind::Unknown && item.index == place.index && item.stage <= most;
            place.index.and_then(|_| find(&same))
        };
        let last = || find(&is_open);
        by_id(kind).or_else(|| by_id(Kind::Unknown)).or_else(by_index).or_else(unknown_by_index).or_else(last)
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
        self.0.iter().all(|item| match item.kind {
            Kind::Reasoning | Kind::Unknown => true,
            Kind::Message => item.text.is_empty(),
            Kind::Call => false,
        })
    }

    pub(super) fn finish(self) -> Finished {
        let mut finished = Finished::default();
        for item in self.0 {
            match item.kind {
                Kind::Message => {
                    let (text, _) = item.text.finish().finish();
                    finished.parts.push(match item.phase {
                        phase if phase.is_empty() => Part::Text(text.len()),
                        phase => Part::Said { bytes: text.len(), phase },
                    });
                    finished.text.push_str(&text);
                    finished.refusal.push_str(&item.refusal.finish().finish().0);
                }
                Kind::Call => {
                    finished.parts.push(Part::Call);
                    finished.calls.push(Called { id: item.call_id, name: item.name, args: item.text.finish() });
                }
                Kind::Unknown => {}
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

/// Texts of an item that came together.
fn whole<'a>(texts: impl IntoIterator<Item = Text<'a>>, room: &mut Room) -> Result<Gathered, InferenceError> {
    let mut whole = Gathered::default();
    for text in texts {
        room.take(&text)?;
        whole.push(&text);
    }
    Ok(whole)
}

/// An item that is announced is empty, and must not take away what has come of it already.
fn replace(text: &mut Announced, whole: Gathered, stage: Stage) {
    if whole.is_empty() {
        return;
    }
    *text = if stage == Stage::Done { Announced::whole(whole) } else { Announced::new(&Text::from(whole.as_str())) };
}

/// A text that came whole, where it goes on from what there is of it. Gives back what it adds.
fn go_on(text: &mut Announced, whole: Gathered) -> &str {
    let from = text.as_str().len();
    if whole.as_str().len() <= from || !whole.as_str().starts_with(text.as_str()) {
        return "";
    }
    *text = Announced::whole(whole);
    text.as_str().get(from..).unwrap_or_default()
}
