//! Defines the errors of a connection to the daemon, and tells for each whether the daemon may have read the request.
//! It must not repeat a request: the caller decides.

use std::io;

use harness_protocol::MAX_FRAME_BYTES;
use harness_protocol::rpc::{ErrorKind, Reason, RpcError};

/// Whether the daemon may have read a request before the connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// It was not read: the request can be repeated safely.
    No,
    /// The daemon may have read it; this is not known.
    Maybe,
}

/// An error of a connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    /// The request is larger than a frame may be. Nothing was sent.
    #[error(
        "the request is too large: {:.1} MiB as JSON, and {} MiB are the most",
        *bytes as f64 / 1_048_576.0, MAX_FRAME_BYTES >> 20
    )]
    TooLarge {
        /// Size of the request, in bytes.
        bytes: usize,
    },
    /// The connection ended.
    #[error("the connection to the daemon was lost before it answered")]
    Lost {
        /// Whether the request may have been taken.
        taken: Taken,
    },
    /// No answer came within the time limit.
    #[error("the daemon{} did not answer within {seconds} s", pid.map_or(String::new(), |pid| format!(" (pid {pid})")))]
    Silent {
        /// The time limit, in seconds.
        seconds: u64,
        /// Pid of the daemon, if it is known.
        pid: Option<u32>,
    },
    /// The daemon refused the request.
    #[error("{0}")]
    Refused(RpcError),
    /// The frame is not the expected reply, with the reason.
    #[error("the daemon's answer cannot be read: {0}")]
    Garbled(String),
    /// The user pressed Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The socket itself failed.
    #[error("the connection to the daemon failed: {0}")]
    Io(#[from] io::Error),
}

impl ClientError {
    /// What to do next.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::TooLarge { .. } => Some("put the bulk into a file and name it in the prompt".to_owned()),
            Self::Lost { taken: Taken::Maybe } => Some(
                "it may have been done: look before asking again (a submit with --idempotency-key is safe)".to_owned(),
            ),
            Self::Garbled(_) => Some("harnessctl and harnessd may be of different versions".to_owned()),
            _ => None,
        }
    }
}

/// Whether the request may be repeated later.
pub(crate) fn is_for_now(error: &RpcError) -> bool {
    matches!(error.kind(), ErrorKind::Busy | ErrorKind::Held)
}

/// Whether the daemon refused because it is stopping. It answers so to every request that still waits.
pub(crate) fn is_stopping(error: &RpcError) -> bool {
    error.is_because(Reason::Stopping)
}
