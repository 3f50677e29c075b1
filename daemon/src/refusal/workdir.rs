//! Defines the refusals of working directories: the path does not mean to the daemon what it means to the client.

use harness_protocol::folder::FolderId;
use harness_protocol::json_size::quoted;

/// Why a submit is refused because of its working directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WorkdirRefusal {
    /// Its path means another folder to the daemon than to the client.
    #[error(
        "{} is another folder for the daemon than for you (here: {found}; yours: {wanted}): the daemon runs in \
         another mount namespace (a container? a sandbox? a service with a /tmp of its own?), or the folder was \
         replaced at this moment; start a daemon where you are, with a socket and a state directory of its own \
         (HARNESS_SOCKET, HARNESS_STATE_DIR), or submit from where the daemon runs",
        quoted(.path)
    )]
    Other {
        /// The path of the directory.
        path: String,
        /// The folder that the daemon finds there.
        found: Box<FolderId>,
        /// The folder that the client means.
        wanted: Box<FolderId>,
    },
    /// The daemon cannot open it.
    #[error("the working directory {} {why}{}", quoted(.path), hint(*.there))]
    NotThere {
        /// The path of the directory.
        path: String,
        /// What is wrong, as the one who looked says: "does not exist".
        why: String,
        /// The client has opened it.
        there: bool,
    },
    /// It does not answer.
    #[error("the working directory {} {why}; try again later, or submit from another folder", quoted(.path))]
    Silent {
        /// The path of the directory.
        path: String,
        /// For how long, as the one who looked says.
        why: String,
    },
    /// An earlier look has not ended.
    #[error(
        "an earlier look of this connection at a working directory has not ended yet: it gives no answer; use \
         another connection"
    )]
    StillLooking,
    /// A descriptor was announced, and none came.
    #[error("the request says that its working directory comes beside it as a descriptor, and none came")]
    NoDescriptor,
    /// The descriptor that came is none of a directory.
    #[error("the descriptor that came beside the request is none of a directory")]
    NoFolderPassed,
}

const fn hint(there: bool) -> &'static str {
    if there {
        " for the daemon, though it is there for you: the daemon runs as another user, or in another mount namespace \
         (a container? a sandbox?); start a daemon where you are, with a socket and a state directory of its own \
         (HARNESS_SOCKET, HARNESS_STATE_DIR)"
    } else {
        " (as the daemon sees it)"
    }
}
