//! Assembles calls from their pieces. Servers assign pieces to calls in many different ways.
//!
//! A piece belongs to the call with its index, if it has one; else to the call with its id; else it continues the call
//! before it. A piece with a name begins a new call if the call that it would continue has another id, or has arguments
//! already. A new id alone begins no call, because some servers make up an id for every piece. Within one chunk each
//! piece without an index is a call of its own.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::wire;
use crate::inference::common::answer_limit::{ITEM, Room};
use crate::inference::common::json_text::{Gathered, Text};
use crate::inference::common::tool_args::{self, Called};
use crate::prompt::InferenceError;

/// The calls of an answer.
#[derive(Debug, Default)]
pub(super) struct Calls {
    calls: Vec<Call>,
    /// The call that a piece belonged to last.
    current: Option<usize>,
}

#[derive(Debug, Default)]
struct Call {
    index: Option<u64>,
    id: String,
    name: String,
    args: Gathered,
    extent: Extent,
    extra: Option<Box<RawValue>>,
    others: Others,
}

/// What a call carries under names that mean nothing here.
pub(super) type Others = BTreeMap<String, Box<RawValue>>;

/// A piece of a call.
struct Piece<'a> {
    index: Option<u64>,
    id: Cow<'a, str>,
    name: Cow<'a, str>,
    args: Text<'a>,
    extra: Option<&'a RawValue>,
    others: &'a [(Cow<'a, str>, &'a RawValue)],
}

