//! Decides which caller may call which method, by one table.
//!
//! Each connection must ask this table before it passes a request on, and the tests are made from it. A method that is
//! not in the table is refused to every caller. How much a process of a run sees (its own tree only) is decided by the
//! driver. Makes no system call.

use harness_protocol::id::RunId;
use harness_protocol::rpc::{ErrorKind, Reason, RpcError, Subject};

use crate::world::api::Caller;

/// The origin of a peer, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// From outside of all runs.
    Outside,
    /// From a process of this run.
    Run(RunId),
    /// It is not known, for this reason.
    Unknown(String),
}

/// The process at the other end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Who {
    /// A process outside of all runs, whose user may use this daemon.
    Operator {
        /// User id of the process.
        uid: u32,
    },
    /// A process of a run.
    Run {
        /// User id of the process.
        uid: u32,
        /// The run that the process belongs to.
        run: RunId,
        /// The user is neither the daemon's nor root: commands that the daemon executes for it would have more rights
        /// than it has.
        is_foreign: bool,
    },
    /// A process that cannot be identified.
    Nobody {
        /// Why it cannot be identified.
        why: String,
    },
}

/// A kind of caller, as the table has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// An operator; see [`Who::Operator`].
    Operator,
    /// A process of a run; see [`Who::Run`].
    Run,
    /// A process that cannot be identified.
    Nobody,
}

/// What a kind of caller may do by a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Right {
    /// It may use it on all runs of the daemon.
    Yes,
    /// It may use it on the runs of its own tree; a run that it submits is its child.
    OwnTree,
    /// It may not use it.
    No,
}

use Right::{No, OwnTree, Yes};

/// Every method, with the rights of operators, of the processes of a run, and of unidentified processes.
pub const RIGHTS: &[(&str, Right, Right, Right)] = &[
    ("daemon.hello", Yes, Yes, Yes),
    ("daemon.status", Yes, No, No),
    ("daemon.drain", Yes, No, No),
    ("daemon.undrain", Yes, No, No),
    ("daemon.stop", Yes, No, No),
    ("daemon.reload", Yes, No, No),
    ("daemon.backup", Yes, No, No),
    ("run.submit", Yes, OwnTree, No),
    ("run.list", Yes, OwnTree, No),
    ("run.show", Yes, OwnTree, No),
    ("run.wait", Yes, OwnTree, No),
    ("run.output", Yes, OwnTree, No),
    ("run.cancel", Yes, No, No),
    ("run.pause", Yes, No, No),
    ("run.resume", Yes, No, No),
    ("run.retry", Yes, No, No),
    ("run.message", Yes, No, No),
    ("run.export", Yes, OwnTree, No),
    ("run.prune", Yes, No, No),
    ("blob.get", Yes, OwnTree, No),
    ("interaction.list", Yes, No, No),
    ("interaction.answer", Yes, No, No),
    ("lane.list", Yes, No, No),
    ("lane.relieve", Yes, No, No),
    ("lane.resize", Yes, No, No),
    ("lane.pause", Yes, No, No),
    ("lane.resume", Yes, No, No),
    ("provider.list", Yes, No, No),
    ("provider.check", Yes, No, No),
    ("event.subscribe", Yes, OwnTree, No),
    ("event.unsubscribe", Yes, OwnTree, No),
];

/// The right of a kind of caller to a method.
pub fn right(kind: Kind, method: &str) -> Right {
    RIGHTS.iter().find(|(name, ..)| *name == method).map_or(No, |&(_, operator, run, nobody)| match kind {
        Kind::Operator => operator,
        Kind::Run => run,
        Kind::Nobody => nobody,
    })
}

/// The method by which a run gets children. They execute as the daemon's user.
const MAKES_CHILDREN: &str = "run.submit";

/// Why the table refuses a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// It comes from a process of a run.
    #[error(
        "{method}: this comes from a tool of run {run}, which may only submit children of it and look at its own tree"
    )]
    OfRun {
        /// Name of the method.
        method: &'static str,
        /// The run of the process.
        run: RunId,
    },
    /// It comes from a process of a run that has another user than the daemon.
    #[error(
        "{method}: this comes from a tool of run {run} with another user (uid {uid}) than the daemon's, with which its \
         children would execute"
    )]
    OfOtherUser {
        /// Name of the method.
        method: &'static str,
        /// The run of the process.
        run: RunId,
        /// User id of the process.
        uid: u32,
    },
    /// The process cannot be identified.
    #[error(
        "{method}: the process that asks cannot be told: {why}; \
         one that cannot be traced to a process outside of all runs has no rights"
    )]
    OfNobody {
        /// Name of the method.
        method: &'static str,
        /// Why it cannot be identified.
        why: String,
    },
    /// The table has no such method.
    #[error("{method}: nobody may do that")]
    Unknown {
        /// Name of the method.
        method: &'static str,
    },
}

