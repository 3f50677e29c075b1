//! Compares one message of each kind with a golden file. A change of that file is a change that clients see.
#![allow(missing_docs, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use harness_protocol::blob::BlobHash;
use harness_protocol::event::*;
use harness_protocol::folder::{BootId, FolderId};
use harness_protocol::id::*;
use harness_protocol::interaction::*;
use harness_protocol::lane::*;
use harness_protocol::rpc::*;
use harness_protocol::run::*;
use harness_protocol::script::*;
use harness_protocol::spec::*;
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::*;
use serde::Serialize;
use serde_json::value::RawValue;
use strum::VariantArray;

const RUN: RunId = RunId::from_u64(0x1234_5678_9ABC_DEF0);
const CALL: CallId = CallId::from_u64(77);
const INTERACTION: InteractionId = InteractionId::from_u64(88);
const RELIEF: ReliefId = ReliefId::from_u64(99);
const FOLDER: FolderId = FolderId { device: 2049, inode: u64::MAX, boot: Some(BootId::from_u128(0xab)) };
const AT: Timestamp = Timestamp::from_micros(1_796_036_520_000_250);
const SPAN: Span = Span::from_micros(1_500_000);

fn spec() -> Arc<RunSpec> {
    let call = ScriptedCall {
        ask: Some(Arc::new(CallAsk::approval())),
        ..ScriptedCall::new("shell", serde_json::json!({ "command": "true" }))
    };
    let turn = Turn {
        text: "Let me look.".to_owned(),
        calls: vec![call],
        expect: vec!["Exit code: 0".to_owned()],
        expect_regex: vec!["^x".to_owned()],
        capture: BTreeMap::from([("size".to_owned(), "(.*)".to_owned())]),
        delay: Some(SPAN),
        fault: Some(Fault::RateLimit),
    };
    let script =
        Script { turns: vec![turn], scripts: BTreeMap::from([("helper".to_owned(), Arc::new(Script::default()))]) };
    Arc::new(RunSpec {
        prompt: Some("do it".into()),
        prompt_blob: Some(Box::new(BlobHash::new([9; 32]))),
        script_blob: Some(Box::new(BlobHash::new([0xa0; 32]))),
        name: Some("nightly".into()),
        labels: BTreeMap::from([("team".to_owned(), "red".to_owned())]),
        share: Some("batch".into()),
        priority: Priority::High,
        provider: Some("scripted".into()),
        model: Some("small".into()),
        script: Some(Arc::new(script)),
        workdir: Some("/srv".into()),
        workdir_id: Some(FOLDER),
        env: BTreeMap::from([("A".to_owned(), "b".to_owned())]),
        limits: Limits {
            max_steps: Some(3),
            max_tokens: Some(1000),
            max_cost_usd: Some(0.5),
            max_time_seconds: Some(SPAN),
            deadline_seconds: Some(SPAN),
            deadline_at: Some(AT),
            cpu_seconds: Some(60),
            address_space_bytes: Some(1 << 30),
            open_files: Some(256),
            file_size_bytes: Some(1 << 20),
            processes: Some(512),
        },
        on_interaction: OnInteraction::Fail,
        tools: Some(["shell".into()].into()),
    })
}

fn result() -> Arc<CallResult> {
    let stream = StreamInfo { bytes: 3, omitted: 1, path: Some("/state/outputs/a.stdout".into()) };
    Arc::new(CallResult {
        exit_code: Some(124),
        signal: Some(15),
        timed_out: true,
        stdout: Some(stream),
        cpu_seconds: Some(0.25),
        max_rss_bytes: Some(4096),
        ..CallResult::plain(CALL, "shell".into(), "Exit code: 124\n", true)
    })
}