impl Calls {
    /// Adds the pieces of one chunk. One that says nothing is none.
    pub(super) fn add(&mut self, pieces: &[wire::Call<'_>], room: &mut Room) -> Result<(), InferenceError> {
        let mut before = None;
        for piece in pieces.iter().map(Piece::new).filter(|piece| !piece.is_empty()) {
            before = Some(self.add_piece(&piece, before, room)?);
        }
        Ok(())
    }

    /// Takes all calls as they are said once more, whole. What only their pieces said stays.
    pub(super) fn say_again(&mut self, whole: Self) {
        if whole.is_empty() {
            return;
        }
        let mut before = std::mem::replace(self, whole).calls.into_iter();
        for call in &mut self.calls {
            let Some(before) = before.next().filter(|before| before.name == call.name) else { continue };
            if call.id.is_empty() {
                call.id = before.id;
            }
            if call.args.is_empty() {
                call.args = before.args;
            }
            call.extra = call.extra.take().or(before.extra);
            for (name, value) in before.others {
                call.others.entry(name).or_insert(value);
            }
        }
    }

    /// Adds a piece of arguments of the call with this index.
    pub(super) fn add_args(&mut self, index: u64, args: Text<'_>, room: &mut Room) -> Result<(), InferenceError> {
        if args.is_empty() {
            return Ok(());
        }
        let none = Cow::Borrowed("");
        let piece = Piece { index: Some(index), id: none.clone(), name: none, args, extra: None, others: &[] };
        self.add_piece(&piece, None, room).map(|_| ())
    }

    fn add_piece(
        &mut self,
        piece: &Piece<'_>,
        before: Option<usize>,
        room: &mut Room,
    ) -> Result<usize, InferenceError> {
        let others = piece.others.iter().map(|(name, value)| ITEM + name.len() + value.get().len());
        let extra = piece.extra.map_or(0, |extra| extra.get().len());
        room.take_bytes(piece.name.len() + piece.id.len() + extra + others.sum::<usize>())?;
        room.take(&piece.args)?;
        let at = match self.place(piece, before) {
            Some(at) => at,
            None => {
                room.take_bytes(ITEM)?;
                self.calls.push(Call::default());
                self.calls.len() - 1
            }
        };
        self.current = Some(at);
        if let Some(call) = self.calls.get_mut(at) {
            call.add(piece);
        }
        Ok(at)
    }

    /// The call that a piece continues, if it is not a new one. `before` is where the piece before it in the same chunk
    /// went.
    fn place(&mut self, piece: &Piece<'_>, before: Option<usize>) -> Option<usize> {
        let has_id = |call: &Call| !piece.id.is_empty() && call.id == piece.id;
        let at = match piece.index {
            Some(_) => {
                let by_index = self.calls.iter().rposition(|call| call.index == piece.index);
                by_index.or_else(|| self.calls.iter().rposition(|call| call.index.is_none() && has_id(call))).or_else(
                    || {
                        // The calls began without an index, and are counted all the same.
                        let counted = usize::try_from(piece.index?).ok()?;
                        let call = self.calls.get(counted).filter(|call| call.index.is_none() && piece.name.is_empty());
                        call.map(|_| counted)
                    },
                )
            }
            None => self.calls.iter().rposition(has_id).or(self.current),
        }?;
        let call = self.calls.get_mut(at)?;
        let a_call_of_its_own = piece.index.is_none() && before == Some(at) && !piece.name.is_empty() && !has_id(call);
        (!a_call_of_its_own && !call.is_other(piece)).then_some(at)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// What calls carry beside name and arguments, by their places.
    pub(super) fn take_extras(&mut self) -> BTreeMap<usize, Box<RawValue>> {
        let extras = self.calls.iter_mut().enumerate();
        extras.filter_map(|(place, call)| Some((place, call.extra.take()?))).collect()
    }

    /// What they carry under names that mean nothing here, by their places.
    pub(super) fn take_others(&mut self) -> BTreeMap<usize, Others> {
        let others = self.calls.iter_mut().map(|call| std::mem::take(&mut call.others)).enumerate();
        others.filter(|(_, others)| !others.is_empty()).collect()
    }

    /// The calls, as they were gathered.
    pub(super) fn into_gathered(self) -> impl Iterator<Item = Called> {
        self.calls.into_iter().map(|Call { id, name, args, .. }| Called { id, name, args })
    }
}

impl<'a> Piece<'a> {
    fn new(piece: &'a wire::Call<'a>) -> Self {
        let function = piece.function.0.as_ref();
        let args = match function.and_then(|f| f.arguments).map(RawValue::get) {
            None | Some("null") => Text::default(),
            Some(json) if json.starts_with('"') => serde_json::from_str(json).unwrap_or_default(),
            Some(json) => Text::from(json),
        };
        Self {
            index: piece.index.0,
            id: piece.id.as_ref().map(Text::to_str).unwrap_or_default(),
            name: function.and_then(|f| f.name.as_ref()).map(Text::to_str).unwrap_or_default(),
            args,
            extra: piece.extra_content.filter(|extra| extra.get() != "null"),
            others: &piece.others,
        }
    }

    /// An empty object where a list of calls should be.
    fn is_empty(&self) -> bool {
        let says = [self.id.is_empty(), self.name.is_empty(), self.args.is_empty(), self.others.is_empty()];
        says == [true; 4] && self.extra.is_none()
    }
}

impl Call {
    fn is_other(&mut self, piece: &Piece<'_>) -> bool {
        if piece.name.is_empty() {
            return false;
        }
        let same_id = !piece.id.is_empty() && self.id == piece.id;
        let other_id = !piece.id.is_empty() && !self.id.is_empty() && !same_id;
        let begun = !tool_args::says_nothing(self.args.as_str());
        let whole = begun && self.name == piece.name && self.extent.is_whole(self.args.as_str());
        // Some servers make an id up for every piece, and say the name with it: at the same index it goes on, as long
        // as it has to.
        let goes_on = piece.index.is_some() && self.index == piece.index && self.name == piece.name;
        if other_id && goes_on && begun && !whole && !is_object(&piece.args.to_str()) {
            return false;
        }
        other_id || (begun && self.name != piece.name) || (whole && !(same_id && self.says_again(piece)))
    }

    /// Some servers end with all calls once more, whole.
    fn says_again(&self, piece: &Piece<'_>) -> bool {
        piece.args.to_str().trim().is_empty() || piece.args.to_str() == self.args.as_str()
    }

    fn add(&mut self, piece: &Piece<'_>) {
        self.index = self.index.or(piece.index);
        let is_whole = !piece.name.is_empty() && !self.args.is_empty() && self.extent.is_whole(self.args.as_str());
        if self.id.is_empty() {
            self.id.push_str(&piece.id);
        }
        // A name in pieces is put together; one that is said again, or as far as it has got, is not.
        if piece.name.starts_with(self.name.as_str()) {
            self.name.clear();
        }
        self.name.push_str(&piece.name);
        if let Some(extra) = piece.extra {
            self.extra = Some(extra.to_owned());
        }
        for (name, value) in piece.others {
            self.others.insert(name.clone().into_owned(), (*value).to_owned());
        }
        if !(is_whole && self.says_again(piece)) {
            self.args.push(&piece.args);
        }
    }
}

/// Whether a piece is an object by itself: then it goes on from nothing.
fn is_object(piece: &str) -> bool {
    let piece = piece.trim();
    piece.starts_with('{') && serde_json::from_str::<&RawValue>(piece).is_ok()
}

/// How far a text that grows has been looked through for the end of its first JSON object.
#[derive(Debug, Default)]
struct Extent {
    seen: usize,
    depth: usize,
    in_string: bool,
    escaped: bool,
}

impl Extent {
    /// Whether the object is closed. Looks at each byte once, however often it is asked.
    fn is_whole(&mut self, text: &str) -> bool {
        for byte in &text.as_bytes()[self.seen..] {
            self.seen += 1;
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'{' | b'[' if !self.in_string => self.depth += 1,
                b'}' | b']' if !self.in_string => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
        self.depth == 0 && !self.in_string && self.seen > 0
    }
}
