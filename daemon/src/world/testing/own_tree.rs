//! Tests of what a run learns of runs outside of its tree: nothing, whatever it asks and whatever runs there are.
#![cfg(test)]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use harness_protocol::event::{Cause, Ending, Event, EventBody, Via};
use harness_protocol::id::{RunId, Seq};
use harness_protocol::rpc::ListParams;
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;
use harness_protocol::time::{Span, Timestamp};
use proptest::prelude::*;

use super::answers::Bench;
use crate::config::Config;
use crate::prompt::{Completion, RequestedCall};
use crate::refusal::Refusal;
use crate::world::Engine;
use crate::world::api::{Caller, Command, Effect, Input, Now, ReplyId, Task};

const UID: u32 = 7;
const NAMES: [&str; 6] = ["nightly", "worker", "beef", "7k3f", "x", "b-1"];

/// A run of a made-up world.
#[derive(Debug, Clone)]
struct Run {
    id: u64,
    /// The run above it, by its place among those of its tree.
    parent: Option<usize>,
    name: Option<&'static str>,
    key: Option<&'static str>,
    has_ended: bool,
}

/// A tree; its top is live.
fn tree() -> impl Strategy<Value = Vec<Run>> {
    let name = proptest::option::of(proptest::sample::select(&NAMES[..]));
    let key = proptest::option::of(Just("key"));
    let run = (any::<u64>(), any::<prop::sample::Index>(), name, key, any::<bool>());
    prop::collection::vec(run, 1..6).prop_map(|runs| {
        let run = |(place, (id, above, name, key, has_ended)): (usize, (u64, prop::sample::Index, _, _, bool))| Run {
            id,
            parent: (place > 0).then(|| above.index(place)),
            name,
            key,
            has_ended: has_ended && place > 0,
        };
        runs.into_iter().enumerate().map(run).collect()
    })
}

/// Runs of other trees: some of the ids begin as those of the tree do.
fn others(tree: &[Run]) -> impl Strategy<Value = Vec<Run>> + use<> {
    let ids: Vec<u64> = tree.iter().map(|run| run.id).collect();
    let id = (any::<u64>(), 0..64u32, prop::sample::select(ids)).prop_map(|(new, same, id)| {
        // The first bits are those of a run of the tree.
        if same == 0 { new } else { (id >> (64 - same) << (64 - same)) | (new >> same) }
    });
    let name = proptest::option::of(proptest::sample::select(&NAMES[..]));
    let run = (id, any::<prop::sample::Index>(), any::<bool>(), name, proptest::option::of(Just("key")), any::<bool>());
    prop::collection::vec(run, 1..8).prop_map(|runs| {
        let run = |(place, (id, above, is_child, name, key, has_ended))| Run {
            id,
            parent: (is_child && place > 0).then(|| prop::sample::Index::index(&above, place)),
            name,
            key,
            has_ended,
        };
        runs.into_iter().enumerate().map(run).collect()
    })
}

/// The events of trees, of which the runs are submitted by turns.
fn events(trees: &[&[Run]]) -> Vec<Event> {
    let longest = trees.iter().map(|tree| tree.len()).max().unwrap_or(0);
    let by_turns = (0..longest).flat_map(|place| trees.iter().filter_map(move |tree| Some((tree, tree.get(place)?))));
    let runs: Vec<_> = by_turns.collect();
    let mut events = Vec::new();
    let mut happened = |run: &Run, body| {
        let seq = events.len() as u64 + 1;
        events.push(Event {
            seq: Seq(seq),
            version: 1,
            at: Timestamp::from_micros(seq),
            run: Some(RunId::from_u64(run.id)),
            cause: Cause { via: Via::Socket, uid: Some(UID), by_run: None },
            body,
        });
    };
    for (number, (tree, run)) in (1..).zip(&runs) {
        let spec = RunSpec { name: run.name.map(Arc::from), ..RunSpec::default() };
        let body = EventBody::RunSubmitted {
            number,
            owner: UID,
            parent: run.parent.map(|above| RunId::from_u64(tree[above].id)),
            retry_of: None,
            continues: None,
            idempotency_key: run.key.map(Arc::from),
            submit_key: None,
            spec: Arc::new(spec),
            earlier: Arc::default(),
        };
        happened(run, body);
    }
    for (_, run) in runs.iter().filter(|(_, run)| run.has_ended) {
        happened(run, EventBody::RunFinished { ending: Ending::Succeeded { answer: "done".into() } });
    }
    events
}

fn world(trees: &[&[Run]]) -> Engine {
    let mut config = Config::default();
    config.limits.depth = 100;
    Engine::rebuild(config, crate::tools::catalogue(), 7, &events(trees))
}

