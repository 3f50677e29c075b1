//! Defines [`Failure`], the reason why a command did not do what was asked, and prints it with a hint for the user.
//!
//! The only place with the hints for refusals of the daemon, except where a command names the list to look in
//! (`look_in`). Which exit code a failure has is decided in `exit_code`. Must not look into the text of a refusal to
//! tell refusals apart: their kind and reason do that.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use harness_protocol::paths::SYSTEM_SOCKET;
use harness_protocol::rpc::{ErrorKind, METHOD_NOT_FOUND, Reason, RpcError};
use harness_protocol::run::exit;
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::terminal_safe::chain;

use crate::client::{ClientError, Taken, is_stopping};
use crate::launch::error::{StartError, typed};
use crate::render::quote::further_lines;
use crate::render::text::clean;

/// The command that starts the daemon of a socket.
pub(crate) fn starts(socket: &Path) -> &'static str {
    if socket == Path::new(SYSTEM_SOCKET) { "systemctl start harnessd" } else { "harnessctl daemon start" }
}

/// Why a command did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The command was used wrongly.
    #[error("{message}")]
    Usage {
        /// What is wrong.
        message: String,
        /// The right usage.
        hint: Option<String>,
    },
    /// The daemon refused the request.
    #[error("{0}")]
    Refused(RpcError),
    /// The connection failed.
    #[error("{0}")]
    Client(ClientError),
    /// There is no daemon, and none could be started.
    #[error("{0}")]
    Start(#[from] StartError),
    /// There was a daemon; it went away, and none came back.
    #[error("the daemon at {} went away, and none came back within {seconds} s", typed(socket))]
    Gone {
        /// Socket of the daemon that went away.
        socket: PathBuf,
        /// How long the command waited, in seconds.
        seconds: u64,
    },
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[from] io::Error),
    /// A file that was named cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file, as it was named.
        path: PathBuf,
        /// Why it cannot be read.
        source: io::Error,
    },
    /// A file that was named cannot be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Path of the file, as it was named.
        path: PathBuf,
        /// Why it cannot be written.
        source: io::Error,
        /// How to get the content anyway.
        hint: Option<String>,
    },
    /// Any other failure, with its exit code.
    #[error("{message}")]
    Other {
        /// The exit code.
        code: u8,
        /// What went wrong, in words.
        message: String,
        /// What to do next.
        hint: Option<String>,
    },
    /// A submit of which it is not known whether it takes effect, or a batch of which only a part was queued.
    #[error("{why}; {}", match (left, undecided) {
        (1, true) => "the run may have been queued".to_owned(),
        (1, false) => "1 run was not queued".to_owned(),
        (left, true) => format!("{left} runs may have been queued"),
        (left, false) => format!("{left} runs were not queued"),
    })]
    Unsettled {
        /// The failure that left them unsettled.
        why: Box<Self>,
        /// Runs without a reply.
        left: usize,
        /// Whether the runs may have been queued.
        undecided: bool,
        /// How to settle it.
        settle: Settle,
    },
    /// Ctrl-C was pressed: nothing failed, and the runs go on unwatched.
    #[error("detached; {}", match runs.as_slice() {
        [run] => format!("the run goes on: harnessctl follow {run}"),
        runs => format!("the {} runs go on: harnessctl list", runs.len()),
    })]
    Detached {
        /// The runs, in a form that can be used as names.
        runs: Vec<String>,
    },
}

/// How to settle a submit of which it is not known whether it took effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settle {
    /// By the same command: its user gave it a key.
    Again,
    /// By the same command under this key.
    UnderKey(SubmitKey),
}

