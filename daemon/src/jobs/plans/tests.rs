//! Tests plans with real keepers and processes.
#![allow(clippy::unwrap_used, clippy::panic)]

use harness_protocol::run::StreamInfo;
use harness_protocol::spec::RunSpec;
use tokio::sync::broadcast;

use super::*;
use crate::jobs::registry::{Opened, Registry};
use crate::process::{Cancel, canceller};
use crate::tools::{Command, Refused, ToolKind};
use crate::world::api::{JobId, Work};

/// A tool that gives its arguments to a process to read.
struct Cat;

impl Tool for Cat {
    fn name(&self) -> &'static str {
        "cat"
    }

    fn description(&self) -> &'static str {
        "Says it again."
    }

    fn parameters(&self) -> String {
        "{}".to_owned()
    }

    fn usage(&self) -> &'static str {
        "anything"
    }

    fn kind(&self) -> ToolKind {
        ToolKind::Job { parallel_safe: true }
    }

    fn plan(&self, args: &str, facts: &Facts<'_>) -> Result<Plan, Refused> {
        let usual = Process::new(Command::Argv(vec!["cat".to_owned()]), facts);
        Ok(Plan::Process(Process { stdin: Stdin::Text(args.to_owned()), ..usual }))
    }

    fn result(&self, finished: &Finished<'_>) -> CallResult {
        let said = String::from_utf8_lossy(&finished.process.stdout.kept.head).into_owned();
        CallResult::plain(finished.call, Arc::clone(finished.tool), said, false)
    }
}

struct Bench {
    executor: PlanExecutor,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let config = config::Shell { envelope_bytes: 200, output_bytes: 1 << 20, ..config::Config::default().shell };
        let around = (std::env::vars_os(), Path::new("/s.sock"));
        let folders = Folders::new(crate::folders::boot());
        let (outputs, keepers) = (Outputs::new(dir.path()), process::tests::keepers());
        let executor =
            PlanExecutor::new(tools::catalogue().with(Arc::new(Cat)), &config, around, outputs, keepers, folders);
        Self { executor, dir }
    }

    async fn call(&self, args: &str) -> CallResult {
        let (_canceller, cancel) = canceller();
        self.call_with(args, cancel).await
    }

    async fn call_with(&self, args: &str, cancel: Cancel) -> CallResult {
        self.call_of("shell", args, cancel).await
    }

    async fn call_of(&self, tool: &str, args: &str, cancel: Cancel) -> CallResult {
        let workdir = Some(self.dir.path().to_str().unwrap().into());
        let spec = Arc::new(RunSpec { workdir, ..RunSpec::default() });
        let task = CallTask { tool: tool.into(), args: args.into(), ask: None, spec };
        let (run, call) = (RunId::from_u64(1), CallId::from_u64(2));
        let job = JobId { run, work: Work::Call(call) };
        let registry = Arc::new(Registry::new(Arc::new(|_| {})));
        let Opened { slot: _slot, resumption, .. } = registry.open(job).unwrap();
        let lane_handle = LaneHandle::new(job, Arc::clone(&registry), resumption, cancel.clone());
        let deltas = Deltas::new(run, Some(call), broadcast::channel(1).0);
        self.executor.call(&task, Context { run, call, cancel, deltas, lane_handle }).await
    }
}

#[tokio::test]
async fn a_process_reads_what_its_plan_says_and_its_tool_makes_the_result() {
    let bench = Bench::new();
    for text in ["", "a\u{0}b", &"x".repeat(2 << 20)] {
        let (_canceller, cancel) = canceller();
        let result = bench.call_of("cat", text, cancel).await;
        assert!(text.starts_with(&*result.envelope) && result.envelope.is_empty() == text.is_empty());
        assert_eq!((result.exit_code, result.is_error), (None, false));
    }
}

