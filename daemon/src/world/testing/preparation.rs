//! Tests that a run is prepared once: what its model is told of tools stays the same, whatever changes around it.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use harness_protocol::event::EventBody;
use harness_protocol::id::RunId;
use harness_protocol::spec::SpecChanges;

use super::answers::{Bench, inference};
use crate::prompt::{Completion, RequestedCall};
use crate::tools::testing::ParallelDouble;
use crate::tools::{Catalogue, catalogue};
use crate::world::api::{Caller, Command, InferenceTask, Input, JobId, ReplyId, Task};

const OPERATOR: Caller = Caller { uid: 1, run: None };

fn count(bench: &Bench, kind: &str) -> usize {
    bench.journal.iter().filter(|event| event.body.kind() == kind).count()
}

/// Without the tools of today, and with one more.
fn others() -> [Catalogue; 2] {
    [Catalogue::default(), catalogue().with(Arc::new(ParallelDouble))]
}

fn retry(bench: &mut Bench, run: RunId) -> (JobId, InferenceTask) {
    let (changes, sent) = (Box::<SpecChanges>::default(), Default::default());
    let command = Command::Retry { run: run.to_string(), changes, takes_child: false, left: None, sent };
    inference(&mut bench.step(Input::Command { reply: ReplyId(2), caller: OPERATOR, command }))
}

#[test]
fn every_inference_of_a_run_and_of_its_retry_is_built_from_one_event_also_under_other_tools() {
    for other in others() {
        let mut bench = Bench::new();
        let (mut job, first) = bench.submit();
        assert_eq!(count(&bench, "run-prepared"), 1);
        for _ in 0..3 {
            let (next, task) = inference(&mut bench.restart_with(other.clone()));
            assert_eq!(task.tools, first.tools);
            job = next;
        }
        bench.answer(job, Completion { text: "done".to_owned(), ..Completion::default() });
        assert_eq!(retry(&mut bench, job.run).1.tools, first.tools);
        assert_eq!(count(&bench, "run-prepared"), 2);
        // A run that comes from no other one has the tools of today.
        assert_eq!(&bench.submit().1.tools, other.specs());
    }
}

#[test]
fn runs_with_the_same_tools_name_one_text_and_share_it() {
    let mut bench = Bench::new();
    bench.submit();
    bench.submit();
    bench.restart_with(Catalogue::default());
    bench.submit();
    bench.restart();
    bench.submit();
    let told = bench.journal.iter().filter_map(|event| match &event.body {
        EventBody::RunPrepared { definitions, definitions_blob } => {
            Some((definitions.clone(), definitions_blob.clone()))
        }
        _ => None,
    });
    let told: Vec<_> = told.collect();
    let [first, second, other, fourth] = &told[..] else { panic!("{} runs are prepared", told.len()) };
    assert!(first.1.is_some() && first == second && first == fourth && first != other);
    assert!(Arc::ptr_eq(first.0.as_ref().unwrap(), second.0.as_ref().unwrap()));
}

/// A journal of a version that prepared no run.
#[test]
fn a_run_that_was_never_prepared_is_prepared_before_its_next_inference() {
    let mut bench = Bench::new();
    bench.submit();
    bench.journal.retain(|event| !matches!(event.body, EventBody::RunPrepared { .. }));
    let (_, task) = inference(&mut bench.restart());
    assert_eq!(&task.tools, catalogue().specs());
    assert_eq!(count(&bench, "run-prepared"), 1);
}

#[test]
fn a_call_is_of_the_kind_that_its_run_was_prepared_with() {
    let mut bench = Bench::new();
    bench.restart_with(others()[1].clone());
    let (job, _) = bench.submit();
    let calls = ["read", "read", "novel"].map(|tool| RequestedCall::new(tool, "{}")).to_vec();
    let mut jobs = bench.answer(job, Completion { calls, ..Completion::default() });
    assert_eq!(jobs.len(), 2, "both execute side by side");
    // That tool is gone, and what has begun goes on to its end.
    let _ = bench.restart();
    let results = bench.journal.iter().filter(|event| event.body.kind() == "call-finished").count();
    assert_eq!(results, 3, "two were interrupted, one is unknown");
    let Some(Task::Call(task)) = jobs.pop().map(|job| job.task) else { panic!("a call") };
    assert_eq!(&*task.tool, "read");
}
