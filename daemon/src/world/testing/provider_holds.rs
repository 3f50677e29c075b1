//! Tests holds of providers: limits of an account, missing keys, and lists of fallbacks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::sync::Arc;

use harness_protocol::event::{Ending, EventBody};
use harness_protocol::id::RunId;
use harness_protocol::lane::{LaneReport, Limiter};
use harness_protocol::rpc::Selector;
use harness_protocol::run::{RunState, WaitKind, exit};
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;
use harness_protocol::time::{Span, Timestamp};

use super::answers::Bench;
use crate::config::{Config, Provider};
use crate::prompt::{Completion, ErrorClass, InferenceError};
use crate::world::api::{Caller, Command, Input, Job, LaneChange, Outcome, ReplyId, Task};

const OPERATOR: Caller = Caller { uid: 1, run: None };
const HOUR: Span = Span::from_secs(3_600);

fn config(width: u32, fallbacks: &[&str]) -> Config {
    let mut config = Config::default();
    let own = Provider { fallbacks: fallbacks.iter().map(|&name| name.into()).collect(), ..Provider::scripted(width) };
    config.providers.insert("scripted".into(), own);
    for &name in fallbacks {
        // Their own fallbacks count for their own runs alone.
        let other = Provider { fallbacks: vec!["scripted".into()], ..Provider::scripted(width) };
        config.providers.insert(name.into(), other);
    }
    config
}

/// Whom these jobs ask.
fn asked(jobs: &[Job]) -> Vec<String> {
    let mut asked: Vec<String> = jobs
        .iter()
        .filter_map(|job| match &job.task {
            Task::Inference(task) => Some(task.provider.to_string()),
            Task::Call(_) => None,
        })
        .collect();
    asked.sort();
    asked
}

impl Bench {
    fn command(&mut self, command: Command) -> Vec<Job> {
        self.step(Input::Command { reply: ReplyId(1), caller: OPERATOR, command })
    }

    fn queue(&mut self) -> Vec<Job> {
        let script = Some(Arc::new(Script::default()));
        let labels = BTreeMap::from([("team".to_owned(), "night".to_owned())]);
        let spec = RunSpec { prompt: Some("go".into()), script, labels, ..RunSpec::default() };
        self.command(Command::Submit {
            spec: Arc::new(spec),
            idempotency_key: None,
            known: None,
            sent: Default::default(),
        })
    }

    fn fails(&mut self, job: &Job, class: ErrorClass) -> Vec<Job> {
        let outcome = Outcome::Inference(Err(InferenceError::new(class, "as the provider said it")));
        self.step(Input::Outcome { job: job.id, outcome })
    }

    fn answers(&mut self, job: &Job) -> Vec<Job> {
        let completion = Completion { text: "done".to_owned(), ..Completion::default() };
        self.step(Input::Outcome { job: job.id, outcome: Outcome::Inference(Ok(completion)) })
    }

    fn lane(&mut self, name: &str) -> LaneReport {
        let now = self.now();
        self.engine.lanes(now).lanes.into_iter().find(|lane| &*lane.name == name).unwrap()
    }

    fn time(&mut self) -> Timestamp {
        let now = self.now();
        self.engine.time(now)
    }

    fn pass(&mut self, time: Span) -> Vec<Job> {
        self.micros += time.as_micros();
        self.step_without()
    }

    fn endings(&self) -> Vec<Ending> {
        let ending = |body: &EventBody| match body {
            EventBody::RunFinished { ending } => Some(ending.clone()),
            _ => None,
        };
        self.journal.iter().filter_map(|event| ending(&event.body)).collect()
    }

    fn holds(&self) -> usize {
        self.journal.iter().filter(|event| matches!(event.body, EventBody::ProviderHeld { .. })).count()
    }

    /// The runs that have not ended, and what each waits for.
    fn waits(&mut self) -> Vec<(RunId, Option<Limiter>)> {
        let runs: Vec<RunId> = self
            .journal
            .iter()
            .filter_map(|event| match event.body {
                EventBody::RunSubmitted { .. } => event.run,
                _ => None,
            })
            .collect();
        let now = self.now();
        let views = runs.iter().filter_map(|&run| self.engine.view(run, now));
        let live = views.filter(|view| !view.state.is_terminal());
        live.map(|view| (view.id, view.waiting_for.and_then(|wait| wait.limiter))).collect()
    }
}

