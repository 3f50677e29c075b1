//! Renders a transcript as text: messages, calls and their results. It must not show a control character of them on a
//! terminal.

use std::io::{self, Write};

use harness_protocol::run::{CallRequest, CallResult, Entry};
use serde_json::Value;

use crate::render::quote;
use crate::render::style::Look;

/// Writes one entry.
pub(crate) fn write(out: &mut dyn Write, look: Look, entry: &Entry) -> io::Result<()> {
    match entry {
        Entry::User { text } => user(out, look, text),
        Entry::Assistant { text, calls, .. } => {
            if !text.is_empty() {
                block(out, look, text)?;
            }
            for request in calls {
                writeln!(out, "{}", look.paint.bold(command(request, look)))?;
            }
            Ok(())
        }
        Entry::Result { result } => write_result(out, look, result),
        Entry::Summary { text, entries, .. } => {
            writeln!(out, "{}", look.paint.dim(summary_line(*entries)))?;
            block(out, look, text)
        }
    }
}

/// The line before a summary.
pub(crate) fn summary_line(entries: u32) -> String {
    format!("[from here on the model reads this summary in place of the first {entries} entries]")
}

/// A message of a person, each line after a mark.
pub(crate) fn user(out: &mut dyn Write, look: Look, text: &str) -> io::Result<()> {
    out.write_all(quote::block_with("> ", look, text).as_bytes())
}

/// The result of a call: its output, then how it ended.
pub(crate) fn write_result(out: &mut dyn Write, look: Look, result: &CallResult) -> io::Result<()> {
    let text = body(result);
    if !text.is_empty() {
        block(out, look, text)?;
    }
    match ending(result) {
        Some(line) if result.is_error => writeln!(out, "{}", look.paint.red(line)),
        Some(line) => writeln!(out, "{}", look.paint.dim(line)),
        None => Ok(()),
    }
}

/// Writes a text in rows of its own, quoted.
pub(crate) fn block(out: &mut dyn Write, look: Look, text: &str) -> io::Result<()> {
    out.write_all(quote::block(look, text).as_bytes())
}

/// A call as a command line: `$ ls` for a shell, else the tool and its arguments. Further rows are quoted.
pub(crate) fn command(request: &CallRequest, look: Look) -> String {
    let args: Option<Value> = serde_json::from_str(&request.args).ok();
    let text = match args.as_ref().and_then(|args| args.get("command")).and_then(Value::as_str) {
        Some(command) => command.to_owned(),
        None if matches!(&args, Some(Value::Object(map)) if map.is_empty()) => request.tool.to_string(),
        None => format!("{} {}", request.tool, request.args),
    };
    quote::behind(look, "$ ", &text)
}

/// The output of a call: the envelope without the line of its exit code, which comes last for people.
pub(crate) fn body(result: &CallResult) -> &str {
    match result.exit_code {
        Some(_) => result.envelope.split_once('\n').map_or("", |(_, body)| body),
        None => &result.envelope,
    }
}

/// How a call ended, in a line.
pub(crate) fn ending(result: &CallResult) -> Option<String> {
    let mut line = match result.exit_code {
        Some(code) => format!("Exit code: {code}"),
        None if result.interrupted => return Some("[interrupted by a restart of the daemon]".to_owned()),
        None if result.cancelled => return Some("[cancelled]".to_owned()),
        None if result.is_error => return Some("[failed]".to_owned()),
        None => return None,
    };
    if result.timed_out {
        line += " (timed out)";
    } else if result.cancelled {
        line += " (cancelled)";
    } else if let Some(signal) = result.signal {
        line += &format!(" (signal {signal})");
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use harness_protocol::id::CallId;

    fn request(tool: &str, args: &str) -> CallRequest {
        CallRequest::new(CallId::from_u64(1), tool, args)
    }

    #[test]
    fn a_shell_call_reads_as_its_command_and_any_other_as_tool_and_arguments() {
        let line = |tool, args| command(&request(tool, args), Look::PLAIN);
        assert_eq!(line("shell", r#"{"command":"ls -l\n"}"#), "$ ls -l");
        assert_eq!(line("read_file", r#"{"path":"/x"}"#), r#"$ read_file {"path":"/x"}"#);
        assert_eq!(line("list", "{}"), "$ list");
        assert_eq!(line("shell", "{broken"), "$ shell {broken");
    }

    #[test]
    fn a_result_is_what_was_written_and_then_how_it_ended() {
        let mut result = CallResult::plain(CallId::from_u64(1), "shell".into(), "Exit code: 3\nhi", true);
        result.exit_code = Some(3);
        let text = |result: &CallResult| {
            let mut out = Vec::new();
            write_result(&mut out, Look::PLAIN, result).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(text(&result), "| hi\nExit code: 3\n");
        result.envelope = "Exit code: 0\n".into();
        (result.exit_code, result.is_error) = (Some(0), false);
        assert_eq!(text(&result), "Exit code: 0\n");
        let denied = CallResult::plain(CallId::from_u64(1), "x".into(), "no such tool", true);
        assert_eq!(text(&denied), "| no such tool\n[failed]\n");
    }
}
