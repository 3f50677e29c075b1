//! Tests how the world handles faulty answers.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::sync::Arc;

use harness_protocol::event::{Ending, Event, EventBody};
use harness_protocol::run::{CallResult, Carried};
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;
use harness_protocol::time::{Span, Timestamp};

use crate::config::Config;
use crate::prompt::{Completion, ErrorClass, InferenceError, Message, RequestedCall};
use crate::tools::Catalogue;
use crate::world::api::{
    Caller, Command, Damage, Effect, InferenceTask, Input, Job, JobId, Now, Outcome, ReplyId, Task, Work,
};
use crate::world::{Engine, Step};

/// A world, and what came of what it was given.
pub(in crate::world) struct Bench {
    pub(in crate::world) engine: Engine,
    config: Config,
    pub(in crate::world) journal: Vec<Arc<Event>>,
    pub(in crate::world) micros: u64,
    /// Seconds that the wall clock is off.
    pub(in crate::world) off: i64,
}

fn tools() -> Catalogue {
    crate::tools::catalogue()
}

impl Bench {
    pub(in crate::world) fn new() -> Self {
        Self::with(Config::default())
    }

    pub(in crate::world) fn with(config: Config) -> Self {
        Self { engine: Engine::new(config.clone(), tools(), 7), config, journal: Vec::new(), micros: 0, off: 0 }
    }

    /// The jobs that come of it.
    pub(in crate::world) fn step(&mut self, input: Input) -> Vec<Job> {
        self.step_with(vec![input])
    }

    pub(in crate::world) fn step_with(&mut self, inputs: Vec<Input>) -> Vec<Job> {
        let now = self.now();
        let step = self.engine.step(now, inputs);
        self.take(step)
    }

    pub(in crate::world) fn now(&mut self) -> Now {
        self.micros += 1;
        let wall = (1_800_000_000_000_000 + self.micros).saturating_add_signed(self.off * 1_000_000);
        let wall = Timestamp::from_micros(wall);
        Now { wall, mono: Span::from_micros(self.micros) }
    }

    fn take(&mut self, step: Step) -> Vec<Job> {
        self.journal.extend(step.events);
        let jobs = step.effects.into_iter().filter_map(|effect| match effect {
            Effect::Start(job) => Some(job),
            _ => None,
        });
        jobs.collect()
    }

    pub(in crate::world) fn submit(&mut self) -> (JobId, InferenceTask) {
        let script = Some(Arc::new(Script::default()));
        let spec =
            Arc::new(RunSpec { prompt: Some("go".into()), script, workdir: Some("/".into()), ..RunSpec::default() });
        let caller = Caller { uid: 1, run: None };
        let command = Command::Submit { spec, idempotency_key: None, known: None, sent: Default::default() };
        inference(&mut self.step(Input::Command { reply: ReplyId(1), caller, command }))
    }

    /// Time goes on.
    pub(in crate::world) fn step_without(&mut self) -> Vec<Job> {
        self.step_with(Vec::new())
    }

    pub(in crate::world) fn answer(&mut self, job: JobId, completion: Completion) -> Vec<Job> {
        self.step(Input::Outcome { job, outcome: Outcome::Inference(Ok(completion)) })
    }

    /// A new daemon goes on from the journal, as it is read back.
    pub(in crate::world) fn restart(&mut self) -> Vec<Job> {
        self.restart_with(tools())
    }

    /// The same, with these tools.
    pub(in crate::world) fn restart_with(&mut self, tools: Catalogue) -> Vec<Job> {
        let text = serde_json::to_string(&self.journal).unwrap();
        let events: Vec<Event> = serde_json::from_str(&text).unwrap();
        self.engine = Engine::rebuild(self.config.clone(), tools, 7, &events);
        let now = self.now();
        let step = self.engine.recover(now, Damage::default());
        self.take(step)
    }

    fn ending(&self) -> Option<Ending> {
        self.journal.iter().find_map(|event| match &event.body {
            EventBody::RunFinished { ending } => Some(ending.clone()),
            _ => None,
        })
    }

