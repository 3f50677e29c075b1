//! Lists the tools: which there are, of what kind each is, and what a model is told of them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::Tool;

/// What the calls of a tool need to be carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolKind {
    /// A transition of the world: needs no permit, has no job.
    World,
    /// The call is a job: it holds a permit of the tool lane while it executes.
    Job {
        /// Neighbours of this kind may execute together.
        parallel_safe: bool,
    },
}

/// A tool as a model is told of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolSpec {
    /// By which it is called.
    pub name: Arc<str>,
    /// What it does, in words for the model.
    pub description: Arc<str>,
    /// JSON schema of its arguments, as text.
    pub parameters: Arc<str>,
}

/// The tools by name. Clones are the same catalogue.
#[derive(Clone, Default)]
pub struct Catalogue {
    by_name: Arc<BTreeMap<Arc<str>, Arc<dyn Tool>>>,
    specs: Arc<[ToolSpec]>,
}

impl Catalogue {
    /// A catalogue of these. Of two with one name the later counts.
    pub fn of(tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Self {
        let by_name: BTreeMap<Arc<str>, Arc<dyn Tool>> =
            tools.into_iter().map(|tool| (tool.name().into(), tool)).collect();
        let spec = |(name, tool): (&Arc<str>, &Arc<dyn Tool>)| ToolSpec {
            name: Arc::clone(name),
            description: tool.description().into(),
            parameters: tool.parameters().into(),
        };
        Self { specs: by_name.iter().map(spec).collect(), by_name: Arc::new(by_name) }
    }

    /// These, and one more.
    #[cfg(test)]
    pub(crate) fn with(&self, tool: Arc<dyn Tool>) -> Self {
        Self::of(self.by_name.values().cloned().chain([tool]))
    }

    /// The tool of this name.
    pub fn get(&self, name: &str) -> Option<&dyn Tool> {
        self.by_name.get(name).map(|tool| &**tool)
    }

    /// That name, as all calls of the tool share it.
    pub fn shared_name(&self, name: &str) -> Option<Arc<str>> {
        self.by_name.get_key_value(name).map(|(name, _)| Arc::clone(name))
    }

    /// Of what kind the tool of this name is.
    pub fn kind(&self, name: &str) -> Option<ToolKind> {
        self.get(name).map(Tool::kind)
    }

    /// The names of all, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.by_name.keys().map(|name| &**name)
    }

    /// What a model is told of them, sorted by name.
    pub fn specs(&self) -> &Arc<[ToolSpec]> {
        &self.specs
    }
}

impl fmt::Debug for Catalogue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}
