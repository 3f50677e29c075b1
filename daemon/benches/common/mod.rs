//! Drives a world in a benchmark as the driver does, without a daemon around it.
#![allow(dead_code, missing_docs, unreachable_pub, clippy::unwrap_used)]

use std::sync::Arc;

use harness_protocol::run::CallResult;
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;
use harness_protocol::time::{Span, Timestamp};
use harnessd::config::Config;
use harnessd::prompt::{Completion, RequestedCall};
use harnessd::world::api::{Caller, Command, Effect, Input, Job, JobId, Now, Outcome, ReplyId, Sent, Work};
use harnessd::world::{Engine, Step};

pub struct World {
    pub engine: Engine,
    micros: u64,
    replies: u64,
}

impl World {
    pub fn new(width: u32) -> Self {
        let mut config = Config { tool_width: width, ..Config::default() };
        config.limits.live_runs = 10_000_000;
        config.limits.finished_runs = 1_000;
        config.run.max_steps = u32::MAX;
        config.providers.values_mut().for_each(|provider| provider.width = 1_000_000);
        Self { engine: Engine::new(config, harnessd::tools::catalogue(), 7), micros: 0, replies: 0 }
    }

    pub fn now(&mut self) -> Now {
        self.micros += 1;
        Now { wall: Timestamp::from_micros(1_800_000_000_000_000 + self.micros), mono: Span::from_micros(self.micros) }
    }

    pub fn step(&mut self, inputs: Vec<Input>) -> Step {
        let now = self.now();
        self.engine.step(now, inputs)
    }

    /// Submits runs; gives back the inferences that they begin with.
    pub fn submit(&mut self, count: usize) -> Vec<JobId> {
        let spec = Arc::new(RunSpec {
            prompt: Some("a task of a few words, as people type them".into()),
            script: Some(Arc::new(Script::default())),
            workdir: Some("/srv/project".into()),
            ..RunSpec::default()
        });
        let inputs = (0..count)
            .map(|_| {
                self.replies += 1;
                Input::Command {
                    reply: ReplyId(self.replies),
                    caller: Caller { uid: 1000, run: None },
                    command: Command::Submit {
                        spec: Arc::clone(&spec),
                        idempotency_key: None,
                        known: None,
                        sent: Sent::default(),
                    },
                }
            })
            .collect();
        started(&self.step(inputs))
    }

    /// Runs that wait for a person.
    pub fn waiting(&mut self, count: usize) {
        for chunk in 0..count.div_ceil(1_000) {
            let jobs = self.submit((count - chunk * 1_000).min(1_000));
            let inputs =
                jobs.into_iter().map(|job| asks(job, "ask_user", r#"{"question":"Which of the two?"}"#)).collect();
            assert!(started(&self.step(inputs)).is_empty());
        }
    }
}

/// The jobs that a step hands out.
pub fn started(step: &Step) -> Vec<JobId> {
    step.effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Start(Job { id, .. }) => Some(*id),
            _ => None,
        })
        .collect()
}

/// The model asks for one call.
pub fn asks(job: JobId, tool: &str, args: &str) -> Input {
    let call = RequestedCall::new(tool, args);
    let completion = Completion { text: "Let me see.".to_owned(), calls: vec![call], ..Completion::default() };
    Input::Outcome { job, outcome: Outcome::Inference(Ok(completion)) }
}

/// The call has its result.
pub fn done(job: JobId) -> Input {
    let Work::Call(call) = job.work else { unreachable!("only calls are done") };
    let result = CallResult::plain(call, "shell".into(), "ok", false);
    Input::Outcome { job, outcome: Outcome::Call(Arc::new(result)) }
}

/// A job ends, and its run goes on: the model asks for a call, the call succeeds.
pub fn goes_on(job: JobId) -> Input {
    match job.work {
        Work::Inference { .. } => asks(job, "shell", r#"{"command":"du -sh ."}"#),
        Work::Call(call) => {
            let result = CallResult::plain(call, "shell".into(), "Exit code: 0\n4.0K\t.\n", false);
            Input::Outcome { job, outcome: Outcome::Call(Arc::new(result)) }
        }
    }
}
