//! Finds the sets of tools that runs were prepared with, by the numbers of the events that define them.

use std::collections::BTreeMap;
use std::sync::Arc;

use bevy_ecs::resource::Resource;
use harness_protocol::event::ToolDefinition;
use harness_protocol::id::Seq;

use super::call_kind;
use crate::tools::{Catalogue, ToolKind, ToolSpec};

/// What models are told of tools, and of what kind each is.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Toolset {
    /// Sorted by name.
    pub(crate) specs: Arc<[ToolSpec]>,
    /// In the same order.
    kinds: Vec<ToolKind>,
}

/// The sets by the numbers of their events.
#[derive(Resource, Debug, Default)]
pub(crate) struct Toolsets(BTreeMap<Seq, Arc<Toolset>>);

impl Toolset {
    /// The tools that there are now.
    pub(crate) fn of(catalogue: &Catalogue) -> Self {
        let kinds = catalogue.names().filter_map(|name| catalogue.kind(name)).collect();
        Self { specs: Arc::clone(catalogue.specs()), kinds }
    }

    /// The tools that an event defines. One that can be of no kind is left out.
    pub(crate) fn defined(tools: &[ToolDefinition]) -> Self {
        let known = tools.iter().filter_map(|tool| Some((tool, call_kind::read(tool.kind)?)));
        let spec = |(tool, kind): (&ToolDefinition, ToolKind)| {
            let (name, description) = (Arc::clone(&tool.name), Arc::clone(&tool.description));
            (ToolSpec { name, description, parameters: Arc::clone(&tool.parameters) }, kind)
        };
        let (specs, kinds): (Vec<ToolSpec>, Vec<ToolKind>) = known.map(spec).unzip();
        Self { specs: specs.into(), kinds }
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
    /// An event defines one.
    pub(crate) fn define(&mut self, number: Seq, toolset: Toolset) {
        self.0.insert(number, Arc::new(toolset));
    }

    /// The set of this number.
    pub(crate) fn get(&self, number: Seq) -> Option<&Arc<Toolset>> {
        self.0.get(&number)
    }

    /// The number of a set like this, the newest first.
    pub(crate) fn number_of(&self, toolset: &Toolset) -> Option<Seq> {
        self.0.iter().rev().find(|(_, known)| ***known == *toolset).map(|(number, _)| *number)
    }
}