/// All pages of a list of the tree, by id.
fn pages(engine: &Engine, top: RunId) -> Vec<Vec<RunId>> {
    let now = Now { wall: Timestamp::from_micros(1_000), mono: Span::ZERO };
    let mut pages = Vec::new();
    let mut cursor = None;
    loop {
        let params = ListParams { limit: Some(2), cursor, ..ListParams::default() };
        let listed = engine.list(&params, Some(top), now);
        pages.push(listed.runs.iter().map(|run| run.shown.run()).collect());
        if listed.down_to == 0 {
            return pages;
        }
        cursor = Some(listed.down_to);
    }
}

/// What a run is told that submits a child of this name, under this key. `None` is that there is one.
fn submitted(engine: &mut Engine, run: RunId, name: &str, key: Option<&str>) -> Option<Refusal> {
    let script = Some(Arc::new(Script::default()));
    let spec = RunSpec { name: Some(name.into()), script, prompt: Some("go".into()), ..RunSpec::default() };
    let command = Command::Submit {
        spec: Arc::new(spec),
        idempotency_key: key.map(Arc::from),
        known: None,
        sent: Default::default(),
    };
    let caller = Caller { uid: UID, run: Some(run) };
    let now = Now { wall: Timestamp::from_micros(1_000), mono: Span::ZERO };
    let step = engine.step(now, vec![Input::Command { reply: ReplyId(1), caller, command }]);
    let reply = step.effects.into_iter().find_map(|effect| match effect {
        Effect::Reply { reply, .. } => Some(reply),
        _ => None,
    });
    reply.unwrap().err()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Numbers count over the whole daemon: those of events, and the cursors of lists. Nothing else of a reply differs.
    #[test]
    fn what_a_run_is_told_does_not_depend_on_runs_outside_of_its_tree(
        (own, other) in tree().prop_flat_map(|own| { let other = others(&own); (Just(own), other) }),
        asks in any::<prop::sample::Index>(),
        chosen in any::<prop::sample::Index>(),
        key in proptest::option::of(Just("key")),
    ) {
        prop_assume!(!other.iter().any(|run| own.iter().any(|mine| mine.id == run.id)));
        // Two live runs of operators never have the same name.
        let mut other = other;
        other.iter_mut().filter(|run| run.parent.is_none() && run.name == own[0].name).for_each(|run| run.name = None);
        let (mut alone, mut among) = (world(&[&own]), world(&[&own, &other]));
        let run = RunId::from_u64(own[asks.index(own.len())].id);
        let caller = Caller { uid: UID, run: Some(run) };
        let ids: Vec<String> = own.iter().chain(&other).map(|run| RunId::from_u64(run.id).to_string()).collect();
        let beginnings = ids.iter().flat_map(|id| (1..=id.len()).map(|length| id[..length].to_owned()));
        let names = NAMES.into_iter().chain(["@last", "none", ""]).map(str::to_owned);
        let all: Vec<String> = beginnings.chain(ids.iter().map(|id| id.to_uppercase())).chain(names).collect();
        for name in &all {
            prop_assert_eq!(alone.find(name, caller), among.find(name, caller), "{}", name);
        }
        let top = RunId::from_u64(own[0].id);
        prop_assert_eq!(pages(&alone, top), pages(&among, top));
        let name = &all[chosen.index(all.len())];
        let told = [&mut alone, &mut among].map(|engine| submitted(engine, run, name, key));
        prop_assert_eq!(&told[0], &told[1], "{}", name);
    }
}

/// A model asks as a process does.
#[test]
fn a_model_is_told_the_same_of_every_run_outside_of_its_tree() {
    let ask = |name: fn(&str) -> &str| {
        let mut bench = Bench::new();
        let (other, _) = bench.submit();
        let (job, _) = bench.submit();
        let id = other.run.to_string();
        let name = name(&id);
        let calls = vec![RequestedCall::new("wait_for_agent", format!(r#"{{"agent":"{name}"}}"#))];
        let jobs = bench.answer(job, Completion { calls, ..Completion::default() });
        assert!(matches!(jobs[0].task, Task::Inference(_)), "{name}");
        let told = format!("Refused: no run {name:?} in the caller's own tree, and a run sees no other.");
        assert_eq!(bench.results(), [(told, true)]);
    };
    let names: [fn(&str) -> &str; 6] =
        [|id| id, |id| &id[..8], |id| &id[..1], |_| "@last", |_| "nightly", |_| "0000000000000"];
    names.into_iter().for_each(ask);
}
