//! Long texts: runs with the same one share it, and each has the name of its own.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;

use harness_protocol::event::EventBody;
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;

use super::answers::{Bench, inference};
use crate::blob;
use crate::prompt::{Completion, RequestedCall};
use crate::world::api::{Caller, Command, Input, JobId, ReplyId};
use crate::world::model::indexes::Texts;

const OPERATOR: Caller = Caller { uid: 1, run: None };

fn long(letter: &str) -> String {
    letter.repeat(4_096)
}

fn script(text: &str) -> Script {
    toml::from_str(&format!("[[turn]]\ntext = '{text}'\n[script.child]\n[[script.child.turn]]\ntext = '{text}'"))
        .unwrap()
}

/// Submits a run whose texts are its own copies, as each request has them. Gives its first inference, if that begins.
fn submit(bench: &mut Bench, prompt: &str, script: &Script) -> Option<JobId> {
    let (prompt, script) = (Some(prompt.into()), Some(Arc::new(script.clone())));
    let spec = Arc::new(RunSpec { prompt, script, workdir: Some("/".into()), ..RunSpec::default() });
    let command = Command::Submit { spec, idempotency_key: None, known: None, sent: Default::default() };
    let mut jobs = bench.step(Input::Command { reply: ReplyId(1), caller: OPERATOR, command });
    (!jobs.is_empty()).then(|| inference(&mut jobs).0)
}

/// The specifications of all runs so far, in the order of their submits.
fn specs(bench: &Bench) -> Vec<Arc<RunSpec>> {
    let spec = |body: &EventBody| match body {
        EventBody::RunSubmitted { spec, .. } => Some(Arc::clone(spec)),
        _ => None,
    };
    bench.journal.iter().filter_map(|event| spec(&event.body)).collect()
}

fn is_named_rightly(spec: &RunSpec) -> bool {
    spec.prompt_blob.as_deref() == spec.prompt.as_deref().map(blob::hash).as_ref()
}

#[test]
fn a_thousand_waiting_runs_of_one_prompt_and_script_hold_one_of_each() {
    let mut bench = Bench::new();
    let script = script(&long("s"));
    for _ in 0..1_000 {
        let _ = submit(&mut bench, &long("p"), &script);
    }
    let specs = specs(&bench);
    assert_eq!(specs.len(), 1_000);
    let (prompt, script) = (specs[0].prompt.as_ref().unwrap(), specs[0].script.as_ref().unwrap());
    assert!(specs.iter().all(|spec| Arc::ptr_eq(spec.prompt.as_ref().unwrap(), prompt)));
    assert!(specs.iter().all(|spec| Arc::ptr_eq(spec.script.as_ref().unwrap(), script)));
    assert!(is_named_rightly(&specs[0]));
}

#[test]
fn short_texts_have_no_name_and_are_not_held_for_others() {
    let mut bench = Bench::new();
    let _ = submit(&mut bench, "go", &Script::default());
    let specs = specs(&bench);
    assert_eq!((&specs[0].prompt_blob, &specs[0].script_blob), (&None, &None));
    assert_eq!(bench.engine.world.resource::<Texts>(), &Texts::default());
}

/// The names of the run that it comes from are those of other texts.
#[test]
fn a_child_and_a_run_that_goes_on_with_another_prompt_have_the_names_of_their_own_texts() {
    let mut bench = Bench::new();
    let job = submit(&mut bench, &long("p"), &script(&long("s"))).unwrap();
    let args = format!(r#"{{"prompt": "{}", "script": "child"}}"#, long("c"));
    let calls = vec![RequestedCall::new("spawn_agent", &args)];
    let jobs = bench.answer(job, Completion { calls, ..Completion::default() });
    let parent = jobs.into_iter().find(|next| next.id.run == job.run).unwrap();
    bench.answer(parent.id, Completion { text: "done".to_owned(), ..Completion::default() });
    let text: Arc<str> = long("m").into();
    let command = Command::Message { run: job.run.to_string(), text, left: None, sent: Default::default() };
    bench.step(Input::Command { reply: ReplyId(2), caller: OPERATOR, command });
    let specs = specs(&bench);
    let [first, child, later] = &specs[..] else { panic!("{} runs", specs.len()) };
    let prompts = [first, child, later].map(|spec| spec.prompt.as_deref().unwrap().chars().next().unwrap());
    assert_eq!(prompts, ['p', 'c', 'm']);
    assert!([first, child, later].into_iter().all(|spec| is_named_rightly(spec)));
    let json = serde_json::to_string(child.script.as_ref().unwrap()).unwrap();
    assert_eq!(child.script_blob.as_deref(), Some(&blob::hash(&json)));
    assert_eq!(first.script_blob, later.script_blob);
}

/// A run of a journal without names is repeated under its key by a submit that has them.
#[test]
fn the_same_submit_under_a_key_is_the_same_run_with_and_without_names() {
    let mut bench = Bench::new();
    let keyed = |bench: &mut Bench| {
        let spec = RunSpec {
            prompt: Some(long("p").into()),
            script: Some(Arc::default()),
            workdir: Some("/".into()),
            ..RunSpec::default()
        };
        let idempotency_key = Some("key".into());
        let command = Command::Submit { spec: Arc::new(spec), idempotency_key, known: None, sent: Default::default() };
        bench.step(Input::Command { reply: ReplyId(1), caller: OPERATOR, command });
    };
    keyed(&mut bench);
    for event in &mut bench.journal {
        if let EventBody::RunSubmitted { spec, .. } = &mut Arc::make_mut(event).body {
            Arc::make_mut(spec).prompt_blob = None;
        }
    }
    bench.restart();
    keyed(&mut bench);
    assert_eq!(specs(&bench).len(), 1);
}
