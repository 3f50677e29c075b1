//! Tests the text that is shown of a run while it executes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use serde_json::json;

use super::*;

const CALL: &str = "0000000000001";

struct Shown {
    follower: Follower,
    out: Vec<u8>,
    notes: Vec<u8>,
    /// The bytes that can be fetched.
    file: Vec<u8>,
    seq: u64,
}

impl Shown {
    fn new() -> Self {
        let follower = Follower::new(Look::PLAIN, Paint::OFF, false);
        Self { follower, out: Vec::new(), notes: Vec::new(), file: Vec::new(), seq: 0 }
    }

    fn event(&mut self, mut body: serde_json::Value) -> Option<Ended> {
        self.seq += 1;
        let head = json!({"seq": self.seq, "version": 1, "at": "2026-11-30T11:00:00Z", "run": "0123456789abc",
            "cause": {"via": "harness"}});
        body.as_object_mut().unwrap().extend(head.as_object().unwrap().clone());
        let event: Event = serde_json::from_value(body).unwrap();
        let file = self.file.clone();
        let mut fetch =
            move |_: CallId, _: OutputStream, from: u64| file.get(usize::try_from(from).unwrap()..).map(<[u8]>::to_vec);
        self.follower.event(&mut self.out, &mut self.notes, &event, &mut fetch).unwrap()
    }

    fn delta(&mut self, stream: &str, offset: u64, text: &str) {
        let call = (stream != "text").then_some(CALL);
        let mut delta = json!({"run": "0123456789abc", "stream": stream, "offset": offset, "text": text});
        if let Some(call) = call {
            delta["call"] = json!(call);
        }
        let delta: Delta = serde_json::from_value(delta).unwrap();
        let file = self.file.clone();
        let mut fetch =
            move |_: CallId, _: OutputStream, from: u64| file.get(usize::try_from(from).unwrap()..).map(<[u8]>::to_vec);
        self.follower.delta(&mut self.out, &delta, &mut fetch).unwrap();
    }

    fn said(&mut self, text: &str, command: Option<&str>) {
        let calls: Vec<_> = command
            .map(|command| json!({"call": CALL, "tool": "shell", "args": json!({"command": command}).to_string()}))
            .into_iter()
            .collect();
        let usage = json!({"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0,
            "cache_creation_input_tokens": 0, "reasoning_output_tokens": 0, "cost_usd": null});
        self.event(json!({"kind": "inference-finished", "step": 1, "text": text, "calls": calls, "usage": usage}));
    }

    fn started(&mut self) {
        self.event(json!({"kind": "call-started", "call": CALL}));
    }

    fn finished(&mut self, code: u8, stdout: &str) {
        let stream = |bytes: usize| json!({"bytes": bytes, "omitted": 0, "path": null});
        self.event(json!({"kind": "call-finished", "result": {"call": CALL, "tool": "shell", "exit_code": code,
            "signal": null, "timed_out": false, "cancelled": false, "interrupted": false, "is_error": code != 0,
            "envelope": format!("Exit code: {code}\n{stdout}"), "stdout": stream(stdout.len()), "stderr": stream(0),
            "cpu_seconds": null, "max_rss_bytes": null}}));
    }

    fn text(&self) -> &str {
        std::str::from_utf8(&self.out).unwrap()
    }
}

#[test]
fn a_run_that_has_ended_is_told_from_its_events_alone() {
    let mut shown = Shown::new();
    shown.said("Let me look.", Some("ls"));
    shown.started();
    shown.finished(0, "a\nb\n");
    shown.said("Two files.", None);
    let ended = shown.event(json!({"kind": "run-finished", "ending": {"state": "succeeded", "answer": "Two files."}}));
    assert_eq!(ended.unwrap().code, 0);
    assert_eq!(shown.text(), "| Let me look.\n$ ls\n| a\n| b\nExit code: 0\n| Two files.\n");
    assert_eq!(String::from_utf8(shown.notes).unwrap(), "[succeeded]\n");
}

#[test]
fn live_output_is_not_shown_again_when_the_call_ends() {
    let mut shown = Shown::new();
    shown.said("", Some("make"));
    shown.started();
    shown.delta("stdout", 0, "one\n");
    shown.delta("stdout", 4, "two");
    shown.finished(2, "one\ntwo");
    assert_eq!(shown.text(), "$ make\n| one\n| two\nExit code: 2\n");
}