/// A limit of an account holds the lane and ends no run, even at a run's first inference (entry C3).
#[test]
fn a_limit_of_an_account_holds_the_lane_and_ends_nothing_at_a_runs_first_inference_too() {
    let day = Span::from_secs(86_400);
    for (class, limiter, until) in [
        (ErrorClass::Quota(Some(HOUR)), Limiter::Quota, Some(HOUR)),
        (ErrorClass::Quota(Some(Span::from_secs(7 * 86_400))), Limiter::Quota, Some(Span::from_secs(7 * 86_400))),
        (ErrorClass::Quota(Some(day + day + day + day + day + day + day + day + HOUR)), Limiter::Quota, None),
        (ErrorClass::Quota(None), Limiter::Quota, None),
        (ErrorClass::NoKey, Limiter::Key, None),
        (ErrorClass::RateLimit(None), Limiter::RateLimit, Some(Span::from_secs(2))),
        (ErrorClass::RateLimit(Some(Span::from_secs(60))), Limiter::RateLimit, Some(Span::from_secs(60))),
    ] {
        let mut bench = Bench::with(config(2, &[]));
        let mut jobs: Vec<Job> = (0..41).flat_map(|_| bench.queue()).collect();
        assert_eq!(jobs.len(), 2, "the lane is two wide");
        let before = bench.time();
        for job in std::mem::take(&mut jobs) {
            jobs.extend(bench.fails(&job, class));
        }
        assert_eq!((jobs.len(), bench.endings().len()), (0, 0), "{class:?}");
        let lane = bench.lane("scripted");
        assert_eq!(lane.limiter, limiter, "{class:?}");
        let held = lane.held.expect("it is held");
        let waits = held.until.map(|until| until.since(before).as_secs().round());
        assert_eq!(waits, until.map(Span::as_secs), "{class:?}");
        // Of waits that are named the longer one stays, be it by a moment.
        let one_for_each = matches!(class, ErrorClass::RateLimit(Some(_)));
        assert_eq!(bench.holds(), if one_for_each { 2 } else { 1 }, "{class:?}: a burst is one thing");
        assert!(bench.waits().iter().all(|(_, told)| told.is_none() || *told == Some(limiter)), "{class:?}");
    }
}

/// When a hold ends, one run tries first, and its answer releases the others (entry C3).
#[test]
fn when_the_time_is_over_one_run_asks_first_and_the_others_follow_its_answer() {
    let mut bench = Bench::with(config(8, &[]));
    let jobs: Vec<Job> = (0..8).flat_map(|_| bench.queue()).collect();
    for job in &jobs {
        assert!(bench.fails(job, ErrorClass::Quota(Some(HOUR))).is_empty());
    }
    assert!(bench.pass(Span::from_secs(3_590)).is_empty(), "no run asks before the time");
    let probe = bench.pass(Span::from_secs(20));
    assert_eq!(probe.len(), 1);
    assert_eq!(bench.lane("scripted").limiter, Limiter::Quota, "the others still wait for the same");
    // It is not over yet: the same again.
    assert!(bench.fails(&probe[0], ErrorClass::Quota(Some(HOUR))).is_empty());
    let probe = bench.pass(HOUR + Span::from_secs(1));
    assert_eq!(probe.len(), 1);
    let next = bench.answers(&probe[0]);
    assert_eq!(next.len(), 2, "two after one");
    let more: usize = next.iter().map(|job| bench.answers(job).len()).sum();
    assert_eq!(more, 5, "and then all of them");
}

/// C3: a time that is over at once, said again and again, is no reason to ask without a pause.
#[test]
fn a_provider_that_names_no_time_worth_waiting_for_is_asked_more_and_more_seldom() {
    for class in [ErrorClass::RateLimit(None), ErrorClass::Quota(Some(Span::from_micros(1)))] {
        let mut bench = Bench::with(config(4, &[]));
        let mut jobs = bench.queue();
        let mut rests = Vec::new();
        for _ in 0..30 {
            let job = jobs.pop().expect("one asks");
            assert!(bench.fails(&job, class).is_empty());
            let held = bench.lane("scripted").held.expect("it is held").until.expect("for a while");
            let now = bench.time();
            rests.push(held.since(now).as_secs().round());
            jobs = bench.pass(held.since(now) + Span::from_secs(1));
        }
        assert_eq!(rests[..6], [2.0, 4.0, 8.0, 16.0, 32.0, 60.0], "{class:?}");
        assert!(rests[6..].iter().all(|&rest| rest == 60.0), "{class:?}");
        assert!(bench.endings().is_empty(), "{class:?}: thirty times and no end");
        assert!(bench.answers(&jobs[0]).is_empty());
        assert!(matches!(bench.endings()[..], [Ending::Succeeded { .. }]));
    }
}