impl Failure {
    /// A usage error.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: None }
    }

    /// A usage error, with the right usage.
    pub(crate) fn usage_hint(message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self::Usage { message: message.into(), hint: Some(hint.into()) }
    }

    /// No named run exists, or all of them have ended already.
    pub(crate) fn nothing_applied(message: impl Into<String>) -> Self {
        Self::Other { code: exit::NOT_FOUND, message: message.into(), hint: None }
    }

    /// The same failure, for a change that was made but could not be printed, with a text about the change. A reader
    /// that has left gets no text.
    #[must_use]
    pub(crate) fn although(self, done: &str) -> Self {
        match self {
            Self::Output(error) if error.kind() != io::ErrorKind::BrokenPipe => {
                Self::Other { code: exit::INTERNAL, message: format!("{}; {done}", Self::Output(error)), hint: None }
            }
            other => other,
        }
    }

    /// The same, with a command that shows what exists.
    #[must_use]
    pub(crate) fn look_in(self, hint: &str) -> Self {
        match self {
            Self::Refused(error) if error.kind() == ErrorKind::NotFound => {
                Self::Other { code: error.data.exit_code, message: error.message, hint: Some(hint.to_owned()) }
            }
            other => other,
        }
    }

    /// Whether it only means that the daemon went away.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, Self::Client(ClientError::Lost { .. } | ClientError::Io(_))) || self.is_stopping()
    }

    /// Whether the daemon is stopping, and said so.
    pub(crate) fn is_stopping(&self) -> bool {
        matches!(self, Self::Refused(error) if is_stopping(error))
    }

    /// Whether the daemon went away and has not read the request.
    pub(crate) fn is_unread(&self) -> bool {
        matches!(self, Self::Client(ClientError::Lost { taken: Taken::No }))
    }

    /// Whether the named thing does not exist, or no longer exists.
    pub(crate) fn is_unknown(&self) -> bool {
        matches!(self, Self::Refused(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NoLongerApplies))
    }

    /// What to do next, where there is something.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::Write { hint: None, source, .. } if source.kind() == io::ErrorKind::NotFound => {
                Some("the directory in which it would be is not there".to_owned())
            }
            Self::Usage { hint, .. } | Self::Write { hint, .. } | Self::Other { hint, .. } => hint.clone(),
            Self::Refused(error) => refusal_hint(error),
            Self::Client(error) => error.hint(),
            Self::Start(error) => error.hint(),
            Self::Gone { socket, .. } => {
                Some(format!("nothing is lost; start it, and everything goes on: {}", starts(socket)))
            }
            Self::Unsettled { settle, .. } => Some(match settle {
                Settle::Again => "to find out, and to queue what is not there yet, type the same command again: its \
                                  idempotency key keeps anything from being queued twice"
                    .to_owned(),
                Settle::UnderKey(key) => format!(
                    "to find out, and to queue what is not there yet, type the same command with --again {key}: \
                     nothing is queued twice under it"
                ),
            }),
            Self::Output(_) | Self::Read { .. } | Self::Detached { .. } => None,
        }
    }

    /// Prints the failure on standard error and gives the exit code. A closed output is not reported.
    pub(crate) fn report(&self) -> u8 {
        let code = self.code();
        let mut err = io::stderr().lock();
        // A closed standard error is ignored: no other place is left for the message.
        let _told = match self {
            Self::Output(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
            other => write!(err, "{}", other.told()),
        };
        code
    }

    /// The lines about it. Others may have said a part of the message: its further lines are quoted.
    pub(crate) fn told(&self) -> String {
        if let Self::Detached { .. } = self {
            return format!("{}\n", clean(&self.to_string()));
        }
        let hint = self.hint().map(|hint| format!("  hint: {}\n", clean(&hint))).unwrap_or_default();
        format!("harnessctl: {}\n{hint}", further_lines(&clean(&chain(self))))
    }
}

fn refusal_hint(error: &RpcError) -> Option<String> {
    if error.code == METHOD_NOT_FOUND {
        return Some(
            "the daemon is older than this command; stop it, and the next command starts the new one (calls that \
             execute are interrupted, everything goes on): harnessctl daemon stop"
                .to_owned(),
        );
    }
    match error.kind() {
        ErrorKind::NotFound => {
            shows_what_there_is(error).map(|(command, what)| format!("`{command}` shows every {what}"))
        }
        ErrorKind::Ambiguous => Some("give more characters of the id".to_owned()),
        ErrorKind::Busy | ErrorKind::Held => Some(match error.data.retry_after_seconds {
            Some(span) => format!("try again in {} s", harness_protocol::event::retry_seconds(span)),
            None => "try again later".to_owned(),
        }),
        ErrorKind::Version => Some("install harnessctl and harnessd of the same version".to_owned()),
        _ => None,
    }
}