#[test]
fn a_piece_that_was_dropped_is_fetched() {
    let mut shown = Shown::new();
    shown.file = b"one\ntwo\nthree\n".to_vec();
    shown.said("", Some("make"));
    shown.started();
    shown.delta("stdout", 0, "one\n");
    shown.delta("stdout", 8, "three\n");
    assert_eq!(shown.text(), "$ make\n| one\n| two\n| three\n");
    let mut late = Shown::new();
    late.file = b"one\ntwo\nthree\n".to_vec();
    late.said("", Some("make"));
    late.started();
    late.delta("stdout", 0, "one\n");
    late.finished(0, "one\ntwo\nthree\n");
    assert_eq!(late.text(), "$ make\n| one\n| two\n| three\nExit code: 0\n");
}

#[test]
fn bytes_that_cannot_be_fetched_are_told_as_missing() {
    let mut shown = Shown::new();
    shown.said("", Some("make"));
    shown.started();
    shown.delta("stdout", 100, "tail\n");
    assert_eq!(
        shown.text(),
        "$ make\n[100 bytes are missing here: harnessctl logs has them]\n$ make (goes on)\n| tail\n"
    );
}

#[test]
fn streamed_text_is_completed_by_its_event_and_not_repeated() {
    let mut shown = Shown::new();
    shown.delta("text", 0, "Let ");
    shown.delta("text", 4, "me");
    shown.said("Let me look.", None);
    assert_eq!(shown.text(), "| Let me look.\n");
}

#[test]
fn a_broken_stream_starts_over() {
    let mut shown = Shown::new();
    shown.delta("text", 0, "Let m");
    shown.event(json!({"kind": "inference-failed", "step": 1, "attempt": 1, "error": "cut",
        "retry_at": "2026-11-30T11:00:01Z"}));
    shown.delta("text", 0, "Well, ");
    shown.said("Well, yes.", None);
    assert_eq!(shown.text(), "| Let m\n[the model starts over]\n| Well, yes.\n");
}

#[test]
fn a_question_comes_with_the_way_to_answer_it() {
    let mut shown = Shown::new();
    shown.said("", Some("x"));
    shown.event(
        json!({"kind": "interaction-opened", "interaction": "00000000000qq", "call": CALL, "question": "Which?"}),
    );
    shown.event(json!({"kind": "interaction-settled", "interaction": "00000000000qq", "answer": "the left one"}));
    shown.finished(0, "the left one");
    assert_eq!(shown.text(), "? Which?\n  answer it: harnessctl reply 00000000000qq TEXT\n> the left one\n");
}

#[test]
fn an_answer_that_the_model_did_not_say_last_is_shown() {
    let mut shown = Shown::new();
    shown.event(json!({"kind": "run-finished", "ending": {"state": "succeeded", "answer": "42"}}));
    assert_eq!(shown.text(), "| 42\n");
}

#[test]
fn a_failed_run_ends_with_its_code() {
    let mut shown = Shown::new();
    let ended =
        shown.event(json!({"kind": "run-finished", "ending": {"state": "failed", "error": "no", "exit_code": 9}}));
    assert_eq!(ended.map(|ended| (ended.code, ended.answer)), Some((9, None)));
    assert_eq!(String::from_utf8(shown.notes).unwrap(), "[failed: no (exit code 9)]\n");
}

#[test]
fn a_summary_is_told_of_and_is_not_what_the_model_says() {
    let mut shown = Shown::new();
    shown.event(json!({"kind": "compaction-begun", "step": 2,
        "plan": {"entries": 3, "kept": [0], "shown_bytes": 900, "max_tokens": 128}}));
    let usage = json!({"input_tokens": 1, "output_tokens": 1, "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0, "reasoning_output_tokens": 0, "cost_usd": null});
    shown.event(json!({"kind": "compaction-finished", "step": 2, "text": "in short", "entries": 3, "usage": usage}));
    assert_eq!(shown.text(), "");
    let notes = String::from_utf8(shown.notes).unwrap();
    assert!(
        notes.contains("too long for the model") && notes.ends_with("3 entries were summarised in 8 bytes]\n"),
        "{notes}"
    );
}

#[test]
fn an_addition_to_the_last_text_is_shown_without_the_text() {
    let mut shown = Shown::new();
    shown.said("It holds", None);
    let answer = "It holds\n[cut off by the limit of output tokens]";
    shown.event(json!({"kind": "run-finished", "ending": {"state": "succeeded", "answer": answer}}));
    assert_eq!(shown.text(), "| It holds\n| [cut off by the limit of output tokens]\n");
}