/// A hold without a known end is released by a successful check; a reload or a restart lets one run try (entry C3).
#[test]
fn what_holds_for_good_goes_on_after_a_good_check_and_lets_one_try_after_a_reload_or_a_restart() {
    for class in [ErrorClass::Quota(None), ErrorClass::NoKey] {
        for way in 0..3 {
            let mut bench = Bench::with(config(8, &[]));
            let jobs: Vec<Job> = (0..8).flat_map(|_| bench.queue()).collect();
            for job in &jobs {
                bench.fails(job, class);
            }
            assert!(bench.pass(Span::from_secs(90 * 86_400)).is_empty(), "{class:?}: nothing by itself");
            let jobs = match way {
                0 => bench.command(Command::Release("scripted".into())),
                1 => bench.command(Command::Reconfigure(Vec::new())),
                _ => bench.restart(),
            };
            assert_eq!(jobs.len(), if way == 0 { 8 } else { 1 }, "{class:?}, way {way}");
            // The problem still exists.
            for job in &jobs {
                assert!(bench.fails(job, class).is_empty(), "{class:?}, way {way}");
            }
            assert!(bench.endings().is_empty());
        }
    }
}

/// C3: a restart knows until when, whatever holds the lane.
#[test]
fn a_time_that_was_named_holds_across_a_restart() {
    let wait = Span::from_secs(120);
    for (class, limiter) in [
        (ErrorClass::Quota(Some(wait)), Limiter::Quota),
        (ErrorClass::RateLimit(Some(wait)), Limiter::RateLimit),
        (ErrorClass::RetryAfter(wait), Limiter::Failing),
    ] {
        let mut bench = Bench::with(config(8, &[]));
        let job = bench.queue().remove(0);
        bench.fails(&job, class);
        let until = bench.lane("scripted").held.unwrap().until;
        for _ in 0..3 {
            assert!(bench.restart().is_empty(), "no run asks");
            assert!(bench.queue().is_empty(), "and none that comes");
            let lane = bench.lane("scripted");
            assert_eq!((lane.limiter, lane.held.unwrap().until), (limiter, until), "{class:?}");
        }
        let asked = bench.pass(wait + Span::from_secs(2));
        let all_at_once = limiter == Limiter::RateLimit;
        assert_eq!(asked.len(), if all_at_once { 4 } else { 1 }, "{class:?}");
    }
}

/// An operator can stop runs that would otherwise continue on their own when a hold ends (entry C3).
#[test]
fn a_pause_of_the_lane_or_a_cancel_stops_what_would_go_on_by_itself() {
    let mut bench = Bench::with(config(8, &[]));
    let jobs: Vec<Job> = (0..8).flat_map(|_| bench.queue()).collect();
    for job in &jobs {
        bench.fails(job, ErrorClass::Quota(Some(HOUR)));
    }
    bench.command(Command::Lane { lane: Some("scripted".into()), change: LaneChange::Pause });
    assert!(bench.pass(HOUR + HOUR).is_empty());
    assert_eq!(bench.lane("scripted").limiter, Limiter::Paused);
    let select = Selector { labels: BTreeMap::from([("team".to_owned(), "night".to_owned())]), ..Selector::default() };
    bench.command(Command::Cancel { select, force: false });
    assert_eq!(bench.endings().len(), 8);
    assert!(bench.command(Command::Lane { lane: Some("scripted".into()), change: LaneChange::Resume }).is_empty());
}

/// Rule 10: refused credentials are no limit.
#[test]
fn credentials_that_are_refused_at_a_runs_first_inference_end_it_with_4() {
    let mut bench = Bench::with(config(1, &[]));
    let job = bench.queue().remove(0);
    bench.fails(&job, ErrorClass::Credentials);
    assert!(matches!(bench.endings()[..], [Ending::Failed { exit_code: exit::CREDENTIALS, .. }]));
    assert_eq!(bench.holds(), 0);
}

