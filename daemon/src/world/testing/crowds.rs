//! Tests the world with very many runs in one queue. Counts the entities that are visited, not time.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use harness_protocol::event::EventBody;
use harness_protocol::id::RunId;
use harness_protocol::rpc::{InteractionListParams, Selector};
use harness_protocol::run::Usage;
use harness_protocol::script::Script;
use harness_protocol::spec::{Limits, RunSpec};

use super::answers::Bench;
use crate::config::{Config, Provider};
use crate::prompt::{Completion, RequestedCall};
use crate::world::api::{Caller, Command, Input, Job, LaneChange, Outcome, ReplyId};
use crate::world::model::indexes::{Postponed, Visits};

const UID: u32 = 1;
/// Answers for which a budget has room at once, where each holds back what a good answer takes.
const AT_ONCE: u64 = 5;
/// What one inference holds back, about: a prompt of a few tokens and a good answer.
const PART: u64 = 2_100;

/// A tree that is paid from budgets, and what is out for it.
struct Crowd {
    bench: Bench,
    out: Vec<Job>,
}

/// Where the budgets are.
#[derive(Debug, Clone, Copy)]
enum Budgets {
    /// At the top alone.
    Top,
    /// At the top, and the same again at the one run right below it that has all the others.
    TopAndBelow,
    /// At the top, and one of its own for each of the others, which is large enough.
    Each,
}

