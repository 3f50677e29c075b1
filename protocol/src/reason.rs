//! Why a request is refused, in words for programs.
//!
//! Owns the closed set of reasons. The message beside a reason is for people and may change; the reason stays.

use serde::{Deserialize, Serialize};

/// Why a request is refused. An error without one has no more to say than its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A text, or the specification as a whole, has more bytes than are taken. Bytes are counted as JSON.
    TooLarge,
    /// A text has control characters, characters that change the direction or the order of what is shown, or characters
    /// that cannot be seen.
    ControlCharacters,
    /// A pattern of a script cannot be read.
    BadPattern,
    /// A pattern of a script, or all of them together, take more than is taken.
    PatternTooLarge,
    /// A script cannot be played for another reason.
    BadScript,
    /// A tool is named that there is not.
    UnknownTool,
    /// A run inside another one asks for a share that is not the other one's.
    OtherShare,
    /// The daemon is stopping. What was asked waits for the next one.
    Stopping,
    /// The path of the working directory means another folder to the daemon than to the client: the two are in
    /// different mount namespaces, or the folder was replaced in between.
    OtherFolder,
    /// The daemon cannot open the working directory: it is not there, no directory, or not to be entered.
    NoWorkdir,
    /// The working directory did not answer in time, as a network mount whose server is gone does not.
    WorkdirSilent,
    /// A request says that a descriptor comes with it, and none came.
    NoDescriptor,
    /// The client offered variables of its environment, and these are wanted: not refused for good.
    PassVariables,
    /// A variable of the environment of a run's calls has a name that none can have, or one that the harness sets
    /// itself.
    BadVariable,
    /// The daemon is of another version, and has a reason that this program does not know.
    #[serde(other)]
    Other,
}
