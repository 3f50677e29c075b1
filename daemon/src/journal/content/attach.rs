//! Reads texts by their names, and attaches them to the events that name them.
//!
//! A text that is missing, or whose content is another one, makes the record of the event unreadable: so it is told and
//! handled like any other damage, and no other run is affected.

use std::collections::HashMap;
use std::hash::Hash;
use std::path::Path;
use std::sync::Arc;

use harness_protocol::blob::BlobHash;
use harness_protocol::event::{Event, EventBody, ToolDefinition};
use harness_protocol::script::Script;
use rusqlite::{Connection, OptionalExtension};
use serde::de::DeserializeOwned;

use super::Files;
use crate::blob;
use crate::journal::Record;

/// The texts that were attached so far, each once.
#[derive(Debug)]
pub(in crate::journal) struct Texts {
    files: Files,
    prompts: HashMap<BlobHash, Arc<str>>,
    scripts: HashMap<BlobHash, Arc<Script>>,
    tools: HashMap<BlobHash, Arc<[ToolDefinition]>>,
}

impl Texts {
    /// The texts of this journal.
    pub(in crate::journal) fn beside(journal: &Path) -> Self {
        Self { files: Files::beside(journal), prompts: HashMap::new(), scripts: HashMap::new(), tools: HashMap::new() }
    }

    /// The record with the texts that its event names.
    pub(in crate::journal) fn attach(&mut self, db: &Connection, record: Record) -> Record {
        let Record::Event(mut event) = record else { return record };
        match self.attach_to(db, &mut event) {
            Ok(()) => Record::Event(event),
            Err(why) => Record::Unreadable(event.seq, event.run, why),
        }
    }

    fn attach_to(&mut self, db: &Connection, event: &mut Arc<Event>) -> Result<(), String> {
        let Self { files, prompts, scripts, tools } = self;
        let text = |hash| read(db, files, hash);
        match &event.body {
            EventBody::RunSubmitted { spec, .. } if spec.prompt_blob.is_some() || spec.script_blob.is_some() => {}
            EventBody::RunPrepared { definitions: None, definitions_blob: Some(_) } => {}
            _ => return Ok(()),
        }
        match &mut Arc::make_mut(event).body {
            EventBody::RunSubmitted { spec, .. } => {
                let spec = Arc::make_mut(spec);
                if let (None, Some(hash)) = (&spec.prompt, spec.prompt_blob.as_deref()) {
                    spec.prompt = Some(once(prompts, *hash, || text(*hash).map(Into::into))?);
                }
                if let (None, Some(hash)) = (&spec.script, spec.script_blob.as_deref()) {
                    spec.script = Some(once(scripts, *hash, || text(*hash).and_then(|text| json(*hash, &text)))?);
                }
            }
            EventBody::RunPrepared { definitions, definitions_blob: Some(hash) } => {
                let read = || text(**hash).and_then(|text| json(**hash, &text));
                *definitions = Some(once(tools, **hash, read)?);
            }
            _ => {}
        }
        Ok(())
    }
}

/// The value of this name; it is made where it is not known yet.
fn once<K: Hash + Eq, V: Clone>(
    known: &mut HashMap<K, V>,
    name: K,
    make: impl FnOnce() -> Result<V, String>,
) -> Result<V, String> {
    if let Some(value) = known.get(&name) {
        return Ok(value.clone());
    }
    let value = make()?;
    known.insert(name, value.clone());
    Ok(value)
}

fn json<T: DeserializeOwned>(hash: BlobHash, text: &str) -> Result<T, String> {
    serde_json::from_str(text).map_err(|error| format!("the text {hash} is not what its event says: {error}"))
}

/// Reads a text.
///
/// # Errors
/// If it is missing, or its content is another one.
pub(in crate::journal) fn read(db: &Connection, files: &Files, hash: BlobHash) -> Result<String, String> {
    let sql = "SELECT body FROM blob WHERE hash = ?1";
    let row = |row: &rusqlite::Row<'_>| row.get::<_, Option<String>>(0);
    let found = db.prepare_cached(sql).and_then(|mut sql| sql.query_row([hash.to_string()], row).optional());
    match found.map_err(|error| format!("the text {hash} cannot be read: {error}"))? {
        Some(Some(text)) if blob::hash(&text) == hash => Ok(text),
        Some(Some(_)) => Err(format!("the content of the text {hash} is another one")),
        Some(None) => files.get(hash).map_err(|error| format!("the text {hash} cannot be read: {error}")),
        None => Err(format!("the text {hash} is missing")),
    }
}