impl From<Denial> for RpcError {
    fn from(denial: Denial) -> Self {
        let (reason, subject) = match &denial {
            Denial::OfRun { run, .. } | Denial::OfOtherUser { run, .. } => (Reason::OwnTreeOnly, Subject::Run(*run)),
            Denial::OfNobody { method, .. } | Denial::Unknown { method } => {
                (Reason::CallerUnknown, Subject::Method((*method).to_owned()))
            }
        };
        Self::new(ErrorKind::Forbidden, denial.to_string()).because(reason, subject)
    }
}

impl Who {
    /// The peer with this user and origin, for a daemon whose user is `own`.
    pub fn new(uid: u32, own: u32, origin: Origin) -> Self {
        match origin {
            Origin::Outside => Self::Operator { uid },
            Origin::Run(run) => Self::Run { uid, run, is_foreign: uid != own && uid != 0 },
            Origin::Unknown(why) => Self::Nobody { why },
        }
    }

    /// The kind of caller that it is.
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Operator { .. } => Kind::Operator,
            Self::Run { .. } => Kind::Run,
            Self::Nobody { .. } => Kind::Nobody,
        }
    }

    /// The refusal of a request for `method`.
    pub fn refusal(&self, method: &'static str) -> Denial {
        match self {
            Self::Run { run, .. } => Denial::OfRun { method, run: *run },
            Self::Nobody { why } => Denial::OfNobody { method, why: why.clone() },
            Self::Operator { .. } => Denial::Unknown { method },
        }
    }

    /// The caller that a request for `method` counts as. `None` is an unidentified caller, which only methods without
    /// any information allow.
    ///
    /// # Errors
    /// If the table does not allow it.
    pub fn admit(&self, method: &'static str) -> Result<Option<Caller>, Denial> {
        match (self, right(self.kind(), method)) {
            (Self::Operator { uid }, Yes | OwnTree) => Ok(Some(Caller { uid: *uid, run: None })),
            (&Self::Run { uid, run, is_foreign: true }, OwnTree) if method == MAKES_CHILDREN => {
                Err(Denial::OfOtherUser { method, run, uid })
            }
            (Self::Run { uid, run, .. }, Yes | OwnTree) => Ok(Some(Caller { uid: *uid, run: Some(*run) })),
            (Self::Nobody { .. }, Yes) => Ok(None),
            (_, No) | (Self::Nobody { .. }, OwnTree) => Err(self.refusal(method)),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeSet;

    use harness_protocol::rpc::METHODS;

    use super::*;

    #[test]
    fn every_method_is_in_the_table_once_and_nothing_else_is() {
        let names: Vec<&str> = RIGHTS.iter().map(|(name, ..)| *name).collect();
        let set: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(set, METHODS.iter().copied().collect());
        assert_eq!(set.len(), names.len());
    }

    #[test]
    fn operators_may_do_everything_and_who_cannot_be_traced_may_only_ask_for_the_version() {
        for method in METHODS {
            assert_eq!(right(Kind::Operator, method), Yes, "{method}");
            let of_nobody = if *method == "daemon.hello" { Yes } else { No };
            assert_eq!(right(Kind::Nobody, method), of_nobody, "{method}");
        }
    }

    #[test]
    fn a_run_changes_nothing_but_by_submitting_children() {
        let reads = ["list", "show", "wait", "output", "export"].map(|read| format!("run.{read}"));
        for method in METHODS {
            let own = ["run.submit", "blob.get", "event.subscribe", "event.unsubscribe"].contains(method)
                || reads.iter().any(|read| read == method);
            let expected = match (own, *method) {
                (true, _) => OwnTree,
                (false, "daemon.hello") => Yes,
                (false, _) => No,
            };
            assert_eq!(right(Kind::Run, method), expected, "{method}");
        }
    }

    #[test]
    fn what_the_table_does_not_know_is_refused_to_all() {
        for kind in [Kind::Operator, Kind::Run, Kind::Nobody] {
            for method in ["", "run.destroy", "daemon.hello ", "DAEMON.STOP", "lane"] {
                assert_eq!(right(kind, method), No, "{method}");
            }
        }
    }

    #[test]
    fn every_refusal_is_forbidden_and_says_what_was_asked_for() {
        let callers = [
            Who::new(1, 1, Origin::Run(RunId::from_u64(7))),
            Who::new(1, 1, Origin::Unknown("its process has ended".to_owned())),
        ];
        for who in callers {
            for method in METHODS {
                match who.admit(method) {
                    Ok(caller) => assert!(caller.is_none_or(|caller| caller.run.is_some()), "{method}"),
                    Err(refusal) => {
                        let error = RpcError::from(refusal);
                        assert_eq!(error.kind(), ErrorKind::Forbidden);
                        assert!(error.message.starts_with(method), "{}", error.message);
                    }
                }
            }
        }
        for (uid, own, makes) in [(1, 1, true), (0, 1, true), (2, 1, false), (1, 0, false), (0, 0, true)] {
            let who = Who::new(uid, own, Origin::Run(RunId::from_u64(7)));
            assert_eq!(who.admit("run.submit").is_ok(), makes, "{uid} asks a daemon of {own}");
            assert!(who.admit("run.show").is_ok());
        }
        assert_eq!(Who::new(5, 1, Origin::Outside).admit("lane.pause"), Ok(Some(Caller { uid: 5, run: None })));
    }
}