fn request() -> CallRequest {
    CallRequest::new(CALL, "shell", r#"{"command":"true"}"#)
}

fn unusable() -> CallRequest {
    let ask =
        Some(Arc::new(CallAsk { text: Some("may it?".into()), expires_seconds: Some(SPAN), ..CallAsk::approval() }));
    CallRequest { unusable: Some("cut off".into()), ask, ..CallRequest::new(CALL, "shell", "{") }
}

fn carried() -> Option<Arc<Carried>> {
    Some(Arc::new(Carried {
        dialect: "anthropic".into(),
        provider: Some("claude".into()),
        parts: r#"[{"text":2}]"#.into(),
    }))
}

fn events() -> Vec<EventBody> {
    let lane: Arc<str> = "tool".into();
    vec![
        EventBody::DaemonStarted { lanes: vec![LaneWidth { lane: lane.clone(), width: 8 }], last_at: AT, shares: None },
        EventBody::DaemonStarted {
            lanes: Vec::new(),
            last_at: AT,
            shares: Some(vec![LaneShare { name: "default".into(), weight: 1, max: Some(3) }]),
        },
        EventBody::DrainStarted,
        EventBody::DrainEnded,
        EventBody::LaneRelieved { lane: lane.clone(), relief: RELIEF, by: 4, until: Some(AT) },
        EventBody::LaneReliefEnded { lane: lane.clone(), relief: RELIEF, undone: true },
        EventBody::LaneResized { lane: lane.clone(), width: 3 },
        EventBody::LaneConfigured { lane: lane.clone(), width: 3 },
        EventBody::ClockSet { from: Timestamp::from_micros(1) },
        EventBody::LanePaused { lane: lane.clone() },
        EventBody::LaneResumed { lane },
        EventBody::ProviderHeld {
            provider: "local".into(),
            limiter: Limiter::Failing,
            until: Some(AT),
            error: "overloaded".into(),
            probe: true,
        },
        EventBody::ProviderReleased { provider: "local".into(), at_most: Some(1) },
        EventBody::RunSubmitted {
            number: 1,
            owner: 1000,
            parent: Some(RUN),
            retry_of: Some(RUN),
            continues: Some(RUN),
            idempotency_key: Some("key".into()),
            submit_key: Some(SubmitKey::from_u128(7)),
            spec: spec(),
            earlier: [Entry::User { text: "before".into() }].into(),
        },
        EventBody::RunPrepared {
            definitions: Some(
                [ToolDefinition {
                    name: "shell".into(),
                    description: "Executes.".into(),
                    parameters: r#"{"type":"object"}"#.into(),
                    kind: CallKind::ParallelJob,
                }]
                .into(),
            ),
            definitions_blob: None,
        },
        EventBody::RunPrepared { definitions: None, definitions_blob: Some(Box::new(BlobHash::new([7; 32]))) },
        EventBody::StepBegun { step: 1, provider: None, reserve: None },
        EventBody::StepBegun {
            step: 1,
            provider: Some("other".into()),
            reserve: Some(Reserve { tokens: 700, nano_usd: 20_000, answer_tokens: 100 }),
        },
        EventBody::StepPostponed { step: 1, budget_of: RUN, provider: None },
        EventBody::StepPostponed { step: 1, budget_of: RUN, provider: Some("local".into()) },
        EventBody::CompactionBegun {
            step: 1,
            provider: None,
            plan: Arc::new(Compaction { entries: 5, kept: vec![0], shown_bytes: 900, max_tokens: 128 }),
            reserve: None,
        },
        EventBody::CompactionFinished { step: 1, text: "gist".into(), entries: 5, kept: vec![0], usage: usage() },
        EventBody::InferenceStarted { step: 1, attempt: 2 },
        EventBody::InferenceFinished {
            step: 1,
            text: "hm".into(),
            calls: vec![request()],
            usage: usage(),
            carried: None,
            cut: false,
        },
        EventBody::InferenceFinished {
            step: 1,
            text: "hm".into(),
            calls: vec![unusable()],
            usage: usage(),
            carried: carried(),
            cut: true,
        },
        EventBody::InferenceFailed {
            step: 1,
            attempt: 2,
            error: "overloaded".into(),
            retry_at: Some(AT),
            fault: ProviderFault::Failing,
            usage: None,
        },
        EventBody::InferenceFailed {
            step: 1,
            attempt: 3,
            error: "too long".into(),
            retry_at: None,
            fault: ProviderFault::ContextTooLong,
            usage: Some(usage()),
        },
        EventBody::BatchQueued,
        EventBody::BatchParked,
        EventBody::BatchYielded { keeps: 1 },
        EventBody::CallStarted { call: CALL },
        EventBody::CallOffLane { call: CALL },
        EventBody::CallReturning { call: CALL },
        EventBody::CallResumed { call: CALL },
        EventBody::WorkdirFound { folder: FOLDER },
        EventBody::CallInterrupted { call: CALL },
        EventBody::CallWaiting { call: CALL, runs: vec![RUN], any: true },
        EventBody::CallFinished { result: result() },
        EventBody::InteractionOpened {
            interaction: INTERACTION,
            call: CALL,
            question: "which?".into(),
            interaction_kind: InteractionKind::Question,
            subject: None,
            expires_at: None,
        },
        EventBody::InteractionOpened {
            interaction: INTERACTION,
            call: CALL,
            question: "this?".into(),
            interaction_kind: InteractionKind::Approval,
            subject: Some("make".into()),
            expires_at: Some(AT),
        },
        EventBody::InteractionSettled {
            interaction: INTERACTION,
            answer: "this".into(),
            resolution: Resolution::Answered,
            scope: None,
        },
        EventBody::InteractionSettled {
            interaction: INTERACTION,
            answer: "no".into(),
            resolution: Resolution::Denied,
            scope: Some(Scope::Run),
        },
        EventBody::InteractionClosed { interaction: INTERACTION },
        EventBody::Denied { what: "question: which?".into() },
        EventBody::MessageReceived { text: "also".into(), submit_key: None },
        EventBody::MessageReceived { text: "also".into(), submit_key: Some(SubmitKey::from_u128(7)) },
        EventBody::RunPaused,
        EventBody::RunResumed,
        EventBody::RunStopping { reason: StopReason::Deadline, force: true },
        EventBody::RunFinished { ending: Ending::Failed { error: "no".into(), exit_code: 9 } },
        EventBody::RunArchived,
        EventBody::RunsPruned { runs: vec![RunId::from_u64(1)] },
        EventBody::EventsPruned { events: vec![Seq(1), Seq(u64::MAX >> 1)] },
    ]
}

fn usage() -> Usage {
    Usage { input_tokens: 10, output_tokens: 5, cost_usd: Some(0.5), ..Usage::default() }
}

fn run() -> RunView {
    let spec = spec();
    RunView {
        schema: RUN_SCHEMA.to_owned(),
        id: RUN,
        name: spec.name.clone(),
        root: RUN,
        parent: None,
        retry_of: Some(RUN),
        continues: None,
        labels: spec.labels.clone(),
        share: "batch".into(),
        priority: Priority::High,
        owner: 1000,
        state: RunState::Waiting,
        waiting_for: Some(WaitingFor {
            kind: WaitKind::Person,
            id: INTERACTION.to_string(),
            since: AT,
            position: Some(1),
            limiter: Some(Limiter::Quota),
            until: Some(AT),
            runs: Some(41),
            error: Some("no credit".into()),
            because: Some(Box::new(HeldRun {
                run: RUN,
                share: "batch".into(),
                waiting_for: WaitingFor::new(WaitKind::Paused, "", AT),
                inference: None,
            })),
        }),
        workdir: "/srv".into(),
        env: vec!["PATH".to_owned()],
        provider: "scripted".into(),
        model: None,
        title: "do it".to_owned(),
        steps: 1,
        limits: spec.limits.clone(),
        on_interaction: OnInteraction::Wait,
        submitted_at: AT,
        started_at: Some(AT),
        ended_at: None,
        stop_requested_at: None,
        answer: None,
        error: None,
        exit_code: None,
        usage: usage(),
        usage_tree: usage(),
        timing: Timing { waiting: SPAN, down: SPAN, ..Timing::default() },
        denials: vec!["question: which?".to_owned()],
        inference: Some(InferenceView {
            attempt: 2,
            attempts: 10,
            error: "overloaded".into(),
            fault: ProviderFault::Failing,
            failed_at: AT,
            next_at: Some(AT),
        }),
        stand_in: Some("other".into()),
        calls: vec![LiveCall {
            call: CALL,
            tool: "ask_user".into(),
            summary: "which?".to_owned(),
            state: CallState::Asking,
            since: AT,
        }],
        questions: Vec::new(),
        cut: vec![CutField::Denials],
    }
}

fn lane() -> LaneReport {
    LaneReport {
        schema: LANE_SCHEMA.to_owned(),
        name: "tool".into(),
        width: 12,
        configured_width: 8,
        wanted: 0,
        queued: 1,
        busy: 2,
        parked: 3,
        resuming: 4,
        permits: 2,
        saturated: true,
        saturated_since: Some(AT),
        limiter: Limiter::Width,
        paused: false,
        held: Some(LaneHold {
            limiter: Some(Limiter::Failing),
            since: AT,
            until: Some(AT),
            error: "overloaded".into(),
        }),
        reliefs: vec![ReliefView { id: RELIEF, by: 4, since: AT, until: None }],
        saturation: [1.0, 0.5, 0.25],
        queue_wait: QueueWait { count: 1, p50_seconds: SPAN, ..QueueWait::default() },
        oldest_queued_seconds: Some(SPAN),
        granted_total: 7,
        shares: vec![ShareReport {
            share: "default".into(),
            weight: 1,
            max: None,
            wanted: 0,
            queued: 1,
            busy: 2,
            parked: 3,
            resuming: 4,
            permits: 2,
        }],
        holders: vec![Holder {
            run: RUN,
            run_name: None,
            call: Some(CALL),
            tool: "shell".into(),
            command: "true".to_owned(),
            since: AT,
        }],
    }
}

fn line(text: &mut String, name: &str, value: &impl Serialize) {
    writeln!(text, "{name}\n    {}", serde_json::to_string(value).unwrap()).unwrap();
}

#[test]
fn the_wire_is_what_the_golden_file_says() {
    let mut text = String::new();
    let mut kinds = BTreeSet::new();
    for body in events() {
        let cause = Cause { via: Via::Socket, uid: Some(1000), by_run: Some(RUN) };
        kinds.insert(body.kind());
        let event = Event { seq: Seq(5), version: EVENT_VERSION, at: AT, run: Some(RUN), cause, body };
        line(&mut text, event.body.kind(), &event);
        let read: Event = serde_json::from_str(&serde_json::to_string(&event).unwrap()).unwrap();
        assert_eq!(read, event);
    }
    assert_eq!(kinds, EVENT_KINDS.iter().copied().collect(), "one of every kind is here");
    line(&mut text, "run", &run());
    line(
        &mut text,
        "entries",
        &[
            Entry::User { text: "hi".into() },
            Entry::assistant("hm", vec![request()]),
            Entry::Assistant { text: "hm".into(), calls: vec![unusable()], carried: carried(), cut: true },
            Entry::Result { result: result() },
            Entry::Summary { text: "gist".into(), entries: 3, kept: vec![0] },
        ],
    );
    line(&mut text, "lane", &lane());
    line(
        &mut text,
        "lane changed",
        &LaneChanged { lane: "tool".into(), width_before: 8, width: 12, relief: Some(RELIEF), note: None },
    );
    line(&mut text, "submitted", &Submitted { id: RUN, seq: Seq(5), existing: false });
    line(
        &mut text,
        "changed",
        &Changed { runs: vec![RUN], unchanged: vec![Unchanged::new(RUN, UnchangedReason::HasFailed)], not_listed: 0 },
    );
    line(&mut text, "answered", &Answered { interaction: INTERACTION, run: RUN });
    line(&mut text, "output", &OutputReply { offset: 1, bytes: vec![0, 255], total: 3, live: true });
    let delta = Delta { run: RUN, call: Some(CALL), stream: DeltaStream::Stdout, offset: 3, text: "hi".to_owned() };
    line(&mut text, "delta", &Notification::Delta { subscription: SubscriptionId(1), delta: Arc::new(delta) });
    line(
        &mut text,
        "gap",
        &Notification::Gap { subscription: SubscriptionId(1), gap: Gap { from: Seq(1), to: Seq(2), reason: None } },
    );
    let error = RpcError::new(ErrorKind::Busy, "try later").retry_after(SPAN);
    let error = error.because(Reason::TooManyMessages, Subject::Run(RUN));
    line(&mut text, "error", &Response::<Empty>::new(Some(RequestId::Number(1)), Err(error)));
    line(&mut text, "methods", &METHODS);
    insta::assert_snapshot!("wire", text);
}

/// Parameters as clients write them, by method: these stay readable.
#[test]
fn every_method_reads_the_parameters_that_its_clients_write() {
    let written = [
        ("daemon.hello", r#"{"protocol_major":1,"client":"test"}"#),
        ("daemon.status", "{}"),
        ("daemon.drain", r#"{"timeout_seconds":5}"#),
        ("daemon.undrain", "{}"),
        ("daemon.stop", "{}"),
        ("daemon.reload", "{}"),
        ("daemon.backup", r#"{"to":"/tmp/copy.db"}"#),
        ("run.submit", r#"{"spec":{"prompt":"hi","limits":{"max_steps":3}},"idempotency_key":"k"}"#),
        ("run.list", r#"{"select":{"labels":{"a":"b"},"states":["failed"]},"limit":10,"cursor":5}"#),
        ("run.show", r#"{"run":"@last","transcript":true}"#),
        ("run.wait", r#"{"run":"x","for":["waiting"],"timeout_seconds":1.5}"#),
        ("run.output", r#"{"run":"x","call":"000000000002d","stream":"stdout","offset":-10}"#),
        ("run.cancel", r#"{"select":{"runs":["x"]},"force":true}"#),
        ("run.pause", r#"{"select":{"all":true}}"#),
        ("run.resume", r#"{"select":{"all":true}}"#),
        ("run.retry", r#"{"run":"x"}"#),
        ("run.message", r#"{"run":"x","text":"and?"}"#),
        ("run.export", r#"{"run":"@last","limit":10,"cursor":5}"#),
        ("run.prune", r#"{"select":{"states":["failed"]},"older_than_seconds":86400,"keep":10,"dry_run":true}"#),
        ("blob.get", r#"{"hash":"e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","offset":10}"#),
        ("interaction.list", "{}"),
        ("interaction.answer", r#"{"interaction":"x","answer":"this"}"#),
        ("interaction.answer", r#"{"interaction":"x","answer":"","resolution":"allowed","scope":"always"}"#),
        ("lane.list", "{}"),
        ("lane.relieve", r#"{"by":4,"for_seconds":60}"#),
        ("lane.resize", r#"{"lane":"tool","width":4}"#),
        ("lane.pause", "{}"),
        ("lane.resume", "{}"),
        ("provider.list", "{}"),
        ("provider.check", r#"{"provider":"local","model":"m"}"#),
        ("event.subscribe", r#"{"after":0,"kinds":["run-finished"],"deltas":true}"#),
        ("event.unsubscribe", r#"{"subscription":1}"#),
    ];
    let names: BTreeSet<&str> = written.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, METHODS.iter().copied().collect(), "one of every method is here");
    for (method, params) in written {
        let params = RawValue::from_string(params.to_owned()).unwrap();
        assert!(Call::parse(method, Some(&params)).is_ok(), "{method} {params}");
    }
}

/// A8: every event with times, sizes, floats and texts at their bounds is read back as it was, on the wire and by its
/// kind.
#[test]
fn what_was_written_at_its_bounds_is_read_back() {
    let times = [0, 1, 999_999, u64::MAX / 2, u64::MAX].map(Timestamp::from_micros);
    let sizes = [0, 1, (1 << 53) + 1, u64::from(u32::MAX), u64::MAX];
    let floats = [0.0, -0.0, f64::MIN_POSITIVE, 5e-324, 0.1 + 0.2, 1e15 + 0.3, f64::MAX];
    let texts = ["", "\u{0}\u{1f}\u{7f}\u{85}\u{2028}", "\"\\\n,\"nth\":7}", "\u{10ffff}\u{feff}", "\u{202e}x"];
    let mut read = 0;
    for at in times {
        for size in sizes {
            for float in floats {
                for text in texts {
                    let usage = Usage { input_tokens: size, cost_usd: Some(float), ..Usage::default() };
                    let small = u32::try_from(size).unwrap_or(u32::MAX);
                    let bodies = [
                        EventBody::LaneRelieved { lane: text.into(), relief: RELIEF, by: small, until: Some(at) },
                        EventBody::InferenceFailed {
                            step: small,
                            attempt: small,
                            error: text.into(),
                            retry_at: Some(at + Span::from_micros(size)),
                            fault: ProviderFault::RateLimit,
                            usage: Some(usage),
                        },
                        EventBody::InferenceFinished {
                            step: small,
                            text: text.into(),
                            calls: Vec::new(),
                            usage,
                            carried: None,
                            cut: true,
                        },
                        EventBody::DaemonStarted { lanes: Vec::new(), last_at: at, shares: None },
                        EventBody::MessageReceived { text: text.into(), submit_key: None },
                    ];
                    for body in bodies {
                        let cause = Cause { via: Via::Socket, uid: Some(small), by_run: Some(RunId::from_u64(size)) };
                        let event = Event { seq: Seq(size), version: u16::MAX, at, run: Some(RUN), cause, body };
                        let text = serde_json::to_string(&event).unwrap();
                        assert_eq!(serde_json::from_str::<Event>(&text).unwrap(), event, "{text}");
                        let body = serde_json::to_string(&event.body).unwrap();
                        assert_eq!(EventBody::of_kind(event.body.kind(), &body).unwrap(), event.body, "{body}");
                        read += 1;
                    }
                }
            }
        }
    }
    assert_eq!(read, 4375);
}

#[test]
fn a_word_is_the_same_on_the_wire_and_for_people() {
    fn words<T: Serialize + Copy>(all: &[T], word: impl Fn(T) -> &'static str) {
        for &one in all {
            assert_eq!(serde_json::to_value(one).unwrap(), word(one));
        }
    }
    words(RunState::VARIANTS, RunState::as_str);
    words(WaitKind::VARIANTS, WaitKind::as_str);
    words(EpochReason::VARIANTS, EpochReason::as_str);
    words(Limiter::VARIANTS, Limiter::as_str);
}
