//! Tests what persons are asked: before a call begins, and by a job that executes.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use harness_protocol::event::EventBody;
use harness_protocol::id::{CallId, InteractionId, RunId};
use harness_protocol::interaction::{CallAsk, InteractionKind, Resolution, Scope};
use harness_protocol::run::{CallResult, WaitKind};
use harness_protocol::script::Script;
use harness_protocol::spec::{OnInteraction, RunSpec};
use harness_protocol::time::Span;

use super::answers::{Bench, inference};
use crate::config::Config;
use crate::prompt::{Completion, RequestedCall};
use crate::refusal::{QuestionRefusal, Refusal};
use crate::world::api::{
    Ask, Asked, Caller, Command, Effect, Input, JobId, Outcome, Reply, ReplyId, Settlement, Task, Work,
};
use crate::world::model::indexes::Interactions;

const OPERATOR: Caller = Caller { uid: 1, run: None };
const SHELL: &str = r#"{"command":"make deploy"}"#;

/// A world with a tool lane of width 1.
struct Town(Bench);

impl Town {
    fn new() -> Self {
        Self(Bench::with(Config { tool_width: 1, ..Config::default() }))
    }

    /// The effects of a step with these inputs.
    fn step(&mut self, inputs: Vec<Input>) -> Vec<Effect> {
        let now = self.0.now();
        let step = self.0.engine.step(now, inputs);
        self.0.journal.extend(step.events);
        step.effects
    }

    /// A run whose model asks for a call, and the calls that start.
    fn run(&mut self, on_interaction: OnInteraction, call: RequestedCall) -> (RunId, Vec<JobId>) {
        let scripts = [("child".to_owned(), Arc::default())].into();
        let script = Some(Arc::new(Script { scripts, ..Script::default() }));
        let spec = Arc::new(RunSpec { prompt: Some("go".into()), script, on_interaction, ..RunSpec::default() });
        let command = Command::Submit { spec, idempotency_key: None, known: None, sent: Default::default() };
        let (job, _) = inference(&mut self.0.step(Input::Command { reply: ReplyId(1), caller: OPERATOR, command }));
        let completion = Completion { calls: vec![call], ..Completion::default() };
        let effects = self.step(vec![Input::Outcome { job, outcome: Outcome::Inference(Ok(completion)) }]);
        (job.run, calls(&effects))
    }

    fn guarded(&mut self, expires_seconds: Option<Span>) -> RunId {
        let (run, started) = self.run(OnInteraction::Wait, guarded(expires_seconds));
        assert_eq!(started, [], "it began before a person was asked");
        run
    }

    /// A run whose call executes.
    fn executing(&mut self, on_interaction: OnInteraction) -> JobId {
        let (_, started) = self.run(on_interaction, RequestedCall::new("shell", SHELL));
        started[0]
    }