/// U3: what is shown of an inference between its tries, and where that time goes.
#[test]
fn the_time_between_two_tries_is_that_of_a_retry_wherever_the_run_stands() {
    for (class, fault, counted) in [
        (ErrorClass::Retry, "failing", 2),
        (ErrorClass::RetryAfter(Span::from_secs(30)), "failing", 2),
        (ErrorClass::RateLimit(Some(Span::from_secs(30))), "rate-limit", 1),
        (ErrorClass::RateLimit(None), "rate-limit", 1),
        (ErrorClass::Quota(Some(HOUR)), "quota", 1),
        (ErrorClass::NoKey, "no-key", 1),
    ] {
        let mut bench = Bench::with(config(1, &[]));
        let job = bench.queue().remove(0);
        bench.fails(&job, class);
        let before = bench.time();
        bench.micros += 1_000_000;
        let now = bench.now();
        let view = bench.engine.view(job.id.run, now).unwrap();
        let inference = view.inference.expect("a try has failed");
        assert_eq!((inference.attempt, inference.attempts), (counted, 10), "{class:?}");
        assert_eq!(serde_json::to_value(inference.fault).unwrap(), fault, "{class:?}");
        assert_eq!(&*inference.error, "as the provider said it");
        assert!(view.timing.retry >= Span::from_secs(1), "{class:?}: {:?} since {before}", view.timing);
        assert_eq!((view.timing.lane, view.state), (Span::ZERO, RunState::Thinking), "{class:?}");
        let wait = view.waiting_for.expect("it waits");
        assert_eq!((wait.kind, &*wait.id), (WaitKind::Provider, "scripted"), "{class:?}");
        assert!(wait.until.is_some() || class == ErrorClass::NoKey, "{class:?}");
    }
}

/// The time without a daemon does not count as waiting (entry U14).
#[test]
fn the_time_that_the_daemon_was_away_is_no_time_of_waiting() {
    let mut bench = Bench::with(config(1, &[]));
    let job = bench.queue().remove(0);
    bench.micros += 5_000_000;
    bench.restart();
    let now = bench.now();
    let timing = bench.engine.view(job.id.run, now).unwrap().timing;
    assert_eq!((timing.down.as_secs().round(), timing.waiting), (5.0, Span::ZERO));
}

/// The first available fallback in the list of the run's own provider is used (entry C4).
#[test]
fn the_first_fallback_of_the_runs_own_provider_that_is_there_stands_in() {
    let mut bench = Bench::with(config(4, &["second", "third"]));
    let mut jobs: Vec<Job> = (0..4).flat_map(|_| bench.queue()).collect();
    assert_eq!(asked(&jobs), ["scripted"; 4]);
    for (class, then) in [(ErrorClass::Quota(Some(HOUR)), "second"), (ErrorClass::NoKey, "third")] {
        let failing = std::mem::take(&mut jobs);
        for job in &failing {
            jobs.extend(bench.fails(job, class));
        }
        assert_eq!(asked(&jobs), [then; 4], "after {class:?}");
    }
    // No fallback is left, so the runs wait for their own provider.
    for job in &jobs.split_off(0) {
        assert!(bench.fails(job, ErrorClass::Quota(None)).is_empty());
    }
    assert_eq!(bench.lane("scripted").queued, 4);
    assert_eq!(bench.waits().iter().filter(|(_, told)| *told == Some(Limiter::Quota)).count(), 4);
    // Whichever of them comes back is asked.
    let jobs = bench.command(Command::Release("third".into()));
    assert_eq!(asked(&jobs), ["third"; 4]);
    // Its own again, once that is there, and one of them tries.
    for job in &jobs {
        bench.fails(job, ErrorClass::NoKey);
    }
    assert_eq!(asked(&bench.pass(HOUR + HOUR)), ["scripted"]);
}

/// C4: a lane that is merely slow for a moment is waited for; one that is away for hours is not.
#[test]
fn a_fallback_stands_in_for_what_is_away_for_long_only() {
    for (class, stands_in) in [
        (ErrorClass::RateLimit(Some(Span::from_secs(5))), false),
        (ErrorClass::RateLimit(None), false),
        (ErrorClass::RateLimit(Some(Span::from_secs(100))), true),
        (ErrorClass::Quota(Some(HOUR)), true),
        (ErrorClass::Quota(None), true),
        (ErrorClass::NoKey, true),
    ] {
        let mut bench = Bench::with(config(1, &["second"]));
        let first = bench.queue().remove(0);
        bench.fails(&first, class);
        let jobs = bench.queue();
        let of_second = asked(&jobs).iter().any(|name| name == "second") || bench.lane("second").busy > 0;
        assert_eq!(of_second, stands_in, "{class:?}");
    }
}
