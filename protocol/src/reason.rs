//! Reasons of refusals, for programs.
//!
//! Owns the closed set of reasons. The message beside a reason is for people and may change; the reason stays.

use serde::{Deserialize, Serialize};

/// Why a request is refused. An error without a reason says no more than its kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Reason {
    /// A text, or the specification as a whole, has more bytes than are taken. Bytes are counted as JSON.
    TooLarge,
    /// A text has control characters, characters that change the direction or the order of the text, or characters that
    /// cannot be seen.
    ControlCharacters,
    /// A pattern of a script cannot be read.
    BadPattern,
    /// A pattern of a script, or all of them together, would take too much memory.
    PatternTooLarge,
    /// A script cannot be played for another reason.
    BadScript,
    /// The request names a tool that does not exist.
    UnknownTool,
    /// A run inside another run asks for another share than that run has.
    OtherShare,
    /// The daemon is stopping. The request can be sent to the next daemon.
    Stopping,
    /// The path of the working directory means another folder to the daemon than to the client: the two are in
    /// different mount namespaces, or the folder was replaced in between.
    OtherFolder,
    /// The daemon cannot open the working directory: it is missing, not a directory, or may not be entered.
    NoWorkdir,
    /// The working directory did not answer in time, as a network mount whose server is gone does not.
    WorkdirSilent,
    /// A request says that a descriptor comes with it, and none came.
    NoDescriptor,
    /// The client offered variables of its environment, and the daemon wants these: the submit can be repeated with
    /// them.
    PassVariables,
    /// A variable for the calls has an invalid name, or a name that the harness sets itself.
    BadVariable,
    /// The daemon is of another version, and has a reason that this program does not know.
    #[serde(other)]
    Other,
}