    fn settle(&mut self, name: &str, settlement: Settlement) -> (Result<InteractionId, Refusal>, Vec<Effect>) {
        let command = Command::Answer { interaction: name.to_owned(), settlement };
        let mut effects = self.step(vec![Input::Command { reply: ReplyId(2), caller: OPERATOR, command }]);
        let at = effects.iter().position(|effect| matches!(effect, Effect::Reply { .. })).unwrap();
        match effects.remove(at) {
            Effect::Reply { reply: Ok(Reply::Answered(answered)), .. } => (Ok(answered.interaction), effects),
            Effect::Reply { reply: Err(refusal), .. } => (Err(refusal), effects),
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, job: JobId, ask: Ask) -> Vec<Effect> {
        self.step(vec![Input::Ask { job, ask }])
    }

    fn open(&self) -> Vec<(InteractionId, InteractionKind)> {
        self.0.engine.world.resource::<Interactions>().open.iter().map(|(id, open)| (*id, open.kind)).collect()
    }

    fn count(&self, kind: &str) -> usize {
        self.0.journal.iter().filter(|event| event.body.kind() == kind).count()
    }

    fn results(&self) -> Vec<Arc<CallResult>> {
        let result = |body: &EventBody| match body {
            EventBody::CallFinished { result } => Some(Arc::clone(result)),
            _ => None,
        };
        self.0.journal.iter().filter_map(|event| result(&event.body)).collect()
    }

    /// The call of a run that has begun.
    fn started_of(&self, run: RunId) -> CallId {
        let started = self.0.journal.iter().find_map(|event| match &event.body {
            EventBody::CallStarted { call } if event.run == Some(run) => Some(*call),
            _ => None,
        });
        started.unwrap()
    }

    fn permits(&self) -> u32 {
        self.0.engine.world.resource::<crate::world::model::indexes::Lanes>().tool.permits()
    }
}

fn guarded(expires_seconds: Option<Span>) -> RequestedCall {
    let ask = Some(Arc::new(CallAsk { expires_seconds, ..CallAsk::approval() }));
    RequestedCall { ask, ..RequestedCall::new("shell", SHELL) }
}

fn calls(effects: &[Effect]) -> Vec<JobId> {
    let started = effects.iter().filter_map(|effect| match effect {
        Effect::Start(job) if matches!(job.task, Task::Call(_)) => Some(job.id),
        _ => None,
    });
    started.collect()
}

fn answers(effects: &[Effect]) -> Vec<(JobId, Settlement)> {
    let answered = effects.iter().filter_map(|effect| match effect {
        Effect::Answer { job, settlement } => Some((*job, settlement.clone())),
        _ => None,
    });
    answered.collect()
}

fn form(within: Option<Span>) -> Ask {
    Ask::Open(Asked { kind: InteractionKind::Form, question: "which?".into(), subject: None, within })
}

fn call_of(job: JobId) -> CallId {
    match job.work {
        Work::Call(call) => call,
        Work::Inference { .. } => panic!("{job:?} is no call"),
    }
}

#[test]
fn a_call_that_has_to_be_allowed_begins_once_it_is_and_the_decision_is_no_result() {
    let mut town = Town::new();
    let run = town.guarded(None);
    assert_eq!((town.open()[0].1, town.permits()), (InteractionKind::Approval, 0));
    let page = town.0.engine.interactions(Default::default());
    assert_eq!(page.interactions[0].subject.as_deref(), Some("make deploy"));
    assert_eq!(&*page.interactions[0].question, "allow shell: make deploy");
    let (settled, effects) = town.settle(&run.to_string(), Settlement::of(Resolution::Allowed));
    assert!(settled.is_ok());
    assert_eq!((calls(&effects).len(), town.permits()), (1, 1));
    assert_eq!((town.results().len(), town.count("interaction-settled")), (0, 1));
    let result = Arc::new(CallResult::plain(call_of(calls(&effects)[0]), "shell".into(), "deployed", false));
    town.step(vec![Input::Outcome { job: calls(&effects)[0], outcome: Outcome::Call(result) }]);
    assert_eq!(town.results()[0].envelope.as_ref(), "deployed");
    assert_eq!(town.count("interaction-opened"), 1);
}

#[test]
fn an_allowed_call_queues_for_a_permit_like_any_other() {
    let mut town = Town::new();
    let run = town.guarded(None);
    let other = town.executing(OnInteraction::Wait);
    let (_, effects) = town.settle(&run.to_string(), Settlement::of(Resolution::Allowed));
    assert_eq!(calls(&effects), [], "the lane is full");
    let result = Arc::new(CallResult::plain(call_of(other), "shell".into(), "ok", false));
    let effects = town.step(vec![Input::Outcome { job: other, outcome: Outcome::Call(result) }]);
    assert_eq!(calls(&effects)[0].run, run);
}

#[test]
fn a_restart_at_any_point_of_an_approval_neither_asks_nor_executes_twice() {
    for (allowed_before, queued) in [(false, false), (true, true), (true, false)] {
        let mut town = Town::new();
        let run = town.guarded(None);
        // With the lane full it is allowed, and has not begun.
        let other = queued.then(|| town.executing(OnInteraction::Wait));
        let mut started = Vec::new();
        if allowed_before {
            started.extend(calls(&town.settle(&run.to_string(), Settlement::of(Resolution::Allowed)).1));
        }
        let jobs = town.0.restart();
        started.extend(jobs.iter().filter(|job| matches!(job.task, Task::Call(_))).map(|job| job.id));
        if !allowed_before {
            assert_eq!(town.open().len(), 1, "it is still asked");
            started.extend(calls(&town.settle(&run.to_string(), Settlement::of(Resolution::Allowed)).1));
        }
        town.0.restart();
        let of_run: Vec<&JobId> = started.iter().filter(|job| job.run == run).collect();
        assert_eq!((of_run.len(), town.count("interaction-opened")), (1, 1), "{allowed_before} {queued}");
        assert_eq!(town.open(), []);
        assert_eq!(town.results().len(), 1 + usize::from(other.is_some()), "what executed was interrupted");
    }
}

#[test]
fn a_call_that_is_denied_or_not_settled_in_time_never_begins_and_the_model_reads_why() {
    let ways: [(&str, Option<Settlement>); 3] = [
        ("Denied by a person. Not run.", Some(Settlement::of(Resolution::Denied))),
        ("Denied: not on Fridays", Some(Settlement::denied("not on Fridays"))),
        ("Not run: no person settled this in time.", None),
    ];
    for (told, settlement) in ways {
        for restarts in [false, true] {
            let mut town = Town::new();
            let run = town.guarded(Some(Span::from_secs(30)));
            if restarts {
                town.0.restart();
            }
            let effects = match &settlement {
                Some(settlement) => town.settle(&run.to_string(), settlement.clone()).1,
                None => {
                    town.0.micros += 29_000_000;
                    assert!(town.step(Vec::new()).is_empty() && town.open().len() == 1);
                    town.0.micros += 1_100_000;
                    town.step(Vec::new())
                }
            };
            assert_eq!((calls(&effects).len(), town.count("call-started")), (0, 0), "{told}");
            let results = town.results();
            assert_eq!((results.len(), &*results[0].envelope, results[0].is_error), (1, told, true));
            assert_eq!(town.open(), []);
            let late = town.settle(&run.to_string(), Settlement::of(Resolution::Allowed)).0.unwrap_err();
            assert_eq!(late, QuestionRefusal::AsksNothing { run }.into());
        }
    }
}

#[test]
fn a_time_limit_is_moved_with_the_clock() {
    let mut town = Town::new();
    town.guarded(Some(Span::from_secs(30)));
    town.0.off = 3_600;
    assert!(town.step(Vec::new()).is_empty());
    let shown = town.0.engine.interactions(Default::default()).interactions[0].clone();
    assert_eq!(shown.expires_at.unwrap().since(town.0.now().wall).as_micros().div_ceil(1_000_000), 30);
    town.0.micros += 31_000_000;
    town.step(Vec::new());
    assert_eq!((town.open().len(), town.count("call-finished")), (0, 1));
}

#[test]
fn what_does_not_fit_the_kind_is_refused_and_nothing_is_settled() {
    let mut town = Town::new();
    let approval = town.guarded(None);
    let (question, _) = town.run(OnInteraction::Wait, RequestedCall::new("ask_user", r#"{"question":"which?"}"#));
    let kinds = town.open();
    let id = |kind| kinds.iter().find(|(_, one)| *one == kind).unwrap().0;
    for (run, kind, resolution) in [
        (approval, InteractionKind::Approval, Resolution::Answered),
        (approval, InteractionKind::Approval, Resolution::Expired),
        (question, InteractionKind::Question, Resolution::Allowed),
        (question, InteractionKind::Question, Resolution::Expired),
    ] {
        let refusal = town.settle(&run.to_string(), Settlement::of(resolution)).0.unwrap_err();
        assert_eq!(refusal, QuestionRefusal::Unfit { interaction: id(kind), kind, resolution }.into());
    }
    let scoped = Settlement { scope: Some(Scope::Always), ..Settlement::answer("a") };
    let refusal = town.settle(&question.to_string(), scoped).0.unwrap_err();
    assert_eq!(refusal, QuestionRefusal::NoScope { interaction: id(InteractionKind::Question) }.into());
    assert_eq!((town.open().len(), town.count("interaction-settled")), (2, 0));
    let denied = Settlement { scope: Some(Scope::Run), ..Settlement::denied("no") };
    let by_id = id(InteractionKind::Approval).to_string();
    assert!(town.settle(&by_id, denied).0.is_ok());
    let again = town.settle(&by_id, Settlement::of(Resolution::Allowed)).0.unwrap_err();
    assert!(matches!(again, Refusal::Question(QuestionRefusal::Answered { by: Some(1), .. })), "{again:?}");
    let scope = town.0.journal.iter().find_map(|event| match &event.body {
        EventBody::InteractionSettled { scope, .. } => Some(*scope),
        _ => None,
    });
    assert_eq!(scope, Some(Some(Scope::Run)), "it is recorded");
}

#[test]
fn a_job_that_asks_holds_no_permit_and_goes_on_with_the_answer_under_another_one() {
    let mut town = Town::new();
    let job = town.executing(OnInteraction::Wait);
    let waits = town.guarded(None);
    assert!(town.settle(&waits.to_string(), Settlement::of(Resolution::Allowed)).0.is_ok());
    assert_eq!(calls(&town.ask(job, form(None)))[0].run, waits, "its permit went to the next call");
    let now = town.0.now();
    let view = town.0.engine.view(job.run, now).unwrap();
    assert_eq!(view.waiting_for.unwrap().kind, WaitKind::Person);
    assert_eq!(view.questions[0].kind, InteractionKind::Form);
    let (settled, effects) = town.settle(&job.run.to_string(), Settlement::answer("{}"));
    assert!(settled.is_ok());
    assert_eq!(answers(&effects), [(job, Settlement::answer("{}"))]);
    assert_eq!(town.ask(job, Ask::Return), [], "the lane is full");
    let other = JobId { run: waits, work: Work::Call(town.started_of(waits)) };
    let effects = town.step(vec![Input::Outcome { job: other, outcome: Outcome::Lost }]);
    assert!(effects.contains(&Effect::Resume(job)), "{effects:?}");
    assert_eq!(town.results().len(), 1, "the answer is no result");
}

#[test]
fn after_a_restart_what_a_job_asked_is_answered_once_and_its_call_is_interrupted() {
    let ways = [
        (Settlement::answer("blue"), "The answer was: blue"),
        (Settlement::denied("no"), "Denied: no"),
        (Settlement::of(Resolution::Expired), "in time"),
    ];
    for (settlement, told) in ways {
        let mut town = Town::new();
        let job = town.executing(OnInteraction::Wait);
        town.ask(job, form(Some(Span::from_secs(60))));
        let asked = town.open();
        for _ in 0..2 {
            assert_eq!(town.0.restart(), [], "nothing starts again");
            assert_eq!((town.open(), town.results().len()), (asked.clone(), 0));
        }
        let effects = if settlement.resolution == Resolution::Expired {
            town.0.micros += 61_000_000;
            town.step(Vec::new())
        } else {
            town.settle(&job.run.to_string(), settlement).1
        };
        assert_eq!((answers(&effects), calls(&effects)), (vec![], vec![]), "its job is gone");
        let results = town.results();
        assert!(results.len() == 1 && results[0].interrupted, "{results:?}");
        assert!(results[0].envelope.starts_with("Interrupted: ") && results[0].envelope.contains(told), "{results:?}");
        assert_eq!((town.count("call-started"), town.count("call-interrupted")), (1, 1));
    }
}

#[test]
fn what_a_person_said_before_a_restart_is_told_with_it_however_far_the_job_had_come() {
    for ((settlement, told), came) in [
        ((Settlement::answer("blue"), "The answer was: blue"), "off-lane"),
        ((Settlement::answer("blue"), "The answer was: blue"), "returning"),
        ((Settlement::denied("no"), "Denied: no"), "returning"),
        ((Settlement::answer("blue"), "The answer was: blue"), "executing"),
    ] {
        let mut town = Town::new();
        let job = town.executing(OnInteraction::Wait);
        town.ask(job, form(None));
        let other = town.executing(OnInteraction::Wait);
        assert!(town.settle(&job.run.to_string(), settlement).0.is_ok());
        if came != "off-lane" {
            assert_eq!(town.ask(job, Ask::Return), [], "the lane is full");
        }
        if came == "executing" {
            let effects = town.step(vec![Input::Outcome { job: other, outcome: Outcome::Lost }]);
            assert!(effects.contains(&Effect::Resume(job)), "{effects:?}");
        }
        let before = town.results().len();
        town.0.restart();
        let results = town.results();
        let of = |job| results[before..].iter().find(|result| result.call == call_of(job));
        let text = &of(job).unwrap().envelope;
        assert!(text.starts_with("Interrupted: ") && text.ends_with(told), "{came}: {text}");
        assert!(of(other).is_none_or(|other| other.envelope.ends_with("is not known.")), "it was told nothing");
        town.0.restart();
        assert_eq!((town.results().len(), town.count("call-started")), (2, 2), "{came}");
    }
}

#[test]
fn a_job_that_gives_up_or_ends_asks_no_longer() {
    for ends in [true, false] {
        let mut town = Town::new();
        let job = town.executing(OnInteraction::Wait);
        town.ask(job, form(None));
        let effects = if ends {
            town.step(vec![Input::Outcome { job, outcome: Outcome::Panicked("a test".to_owned()) }])
        } else {
            town.ask(job, Ask::Return)
        };
        assert_eq!((town.open(), town.count("interaction-closed")), (vec![], 1));
        assert_eq!(effects.contains(&Effect::Resume(job)), !ends, "{effects:?}");
        assert_eq!(town.results().len(), usize::from(ends));
    }
}

#[test]
fn a_call_that_executed_before_a_restart_is_not_told_to_have_never_run_where_its_run_is_cancelled() {
    let mut town = Town::new();
    let job = town.executing(OnInteraction::Wait);
    town.ask(job, form(None));
    town.0.restart();
    let select = harness_protocol::rpc::Selector { runs: vec![job.run.to_string()], ..Default::default() };
    let command = Command::Cancel { select, force: false };
    town.step(vec![Input::Command { reply: ReplyId(3), caller: OPERATOR, command }]);
    let results = town.results();
    assert!(results.len() == 1 && results[0].interrupted, "{results:?}");
    assert!(results[0].envelope.starts_with("Interrupted: "), "{results:?}");
    assert_eq!((town.open(), town.count("interaction-closed"), town.count("run-finished")), (vec![], 1, 1));
}

#[test]
fn a_run_that_is_ended_asks_no_longer_whoever_of_it_asked() {
    for by_job in [true, false] {
        let mut town = Town::new();
        let run = if by_job {
            let job = town.executing(OnInteraction::Wait);
            town.ask(job, form(None));
            job.run
        } else {
            town.guarded(None)
        };
        let select = harness_protocol::rpc::Selector { runs: vec![run.to_string()], ..Default::default() };
        let command = Command::Cancel { select, force: false };
        let effects = town.step(vec![Input::Command { reply: ReplyId(3), caller: OPERATOR, command }]);
        assert_eq!((town.open(), town.count("interaction-closed")), (vec![], 1), "{by_job}");
        assert_eq!(effects.iter().any(|effect| matches!(effect, Effect::Cancel { .. })), by_job);
        assert_eq!((town.count("run-finished") == 1, town.permits()), (!by_job, 0));
    }
}

#[test]
fn where_no_person_is_there_nothing_is_asked_and_the_call_is_denied_or_the_run_ends() {
    for by_job in [true, false] {
        for policy in [OnInteraction::Deny, OnInteraction::Fail] {
            let mut town = Town::new();
            let effects = if by_job {
                let job = town.executing(policy);
                let effects = town.ask(job, form(None));
                let told = answers(&effects).into_iter().map(|(job, settlement)| (job, settlement.resolution));
                let expected = (policy == OnInteraction::Deny).then_some((job, Resolution::Denied));
                assert_eq!(told.collect::<Vec<_>>(), expected.into_iter().collect::<Vec<_>>());
                effects
            } else {
                let (_, started) = town.run(policy, guarded(None));
                assert_eq!((started, town.count("call-started")), (vec![], 0));
                Vec::new()
            };
            assert_eq!((town.open(), town.count("interaction-opened"), town.count("denied")), (vec![], 0, 1));
            let is_stopped = town.count("run-stopping") == 1;
            assert_eq!(is_stopped, policy == OnInteraction::Fail);
            let is_cancelled = effects.iter().any(|effect| matches!(effect, Effect::Cancel { .. }));
            assert_eq!(is_cancelled, by_job && is_stopped);
            if !by_job && !is_stopped {
                assert!(town.results()[0].envelope.starts_with("Denied: no person is there to allow this."));
            }
        }
    }
}

#[test]
fn a_call_that_cannot_be_carried_out_is_refused_without_asking_a_person() {
    for (tool, args) in [("shell", "{}"), ("no-such-tool", "{}"), ("spawn_agent", "[]")] {
        let mut town = Town::new();
        town.run(OnInteraction::Wait, RequestedCall { ask: guarded(None).ask, ..RequestedCall::new(tool, args) });
        assert_eq!((town.open(), town.results().len(), town.results()[0].is_error), (vec![], 1, true), "{tool}");
    }
}

#[test]
fn a_call_that_is_too_long_to_be_shown_whole_is_refused_without_asking_a_person() {
    for (bytes, is_asked) in [(65_536, true), (65_537, false), (400_000, false)] {
        let mut town = Town::new();
        let command = "x".repeat(bytes);
        let args = serde_json::json!({ "command": command }).to_string();
        let call = RequestedCall { ask: guarded(None).ask, ..RequestedCall::new("shell", args) };
        let (_, started) = town.run(OnInteraction::Wait, call);
        assert_eq!((started.len(), town.open().len()), (0, usize::from(is_asked)), "{bytes}");
        if is_asked {
            let shown = town.0.engine.interactions(Default::default()).interactions[0].subject.clone();
            assert_eq!(shown.as_deref(), Some(&*command), "it is shown whole");
        } else {
            assert!(town.results()[0].envelope.contains("too long to be shown to a person"), "{bytes}");
        }
        let mut town = Town::new();
        let job = town.executing(OnInteraction::Wait);
        let subject = Some(command.into());
        let asked = Asked { kind: InteractionKind::Form, question: "which?".into(), subject, within: None };
        let told = answers(&town.ask(job, Ask::Open(asked)));
        assert_eq!((town.open().len(), told.len()), (usize::from(is_asked), usize::from(!is_asked)), "{bytes}");
        assert!(told.iter().all(|(_, told)| told.refusal().contains("too long to be shown")), "{told:?}");
    }
}

#[test]
fn a_transition_of_the_world_can_be_guarded_and_cannot_ask_while_it_executes() {
    let mut town = Town::new();
    let call = |ask: CallAsk| RequestedCall {
        ask: Some(Arc::new(ask)),
        ..RequestedCall::new("spawn_agent", r#"{"script":"child"}"#)
    };
    let (run, _) = town.run(OnInteraction::Wait, call(CallAsk::approval()));
    assert_eq!((town.open()[0].1, town.count("run-submitted")), (InteractionKind::Approval, 1));
    assert!(town.settle(&run.to_string(), Settlement::of(Resolution::Allowed)).0.is_ok());
    assert_eq!(town.count("run-submitted"), 2);
    town.run(OnInteraction::Wait, call(CallAsk { kind: InteractionKind::Form, ..CallAsk::approval() }));
    assert_eq!((town.open(), town.count("run-submitted")), (vec![], 3));
    assert!(town.results().last().unwrap().envelope.starts_with("Not run: only a call"));
}
