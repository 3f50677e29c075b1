//! Which tools there are, as far as anybody but the tools themselves must know. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

/// The tools by name.
pub type Catalogue = BTreeMap<Arc<str>, ToolKind>;

/// What the world must know of the tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolKind {
    /// A transition of the world: needs no permit, has no job.
    World(WorldTool),
    /// A job.
    Job {
        /// Neighbours of this kind may execute together.
        parallel_safe: bool,
    },
}

/// Tools that are transitions of the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorldTool {
    /// Asks a person.
    AskUser,
    /// Spawns a child.
    SpawnAgent,
    /// Waits for runs of the same tree.
    WaitForAgent,
}
