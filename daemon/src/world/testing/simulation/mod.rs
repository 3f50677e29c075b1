//! Simulates the world from a seed: random commands, outcomes, asks, delays, cancels, panics, pauses, commit failures
//! and restarts, and checks the invariants after each step. A failing seed is printed; `HARNESS_SIM_SEED=N` replays it.
//!
//! `HARNESS_SIM_SEEDS` and `HARNESS_SIM_STEPS` make it longer.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::panic, clippy::cast_possible_truncation)]

mod checks;
mod histories;
mod indexes;
mod outcomes;
mod persons;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use harness_protocol::event::Event;
use harness_protocol::folder::FolderId;
use harness_protocol::id::{CallId, RunId};
use harness_protocol::rpc::Selector;
use harness_protocol::run::CallResult;
use harness_protocol::run::RunView;
use harness_protocol::script::Script;
use harness_protocol::spec::{Limits, OnInteraction, Priority, RunSpec};
use harness_protocol::splitmix64::SplitMix64;
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::{Span, Timestamp};

use crate::config::{Config, Price, Provider, Share};
use crate::prompt::Completion;
use crate::tools::testing::ParallelDouble;
use crate::world::api::{
    Ask, Caller, Command, Damage, Effect, Input, JobId, LaneChange, Now, Outcome, ReplyId, Sent, Task, Work,
};
use crate::world::model::components::Life;
use crate::world::model::indexes::{Interactions, Lanes, Runs};
use crate::world::{Engine, Step};

/// The choices of a history.
struct Random(SplitMix64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0.draw()
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len())].clone())
    }
}

/// The state of a running job, as its executor sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobState {
    AtWork,
    OffLane,
    /// It waits for a person. What the person says lets it come back, as from off the lane.
    Asking,
    Returning,
}

/// The events of each step, and the runs that left the world with it.
pub(crate) type Commits = Vec<(Vec<Arc<Event>>, Vec<RunView>)>;

/// A world with a random history, and that history.
pub(crate) fn history(seed: u64, steps: u64) -> (Engine, Commits) {
    let mut simulation = Simulation::new(seed);
    (0..steps).for_each(|_| simulation.turn());
    (simulation.engine, simulation.commits)
}

struct Simulation {
    random: Random,
    engine: Engine,
    journal: Vec<Arc<Event>>,
    commits: Commits,
    out: BTreeMap<JobId, JobState>,
    /// Jobs that have ended: their outcomes may come again.
    stale: Vec<JobId>,
    started: BTreeSet<CallId>,
    persons: persons::Persons,
    asked: u64,
    /// Submits so far, each under a key of its client's, or sent again under an earlier one.
    submit_keys: usize,
    unanswered: BTreeSet<ReplyId>,
    wall: u64,
    mono: u64,
    permits_before: u32,
    held: bool,
    /// Every provider fails.
    outage: bool,
}

/// In USD per million tokens.
const PRICE: Price = Price { input: 1.0, output: 2.0, cached: 0.5, cache_write: 1.0 };

pub(crate) fn config() -> Config {
    let mut config = Config { tool_width: 2, ..Config::default() };
    config.shares.insert("batch".into(), Share { weight: 3, max: Some(2) });
    let priced = |width| Provider { price: Some(PRICE), ..Provider::scripted(width) };
    let other = Provider { fallbacks: vec!["spare".into(), "last".into()], context_tokens: Some(2_048), ..priced(2) };
    config.providers.insert("scripted".into(), priced(Provider::WIDTH));
    config.providers.insert("other".into(), other);
    config.providers.insert("spare".into(), Provider { fallbacks: vec!["other".into()], ..priced(1) });
    config.providers.insert("last".into(), priced(1));
    config.limits.finished_runs = 30;
    config.limits.live_runs = 40;
    config.limits.children = 6;
    config.limits.depth = 4;
    config.limits.calls_per_step = 6;
    config
}

pub(crate) fn tools() -> crate::tools::Catalogue {
    crate::tools::catalogue().with(Arc::new(ParallelDouble))
}

