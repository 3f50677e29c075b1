//! The tool `shell`: executes a command through `sh -c`, or a program with its arguments, and returns the result as an
//! envelope.
//!
//! Owns the arguments and the result. A mistake of the model, or a command that cannot start, gives the model a plain
//! text without an exit code. It must never fail the run.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use harness_protocol::envelope::{Kept, render};
use harness_protocol::folder::FolderId;
use harness_protocol::id::{CallId, RunId};
use harness_protocol::limit::CallLimits;
use harness_protocol::run::{CallResult, StreamInfo};
use harness_protocol::spec::RunSpec;
use harness_protocol::time::Span;
use serde::Deserialize;

use super::environment::Environment;
use super::limits::{self, Ended, Told};
use crate::config;
use crate::fair_queue::Party;
use crate::folders::{Folders, LookError};
use crate::process::{
    self, Bounds, Cancel, Captured, Finished, Keepers, Launch, OnPiece, Outputs, Program, SpawnError,
};

/// A summary of the arguments, for a model whose arguments were wrong.
const USAGE: &str =
    r#"{"command": "…"} or {"argv": ["…", …]}, and if need be "timeout": seconds, "cwd": "…", "tty": true"#;
/// The exit code of what the time limit ended, however it then died.
const TIMED_OUT: u8 = 124;

/// What a call asks of the tool.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// The tool, by the name that it was asked for.
    pub tool: &'a Arc<str>,
    /// The arguments, as JSON text.
    pub args: &'a str,
    /// Where the call starts, and with which variables.
    pub spec: &'a RunSpec,
}

/// The shell tool.
#[derive(Debug)]
pub struct Shell {
    timeout: Span,
    keep: usize,
    quota: u64,
    limits: CallLimits,
    environment: Environment,
    outputs: Outputs,
    keepers: Arc<Keepers>,
    folders: Folders,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Args {
    command: Option<String>,
    argv: Option<Vec<String>>,
    timeout: Option<Span>,
    cwd: Option<String>,
    #[serde(default)]
    tty: bool,
}

impl Shell {
    /// The tool as configured. `own` is the daemon's environment, `socket` the one that calls find the daemon by.
    pub fn new(
        config: &config::Shell,
        own: impl IntoIterator<Item = (OsString, OsString)>,
        socket: &Path,
        outputs: Outputs,
        keepers: Arc<Keepers>,
        folders: Folders,
    ) -> Self {
        Self {
            timeout: config.timeout,
            keep: usize::try_from(config.envelope_bytes).unwrap_or(usize::MAX),
            quota: config.output_bytes,
            limits: config.limits,
            environment: Environment::new(own, socket),
            outputs,
            keepers,
            folders,
        }
    }

    /// Device and inode that the working directory of a run is to have in this boot, where that is known. After another
    /// boot it is looked which device it is on now; `on_found` is told.
    async fn folder(
        &self,
        run: RunId,
        (spec, directory): (&RunSpec, &Path),
        cancel: &mut Cancel,
        on_found: &(dyn Fn(FolderId) + Sync),
    ) -> Result<Option<(u64, u64)>, String> {
        let Some(kept) = spec.workdir_id else { return Ok(None) };
        if kept.is_of_boot(self.folders.boot()) {
            return Ok(Some((kept.device, kept.inode)));
        }
        let path = workdir(spec);
        let found = tokio::select! {
            biased;
            _ = cancel.wanted() => return Err("cancelled before it began".to_owned()),
            found = self.folders.look(Party::Run(run), path, ()) => found,
        };
        let found = match found {
            Ok(found) => found,
            // It has a place of its own.
            Err(LookError::NotOpened(_)) if directory.is_absolute() => return Ok(None),
            Err(error) => return Err(format!("the working directory {path} {error}")),
        };
        let (wanted, there) = ((kept.device, kept.inode), (found.device, found.inode));
        if !kept.is(&found) {
            return Err(SpawnError::OtherFolder { dir: path.into(), wanted, found: there }.to_string());
        }
        on_found(found);
        Ok(Some(there))
    }