    pub(in crate::world) fn results(&self) -> Vec<(String, bool)> {
        let result = |event: &Arc<Event>| match &event.body {
            EventBody::CallFinished { result } => Some((result.envelope.to_string(), result.is_error)),
            _ => None,
        };
        self.journal.iter().filter_map(result).collect()
    }
}

pub(in crate::world) fn inference(jobs: &mut Vec<Job>) -> (JobId, InferenceTask) {
    match jobs.pop() {
        Some(Job { id, task: Task::Inference(task) }) if jobs.is_empty() => (id, task),
        other => panic!("{other:?}"),
    }
}

fn unusable(tool: &str, args: &str) -> RequestedCall {
    RequestedCall { unusable: Some("Not run: cut off.".to_owned()), ..RequestedCall::new(tool, args) }
}

#[test]
fn a_call_with_arguments_of_no_use_is_never_started_and_the_model_is_told() {
    let mut bench = Bench::new();
    let (job, _) = bench.submit();
    let calls = vec![
        RequestedCall::new("shell", r#"{"command":"true"}"#),
        unusable("shell", r#"{"command":"rm -rf /tmp/x"#),
        // It would be carried out as it is, were it not marked.
        unusable("wait_for_agent", "{}"),
        unusable("no-such-tool", ""),
    ];
    let mut jobs = bench.answer(job, Completion { calls, cut: true, ..Completion::default() });
    let Some(Job { id, task: Task::Call(task) }) = jobs.pop() else { panic!("the whole call starts") };
    assert_eq!((&*task.args, jobs.len()), (r#"{"command":"true"}"#, 0));
    let Work::Call(call) = id.work else { unreachable!() };
    let result = CallResult::plain(call, "shell".into(), "ok", false);
    let mut jobs = bench.step(Input::Outcome { job: id, outcome: Outcome::Call(Arc::new(result)) });
    // The only job that comes of the rest is the next inference, which has a result for each call.
    let (_, task) = inference(&mut jobs);
    task.prompt.check().unwrap();
    let told = ("Not run: cut off.".to_owned(), true);
    assert_eq!(bench.results(), [("ok".to_owned(), false), told.clone(), told.clone(), told]);
}

#[test]
fn what_a_provider_wants_back_is_in_the_next_prompt_also_after_a_restart() {
    let carried = Carried { dialect: "anthropic".into(), provider: Some("scripted".into()), parts: "[]".into() };
    let mut bench = Bench::new();
    let (job, _) = bench.submit();
    let calls = vec![unusable("shell", "{")];
    let mut jobs = bench.answer(job, Completion { calls, carried: Some(carried.clone()), ..Completion::default() });
    let (_, task) = inference(&mut jobs);
    let held = |task: &InferenceTask| match &task.prompt.messages[1] {
        Message::Assistant { carried, calls, .. } => (carried.as_deref().cloned(), calls[0].unusable.clone()),
        Message::User { .. } => panic!("the second message is the model's"),
    };
    assert_eq!(held(&task), (Some(carried), Some("Not run: cut off.".into())));
    let (_, again) = inference(&mut bench.restart());
    assert_eq!(held(&again), held(&task));
}

#[test]
fn an_answer_that_was_cut_off_says_so() {
    let mut bench = Bench::new();
    let (job, _) = bench.submit();
    let jobs = bench.answer(job, Completion { text: "It holds".to_owned(), cut: true, ..Completion::default() });
    assert!(jobs.is_empty());
    let answer = "It holds\n[cut off by the limit of output tokens]";
    assert_eq!(bench.ending(), Some(Ending::Succeeded { answer: answer.into() }));
}

/// P3 and rule 8, whatever provider it is of: a script is one, too.
#[test]
fn an_answer_without_text_and_calls_is_asked_again_and_fails_in_the_end() {
    let nothing = |text: &str, cut| Ok(Completion { text: text.to_owned(), cut, ..Completion::default() });
    let unusable = |why: &str| Err(InferenceError::new(ErrorClass::Unusable, why));
    let answers = [nothing("", false), nothing(" \n\t", false), nothing("", true), unusable("a malformed call")];
    for given in 1..=answers.len() {
        let mut bench = Bench::new();
        let (mut job, first) = bench.submit();
        for answer in &answers[..given] {
            assert!(bench.ending().is_none(), "it is asked again");
            bench.step(Input::Outcome { job, outcome: Outcome::Inference(answer.clone()) });
            if bench.ending().is_none() {
                // It waits, and a restart changes nothing.
                bench.restart();
                bench.micros += 120_000_000;
                let task;
                (job, task) = inference(&mut bench.step_without());
                assert_eq!(task.prompt, first.prompt);
            }
        }
        if given < answers.len() {
            bench.answer(job, Completion { text: "at last".to_owned(), ..Completion::default() });
            assert_eq!(bench.ending(), Some(Ending::Succeeded { answer: "at last".into() }));
        } else {
            let Some(Ending::Failed { error, .. }) = bench.ending() else { panic!("{:?}", bench.ending()) };
            assert!(error.contains("a malformed call"), "{error}");
        }
    }
}

/// P3: what is doubted is asked for once more, whatever comes in between; then it is the answer.
#[test]
fn an_answer_that_is_doubted_counts_the_second_time() {
    let doubted = |text: &str| {
        let doubt = Some("it calls nothing".to_owned());
        Ok(Completion { text: text.to_owned(), doubt, ..Completion::default() })
    };
    for between in [None, Some(ErrorClass::Retry)] {
        let mut bench = Bench::new();
        let (mut job, _) = bench.submit();
        let between = between.map(|class| Err(InferenceError::new(class, "a test")));
        for answer in [Some(doubted("first")), between].into_iter().flatten() {
            bench.step(Input::Outcome { job, outcome: Outcome::Inference(answer) });
            assert_eq!(bench.ending(), None);
            bench.restart();
            bench.micros += 120_000_000;
            (job, _) = inference(&mut bench.step_without());
        }
        bench.step(Input::Outcome { job, outcome: Outcome::Inference(doubted("second")) });
        assert_eq!(bench.ending(), Some(Ending::Succeeded { answer: "second".into() }));
    }
}

/// P3: what failed for another reason is no answer of which nothing could be used.
#[test]
fn answers_that_say_nothing_are_counted_apart_from_failures_of_the_provider() {
    let mut bench = Bench::new();
    let (mut job, _) = bench.submit();
    let classes = [ErrorClass::Retry, ErrorClass::Unusable, ErrorClass::Retry, ErrorClass::Unusable, ErrorClass::Retry];
    for class in classes {
        let outcome = Outcome::Inference(Err(InferenceError::new(class, "a test")));
        bench.step(Input::Outcome { job, outcome });
        assert_eq!(bench.ending(), None);
        bench.micros += 120_000_000;
        (job, _) = inference(&mut bench.step_without());
    }
}

#[test]
fn a_model_is_told_of_the_tools_that_there_are() {
    let (_, task) = Bench::new().submit();
    let names: Vec<&str> = task.tools.iter().map(|tool| &*tool.name).collect();
    assert_eq!(names, ["ask_user", "shell", "spawn_agent", "wait_for_agent"]);
}

#[test]
fn however_often_the_daemon_is_restarted_the_model_is_asked_again() {
    let mut bench = Bench::new();
    let (mut job, _) = bench.submit();
    for _ in 0..30 {
        (job, _) = inference(&mut bench.restart());
    }
    bench.answer(job, Completion { text: "at last".to_owned(), ..Completion::default() });
    assert_eq!(bench.ending(), Some(Ending::Succeeded { answer: "at last".into() }));
}

#[test]
fn a_provider_that_fails_ten_times_in_a_row_fails_the_run_whatever_else_was_between() {
    let mut bench = Bench::new();
    let (mut job, _) = bench.submit();
    let fail = |class| {
        let error = InferenceError::new(class, "a test");
        Outcome::Inference(Err(error))
    };
    for failure in 1.. {
        let outcome = fail(ErrorClass::Retry);
        bench.step(Input::Outcome { job, outcome });
        if bench.ending().is_some() {
            assert_eq!(failure, 10);
            break;
        }
        // It waits; a restart lets it wait on.
        bench.restart();
        bench.micros += 120_000_000;
        (job, _) = inference(&mut bench.step_without());
    }
}