impl Crowd {
    /// A run, one below it, and so many below that one, which all want an answer. The two above wait for them.
    fn new(runs: usize, budgets: Budgets) -> Self {
        let mut config = Config::default();
        config.limits.live_runs = 1_000_000;
        config.limits.children = 1_000_000;
        config.providers.insert("scripted".into(), Provider::scripted(1_000_000));
        let mut crowd = Self { bench: Bench::with(config), out: Vec::new() };
        let top = crowd.submit(None, Some(AT_ONCE * PART));
        let middle = crowd.submit(Some(top), matches!(budgets, Budgets::TopAndBelow).then_some(AT_ONCE * PART));
        let jobs: Vec<Job> = std::mem::take(&mut crowd.out);
        let calls = vec![RequestedCall::new("wait_for_agent", r#"{"id":"@last"}"#)];
        // The two runs above need no reserve: a paused run has none.
        for run in [top, middle] {
            let select = Selector { runs: vec![run.to_string()], ..Selector::default() };
            crowd.command(None, Command::Pause(select));
        }
        for job in jobs {
            crowd.answer(&job, Completion { calls: calls.clone(), ..Completion::default() });
        }
        let own = matches!(budgets, Budgets::Each).then_some(10 * PART);
        for _ in 0..runs {
            crowd.submit(Some(middle), own);
        }
        crowd
    }

    fn command(&mut self, run: Option<RunId>, command: Command) {
        let caller = Caller { uid: UID, run };
        let jobs = self.bench.step(Input::Command { reply: ReplyId(1), caller, command });
        self.out.extend(jobs);
    }

    fn submit(&mut self, parent: Option<RunId>, max_tokens: Option<u64>) -> RunId {
        let limits = Limits { max_tokens, ..Limits::default() };
        let script = Some(Arc::new(Script::default()));
        let spec = Arc::new(RunSpec { prompt: Some("go".into()), script, limits, ..RunSpec::default() });
        let sent = Default::default();
        self.command(parent, Command::Submit { spec, idempotency_key: None, known: None, sent });
        let made = self.bench.journal.iter().rev().find(|event| matches!(event.body, EventBody::RunSubmitted { .. }));
        made.unwrap().run.unwrap()
    }

    fn answer(&mut self, job: &Job, completion: Completion) {
        let completion = Completion {
            usage: Usage { input_tokens: 1, output_tokens: 1, cost_usd: Some(0.0), ..Usage::default() },
            ..completion
        };
        let jobs = self.bench.step(Input::Outcome { job: job.id, outcome: Outcome::Inference(Ok(completion)) });
        self.out.extend(jobs);
    }

    fn visits(&self) -> u64 {
        self.bench.engine.world.get_resource::<Visits>().map_or(0, |visits| visits.0)
    }

    fn waiting(&self) -> usize {
        let postponed = self.bench.engine.world.resource::<Postponed>();
        postponed.by_budget.values().flatten().count() + postponed.stalled.len()
    }

    /// Runs looked at and events that happened with one answer, at most.
    fn cost_of_an_answer(&mut self, answers: usize) -> (u64, usize) {
        let mut most = (0, 0);
        for _ in 0..answers {
            let before = (self.visits(), self.bench.journal.len());
            let job = self.out.remove(0);
            self.answer(&job, Completion { text: "done".to_owned(), ..Completion::default() });
            most.0 = most.0.max(self.visits() - before.0);
            most.1 = most.1.max(self.bench.journal.len() - before.1);
        }
        most
    }
}

/// The number of runs that an answer wakes follows from the released budget, not from the number of waiting runs (entry
/// A19).
#[test]
fn an_answer_wakes_as_many_as_fit_into_what_came_back_however_many_wait_for_the_budget() {
    for budgets in [Budgets::Top, Budgets::TopAndBelow, Budgets::Each] {
        let costs: Vec<(u64, usize)> = [20, 200, 2_000]
            .into_iter()
            .map(|runs| {
                let mut crowd = Crowd::new(runs, budgets);
                assert!(
                    crowd.waiting() >= runs - usize::try_from(AT_ONCE).unwrap(),
                    "{budgets:?}: {} wait",
                    crowd.waiting()
                );
                crowd.cost_of_an_answer(15)
            })
            .collect();
        assert_eq!(costs[0], costs[2], "{budgets:?}: {costs:?}");
        assert_eq!(costs[0], costs[1], "{budgets:?}: {costs:?}");
        assert!(costs[0].0 <= 30, "{budgets:?}: {costs:?}");
    }
}

/// Every run that waits for a budget is served, in the order of submission (entry A19).
#[test]
fn all_that_wait_for_a_budget_are_served_in_their_order_and_all_end() {
    for budgets in [Budgets::Top, Budgets::TopAndBelow, Budgets::Each] {
        let mut crowd = Crowd::new(60, budgets);
        let mut served = Vec::new();
        while !crowd.out.is_empty() {
            served.push(crowd.out[0].id.run);
            crowd.cost_of_an_answer(1);
        }
        assert_eq!((served.len(), crowd.waiting()), (60, 0), "{budgets:?}");
        let submitted: Vec<RunId> = crowd
            .bench
            .journal
            .iter()
            .filter(|event| matches!(event.body, EventBody::RunSubmitted { .. }))
            .filter_map(|event| event.run)
            .skip(2)
            .collect();
        assert_eq!(served, submitted, "{budgets:?}");
    }
}

/// A19: some of those that stand before the others cannot go on.
#[test]
fn those_that_are_paused_ended_or_wait_for_their_provider_keep_nobody_away() {
    type Change = fn(Selector) -> Command;
    let changes: [(&str, Change); 3] = [
        ("paused", Command::Pause),
        ("cancelled", |select| Command::Cancel { select, force: false }),
        ("cancelled at once", |select| Command::Cancel { select, force: true }),
    ];
    for (what, change) in changes {
        let mut crowd = Crowd::new(60, Budgets::Top);
        let postponed = crowd.bench.engine.world.resource::<Postponed>();
        let first: Vec<String> =
            postponed.by_budget.values().flatten().take(30).map(|(_, run)| run.to_string()).collect();
        crowd.command(None, change(Selector { runs: first.clone(), ..Selector::default() }));
        let mut served = 0;
        while !crowd.out.is_empty() {
            crowd.cost_of_an_answer(1);
            served += 1;
        }
        assert_eq!((served, crowd.waiting()), (30, 0), "{what}");
        crowd.command(None, Command::Resume(Selector { runs: first, ..Selector::default() }));
        while !crowd.out.is_empty() {
            crowd.cost_of_an_answer(1);
            served += 1;
        }
        assert_eq!(served, if what == "paused" { 60 } else { 30 }, "{what}");
    }
    // Their provider is left alone, and asked again.
    let mut crowd = Crowd::new(60, Budgets::Top);
    crowd.command(None, Command::Lane { lane: Some("scripted".into()), change: LaneChange::Pause });
    let mut served = 0;
    while !crowd.out.is_empty() {
        crowd.cost_of_an_answer(1);
        served += 1;
    }
    assert!(crowd.waiting() > 0, "no run asks a provider that is held");
    crowd.command(None, Command::Lane { lane: Some("scripted".into()), change: LaneChange::Resume });
    while !crowd.out.is_empty() {
        crowd.cost_of_an_answer(1);
        served += 1;
    }
    assert_eq!((served, crowd.waiting()), (60, 0));
}

/// A19: the open questions have an order that is kept, not made for each page.
#[test]
fn a_page_of_questions_is_the_same_whatever_was_settled_between_them() {
    use std::collections::BTreeSet;
    for (asked, settled) in [(0, 0), (1, 0), (7, 3), (40, 39), (40, 40), (90, 17)] {
        let mut open = crate::world::model::indexes::Interactions::default();
        let id =
            |number: u64| harness_protocol::id::InteractionId::from_u64(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let run = RunId::from_u64(1);
        let call = harness_protocol::id::CallId::from_u64(1);
        for number in 1..=asked {
            let one = crate::world::model::indexes::OpenInteraction {
                number,
                run,
                above: Box::default(),
                call,
                kind: Default::default(),
                question: "?".into(),
                subject: None,
                since: Default::default(),
                expires_at: None,
            };
            open.opened(id(number), one);
        }
        let gone: BTreeSet<u64> = (1..=settled).map(|n| n * 2 % (asked + 1)).collect();
        gone.iter().for_each(|&number| drop(open.close(id(number))));
        for after in [0, 1, asked / 2, asked, u64::MAX] {
            let listed: Vec<u64> = open.open_after(after).map(|(_, open)| open.number).collect();
            let expected: Vec<u64> = (1..=asked).filter(|n| *n > after && !gone.contains(n)).collect();
            assert_eq!(listed, expected, "{asked} asked, {gone:?} settled, after {after}");
        }
        assert!(open.close(id(asked + 1)).is_none());
    }
    let bench = Bench::with(Config::default());
    assert_eq!(bench.engine.interactions(InteractionListParams { cursor: None, limit: Some(5) }).total, 0);
}
