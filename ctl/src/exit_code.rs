//! Decides the exit code of a command: of a failure, of a lost connection, of several runs together.
//!
//! The numbers and their meaning are in [`exit`]; the code of a single run comes from the daemon. This is the only
//! place that ranks codes: with several runs, the worst counts, so `cancelled` (5) and `failed` (1) give 1.

use std::io;

use harness_protocol::run::exit;

use crate::client::ClientError;
use crate::error::Failure;
use crate::launch::error::StartError;

impl Failure {
    /// The exit code.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::Usage { .. } | Self::Read { .. } => exit::USAGE,
            Self::Refused(error) => error.data.exit_code,
            Self::Client(error) => error.code(),
            Self::Start(StartError::NoSocket { .. }) => exit::USAGE,
            Self::Start(_) | Self::Gone { .. } => exit::UNREACHABLE,
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => exit::SUCCEEDED,
            Self::Write { source, .. } if is_of_the_name(source) => exit::USAGE,
            Self::Output(_) | Self::Write { .. } => exit::INTERNAL,
            Self::Other { code, .. } => *code,
            Self::Detached { .. } => exit::INTERRUPTED,
            Self::Unsettled { why, .. } => why.code(),
        }
    }
}

impl ClientError {
    /// The exit code of a command that ends with this error.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Self::TooLarge { .. } => exit::USAGE,
            Self::Refused(error) => error.data.exit_code,
            Self::Garbled(_) => exit::INTERNAL,
            Self::Interrupted => exit::INTERRUPTED,
            Self::Lost { .. } | Self::Silent { .. } | Self::Io(_) => exit::UNREACHABLE,
        }
    }
}

/// Whether the named file is wrong, and not the disk.
fn is_of_the_name(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::NotFound
            | Kind::PermissionDenied
            | Kind::AlreadyExists
            | Kind::NotADirectory
            | Kind::IsADirectory
            | Kind::ReadOnlyFilesystem
            | Kind::InvalidInput
            | Kind::InvalidFilename
    ) || error.raw_os_error() == Some(nix::libc::ELOOP)
}

/// From the worst to the best: first unknown outcomes, then failures that would affect every other run as well, then
/// failures of single runs.
const WORST_FIRST: [u8; 9] = [
    exit::STILL_RUNNING,
    exit::INTERNAL,
    exit::CREDENTIALS,
    exit::FAILED,
    exit::BUDGET,
    exit::TIME_LIMIT,
    exit::NEEDS_ANSWER,
    exit::NOT_FOUND,
    exit::CANCELLED,
];

/// The exit code of several runs: the worst of theirs.
pub(crate) fn worst(codes: impl IntoIterator<Item = u8>) -> u8 {
    let place = |code: u8| match code {
        exit::SUCCEEDED => usize::MAX,
        // An unknown code is a failure.
        code => WORST_FIRST.iter().position(|other| *other == code).unwrap_or(3),
    };
    codes.into_iter().min_by_key(|code| place(*code)).unwrap_or(exit::SUCCEEDED)
}

#[cfg(test)]
mod tests {
    use harness_protocol::rpc::{ErrorKind, RpcError};

    use super::*;
    use crate::client::Taken;

    #[test]
    fn a_refusal_ends_with_the_code_that_the_daemon_gave() {
        let mut error = RpcError::new(ErrorKind::Provider, "no");
        assert_eq!(Failure::Refused(error.clone()).code(), 1);
        error.data.exit_code = exit::CREDENTIALS;
        assert_eq!(Failure::Refused(error).code(), 4);
        for (kind, code) in [
            (ErrorKind::NotFound, 6),
            (ErrorKind::NoLongerApplies, 6),
            (ErrorKind::Ambiguous, 2),
            (ErrorKind::Busy, 75),
            (ErrorKind::Held, 75),
            (ErrorKind::Internal, 70),
        ] {
            assert_eq!(Failure::from(ClientError::Refused(RpcError::new(kind, "no"))).code(), code);
        }
    }

    #[test]
    fn a_lost_or_silent_daemon_is_unreachable_and_too_large_a_request_is_a_usage_error() {
        assert_eq!(Failure::from(ClientError::Lost { taken: Taken::Maybe }).code(), 7);
        assert_eq!(Failure::from(ClientError::Silent { seconds: 10, pid: Some(4) }).code(), 7);
        assert_eq!(Failure::from(ClientError::TooLarge { bytes: 10 << 20 }).code(), 2);
    }

    /// Entry U11 in `tests/README.md`.
    #[test]
    fn of_several_codes_the_worst_is_told_whatever_their_order() {
        for (codes, expected) in [
            (&[][..], 0),
            (&[0, 0], 0),
            (&[0, 5, 0], 5),
            (&[5, 1], 1),
            (&[9, 0], 9),
            (&[9, 124, 3], 9),
            (&[1, 4, 9], 4),
            (&[70, 4, 1], 70),
            (&[0, 8, 70], 8),
            (&[6, 5], 6),
            (&[77, 9], 77),
        ] {
            assert_eq!(worst(codes.iter().copied()), expected, "{codes:?}");
            assert_eq!(worst(codes.iter().rev().copied()), expected, "{codes:?}");
        }
    }
}