    /// Executes a call to its end.
    pub async fn call(
        &self,
        run: RunId,
        call: CallId,
        asked: Asked<'_>,
        cancel: &mut Cancel,
        on_piece: OnPiece<'_>,
        on_found: &(dyn Fn(FolderId) + Sync),
    ) -> CallResult {
        let plain = |text: String| CallResult::plain(call, asked.tool.clone(), text, true);
        let args = match parse(asked.args) {
            Ok(args) => args,
            Err(why) => return plain(format!("bad arguments of {}: {why}; it takes {USAGE}", asked.tool)),
        };
        if cancel.is_wanted() {
            return CallResult { cancelled: true, ..plain("cancelled before it began".to_owned()) };
        }
        let timeout = args.timeout.unwrap_or(self.timeout);
        let (workdir, directory) = (Path::new(workdir(asked.spec)), Path::new(args.cwd.as_deref().unwrap_or_default()));
        let folder = match self.folder(run, (asked.spec, directory), cancel, on_found).await {
            Ok(folder) => folder,
            Err(why) => return CallResult { cancelled: cancel.is_wanted(), ..plain(why) },
        };
        let env = self.environment.of_call(&asked.spec.env, run, call);
        let program = match (&args.command, &args.argv) {
            (Some(command), _) => Program::Shell(command),
            (None, argv) => Program::Argv(argv.as_deref().unwrap_or_default()),
        };
        let limits = CallLimits::from(&asked.spec.limits).or(self.limits);
        let launch = Launch { program, workdir, folder, directory, env: &env, tty: args.tty, input: None, limits };
        let bounds = Bounds { timeout: timeout.to_std(), keep: self.keep };
        let outputs = self.outputs.of_call(run, call, self.quota);
        match process::run(launch, bounds, run, &self.keepers, &outputs, cancel, on_piece).await {
            Ok(finished) => result(run, call, asked.tool.clone(), finished, timeout, &limits),
            Err(error) => match error.exit_code() {
                Some(code) => not_run(call, asked.tool.clone(), code, &error.to_string()),
                None => plain(error.to_string()),
            },
        }
    }
}

fn parse(text: &str) -> Result<Args, String> {
    let args: Args = serde_json::from_str(text).map_err(|error| error.to_string())?;
    match (&args.command, &args.argv) {
        (Some(_), Some(_)) => return Err("it has both command and argv".to_owned()),
        (None, None) => return Err("it has neither command nor argv".to_owned()),
        (None, Some(argv)) if argv.first().is_none_or(String::is_empty) => {
            return Err("argv does not begin with a program".to_owned());
        }
        _ => {}
    }
    let texts = args.command.iter().chain(args.argv.iter().flatten());
    if texts.into_iter().any(|text| text.contains('\0')) {
        return Err("the command has a NUL byte".to_owned());
    }
    if args.cwd.as_ref().is_some_and(|cwd| cwd.contains('\0')) {
        return Err("the directory has a NUL byte".to_owned());
    }
    if args.timeout == Some(Span::ZERO) {
        return Err("the timeout must be more than 0 seconds".to_owned());
    }
    Ok(args)
}

/// A submit that names no directory has its calls start at the root.
fn workdir(spec: &RunSpec) -> &str {
    spec.workdir.as_deref().unwrap_or("/")
}

fn result(
    run: RunId,
    call: CallId,
    tool: Arc<str>,
    finished: Finished,
    limit: Span,
    limits: &CallLimits,
) -> CallResult {
    let Finished { end, timed_out, cancelled, children_ended, left_running, keeper_lost, grouped, stdout, stderr } =
        finished;
    let Some(end) = end else {
        if keeper_lost {
            let text = "the process of the harness that keeps this call was killed, so everything that the call had started \
                        was ended; its end was not seen";
            let plain = CallResult::plain(call, tool, text, true);
            return CallResult { stdout: Some(info(&stdout, 0)), stderr: Some(info(&stderr, 0)), ..plain };
        }
        let text = "its process could not be ended and its end was not seen; it may still be running";
        let plain = CallResult::plain(call, tool, text, true);
        return CallResult { timed_out, cancelled, ..plain };
    };
    let exit_code = if timed_out { TIMED_OUT } else { end.code };
    let ended = Ended { code: exit_code, cpu: end.cpu, grouped, streams: [&stdout.kept, &stderr.kept] };
    let met = if cancelled { None } else { limits::told(ended, limits) };
    let (of_limits, met) = met.map_or((None, None), |Told { text, met }| (Some(text), met));
    let note = note(timed_out.then_some(limit), of_limits, cancelled, children_ended);
    let how_to_read = how_to_read(run, call, [&stdout.kept, &stderr.kept]);
    let envelope = render(exit_code, &stdout.kept, &stderr.kept, note.as_deref(), &how_to_read);
    CallResult {
        call,
        tool,
        exit_code: Some(exit_code),
        signal: end.signal,
        timed_out,
        cancelled,
        left_running,
        interrupted: false,
        is_error: exit_code != 0,
        envelope: envelope.text.into(),
        stdout: Some(info(&stdout, envelope.stdout_omitted)),
        stderr: Some(info(&stderr, envelope.stderr_omitted)),
        cpu_seconds: Some(end.cpu.as_secs_f64()),
        max_rss_bytes: Some(end.max_rss_bytes),
        limit: met,
    }
}

/// A program that is not there or is none: what a shell would say of it.
fn not_run(call: CallId, tool: Arc<str>, exit_code: u8, why: &str) -> CallResult {
    let none = Kept::default();
    let envelope = render(exit_code, &none, &none, Some(why), "").text;
    CallResult { exit_code: Some(exit_code), ..CallResult::plain(call, tool, envelope, true) }
}

fn info(captured: &Captured, omitted: u64) -> StreamInfo {
    let path = captured.file.as_ref().map(|path| path.to_string_lossy().into());
    StreamInfo { bytes: captured.kept.total(), omitted, path }
}

fn note(timed_out_after: Option<Span>, limit: Option<String>, cancelled: bool, children_ended: bool) -> Option<String> {
    let mut note = String::new();
    if let Some(limit) = timed_out_after {
        let _ = write!(note, "timed out after {} s", limit.as_secs());
    }
    if let Some(limit) = limit {
        let _ = write!(note, "{}{limit}", if note.is_empty() { "" } else { "; " });
    }
    for (holds, words) in [(cancelled, "cancelled"), (children_ended, "background children ended")] {
        if holds {
            let _ = write!(note, "{}{words}", if note.is_empty() { "" } else { "; " });
        }
    }
    (!note.is_empty()).then_some(note)
}

fn how_to_read(run: RunId, call: CallId, streams: [&Kept; 2]) -> String {
    if streams.iter().all(|kept| kept.omitted == 0) {
        return String::new();
    }
    format!("read them with: harnessctl logs {run} --call {call}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::process::canceller;

    struct Bench {
        shell: Shell,
        dir: tempfile::TempDir,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let config = config::Shell {
                pass: Vec::new(),
                timeout: Span::from_secs(60),
                envelope_bytes: 200,
                output_bytes: 1 << 20,
                limits: CallLimits::default(),
            };
            let own = std::env::vars_os();
            let outputs = Outputs::new(dir.path());
            let folders = Folders::new(crate::folders::boot());
            let keepers = process::tests::keepers();
            let shell = Shell::new(&config, own, Path::new("/s.sock"), outputs, keepers, folders);
            Self { shell, dir }
        }

        async fn call(&self, args: &str) -> CallResult {
            let (_canceller, cancel) = canceller();
            self.call_with(args, cancel).await
        }

        async fn call_with(&self, args: &str, mut cancel: Cancel) -> CallResult {
            let workdir = Some(self.dir.path().to_str().unwrap().into());
            let spec = RunSpec { workdir, ..RunSpec::default() };
            let asked = Asked { tool: &"shell".into(), args, spec: &spec };
            let (run, call) = (RunId::from_u64(1), CallId::from_u64(2));
            self.shell.call(run, call, asked, &mut cancel, &mut |_, _, _| {}, &|_| {}).await
        }
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
    async fn bad_arguments_are_a_text_without_an_exit_code() {
        let bench = Bench::new();
        for (args, why) in [
            ("", "EOF"),
            ("[]", "invalid"),
            ("{}", "neither command nor argv"),
            (r#"{"argv": []}"#, "does not begin with a program"),
            (r#"{"argv": ["true"], "command": "true"}"#, "both command and argv"),
            (r#"{"argv": ["true", "a\u0000b"]}"#, "NUL"),
            (r#"{"command": "\ud800"}"#, "hex escape"),
            (r#"{"command": "true", "__proto__": {}}"#, "unknown field"),
            (r#"{"command": "true", "timeout": 0}"#, "more than 0"),
            (r#"{"command": "true", "timeout": -1}"#, "not negative"),
            (r#"{"command": "true", "timeout": "soon"}"#, "invalid type"),
            (r#"{"command": "true", "shell": "zsh"}"#, "unknown field `shell`"),
            (r#"{"command": "a\u0000b"}"#, "NUL"),
            (r#"{"command": "true", "cwd": "a\u0000b"}"#, "NUL"),
        ] {
            let result = bench.call(args).await;
            assert!(result.envelope.starts_with("bad arguments of shell: "), "{}", result.envelope);
            assert!(result.envelope.contains(why), "{args}: {}", result.envelope);
            assert_eq!((result.exit_code, result.is_error, result.stdout), (None, true, None));
        }
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

    #[test]
    fn notes_are_one_line() {
        assert_eq!(note(None, None, false, false), None);
        assert_eq!(
            note(Some(Span::from_secs(1)), None, false, true).unwrap(),
            "timed out after 1 s; background children ended"
        );
        assert_eq!(note(None, None, true, false).unwrap(), "cancelled");
        assert_eq!(note(None, Some("the limit".to_owned()), true, false).unwrap(), "the limit; cancelled");
    }
}
