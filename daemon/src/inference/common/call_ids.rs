//! Chooses the id under which each call of a prompt goes to a provider: the id that this provider gave the call, or
//! else the daemon's own.
//!
//! Servers keep state under their ids, or in them (a signature, a count). Pure. It must not invent an id.

use std::collections::{BTreeMap, BTreeSet};

use harness_protocol::id::CallId;
use harness_protocol::run::{CallRequest, GivenId};

use crate::prompt::{Message, Prompt};

/// Bytes of the longest id that is kept: some have a signature of several KiB in them.
pub(in crate::inference) const LONGEST: usize = 64 * 1024;

/// Ids of the calls of one prompt, for one provider.
#[derive(Debug)]
pub(in crate::inference) struct CallIds<'p> {
    /// The calls whose given ids go back.
    given: BTreeMap<CallId, &'p str>,
    ours: fn(CallId) -> String,
}

impl<'p> CallIds<'p> {
    /// The ids for a prompt that has only what its provider said. A given id goes back where `is_legal` says that the
    /// API takes it and no other call of the prompt has it: of several with the same id the first keeps it, as it was
    /// sent so before.
    pub(in crate::inference) fn new(
        prompt: &'p Prompt,
        is_legal: fn(&str) -> bool,
        ours: fn(CallId) -> String,
    ) -> Self {
        let calls = || prompt.messages.iter().flat_map(calls);
        let mut taken: BTreeSet<String> = calls().map(|call| ours(call.call)).collect();
        let mut given = BTreeMap::new();
        for call in calls() {
            let Some(GivenId { id, .. }) = call.given.as_deref() else { continue };
            if id.len() <= LONGEST && is_legal(id) && taken.insert(id.to_string()) {
                given.insert(call.call, &**id);
            }
        }
        Self { given, ours }
    }

    /// The id of a call, and of its result.
    pub(in crate::inference) fn get(&self, call: CallId) -> String {
        self.given.get(&call).map_or_else(|| (self.ours)(call), |given| (*given).to_owned())
    }
}

fn calls(message: &Message) -> &[CallRequest] {
    match message {
        Message::Assistant { calls, .. } => calls,
        Message::User { .. } => &[],
    }
}

/// An id that any API takes from the server that gave it: visible ASCII.
pub(in crate::inference) fn is_visible(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_graphic())
}

/// An id of letters, digits, `_` and `-`, as the API of messages wants it.
pub(in crate::inference) fn is_word(id: &str) -> bool {
    !id.is_empty() && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}
