//! Fetches the long prompt of a run, of which its event has the name alone.
//!
//! Owns only that; what it cannot fetch it says in the place of the prompt.

use std::sync::Arc;

use harness_protocol::blob::BlobHash;
use harness_protocol::event::{Event, EventBody};
use harness_protocol::rpc::{BlobParams, method};

use crate::error::Failure;
use crate::session::Session;

/// Puts the prompt into an event that names one.
pub(super) fn attach(session: &mut Session, event: &mut Event) {
    let EventBody::RunSubmitted { spec, .. } = &mut event.body else { return };
    if let (None, Some(hash)) = (&spec.prompt, spec.prompt_blob.as_deref()) {
        let prompt = fetched(session, *hash);
        let prompt = prompt.unwrap_or_else(|failure| format!("(a prompt that could not be fetched: {failure})"));
        Arc::make_mut(spec).prompt = Some(prompt.into());
    }
}

fn fetched(session: &mut Session, hash: BlobHash) -> Result<String, Failure> {
    let mut text = String::new();
    loop {
        let reply = session.call::<method::BlobGet>(&BlobParams { hash, offset: text.len() as u64 })?;
        text.push_str(&reply.text);
        if reply.text.is_empty() || text.len() as u64 >= reply.total {
            return Ok(text);
        }
    }
}