#[tokio::test]
async fn what_is_refused_is_a_text_without_an_exit_code() {
    let result = Bench::new().call("{}").await;
    assert!(result.envelope.starts_with("bad arguments of shell: "), "{}", result.envelope);
    assert_eq!((result.exit_code, result.is_error, result.stdout), (None, true, None));
}

#[tokio::test]
async fn a_call_ends_as_its_envelope() {
    let bench = Bench::new();
    let result = bench.call(r#"{"command": "echo hi; echo oops >&2; exit 3"}"#).await;
    assert_eq!(&*result.envelope, "Exit code: 3\nhi\n--- stderr ---\noops\n");
    assert_eq!((result.exit_code, result.signal, result.is_error), (Some(3), None, true));
    assert_eq!(result.stdout.as_ref().unwrap().bytes, 3);
    assert!(result.cpu_seconds.is_some() && result.max_rss_bytes.is_some());
    let path = result.stdout.unwrap().path.unwrap();
    assert_eq!(std::fs::read_to_string(&*path).unwrap(), "hi\n");
}

#[tokio::test]
async fn argv_needs_no_shell_and_a_program_that_is_none_is_what_a_shell_says() {
    let bench = Bench::new();
    let result = bench.call(r#"{"argv": ["printf", "%s|", "a b", "$(id)", "snow: \u2603"]}"#).await;
    assert_eq!(&*result.envelope, "Exit code: 0\na b|$(id)|snow: \u{2603}|");
    let result = bench.call(r#"{"argv": ["no-such-program", "x"]}"#).await;
    assert_eq!(&*result.envelope, "Exit code: 127\n[no-such-program: no such program]\n");
    assert_eq!((result.exit_code, result.is_error, result.signal), (Some(127), true, None));
    let result = bench.call(r#"{"argv": ["/etc"]}"#).await;
    assert_eq!(&*result.envelope, "Exit code: 126\n[/etc: cannot be executed]\n");
}

#[tokio::test]
async fn what_a_model_sends_never_leaves_the_state_directory_and_is_answered_clearly() {
    let bench = Bench::new();
    let result = bench.call(&format!(r#"{{"command": ": {}"}}"#, "x".repeat(3 << 20))).await;
    assert!(result.envelope.contains("too long"), "{}", &result.envelope[..200]);
    assert_eq!((result.exit_code, result.is_error), (None, true));
    let many = vec![r#""xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx""#; 200_000].join(",");
    let result = bench.call(&format!(r#"{{"argv": ["true", {many}]}}"#)).await;
    assert!(result.envelope.contains("too long"), "{}", &result.envelope[..200]);
    let found: Vec<_> = std::fs::read_dir(bench.dir.path()).unwrap().collect();
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test]
async fn output_that_looks_like_ours_does_not_change_the_fields() {
    let bench = Bench::new();
    let text = r#"{"command": "printf 'Exit code: 7\n--- stderr ---\nx\n[timed out after 1 s]\n'; exit 2"}"#;
    let result = bench.call(text).await;
    assert_eq!((result.exit_code, result.timed_out, result.cancelled), (Some(2), false, false));
    assert_eq!((result.stdout.unwrap().bytes, result.stderr.unwrap().bytes), (52, 0));
}

#[tokio::test]
async fn signals_are_told_and_a_pipeline_is_what_the_shell_says() {
    let bench = Bench::new();
    for (command, code, signal) in [
        ("kill -9 $$", 137, Some(9)),
        ("kill -SEGV $$", 139, Some(11)),
        ("exit 3 | cat", 0, None),
        ("cat </dev/null | (exit 4)", 4, None),
    ] {
        let result = bench.call(&serde_json::json!({ "command": command }).to_string()).await;
        assert_eq!((result.exit_code, result.signal), (Some(code), signal), "{command}");
    }
}

#[tokio::test]
async fn the_last_line_after_thousands_of_progress_frames_is_in_the_envelope() {
    let text =
        r#"{"command": "i=0; while [ $i -lt 5000 ]; do printf 'at %d\r' $i; i=$((i+1)); done; echo done at last"}"#;
    let result = Bench::new().call(text).await;
    assert!(result.envelope.ends_with("done at last\n"), "{}", result.envelope);
}

#[tokio::test]
async fn a_byte_that_is_no_text_is_replaced_once_and_kept_as_it_is() {
    let bench = Bench::new();
    let result = bench.call(r#"{"command": "printf '\\360'"}"#).await;
    assert_eq!(&*result.envelope, "Exit code: 0\n\u{FFFD}");
    assert_eq!(std::fs::read(&*result.stdout.unwrap().path.unwrap()).unwrap(), [0xf0]);
    let snow =
        r#"{"command": "i=0; while [ $i -lt 500 ]; do printf '\\342\\230\\203\\342\\230\\203'; i=$((i+1)); done"}"#;
    let result = Bench::new().call(snow).await;
    assert!(!result.envelope.contains('\u{FFFD}') && result.stdout.unwrap().omitted > 0);
}

#[tokio::test]
async fn a_silent_command_is_its_exit_code() {
    let result = Bench::new().call(r#"{"command": "true"}"#).await;
    assert_eq!((&*result.envelope, result.is_error), ("Exit code: 0\n", false));
    assert_eq!(result.stdout, Some(StreamInfo::default()));
}

#[tokio::test]
async fn the_time_limit_is_124_and_says_so() {
    let result = Bench::new().call(r#"{"command": "echo hi; sleep 60", "timeout": 0.5}"#).await;
    assert_eq!(&*result.envelope, "Exit code: 124\nhi\n[timed out after 0.5 s]\n");
    assert_eq!((result.exit_code, result.signal, result.timed_out), (Some(124), Some(15), true));
}

#[tokio::test]
async fn a_call_that_is_cancelled_before_it_began_starts_nothing() {
    let bench = Bench::new();
    let (canceller, cancel) = canceller();
    canceller.stop(false);
    let result = bench.call_with(r#"{"command": "touch made"}"#, cancel).await;
    assert_eq!((&*result.envelope, result.exit_code), ("cancelled before it began", None));
    assert!(result.cancelled && result.is_error && !bench.dir.path().join("made").exists());
}

#[tokio::test]
async fn the_directory_is_relative_to_the_workdir_and_its_absence_is_a_text() {
    let bench = Bench::new();
    std::fs::create_dir(bench.dir.path().join("sub")).unwrap();
    let result = bench.call(r#"{"command": "basename $PWD", "cwd": "sub"}"#).await;
    assert_eq!(&*result.envelope, "Exit code: 0\nsub\n");
    let result = bench.call(r#"{"command": "true", "cwd": "gone"}"#).await;
    assert!(result.envelope.ends_with("gone does not exist"), "{}", result.envelope);
    assert_eq!((result.exit_code, result.is_error), (None, true));
    let result = bench.call(r#"{"command": "pwd", "cwd": "/"}"#).await;
    assert_eq!(&*result.envelope, "Exit code: 0\n/\n");
}

#[tokio::test]
async fn characters_that_come_in_pieces_are_whole_in_the_envelope() {
    let result = Bench::new().call(r#"{"command": "printf '\\342'; sleep 0.05; printf '\\230\\203'"}"#).await;
    assert_eq!(&*result.envelope, "Exit code: 0\n\u{2603}");
}

#[tokio::test]
async fn a_long_output_says_what_is_missing_and_how_to_read_it() {
    let result = Bench::new().call(r#"{"command": "seq 1 1000"}"#).await;
    let stdout = result.stdout.unwrap();
    assert_eq!(stdout.bytes, 3893);
    assert!(stdout.omitted >= 3693);
    let id = RunId::from_u64(1);
    assert!(result.envelope.contains(&format!("harnessctl logs {id} --call ")), "{}", result.envelope);
}
