//! Tells whether a text that names a run is an id, the beginning of an id, or a name.

use harness_protocol::id::{IdPrefix, RunId};
use harness_protocol::rpc::Subject;

use crate::refusal::NameRefusal;

/// Characters from which on the beginning of an id is taken for one, also where a run is called the same.
const TAKEN_FOR_ID: usize = 4;

/// Whether a text is, or is long enough to be taken for, an id or the beginning of one.
pub(crate) fn may_be_an_id(name: &str) -> bool {
    name.len() >= TAKEN_FOR_ID && name.parse::<IdPrefix>().is_ok()
}

/// The refusal of what is the name of a run and the beginning of the id of another one.
pub(crate) fn name_and_id(name: &str, named: RunId, other: RunId) -> NameRefusal {
    NameRefusal::NameAndId { name: short(name), named, other }
}

/// As much of a name as a refusal keeps: 80 characters.
pub(crate) fn short(name: &str) -> String {
    Subject::short(name).into_owned()
}
