//! Tells whether a text that names a run is an id, the beginning of an id, or a name.

use harness_protocol::id::{IdPrefix, RunId};
use harness_protocol::rpc::{ErrorKind, RpcError};

/// Characters from which on the beginning of an id is taken for one, also where a run is called the same.
const TAKEN_FOR_ID: usize = 4;

/// Whether a text is, or is long enough to be taken for, an id or the beginning of one.
pub(crate) fn may_be_an_id(name: &str) -> bool {
    name.len() >= TAKEN_FOR_ID && name.parse::<IdPrefix>().is_ok()
}

/// The refusal of what is the name of a run and the beginning of the id of another one.
pub(crate) fn name_and_id(name: &str, named: RunId, other: RunId) -> RpcError {
    let message = format!(
        "{} is the name of run {named} and the beginning of the id of run {other}; give the whole id",
        shown(name)
    );
    RpcError::new(ErrorKind::Ambiguous, message)
}

/// A name as an error shows it: quoted, without control characters, at most 80 characters of it.
pub(super) fn shown(name: &str) -> String {
    let short: String = name.chars().take(80).collect();
    format!("{short:?}")
}
