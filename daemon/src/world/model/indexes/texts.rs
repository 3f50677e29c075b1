//! The long texts of the runs that are here, each held once for all runs that have it.

use std::collections::HashMap;
use std::sync::Arc;

use bevy_ecs::resource::Resource;
use harness_protocol::blob::BlobHash;
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;

/// Prompts and scripts by their names.
#[derive(Resource, Debug, Default, PartialEq)]
pub(crate) struct Texts {
    prompts: HashMap<BlobHash, Held<str>>,
    scripts: HashMap<BlobHash, Held<Script>>,
}

/// A text, and the number of runs here that have it.
#[derive(Debug, PartialEq)]
struct Held<T: ?Sized> {
    text: Arc<T>,
    runs: usize,
}

impl Texts {
    /// Lets a specification share its long texts with the runs that are here.
    pub(crate) fn share(&self, spec: &mut RunSpec) {
        share(&self.prompts, spec.prompt_blob.as_deref(), &mut spec.prompt);
        share(&self.scripts, spec.script_blob.as_deref(), &mut spec.script);
    }

    /// A run with this specification came.
    pub(crate) fn came(&mut self, spec: &RunSpec) {
        came(&mut self.prompts, spec.prompt_blob.as_deref(), spec.prompt.as_ref());
        came(&mut self.scripts, spec.script_blob.as_deref(), spec.script.as_ref());
    }

    /// A run with this specification left.
    pub(crate) fn left(&mut self, spec: &RunSpec) {
        left(&mut self.prompts, spec.prompt_blob.as_deref());
        left(&mut self.scripts, spec.script_blob.as_deref());
    }
}

type Known<T> = HashMap<BlobHash, Held<T>>;

fn share<T: ?Sized>(known: &Known<T>, name: Option<&BlobHash>, text: &mut Option<Arc<T>>) {
    if let (Some(held), Some(text)) = (name.and_then(|name| known.get(name)), text) {
        *text = Arc::clone(&held.text);
    }
}

fn came<T: ?Sized>(known: &mut Known<T>, name: Option<&BlobHash>, text: Option<&Arc<T>>) {
    if let (Some(name), Some(text)) = (name, text) {
        known.entry(*name).or_insert_with(|| Held { text: Arc::clone(text), runs: 0 }).runs += 1;
    }
}

fn left<T: ?Sized>(known: &mut Known<T>, name: Option<&BlobHash>) {
    if let Some(name) = name
        && let Some(held) = known.get_mut(name)
    {
        held.runs -= 1;
        if held.runs == 0 {
            known.remove(name);
        }
    }
}
