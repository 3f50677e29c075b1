//! The sets of tools that runs are prepared with.

use std::fmt;
use std::sync::Arc;

use bevy_ecs::resource::Resource;
use harness_protocol::blob::BlobHash;
use harness_protocol::event::ToolDefinition;

use super::call_kind;
use crate::blob;
use crate::tools::{Catalogue, ToolKind, ToolSpec};
use crate::world::api::ToolsTold;

/// What models are told of tools, and of what kind each is.
#[derive(Clone, PartialEq)]
pub(crate) struct Toolset {
    /// Sorted by name.
    pub(crate) specs: Arc<[ToolSpec]>,
    /// In the same order.
    kinds: Vec<ToolKind>,
    /// The same, as events have it.
    pub(crate) told: ToolsTold,
}

impl fmt::Debug for Toolset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.told.blob {
            Some(blob) => write!(f, "Toolset({blob})"),
            None => write!(f, "Toolset({:?})", self.told.definitions),
        }
    }
}

/// The sets that runs here were prepared with, each once.
#[derive(Resource, Debug, Default)]
pub(crate) struct Toolsets(Vec<Arc<Toolset>>);

impl Toolset {
    /// The tools that there are now.
    pub(crate) fn of(catalogue: &Catalogue) -> Self {
        let kinds: Vec<ToolKind> = catalogue.names().filter_map(|name| catalogue.kind(name)).collect();
        let specs = Arc::clone(catalogue.specs());
        let definition = |(spec, kind): (&ToolSpec, &ToolKind)| ToolDefinition {
            name: Arc::clone(&spec.name),
            description: Arc::clone(&spec.description),
            parameters: Arc::clone(&spec.parameters),
            kind: call_kind::recorded(Some(*kind)),
        };
        let definitions: Arc<[ToolDefinition]> = specs.iter().zip(&kinds).map(definition).collect();
        let blob = blob::name_of_tools(&definitions);
        Self { specs, kinds, told: ToolsTold { definitions, blob } }
    }

    /// The tools that an event defines. One that can be of no kind is left out.
    fn defined(definitions: &Arc<[ToolDefinition]>, blob: Option<&BlobHash>) -> Self {
        let known = definitions.iter().filter_map(|tool| Some((tool, call_kind::read(tool.kind)?)));
        let spec = |(tool, kind): (&ToolDefinition, ToolKind)| {
            let (name, description) = (Arc::clone(&tool.name), Arc::clone(&tool.description));
            (ToolSpec { name, description, parameters: Arc::clone(&tool.parameters) }, kind)
        };
        let (specs, kinds): (Vec<ToolSpec>, Vec<ToolKind>) = known.map(spec).unzip();
        let (definitions, blob) = (Arc::clone(definitions), blob.copied().map(Box::new));
        Self { specs: specs.into(), kinds, told: ToolsTold { definitions, blob } }
    }

    fn is(&self, definitions: &Arc<[ToolDefinition]>, blob: Option<&BlobHash>) -> bool {
        let told = &self.told;
        Arc::ptr_eq(&told.definitions, definitions)
            || told.blob.as_deref() == blob && (blob.is_some() || told.definitions == *definitions)
    }

    /// Each with its kind.
    pub(crate) fn tools(&self) -> impl Iterator<Item = (&ToolSpec, ToolKind)> {
        self.specs.iter().zip(self.kinds.iter().copied())
    }

    /// The tool of this name: the name as all its calls share it, and its kind.
    pub(crate) fn get(&self, name: &str) -> Option<(&Arc<str>, ToolKind)> {
        self.tools().find(|(spec, _)| &*spec.name == name).map(|(spec, kind)| (&spec.name, kind))
    }
}

impl Toolsets {
    /// The set that an event defines: one for all runs that were prepared with it. Those that no run has any more go.
    pub(crate) fn defined(&mut self, definitions: &Arc<[ToolDefinition]>, blob: Option<&BlobHash>) -> Arc<Toolset> {
        if let Some(known) = self.0.iter().find(|known| known.is(definitions, blob)) {
            return Arc::clone(known);
        }
        self.0.retain(|known| Arc::strong_count(known) > 1);
        let made = Arc::new(Toolset::defined(definitions, blob));
        self.0.push(Arc::clone(&made));
        made
    }
}
