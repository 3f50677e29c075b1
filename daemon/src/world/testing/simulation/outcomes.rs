//! Generates the outcomes of jobs in the simulation: answers, failures, results of calls.
#![cfg(test)]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use harness_protocol::id::RunId;
use harness_protocol::run::CallResult;
use harness_protocol::time::Span;

use super::{PRICE, Simulation};
use crate::prompt::{Completion, ErrorClass, InferenceError, RequestedCall};
use crate::world::api::{JobId, Outcome, Work};
use crate::world::model::components::BudgetReserve;
use crate::world::model::indexes::Runs;

impl Simulation {
    /// Where an inference is paid from a budget, it takes all that its prompt may take, and up to all that its answer
    /// may.
    pub(super) fn use_up(&mut self, run: RunId, completion: &mut Completion) {
        let world = &self.engine.world;
        let entity = world.resource::<Runs>().by_id.get(&run);
        if let Some(held) = entity.and_then(|&entity| world.get::<BudgetReserve>(entity)).map(|held| held.0) {
            completion.usage.input_tokens = held.tokens - u64::from(held.answer_tokens);
            completion.usage.output_tokens = self.random.below(held.answer_tokens as usize + 1) as u64;
        }
        completion.usage.cost_usd = Some(PRICE.cost(&completion.usage));
    }

    pub(super) fn some_outcome(&mut self, job: JobId) -> Outcome {
        match (job.work, self.random.below(12)) {
            (_, 0) => Outcome::Panicked("a test".to_owned()),
            (_, 1) => Outcome::Lost,
            (Work::Inference { .. }, _) if self.outage => self.failure(ErrorClass::Retry),
            (Work::Call(call), n) => {
                let text = if self.random.chance(20) { "x".repeat(4_000) } else { "done".to_owned() };
                Outcome::Call(Arc::new(CallResult::plain(call, "shell".into(), text, n == 2)))
            }
            (Work::Inference { .. }, 2) => self.failure(ErrorClass::Retry),
            (Work::Inference { .. }, 3) => self.failure(ErrorClass::RetryAfter(Span::from_secs(2))),
            (Work::Inference { .. }, 4) => self.failure(ErrorClass::Never),
            (Work::Inference { .. }, 5) if self.random.chance(25) => {
                let hours = Span::from_secs(3_600 * (1 + self.random.below(300) as u64));
                let class = self.random.pick(&[
                    ErrorClass::Credentials,
                    ErrorClass::NoKey,
                    ErrorClass::Quota(None),
                    ErrorClass::Quota(Some(Span::from_secs(20))),
                    ErrorClass::Quota(Some(hours)),
                    ErrorClass::RateLimit(None),
                    ErrorClass::RateLimit(Some(Span::from_secs(1))),
                ]);
                self.failure(class.unwrap())
            }
            (Work::Inference { .. }, 5) => self.failure(ErrorClass::ContextTooLong),
            (Work::Inference { .. }, _) if self.random.chance(20) => self.text(),
            (Work::Inference { .. }, 6) if self.random.chance(30) => Outcome::Inference(Ok(Completion::default())),
            (Work::Inference { .. }, 6 | 7) => {
                Outcome::Inference(Ok(Completion { text: "done".to_owned(), ..Completion::default() }))
            }
            (Work::Inference { .. }, _) => self.calls(),
        }
    }

    fn failure(&mut self, class: ErrorClass) -> Outcome {
        Outcome::Inference(Err(InferenceError::new(class, "a test")))
    }

    /// A summary, where one was asked for; an answer otherwise.
    fn text(&mut self) -> Outcome {
        let text = "in short".repeat(1 + self.random.below(100));
        Outcome::Inference(Ok(Completion { text, ..Completion::default() }))
    }

    fn calls(&mut self) -> Outcome {
        let count = 1 + self.random.below(4) + if self.random.chance(3) { 5 } else { 0 };
        let mut completion = Completion { text: "hm".to_owned(), ..Completion::default() };
        completion.usage.output_tokens = 10;
        for _ in 0..count {
            let (tool, args) = match self.random.below(10) {
                0..=2 => ("shell", r#"{"command":"true"}"#.to_owned()),
                3..=5 => ("read", "{}".to_owned()),
                6 => ("ask_user", r#"{"question":"which?"}"#.to_owned()),
                7 => ("spawn_agent", r#"{"prompt":"help","script":"child"}"#.to_owned()),
                8 => self.wait_arguments(),
                _ => ("nonsense", "not json".to_owned()),
            };
            let unusable = self.random.chance(10).then(|| "Not run: a test.".to_owned());
            let ask = self.some_ask();
            completion.calls.push(RequestedCall { unusable, ask, ..RequestedCall::new(tool, args) });
        }
        Outcome::Inference(Ok(completion))
    }

    fn wait_arguments(&mut self) -> (&'static str, String) {
        let mode = if self.random.chance(50) { "any" } else { "all" };
        let args = match self.some_run() {
            Some(run) if self.random.chance(50) => format!(r#"{{"agents":["{run}"],"mode":"{mode}"}}"#),
            _ => format!(r#"{{"mode":"{mode}"}}"#),
        };
        ("wait_for_agent", args)
    }
}
