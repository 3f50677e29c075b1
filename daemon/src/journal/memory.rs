//! Keeps a journal in memory, for tests: a script can make it delay or fail commits, and can read what was committed. A
//! daemon that serves must not use it: it does not survive the process.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use harness_protocol::event::Event;
use tokio::sync::watch;

use super::{Commit, CommitClass, CommitError, CommitFault, Journal};

/// A journal in memory.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    script: Option<Script>,
}

/// Controls the journal in a test: it sets how commits end, and shows what was committed.
#[derive(Debug, Clone)]
pub(crate) struct Script {
    mood: watch::Sender<Mood>,
    commits: Arc<Mutex<Vec<Committed>>>,
    tried: watch::Sender<u64>,
}

/// A commit: its class, and its events.
pub(crate) type Committed = (CommitClass, Vec<Arc<Event>>);

/// How the journal answers commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mood {
    /// Commits succeed at once.
    Willing,
    /// Commits wait until the mood changes.
    Slow,
    /// Commits fail at once.
    Failing,
}

impl Memory {
    /// A journal, and its control.
    pub(crate) fn scripted() -> (Self, Script) {
        let script =
            Script { mood: watch::Sender::new(Mood::Willing), commits: Arc::default(), tried: watch::Sender::new(0) };
        (Self { script: Some(script.clone()) }, script)
    }
}

impl Script {
    /// Sets how the journal answers commits from now on.
    pub(crate) fn set(&self, mood: Mood) {
        self.mood.send_replace(mood);
    }

    fn log(&self) -> MutexGuard<'_, Vec<Committed>> {
        self.commits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The events that were committed, commit by commit.
    pub(crate) fn commits(&self) -> Vec<Committed> {
        self.log().clone()
    }

    /// The number of attempted commits so far.
    pub(crate) fn tried(&self) -> watch::Receiver<u64> {
        self.tried.subscribe()
    }
}

impl Journal for Memory {
    fn commit(
        &mut self,
        commit: &Arc<Commit>,
        class: CommitClass,
    ) -> impl Future<Output = Result<(), CommitError>> + Send + 'static {
        let (script, commit) = (self.script.clone(), Arc::clone(commit));
        if let Some(script) = &script {
            script.tried.send_modify(|count| *count += 1);
        }
        async move {
            let Some(script) = script else { return Ok(()) };
            let mut mood = script.mood.subscribe();
            // A sender is held right here, so the channel cannot be closed.
            let settled = mood.wait_for(|mood| *mood != Mood::Slow).await.map(|mood| *mood);
            if !matches!(settled, Ok(Mood::Willing)) {
                let reason = "no space left on device (as the test wants it)".to_owned();
                return Err(CommitError { fault: CommitFault::Full, reason });
            }
            script.log().push((class, commit.events.clone()));
            Ok(())
        }
    }

    fn tidy(&mut self) -> impl Future<Output = Result<bool, CommitError>> + Send + 'static {
        std::future::ready(Ok(false))
    }
}
