//! Tests that a jump of the wall clock makes nothing due.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use harness_protocol::event::{Ending, EventBody};
use harness_protocol::script::Script;
use harness_protocol::spec::{Limits, RunSpec};
use harness_protocol::time::{Span, Timestamp};

use super::answers::Bench;
use crate::config::Config;
use crate::prompt::{Completion, ErrorClass, InferenceError};
use crate::world::api::{Caller, Command, Input, Job, LaneChange, Outcome, ReplyId};

const HOUR: Span = Span::from_secs(3_600);
const YEAR: i64 = 365 * 86_400;

/// What is timed by a span, and what has happened when that is over.
#[derive(Debug, Clone, Copy)]
enum Timed {
    Deadline,
    MaxTime,
    Retry,
    Relief,
}

struct Case {
    bench: Bench,
    out: Vec<Job>,
}

impl Case {
    /// Begins what is due after an hour.
    fn begin(timed: Timed) -> Self {
        let mut case = Self { bench: Bench::with(Config::default()), out: Vec::new() };
        let limits = match timed {
            Timed::Deadline => Limits { deadline_seconds: Some(HOUR), ..Limits::default() },
            Timed::MaxTime => Limits { max_time_seconds: Some(HOUR), ..Limits::default() },
            Timed::Retry | Timed::Relief => Limits::default(),
        };
        let script = Some(Arc::new(Script::default()));
        let spec = Arc::new(RunSpec { prompt: Some("go".into()), script, limits, ..RunSpec::default() });
        case.command(Command::Submit { spec, idempotency_key: None, known: None, sent: Default::default() });
        if let Timed::Relief = timed {
            case.command(Command::Lane { lane: None, change: LaneChange::Relieve { by: 2, during: Some(HOUR) } });
        }
        if let Timed::Retry = timed {
            let error = InferenceError::new(ErrorClass::Quota(Some(HOUR)), "used up");
            let job = case.out.remove(0);
            let jobs = case.bench.step(Input::Outcome { job: job.id, outcome: Outcome::Inference(Err(error)) });
            case.out = jobs;
        }
        case
    }

    fn command(&mut self, command: Command) {
        let caller = Caller { uid: 1, run: None };
        let jobs = self.bench.step(Input::Command { reply: ReplyId(1), caller, command });
        self.out.extend(jobs);
    }

    fn pass(&mut self, seconds: u64) {
        for _ in 0..seconds / 30 {
            self.bench.micros += 30_000_000;
            let jobs = self.bench.step_without();
            self.out.extend(jobs);
        }
    }

    /// Whether the hour is over, as far as the world is concerned.
    fn is_over(&self, timed: Timed) -> bool {
        let happened = |is: fn(&EventBody) -> bool| self.bench.journal.iter().any(|event| is(&event.body));
        match timed {
            Timed::Deadline | Timed::MaxTime => happened(|body| matches!(body, EventBody::RunStopping { .. })),
            Timed::Retry => !self.out.is_empty(),
            Timed::Relief => happened(|body| matches!(body, EventBody::LaneReliefEnded { .. })),
        }
    }
}

/// B10, A19: a year ahead, a year back, both, for a while or for good; at work, and with a restart.
#[test]
fn what_is_due_after_an_hour_is_due_after_an_hour_that_has_passed_whatever_the_wall_clock_says() {
    let courses: [(&str, &[i64], bool); 8] = [
        ("right", &[0, 0, 0], false),
        ("a year ahead", &[YEAR, YEAR, YEAR], false),
        ("a year ahead and back", &[YEAR, 0, 0], false),
        ("a year back and right again", &[-YEAR, -YEAR, 0], false),
        ("two hours back", &[-7_200, -7_200, -7_200], false),
        ("to and fro", &[YEAR, -YEAR, YEAR], false),
        ("ahead with a restart", &[YEAR, YEAR, 0], true),
        ("back with a restart", &[-YEAR, -YEAR, -YEAR], true),
    ];
    for timed in [Timed::Deadline, Timed::MaxTime, Timed::Retry, Timed::Relief] {
        for (what, course, restarts) in courses {
            let mut case = Case::begin(timed);
            for (part, &off) in course.iter().enumerate() {
                case.bench.off = off;
                case.pass(1_080);
                // What an inference was out for is lost by a restart: that is no span of ours.
                if restarts && part == 1 && !matches!(timed, Timed::MaxTime) {
                    let jobs = case.bench.restart();
                    if !matches!(timed, Timed::Retry) {
                        case.out = jobs;
                    } else {
                        assert!(jobs.is_empty(), "{timed:?}, {what}: it asked before the time");
                    }
                }
                assert!(!case.is_over(timed), "{timed:?}, {what}: over after {} s", (part + 1) * 1_080);
            }
            case.pass(1_200);
            assert!(case.is_over(timed), "{timed:?}, {what}: not over after {} s", 3 * 1_080 + 1_200);
        }
    }
}

/// B10: a deadline at a time of day is at that time, and how long a run has waited is what has passed.
#[test]
fn a_deadline_at_a_time_stays_and_what_has_passed_is_what_has_passed() {
    for (off, ends) in [(0, false), (3_000, false), (YEAR, true), (-YEAR, false), (7_200, true)] {
        let mut bench = Bench::with(Config::default());
        let at = Timestamp::from_micros(1_800_000_000_000_000) + HOUR;
        let limits = Limits { deadline_at: Some(at), ..Limits::default() };
        let script = Some(Arc::new(Script::default()));
        let spec = Arc::new(RunSpec { prompt: Some("go".into()), script, limits, ..RunSpec::default() });
        let command = Command::Submit { spec, idempotency_key: None, known: None, sent: Default::default() };
        let job =
            bench.step(Input::Command { reply: ReplyId(1), caller: Caller { uid: 1, run: None }, command }).remove(0);
        bench.off = off;
        for _ in 0..5 {
            bench.micros += 60_000_000;
            bench.step_without();
        }
        let stopped = bench.journal.iter().any(|event| matches!(event.body, EventBody::RunStopping { .. }));
        assert_eq!(stopped, ends, "{off}");
        let completion = Completion { text: "done".to_owned(), ..Completion::default() };
        bench.step(Input::Outcome { job: job.id, outcome: Outcome::Inference(Ok(completion)) });
        let now = bench.now();
        let view = bench.engine.view(job.id.run, now).unwrap();
        let total = view.timing.total().as_secs();
        assert!((299.0..302.0).contains(&total), "{off}: {total} s");
        let ending = bench.journal.iter().find_map(|event| match &event.body {
            EventBody::RunFinished { ending } => Some(ending.clone()),
            _ => None,
        });
        assert_eq!(matches!(ending, Some(Ending::Succeeded { .. })), !ends, "{off}");
    }
}
