//! Tests the cost of reads and grants: counts the runs that each visits, however many there are.
#![cfg(test)]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use harness_protocol::id::RunId;
use harness_protocol::rpc::{InteractionListParams, ListParams};
use harness_protocol::run::CallResult;
use harness_protocol::script::Script;
use harness_protocol::spec::{OnInteraction, RunSpec};
use harness_protocol::time::{Span, Timestamp};

use super::simulation;
use crate::config::{Config, Provider};
use crate::prompt::{Completion, RequestedCall};
use crate::world::Engine;
use crate::world::api::{Caller, Command, Effect, Input, Job, JobId, Now, Outcome, ReplyId, Work};
use crate::world::model::indexes::{Looked, Runs};
use crate::world::queries::ListedAs;

/// Runs beyond those that are shown or granted that may be looked at: parents, the run that gave its permit back.
const BESIDE: usize = 3;
/// Runs on a page.
const PAGE: u32 = 20;
const SHELL: (&str, &str) = ("shell", r#"{"command":"true"}"#);
const ASKS: (&str, &str) = ("ask_user", r#"{"question":"Which of the two?"}"#);

/// A world with as many runs as are wanted.
struct Town {
    engine: Engine,
    micros: u64,
}

impl Town {
    fn new() -> Self {
        let mut config = Config { tool_width: 1, ..Config::default() };
        config.limits.live_runs = 1_000_000;
        config.limits.children = 1_000_000;
        config.providers.insert("scripted".into(), Provider::scripted(1_000_000));
        Self { engine: Engine::new(config, simulation::tools(), 7), micros: 0 }
    }

    fn now(&mut self) -> Now {
        self.micros += 1;
        Now { wall: Timestamp::from_micros(1_800_000_000_000_000 + self.micros), mono: Span::from_micros(self.micros) }
    }

    fn step(&mut self, input: Input) -> Vec<Job> {
        let now = self.now();
        let step = self.engine.step(now, vec![input]);
        let jobs = step.effects.into_iter().filter_map(|effect| match effect {
            Effect::Start(job) => Some(job),
            _ => None,
        });
        jobs.collect()
    }

    /// A run whose model has asked for a call. What was started for that call is the second.
    fn run_that_calls(&mut self, parent: Option<RunId>, (tool, args): (&str, &str)) -> (RunId, Vec<Job>) {
        let script = Some(Arc::new(Script::default()));
        let on_interaction = OnInteraction::Wait;
        let spec = Arc::new(RunSpec { prompt: Some("go".into()), script, on_interaction, ..RunSpec::default() });
        let command = Command::Submit { spec, idempotency_key: None, known: None, sent: Default::default() };
        let caller = Caller { uid: 1, run: parent };
        let job = self.step(Input::Command { reply: ReplyId(1), caller, command }).remove(0).id;
        let completion = Completion { calls: vec![RequestedCall::new(tool, args)], ..Completion::default() };
        let started = self.step(Input::Outcome { job, outcome: Outcome::Inference(Ok(completion)) });
        (job.run, started)
    }

    fn done(&mut self, job: JobId) -> Vec<Job> {
        let Work::Call(call) = job.work else { return Vec::new() };
        let result = Arc::new(CallResult::plain(call, "shell".into(), "ok", false));
        self.step(Input::Outcome { job, outcome: Outcome::Call(result) })
    }

    /// How many runs are looked at meanwhile.
    fn looked_at<T>(&mut self, look: impl FnOnce(&mut Self) -> T) -> (T, usize) {
        self.engine.world.resource::<Looked>().take();
        let result = look(self);
        (result, self.engine.world.resource::<Looked>().take().len())
    }
}

/// A person looks at the newest runs, at one that has all the others below it, at questions and at lanes.
#[test]
fn a_page_looks_at_the_runs_that_are_on_it_however_many_there_are() {
    for population in [50, 500] {
        let mut town = Town::new();
        let (top, _) = town.run_that_calls(None, ASKS);
        for _ in 0..population {
            town.run_that_calls(Some(top), ASKS);
            town.run_that_calls(None, ASKS);
        }
        town.run_that_calls(None, SHELL);
        let page = |town: &mut Town, limit, cursor| {
            let now = town.now();
            let params = ListParams { limit: Some(limit), cursor, ..ListParams::default() };
            town.looked_at(|town| town.engine.list(&params, None, now).runs)
        };
        let (newest, looked) = page(&mut town, PAGE, None);
        assert_eq!(newest.len(), PAGE as usize);
        assert!(looked <= newest.len() + BESIDE, "{looked} runs for {} of {population}", newest.len());
        let (oldest, looked) = page(&mut town, PAGE, Some(2));
        assert_eq!(oldest.len(), 1, "the top of all");
        assert!(looked <= 1 + BESIDE, "{looked} runs for one that has {population} below it");
        let ListedAs::Whole(view) = &oldest[0].shown else { panic!("lines were not asked for") };
        assert_eq!(view.questions.len(), 16, "of those that are asked below it the first are shown");
        let (below, _) = town.looked_at(|town| town.engine.tree_below(top, u32::MAX).len());
        assert_eq!(below, population);
        let params = InteractionListParams { limit: Some(PAGE), cursor: None };
        let (pending, looked) = town.looked_at(|town| town.engine.interactions(params).interactions.len());
        assert!(pending == PAGE as usize && looked <= pending + BESIDE, "{looked} runs for {pending} questions");
        let now = town.now();
        let (lanes, looked) = town.looked_at(|town| town.engine.lanes(now).lanes);
        let holders: usize = lanes.iter().map(|lane| lane.holders.len()).sum();
        assert!(holders == 1 && looked <= holders + BESIDE, "{looked} runs for {holders} holders");
    }
}

/// One permit: when it comes back, the next in line gets it.
#[test]
fn a_grant_looks_at_the_run_that_gets_the_permit_however_many_wait_for_it() {
    for population in [50, 500] {
        let mut town = Town::new();
        let (_, mut at_work) = town.run_that_calls(None, SHELL);
        for _ in 0..population {
            town.run_that_calls(None, SHELL);
            town.run_that_calls(None, ASKS);
        }
        for _ in 0..5 {
            let job = at_work.iter().find(|job| matches!(job.id.work, Work::Call(_))).unwrap().id;
            let (started, looked) = town.looked_at(|town| town.done(job));
            assert!(looked <= 1 + BESIDE, "{looked} runs for one grant");
            at_work = started;
        }
        assert!(town.engine.world.resource::<Runs>().live.len() > population);
    }
}
