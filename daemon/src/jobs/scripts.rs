//! Checks and plays scripts. What has patterns is done on threads of the background, so that a slow pattern holds up no
//! worker of a runtime.
//!
//! Bounds how many of those are checked and played at once, and has the cache of compiled patterns. Must not decide
//! what a script means: `scripted` does, and `scripted::validate` decides what makes one invalid.

use std::sync::Arc;

use harness_protocol::script::{Script, Turn};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use crate::inference::scripted::patterns::Patterns;
use crate::inference::scripted::validate::{self, ScriptError};
use crate::inference::scripted::{self, Answer};
use crate::prompt::{ErrorClass, InferenceError, Prompt};

/// Scripts that are checked at once, of all submits together.
const CHECKED_AT_ONCE: usize = 1;
/// Turns with patterns that are played at once.
const PLAYED_AT_ONCE: usize = 2;

/// Checks and plays scripts.
#[derive(Debug)]
pub struct Scripts {
    /// Where patterns are compiled and searched for.
    runtime: Handle,
    patterns: Arc<Patterns>,
    checks: Semaphore,
    plays: Semaphore,
}

impl Scripts {
    /// Scripts that are checked and played on threads of `runtime`.
    pub fn new(runtime: Handle) -> Self {
        let (checks, plays) = (Semaphore::new(CHECKED_AT_ONCE), Semaphore::new(PLAYED_AT_ONCE));
        Self { runtime, patterns: Arc::default(), checks, plays }
    }

    /// Checks a script and the scripts within it.
    ///
    /// # Errors
    /// The first mistake, or the first bound that it does not keep.
    pub async fn check(&self, script: &Arc<Script>) -> Result<(), ScriptError> {
        if !has_patterns(script) {
            return validate::check_script(script, &self.patterns);
        }
        // It is never closed.
        let _place = self.checks.acquire().await;
        let (script, patterns) = (Arc::clone(script), Arc::clone(&self.patterns));
        self.runtime
            .spawn_blocking(move || validate::check_script(&script, &patterns))
            .await
            .unwrap_or_else(|_| Err(ScriptError::lost()))
    }

    /// The answer of a script to a prompt.
    ///
    /// # Errors
    /// Those of [`scripted::answer`].
    pub async fn answer(&self, script: &Arc<Script>, prompt: &Prompt) -> Result<Answer, InferenceError> {
        let due = prompt.answers();
        if !script.turns.iter().take(due + 1).any(uses_patterns) {
            return scripted::answer(script, prompt, &self.patterns);
        }
        // It is never closed.
        let _place = self.plays.acquire().await;
        let (script, prompt, patterns) = (Arc::clone(script), prompt.clone(), Arc::clone(&self.patterns));
        let played = self.runtime.spawn_blocking(move || scripted::answer(&script, &prompt, &patterns)).await;
        played.unwrap_or_else(|_| {
            let message = "a fault of the harness ended the script's turn";
            Err(InferenceError::new(ErrorClass::Never, message))
        })
    }
}

fn has_patterns(script: &Script) -> bool {
    script.turns.iter().any(uses_patterns) || script.scripts.values().any(|script| has_patterns(script))
}

fn uses_patterns(turn: &Turn) -> bool {
    !(turn.expect_regex.is_empty() && turn.capture.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use harness_protocol::run::Entry;

    /// B4: the one worker of this runtime goes on while scripts are checked and played.
    #[tokio::test]
    async fn nobody_is_held_up_by_the_patterns_of_a_script() {
        let scripts = Arc::new(Scripts::new(Handle::current()));
        let slow = format!("[[turn]]\nexpect_regex = ['(?i)[{}]']\ntext = 'x'", r"\pL".repeat(600));
        let slow: Arc<Script> = Arc::new(toml::from_str(&slow).unwrap());
        let checked = tokio::spawn({
            let (scripts, slow) = (Arc::clone(&scripts), Arc::clone(&slow));
            async move { scripts.check(&slow).await }
        });
        let prompt = Prompt::from_transcript(&[Entry::User { text: "go".into() }]);
        let played = tokio::spawn({
            let (scripts, slow) = (Arc::clone(&scripts), Arc::clone(&slow));
            async move { scripts.answer(&slow, &prompt).await }
        });
        // Both wait for other threads: this one, the only worker, is free to say so.
        while !(checked.is_finished() && played.is_finished()) {
            tokio::task::yield_now().await;
        }
        assert_eq!(checked.await.unwrap(), Ok(()));
        assert!(played.await.unwrap().unwrap_err().message.contains("expects a match"));
        assert!(scripts.patterns.compiled() <= 2, "no more often than both at once can");
    }
}
