//! Describes the end of a process as an envelope for the model: its exit code, its output, and notes on how it ended.

use std::fmt::Write as _;
use std::sync::Arc;

use harness_protocol::envelope::{Kept, render};
use harness_protocol::id::{CallId, RunId};
use harness_protocol::run::{CallResult, StreamInfo};
use harness_protocol::time::Span;

use super::Finished;
use super::limits_met::{self, Ended, Told};
use crate::process::{Captured, Finished as ProcessFinished};

/// The exit code of what the time limit ended, however it then died.
const TIMED_OUT: u8 = 124;
/// What is said of children that SIGKILL does not end.
const STUCK: &str = "background children killed: they execute nothing any more, and wait for a file system that does \
                     not answer";

/// The envelope of a command.
pub(super) fn of_command(finished: &Finished<'_>) -> CallResult {
    let Finished { run, call, plan, process, .. } = *finished;
    let tool = Arc::clone(finished.tool);
    let ProcessFinished { timed_out, cancelled, children_ended, left_running, grouped, .. } = *process;
    let (stdout, stderr) = (&process.stdout, &process.stderr);
    let Some(end) = process.end else {
        if process.keeper_lost {
            let text = "the process of the harness that keeps this call was killed, so everything that the call had \
                        started was ended; its end was not seen";
            let plain = CallResult::plain(call, tool, text, true);
            return CallResult { stdout: Some(info(stdout, 0)), stderr: Some(info(stderr, 0)), ..plain };
        }
        if process.stuck {
            let text = "its processes were killed and execute nothing any more, but the kernel does not end them: they \
                        wait for a file system that does not answer";
            let plain = CallResult::plain(call, tool, text, true);
            let (stdout, stderr) = (Some(info(stdout, 0)), Some(info(stderr, 0)));
            return CallResult { timed_out, cancelled, stdout, stderr, ..plain };
        }
        let text = "its process could not be ended and its end was not seen; it may still be running";
        let plain = CallResult::plain(call, tool, text, true);
        return CallResult { timed_out, cancelled, ..plain };
    };
    let exit_code = if timed_out { TIMED_OUT } else { end.code };
    let ended = Ended { code: exit_code, cpu: end.cpu, grouped, streams: [&stdout.kept, &stderr.kept] };
    let met = if cancelled { None } else { limits_met::told(ended, &plan.limits) };
    let (of_limits, met) = met.map_or((None, None), |Told { text, met }| (Some(text), met));
    let children = [(children_ended, "background children ended"), (process.stuck, STUCK)];
    let note = note(timed_out.then_some(plan.timeout), of_limits, cancelled, children);
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
        stdout: Some(info(stdout, envelope.stdout_omitted)),
        stderr: Some(info(stderr, envelope.stderr_omitted)),
        cpu_seconds: Some(end.cpu.as_secs_f64()),
        max_rss_bytes: Some(end.max_rss_bytes),
        limit: met,
    }
}

/// The result of a call whose process did not start. With an exit code it is what a shell says of a program that is not
/// there, or is none; without one it is a text.
pub fn not_started(call: CallId, tool: Arc<str>, exit_code: Option<u8>, why: &str) -> CallResult {
    let Some(code) = exit_code else { return CallResult::plain(call, tool, why, true) };
    let none = Kept::default();
    let envelope = render(code, &none, &none, Some(why), "").text;
    CallResult { exit_code, ..CallResult::plain(call, tool, envelope, true) }
}

fn info(captured: &Captured, omitted: u64) -> StreamInfo {
    let path = captured.file.as_ref().map(|path| path.to_string_lossy().into());
    StreamInfo { bytes: captured.kept.total(), omitted, path }
}

fn note(
    timed_out_after: Option<Span>,
    limit: Option<String>,
    cancelled: bool,
    children: [(bool, &str); 2],
) -> Option<String> {
    let mut note = String::new();
    if let Some(limit) = timed_out_after {
        let _ = write!(note, "timed out after {} s", limit.as_secs());
    }
    if let Some(limit) = limit {
        let _ = write!(note, "{}{limit}", if note.is_empty() { "" } else { "; " });
    }
    for (holds, words) in [(cancelled, "cancelled")].into_iter().chain(children) {
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

    #[test]
    fn notes_are_one_line() {
        let note = |after, limit, cancelled, ended| {
            note(after, limit, cancelled, [(ended, "background children ended"), (false, STUCK)])
        };
        assert_eq!(note(None, None, false, false), None);
        assert_eq!(
            note(Some(Span::from_secs(1)), None, false, true).unwrap(),
            "timed out after 1 s; background children ended"
        );
        assert_eq!(note(None, None, true, false).unwrap(), "cancelled");
        assert_eq!(note(None, Some("the limit".to_owned()), true, false).unwrap(), "the limit; cancelled");
    }
}
