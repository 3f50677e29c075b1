//! Tests that no text in a run, a lane, an event or a status controls a terminal, or passes for a line of ours,
//! whichever function renders it.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use harness_protocol::event::{Cause, Delta, DeltaStream, EVENT_VERSION, Ending, Event, EventBody, ProviderFault};
use harness_protocol::id::{CallId, InteractionId, RunId, Seq};
use harness_protocol::interaction::{InteractionKind, Resolution};
use harness_protocol::lane::{LaneHold, Limiter};
use harness_protocol::rpc::{DaemonStatusReply, ProcessView};
use harness_protocol::run::{CallRequest, CallResult, CallState, Entry, LiveCall, OpenQuestion, Usage};
use harness_protocol::spec::RunSpec;
use harness_protocol::terminal_safe::{is_bidi, is_control, is_invisible};
use harness_protocol::time::Timestamp;
use proptest::prelude::*;

use crate::render::colour::Paint;
use crate::render::follow::Follower;
use crate::render::quote;
use crate::render::result_line::Outcome;
use crate::render::style::Look;
use crate::render::table::Table;
use crate::render::{lane, run, screen, status, text, time_and_usage, transcript};

const TERMINAL: Look = Look { paint: Paint::OFF, terminal: true, width: Some(200) };

/// Texts with characters that control terminals, reorder lines or are invisible, between letters.
fn hostile() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "a",
        "é",
        "日",
        " ",
        "\n",
        "\r\n",
        "\r",
        "\t",
        "\x1b[2J",
        "\x1b]0;title\x07",
        "\x1b[31m",
        "\x1b(0",
        "\u{9b}2J",
        "\u{9d}x\u{9c}",
        "\u{85}",
        "\u{7f}",
        "\x08",
        "\0",
        "\x0e",
        "\u{202e}",
        "\u{2066}",
        "\u{2069}",
        "\u{200e}",
        "\u{61c}",
        "\u{200b}",
        "\u{200d}",
        "\u{2060}",
        "\u{feff}",
        "\u{2028}",
        "\u{2029}",
        "\u{e0041}",
        "\u{fe0f}",
        "\u{ad}",
        "\u{1f600}",
    ]);
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

fn harmless(what: &str, shown: &[u8]) -> Result<(), TestCaseError> {
    let shown = std::str::from_utf8(shown).map_err(|error| TestCaseError::fail(error.to_string()))?;
    let found = shown.chars().find(|&c| (is_control(c) && c != '\n' && c != '\t') || is_bidi(c) || is_invisible(c));
    prop_assert!(found.is_none(), "{what} shows {found:?}: {shown:?}");
    Ok(())
}

fn event(body: EventBody) -> Event {
    let (run, at) = (Some(RunId::from_u64(1)), Timestamp::default());
    Event { seq: Seq(1), version: EVENT_VERSION, at, run, cause: Cause::HARNESS, body }
}

fn entries(text: &str) -> Vec<Entry> {
    let (call, text): (_, Arc<str>) = (CallId::from_u64(1), text.into());
    let result = |code| CallResult {
        exit_code: code,
        ..CallResult::plain(call, Arc::clone(&text), format!("Exit code: 1\n{text}"), true)
    };
    let args = serde_json::json!({"command": &*text}).to_string();
    vec![
        Entry::User { text: Arc::clone(&text) },
        Entry::Summary { text: Arc::clone(&text), entries: 1, kept: Vec::new() },
        Entry::assistant(
            Arc::clone(&text),
            vec![
                CallRequest::new(call, Arc::clone(&text), args.as_str()),
                CallRequest::new(call, Arc::clone(&text), Arc::clone(&text)),
            ],
        ),
        Entry::Result { result: Arc::new(result(Some(1))) },
        Entry::Result { result: Arc::new(result(None)) },
    ]
}