fn script() -> Arc<Script> {
    Arc::new(Script { scripts: BTreeMap::from([("child".to_owned(), Arc::default())]), ..Script::default() })
}

const OPERATOR: Caller = Caller { uid: 7, run: None };

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut simulation = Self {
            random: Random(SplitMix64::new(seed)),
            engine: Engine::new(config(), tools(), seed),
            journal: Vec::new(),
            commits: Vec::new(),
            out: BTreeMap::new(),
            stale: Vec::new(),
            started: BTreeSet::new(),
            persons: persons::Persons::default(),
            asked: 0,
            submit_keys: 0,
            unanswered: BTreeSet::new(),
            wall: 1_800_000_000_000_000,
            mono: 0,
            permits_before: 0,
            held: false,
            outage: false,
        };
        let step = simulation.engine.recover(simulation.now(), Damage::default());
        simulation.commit(step);
        simulation
    }

    fn now(&self) -> Now {
        Now { wall: Timestamp::from_micros(self.wall), mono: Span::from_micros(self.mono) }
    }

    fn pass_time(&mut self) {
        let micros = match self.random.below(20) {
            0 => 30_000_000,
            1..=5 => 1_000_000,
            _ => 1_000,
        };
        self.mono += micros;
        self.wall += micros;
        match self.random.below(200) {
            0 => self.wall -= 3_600_000_000,
            1 => self.wall += 600_000_000,
            _ => {}
        }
    }

    fn runs(&self) -> Vec<RunId> {
        self.engine.world.resource::<Runs>().by_id.iter().map(|(run, _)| run).collect()
    }

    fn some_run(&mut self) -> Option<RunId> {
        let runs = self.runs();
        self.random.pick(&runs)
    }

    fn command(&mut self, caller: Caller, command: Command) -> Input {
        self.asked += 1;
        self.unanswered.insert(ReplyId(self.asked));
        Input::Command { reply: ReplyId(self.asked), caller, command }
    }

    fn named(&mut self) -> Selector {
        let run = self.some_run().map(|run| run.to_string()).unwrap_or_else(|| "@last".to_owned());
        Selector { runs: vec![run], ..Selector::default() }
    }

    fn submit(&mut self) -> Input {
        let random = &mut self.random;
        let limits = Limits {
            max_steps: random.chance(10).then_some(2),
            max_tokens: random.chance(25).then(|| random.pick(&[60, 300, 2_500, 9_000]).unwrap()),
            max_cost_usd: random.chance(15).then(|| random.pick(&[0.000_1, 0.001, 0.01]).unwrap()),
            max_time_seconds: random.chance(10).then_some(Span::from_secs(5)),
            deadline_seconds: random.chance(5).then_some(Span::from_secs(40)),
            ..Limits::default()
        };
        let spec = RunSpec {
            // Some have a long one, with a name.
            prompt: random.chance(50).then(|| match random.below(16) {
                0 => "a".repeat(1_100).into(),
                1 => "b".repeat(1_100).into(),
                _ => "do".into(),
            }),
            name: random.chance(30).then(|| format!("name-{}", random.below(5)).into()),
            share: random.chance(30).then(|| "batch".into()),
            provider: random.chance(30).then(|| "other".into()),
            priority: random.pick(&[Priority::High, Priority::Normal, Priority::Low]).unwrap(),
            script: Some(script()),
            limits,
            on_interaction: random
                .pick(&[OnInteraction::Wait, OnInteraction::Wait, OnInteraction::Deny, OnInteraction::Fail])
                .unwrap(),
            ..RunSpec::default()
        };
        let key = random.chance(10).then(|| format!("key-{}", random.below(4)).into());
        // Some are sent again: mostly soon, so that it may be before or after the end of the run.
        let number = self.submit_keys.saturating_sub(if random.chance(20) { random.below(5) } else { 0 });
        let own_key = (key.is_none() && random.chance(50)).then(|| SubmitKey::from_u128(number as u128));
        let sent = Sent { key: own_key, ..Sent::default() };
        self.submit_keys += 1;
        let from_run = random.chance(10);
        let run = if from_run { self.some_run() } else { None };
        self.command(
            Caller { uid: 7, run },
            Command::Submit { spec: Arc::new(spec), idempotency_key: key, known: None, sent },
        )
    }

    /// What a client says of a retry or a message: some are sent again.
    fn sent(&mut self) -> Sent {
        let number = self.submit_keys.saturating_sub(if self.random.chance(20) { self.random.below(5) } else { 0 });
        self.submit_keys += 1;
        let key = SubmitKey::from_u128((1 << 64) + number as u128);
        Sent { key: self.random.chance(50).then_some(key), ..Sent::default() }
    }

    fn outcome(&mut self) -> Option<Input> {
        let jobs: Vec<JobId> = self.out.iter().filter(|(_, s)| **s != JobState::Returning).map(|(j, _)| *j).collect();
        let job = self.random.pick(&jobs)?;
        Some(self.end(job))
    }

    fn end(&mut self, job: JobId) -> Input {
        self.out.remove(&job);
        self.stale.push(job);
        let mut outcome = self.some_outcome(job);
        if let Outcome::Inference(Ok(completion)) = &mut outcome {
            self.use_up(job.run, completion);
        }
        Input::Outcome { job, outcome }
    }

    fn ask(&mut self) -> Option<Input> {
        let calls: Vec<(JobId, JobState)> = self
            .out
            .iter()
            .filter(|(job, state)| matches!(job.work, Work::Call(_)) && **state != JobState::Returning)
            .map(|(job, state)| (*job, *state))
            .collect();
        let (job, state) = self.random.pick(&calls)?;
        if self.random.chance(10) {
            let folder = FolderId { device: 1, inode: self.random.below(3) as u64, boot: None };
            return Some(Input::Ask { job, ask: Ask::Found(folder) });
        }
        let (ask, next) = match state {
            JobState::AtWork if self.random.chance(40) => (Ask::Open(self.something_to_ask()), JobState::Asking),
            JobState::AtWork => (Ask::OffLane, JobState::OffLane),
            // One that gives up to wait for a person comes back without an answer.
            JobState::Asking if self.random.chance(70) => return None,
            JobState::Asking | JobState::OffLane | JobState::Returning => (Ask::Return, JobState::Returning),
        };
        self.out.insert(job, next);
        Some(Input::Ask { job, ask })
    }

    fn change_lane(&mut self) -> Input {
        if self.random.chance(3) {
            return self.command(OPERATOR, Command::PruneEvents(Vec::new()));
        }
        let lane = self
            .random
            .pick(&[
                None,
                Some("tool".into()),
                Some("scripted".into()),
                Some("other".into()),
                Some("spare".into()),
                Some("last".into()),
            ])
            .unwrap();
        let reliefs: Vec<_> = self
            .engine
            .world
            .resource::<Lanes>()
            .tool
            .report(Timestamp::default())
            .reliefs
            .iter()
            .map(|r| r.id)
            .collect();
        let width = self.random.below(5) as u32;
        let change = match self.random.below(6) {
            0 => LaneChange::Relieve { by: width, during: None },
            1 => LaneChange::Relieve { by: width, during: Some(Span::from_secs(3)) },
            2 => self.random.pick(&reliefs).map_or(LaneChange::Resume, LaneChange::Undo),
            3 => LaneChange::Resize(width),
            4 if self.random.chance(30) => LaneChange::Pause,
            _ => LaneChange::Resume,
        };
        self.command(OPERATOR, Command::Lane { lane, change })
    }

    fn some_input(&mut self) -> Option<Input> {
        let input = match self.random.below(40) {
            0..=5 => self.submit(),
            6..=19 => return self.outcome(),
            20..=23 => return self.ask(),
            24..=26 => return self.settle(),
            27 => {
                let (select, force) = (self.named(), self.random.chance(30));
                self.command(OPERATOR, Command::Cancel { select, force })
            }
            28 | 29 => {
                let select = self.named();
                self.command(OPERATOR, Command::Pause(select))
            }
            30..=32 => {
                let select =
                    if self.random.chance(50) { self.named() } else { Selector { all: true, ..Selector::default() } };
                self.command(OPERATOR, Command::Resume(select))
            }
            33 | 34 => self.change_lane(),
            35 => {
                let run = self.some_run()?.to_string();
                let sent = self.sent();
                self.command(OPERATOR, Command::Message { run, text: "and?".into(), left: None, sent })
            }
            36 => {
                let run = self.some_run()?.to_string();
                let sent = self.sent();
                self.command(
                    OPERATOR,
                    Command::Retry { run, changes: Box::default(), takes_child: true, left: None, sent },
                )
            }
            37 if self.random.chance(20) => {
                let width = 1 + self.random.below(4) as u32;
                self.command(OPERATOR, Command::Reconfigure(vec![("tool".into(), width)]))
            }
            37 if self.random.chance(20) => {
                let provider = self.random.pick(&["scripted", "other", "spare", "last", "unheard-of"]).unwrap();
                self.command(OPERATOR, Command::Release(provider.into()))
            }
            37 if self.random.chance(10) => {
                self.outage = true;
                return None;
            }
            37 => {
                let run = self.some_run()?;
                self.command(OPERATOR, Command::Prune(vec![run]))
            }
            38 if self.random.chance(10) => {
                self.held = !self.held;
                self.engine.hold(self.held);
                return None;
            }
            38 => {
                let job = self.random.pick(&self.stale.clone())?;
                let outcome = self.some_outcome(job);
                return Some(Input::Outcome { job, outcome });
            }
            _ => {
                let on = self.random.chance(20);
                self.command(OPERATOR, Command::Drain(on))
            }
        };
        Some(input)
    }

    /// One step, with what a driver does around it.
    fn turn(&mut self) {
        self.pass_time();
        let count = self.random.below(4);
        let mut inputs: Vec<Input> = (0..count).filter_map(|_| self.some_input()).collect();
        if self.random.chance(9) {
            // An operator repairs the providers.
            self.outage = false;
            inputs.push(self.command(OPERATOR, Command::Reconfigure(Vec::new())));
        }
        self.step(inputs);
        if self.random.chance(3) {
            self.compare_with_rebuilt();
        }
        if self.random.chance(1) {
            self.crash();
        }
    }

    fn step(&mut self, inputs: Vec<Input>) {
        let step = self.engine.step(self.now(), inputs);
        self.check_world();
        if self.random.chance(2) && self.random.chance(30) {
            // The commit fails, and the daemon dies while it holds the transaction: nothing of the step was done.
            self.crash();
            return;
        }
        self.commit(step);
        // A time that was up already when it was set is due in the next step, and then no more.
        if self.is_due() {
            let step = self.engine.step(self.now(), Vec::new());
            self.check_world();
            self.commit(step);
            assert!(!self.is_due(), "a timer that is due does nothing");
        }
    }

    fn is_due(&self) -> bool {
        self.engine.next_deadline().is_some_and(|due| due <= Span::from_micros(self.mono))
    }

    fn commit(&mut self, step: Step) {
        self.commits.push((step.events.clone(), step.archived));
        step.events.iter().for_each(|event| self.persons.note(event));
        self.journal.extend(step.events);
        for effect in step.effects {
            self.perform(effect);
        }
        self.check_jobs();
    }

    fn crash(&mut self) {
        self.unanswered.clear();
        let lost: Vec<JobId> = self.out.keys().copied().collect();
        self.stale.extend(lost);
        self.out.clear();
        self.engine = Engine::rebuild(config(), tools(), self.engine_key(), self.journal.iter().map(|e| &**e));
        self.persons = persons::Persons::of(&self.journal);
        self.mono = 0;
        self.held = false;
        self.permits_before = u32::MAX;
        let step = self.engine.recover(self.now(), Damage::default());
        self.check_world();
        self.commit(step);
    }

    fn engine_key(&self) -> u64 {
        self.engine.world.resource::<crate::world::model::ids::Ids>().key()
    }

    fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Start(job) => {
                let stopping = self.life(job.id.run).is_some_and(|life| life.stopping.is_some());
                assert!(!stopping, "{:?} starts although its run is to end", job.id);
                assert!(self.out.insert(job.id, JobState::AtWork).is_none(), "{:?} started twice", job.id);
                if let Work::Call(call) = job.id.work {
                    assert!(self.started.insert(call), "{call} was executed twice");
                }
                if let Task::Inference(task) = job.task {
                    assert_eq!(task.prompt.check(), Ok(()));
                }
            }
            // The job may have ended in the meantime; the executor ignores such a cancel.
            Effect::Cancel { job, .. } => {
                assert!(
                    self.out.contains_key(&job) || self.stale.contains(&job),
                    "{job:?} is cancelled and was never out"
                );
            }
            Effect::Resume(job) => {
                assert_eq!(self.out.insert(job, JobState::AtWork), Some(JobState::Returning), "{job:?} goes on");
            }
            Effect::Answer { job, .. } => match self.out.get_mut(&job) {
                Some(state) => {
                    assert_ne!(*state, JobState::AtWork, "{job:?} has asked nothing");
                    if *state == JobState::Asking {
                        *state = JobState::OffLane;
                    }
                }
                None => assert!(self.stale.contains(&job), "{job:?} is answered and was never out"),
            },
            Effect::Reply { to, .. } => assert!(self.unanswered.remove(&to), "{to:?} is answered twice"),
            Effect::Release(run) => assert!(!self.out.keys().any(|job| job.run == run), "{run} ended with jobs out"),
        }
    }

    fn life(&self, run: RunId) -> Option<&Life> {
        let entity = *self.engine.world.resource::<Runs>().by_id.get(&run)?;
        self.engine.world.get::<Life>(entity)
    }

    /// Lets everything go on. It is said again and again: a crash loses it once in a while.
    fn opening(&mut self) -> Vec<Input> {
        let lanes = [None, Some("scripted".into()), Some("other".into()), Some("spare".into()), Some("last".into())];
        let resumed = lanes.map(|lane| Command::Lane { lane, change: LaneChange::Resume });
        let all = Selector { all: true, ..Selector::default() };
        let rest = [Command::Drain(false), Command::Reconfigure(Vec::new()), Command::Resume(all)];
        resumed.into_iter().chain(rest).map(|command| self.command(OPERATOR, command)).collect()
    }

    /// With everything answered and nothing held back, every run comes to its end, and the lanes are empty.
    fn wind_down(&mut self) {
        self.held = false;
        self.engine.hold(false);
        for _ in 0..5_000 {
            if self.engine.world.resource::<Runs>().live.is_empty() {
                break;
            }
            self.mono += 1_000_000;
            self.wall += 1_000_000;
            let mut inputs = Vec::new();
            for (job, state) in self.out.clone() {
                match state {
                    JobState::OffLane if self.random.chance(50) => {
                        self.out.insert(job, JobState::Returning);
                        inputs.push(Input::Ask { job, ask: Ask::Return });
                    }
                    JobState::Returning => {}
                    _ => {
                        let call = match job.work {
                            Work::Call(call) => {
                                Outcome::Call(Arc::new(CallResult::plain(call, "shell".into(), "ok", false)))
                            }
                            Work::Inference { .. } => Outcome::Inference(Ok(Completion::default())),
                        };
                        self.out.remove(&job);
                        self.stale.push(job);
                        inputs.push(Input::Outcome { job, outcome: call });
                    }
                }
            }
            inputs.extend(self.settle_all());
            inputs.extend(self.opening());
            self.step(inputs);
        }
        let world = &self.engine.world;
        let live: Vec<_> = world.resource::<Runs>().live.values().map(|&e| world.get::<Life>(e).unwrap()).collect();
        assert!(live.is_empty(), "these never end: {live:#?}");
        for lane in world.resource::<Lanes>().iter() {
            let report = lane.report(Timestamp::default());
            assert_eq!((report.queued, report.busy, report.parked, report.resuming, report.permits), (0, 0, 0, 0, 0));
        }
        assert!(self.out.is_empty() && self.unanswered.is_empty());
        assert!(world.resource::<Interactions>().open.is_empty());
    }
}