/// The command that shows what there is of the kind that was named, and that kind.
fn shows_what_there_is(error: &RpcError) -> Option<(&'static str, &'static str)> {
    match error.data.reason {
        Some(Reason::UnknownLane) => Some(("harnessctl lane", "lane")),
        Some(Reason::UnknownProvider) => Some(("harnessctl provider list", "provider")),
        Some(Reason::UnknownInteraction) => Some(("harnessctl pending", "open question")),
        Some(Reason::UnknownCall | Reason::UnknownSubscription) => None,
        // A daemon before protocol 1.3 gives no reason here.
        _ => Some(("harnessctl list --all", "run")),
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::Refused(error) => Self::Refused(error),
            other => Self::Client(other),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use harness_protocol::time::Span;

    #[test]
    fn the_further_lines_of_a_message_are_quoted_and_the_hint_is_not() {
        // A message may have words of a server: its further lines pass for none of ours.
        let told = Failure::usage_hint("one\n  hint: look at x\n$ ls", "look at y").told();
        assert_eq!(told, "harnessctl: one\n|   hint: look at x\n| $ ls\n  hint: look at y\n");
        assert_eq!(Failure::usage("one").told(), "harnessctl: one\n");
    }

    #[test]
    fn a_reader_that_has_left_is_a_good_end_and_a_full_disk_is_not() {
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::BrokenPipe)).report(), 0);
        assert_eq!(Failure::from(io::Error::from(io::ErrorKind::StorageFull)).code(), 70);
    }

    #[test]
    fn a_file_that_cannot_be_is_a_usage_error_and_a_disk_that_fails_is_not() {
        let write = |source: io::Error| Failure::Write { path: "/nope/x".into(), source, hint: None };
        for named in [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied, io::ErrorKind::NotADirectory] {
            assert_eq!(write(named.into()).code(), 2, "{named}");
        }
        assert!(write(io::ErrorKind::NotFound.into()).hint().unwrap().contains("is not there"));
        for disk in [io::ErrorKind::StorageFull, io::ErrorKind::Other] {
            assert_eq!(write(disk.into()).code(), 70, "{disk}");
        }
    }

    #[test]
    fn what_does_not_exist_is_told_with_the_command_that_shows_what_does() {
        for (reason, hint) in [
            (None, Some("`harnessctl list --all` shows every run")),
            (Some(Reason::UnknownRun), Some("`harnessctl list --all` shows every run")),
            (Some(Reason::Other), Some("`harnessctl list --all` shows every run")),
            (Some(Reason::UnknownLane), Some("`harnessctl lane` shows every lane")),
            (Some(Reason::UnknownProvider), Some("`harnessctl provider list` shows every provider")),
            (Some(Reason::UnknownInteraction), Some("`harnessctl pending` shows every open question")),
            (Some(Reason::UnknownCall), None),
        ] {
            let mut error = RpcError::new(ErrorKind::NotFound, "no such thing");
            error.data.reason = reason;
            let failure = Failure::Refused(error);
            assert_eq!((failure.code(), failure.hint().as_deref()), (6, hint), "{reason:?}");
        }
    }

    #[test]
    fn every_reason_ends_with_a_code_and_an_advice_that_fit_its_kind() {
        for &reason in Reason::ALL {
            for (kind, code, is_for_now) in [
                (ErrorKind::Invalid, 2, false),
                (ErrorKind::Conflict, 2, false),
                (ErrorKind::Forbidden, 2, false),
                (ErrorKind::NoLongerApplies, 6, false),
                (ErrorKind::Busy, 75, true),
                (ErrorKind::Held, 75, true),
                (ErrorKind::Internal, 70, false),
            ] {
                let failure = Failure::Refused(RpcError::new(kind, "no").because(reason, None));
                let hint = failure.hint().unwrap_or_default();
                assert_eq!((failure.code(), hint == "try again later"), (code, is_for_now), "{reason:?}: {hint}");
            }
        }
    }

    #[test]
    fn busy_says_when_to_come_back() {
        let error = RpcError::new(ErrorKind::Busy, "full").retry_after(Span::from_micros(1_200_000));
        assert_eq!(Failure::Refused(error).hint().unwrap(), "try again in 2 s");
    }

    #[test]
    fn who_detaches_is_told_how_to_come_back() {
        let failure = Failure::Detached { runs: vec!["abc".to_owned()] };
        assert_eq!(failure.to_string(), "detached; the run goes on: harnessctl follow abc");
        assert_eq!(failure.code(), 130);
    }
}