/// Every event that has a text.
fn bodies(text: &str) -> Vec<EventBody> {
    let (call, interaction, text): (_, _, Arc<str>) = (CallId::from_u64(1), InteractionId::from_u64(1), text.into());
    let provider = Some(Arc::clone(&text));
    let spec = Arc::new(RunSpec { prompt: Some(Arc::clone(&text)), ..RunSpec::default() });
    let failed = |fault| EventBody::InferenceFailed {
        step: 1,
        attempt: 1,
        error: Arc::clone(&text),
        retry_at: None,
        fault,
        usage: None,
    };
    let settled =
        |resolution| EventBody::InteractionSettled { interaction, answer: Arc::clone(&text), resolution, scope: None };
    let asked = CallRequest::new(call, Arc::clone(&text), Arc::clone(&text));
    vec![
        EventBody::RunSubmitted {
            number: 1,
            owner: 1,
            parent: None,
            retry_of: None,
            continues: None,
            idempotency_key: None,
            submit_key: None,
            spec,
            earlier: Arc::default(),
        },
        EventBody::StepBegun { step: 1, provider, reserve: None },
        failed(ProviderFault::Failing),
        failed(ProviderFault::ContextTooLong),
        EventBody::InferenceFinished {
            step: 1,
            text: Arc::clone(&text),
            calls: vec![asked],
            usage: Usage::default(),
            carried: None,
            cut: false,
        },
        EventBody::CallStarted { call },
        EventBody::InteractionOpened {
            interaction,
            call,
            question: Arc::clone(&text),
            interaction_kind: InteractionKind::Approval,
            subject: Some(Arc::clone(&text)),
            expires_at: None,
        },
        settled(Resolution::Answered),
        settled(Resolution::Denied),
        EventBody::CallFinished {
            result: Arc::new(CallResult::plain(call, Arc::clone(&text), Arc::clone(&text), true)),
        },
        EventBody::Denied { what: Arc::clone(&text) },
        EventBody::MessageReceived { text: Arc::clone(&text), submit_key: None },
        EventBody::RunFinished { ending: Ending::Succeeded { answer: Arc::clone(&text) } },
        EventBody::RunFinished { ending: Ending::Failed { error: Arc::clone(&text), exit_code: 1 } },
        EventBody::RunFinished { ending: Ending::Cancelled { error: text } },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// Entry A17 in `tests/README.md`.
    #[test]
    fn no_text_of_a_run_drives_the_terminal_that_it_is_shown_on(hostile in hostile(), other in hostile()) {
        let shown: Arc<str> = hostile.as_str().into();
        let mut view = run::tests::sample();
        view.name = Some(Arc::clone(&shown));
        view.labels = [(hostile.clone(), other.clone())].into();
        (view.share, view.provider, view.model) = (Arc::clone(&shown), Arc::clone(&shown), Some(Arc::clone(&shown)));
        (view.workdir, view.title, view.denials) = (Arc::clone(&shown), hostile.clone(), vec![other.clone()]);
        (view.answer, view.error) = (Some(Arc::clone(&shown)), Some(other.as_str().into()));
        if let Some(waits) = &mut view.waiting_for {
            waits.id = hostile.clone();
        }
        view.calls = vec![LiveCall {
            call: CallId::from_u64(1),
            tool: Arc::clone(&shown),
            summary: other.clone(),
            state: CallState::Executing,
            since: view.submitted_at,
        }];
        let now = view.submitted_at;
        let mut out = Vec::new();
        run::write(&mut out, TERMINAL, &view, now).unwrap();
        run::write_processes(&mut out, TERMINAL, &[ProcessView { pid: 1, command: hostile.clone() }]).unwrap();
        time_and_usage::write(&mut out, TERMINAL, &view).unwrap();
        out.extend(run::waiting_for(&view.clone().into(), now).bytes());
        out.extend(Outcome::of(&view).line("id").bytes());
        let mut table = Table::new(&["A", "B"]);
        table.row(vec![hostile.as_str().into(), other.as_str().into()]);
        table.write(&mut out, TERMINAL, "").unwrap();
        for entry in entries(&hostile) {
            transcript::write(&mut out, TERMINAL, &entry).unwrap();
        }
        harmless("a run", &out)?;
    }

    /// Entry A17 in `tests/README.md`.
    #[test]
    fn no_event_drives_the_terminal_that_it_is_followed_on(hostile in hostile(), pieces in hostile()) {
        for last in bodies(&hostile) {
            let mut follower = Follower::new(TERMINAL, Paint::OFF, true);
            let (mut out, mut notes) = (Vec::new(), Vec::new());
            let mut fetch = |_, _, _| Some(pieces.clone().into_bytes());
            for body in bodies(&hostile).into_iter().take(7).chain([last]) {
                follower.event(&mut out, &mut notes, &event(body), &mut fetch).unwrap();
                for stream in [DeltaStream::Text, DeltaStream::Stdout, DeltaStream::Stderr] {
                    let call = (stream != DeltaStream::Text).then(|| CallId::from_u64(1));
                    let delta = Delta { run: RunId::from_u64(1), call, stream, offset: 0, text: pieces.clone() };
                    follower.delta(&mut out, &delta, &mut fetch).unwrap();
                }
            }
            harmless("a run that is followed", &out)?;
            harmless("its notes", &notes)?;
        }
    }

    /// Entry A17 in `tests/README.md`.
    #[test]
    fn no_lane_and_no_status_drives_the_terminal_that_it_is_shown_on(hostile in hostile()) {
        let shown: Arc<str> = hostile.as_str().into();
        let mut one = lane::tests::sample();
        one.name = Arc::clone(&shown);
        one.shares[1].share = Arc::clone(&shown);
        let now = one.holders[0].since;
        one.held = Some(LaneHold { limiter: Some(Limiter::Quota), since: now, until: None, error: Arc::clone(&shown) });
        (one.holders[0].run_name, one.holders[0].tool) = (Some(Arc::clone(&shown)), Arc::clone(&shown));
        one.holders[0].command = hostile.clone();
        let mut out = Vec::new();
        lane::write(&mut out, TERMINAL, &one, now).unwrap();
        for line in screen::screen(TERMINAL, &[one.clone(), one], now, 60) {
            out.extend(line.bytes());
        }
        let told = serde_json::json!({"schema": "harness.status/1", "version": hostile, "protocol": "1.0", "pid": 7,
            "started_at": "2026-11-30T11:00:00Z", "health": "held", "held": hostile, "socket": hostile,
            "state_dir": hostile, "socket_activated": false, "runs": {"succeeded": 3}, "pending": 0, "executing": 0,
            "last_seq": 9, "connections": 1, "rss_bytes": null, "open_files": null});
        let told: DaemonStatusReply = serde_json::from_value(told).unwrap();
        status::write(&mut out, TERMINAL, &told, told.started_at).unwrap();
        // A note may have our own colours.
        out.extend(text::clean_painted(&hostile).replace("\x1b[31m", "").bytes());
        out.extend(text::why("failed", &hostile).bytes());
        harmless("a lane or a status", &out)?;
    }
}

/// What each function of this program shows of a run, a lane or a failure that has this text wherever others say it.
fn shown_of(text: &str, look: Look) -> Vec<(&'static str, String)> {
    let said: Arc<str> = text.into();
    let mut view = run::tests::sample();
    view.title = text.to_owned();
    view.labels = [("label".to_owned(), text.to_owned())].into();
    view.model = Some(Arc::clone(&said));
    (view.workdir, view.denials) = (Arc::clone(&said), vec![text.to_owned()]);
    (view.answer, view.error) = (Some(Arc::clone(&said)), Some(Arc::clone(&said)));
    let asks = |id, run| OpenQuestion {
        id: InteractionId::from_u64(id),
        run: RunId::from_u64(run),
        question: text.to_owned(),
        kind: InteractionKind::Question,
    };
    // It asks itself, and so does a run below it.
    view.questions = vec![asks(0x2f7, 1), asks(2, 2)];
    let waits = view.waiting_for.as_mut().unwrap();
    waits.id = view.questions[0].id.to_string();
    let process = ProcessView { pid: 1, command: text.to_owned() };
    let call = LiveCall {
        call: CallId::from_u64(1),
        tool: Arc::clone(&said),
        summary: text.to_owned(),
        state: CallState::Executing,
        since: view.submitted_at,
    };
    view.calls = vec![call];
    let now = view.submitted_at;
    let of = |write: &dyn Fn(&mut Vec<u8>) -> std::io::Result<()>| {
        let mut out = Vec::new();
        write(&mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    let mut shown = vec![
        ("show", of(&|out| run::write(out, look, &view, now))),
        ("show, processes", of(&|out| run::write_processes(out, look, std::slice::from_ref(&process)))),
        ("show --why", of(&|out| time_and_usage::write(out, look, &view))),
        ("wait", Outcome::of(&view).line("id")),
        ("the prompt", quote::behind(look, "? run 1 asks: ", text)),
        ("why it failed", text::why("failed", text)),
    ];
    let mut table = Table::new(&["ID", "TITLE", "MORE"]);
    table.row(vec!["1".into(), text.into(), text.into()]);
    shown.push(("list and pending", table.lines(look, "").join("\n")));
    let mut one = lane::tests::sample();
    one.held = Some(LaneHold { limiter: Some(Limiter::Quota), since: now, until: None, error: Arc::clone(&said) });
    for limiter in [Limiter::Quota, Limiter::Width] {
        one.limiter = limiter;
        one.holders[0].command = text.to_owned();
        shown.push(("lane", of(&|out| lane::write(out, look, &one, now))));
    }
    shown.extend(entries(text).iter().map(|entry| ("logs", of(&|out| transcript::write(out, look, entry)))));
    for last in bodies(text) {
        let mut follower = Follower::new(look, Paint::OFF, true);
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let mut fetch = |_, _, _| Some(text.to_owned().into_bytes());
        for body in bodies(text).into_iter().take(7).chain([last]) {
            follower.event(&mut out, &mut notes, &event(body), &mut fetch).unwrap();
            for stream in [DeltaStream::Text, DeltaStream::Stdout, DeltaStream::Stderr] {
                let call = (stream != DeltaStream::Text).then(|| CallId::from_u64(1));
                let mut offset = 0;
                for piece in text.split_inclusive(' ') {
                    let delta = Delta { run: RunId::from_u64(1), call, stream, offset, text: piece.to_owned() };
                    follower.delta(&mut out, &delta, &mut fetch).unwrap();
                    offset += piece.len() as u64;
                }
            }
        }
        shown.push(("follow", String::from_utf8(out).unwrap()));
        shown.push(("follow, notes", String::from_utf8(notes).unwrap()));
    }
    shown
}

/// A model, a tool and a server may say what they like: no row that they fill looks like one of ours.
#[test]
fn no_text_of_others_passes_for_a_line_of_ours() {
    const FORGED: &str = "FORGED";
    let after_a_row = format!("{}{FORGED} $ rm", "x".repeat(198));
    let texts = [
        format!("{FORGED} one"),
        format!("well?\n{FORGED}: run 0123456789abc succeeded\n{FORGED}\n"),
        format!("\n\n\n{FORGED} ? your password?\n  {FORGED} answer it: harnessctl reply 1 TEXT"),
        format!("a\r\n{FORGED}\r\n\t{FORGED} Exit code: 0\n"),
        format!("a\n\n{FORGED} [succeeded]\n\n{FORGED} $ ls"),
        after_a_row,
    ];
    for look in [TERMINAL, Look::PLAIN] {
        for text in &texts {
            for (what, shown) in shown_of(text, look) {
                let row = shown.lines().find(|row| row.trim_start().starts_with(FORGED));
                assert!(row.is_none(), "{what}, {text:?}: {row:?} in\n{shown}");
                if look.terminal && (what == "logs" || what == "follow") {
                    let longest = shown.lines().map(text::width).max().unwrap_or(0);
                    assert!(longest <= 200, "{what}: {longest} columns: {shown}");
                }
            }
        }
    }
}
