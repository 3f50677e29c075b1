//! Records the places in an event at which the next event may differ from it ("holes").

use std::ops::Range;

/// Most of them in one event.
pub(in crate::inference) const HOLES: usize = 16;

/// What stands in a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::inference) enum What {
    /// What the event is sent for.
    Piece,
    /// A string that the dialect ignores.
    String,
    /// A number that the dialect ignores.
    Number,
}

/// Where an event may differ from the next, in order.
#[derive(Debug, Default)]
pub(in crate::inference) struct Holes {
    found: Vec<(Range<usize>, What)>,
    too_many: bool,
}

impl Holes {
    pub(in crate::inference) fn add(&mut self, place: Range<usize>, what: What) {
        self.too_many |= self.found.len() == HOLES;
        if !self.too_many {
            self.found.push((place, what));
        }
    }

    pub(in crate::inference) fn clear(&mut self) {
        self.found.clear();
        self.too_many = false;
    }

    /// In order; not all of them, where there were too many.
    pub(in crate::inference) fn iter(&self) -> impl Iterator<Item = &(Range<usize>, What)> {
        self.found.iter()
    }

    /// Whether all are there, and one of them is what the event is sent for.
    pub(in crate::inference) fn are_of_one_piece(&self) -> bool {
        !self.too_many && self.found.iter().filter(|(_, what)| *what == What::Piece).count() == 1
    }
}
