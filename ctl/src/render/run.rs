//! Renders a run for people: its row in a list, and its page. It must not ask the daemon: it gets the view of the run.

use std::io::{self, Write};

use harness_protocol::id::RunId;
use harness_protocol::rpc::ProcessView;
use harness_protocol::run::{CallState, LiveCall, RunLine, RunView};
use harness_protocol::terminal_safe::quoted;
use harness_protocol::time::{Span, Timestamp};
use harness_protocol::waiting_words;

use crate::render::quote::inline;
use crate::render::style::Look;
use crate::render::text::{clean_painted, first_line, one_line};
use crate::render::transcript::block;
use crate::render::units::{clock, span};

/// Characters of an id in a list. They are nearly always a unique prefix.
const SHORT: usize = 8;

/// The start of an id.
pub(crate) fn short(id: RunId) -> String {
    let mut text = id.to_string();
    text.truncate(SHORT);
    text
}

/// The name of a run, and its parent if it is a child: a run may give its children the names of an operator's runs.
pub(crate) fn named(name: Option<&str>, parent: Option<RunId>) -> String {
    let name = name.unwrap_or("-");
    parent.map_or_else(|| name.to_owned(), |parent| format!("{name} (child of {})", short(parent)))
}

/// The reason why a run waits, in a few words.
pub(crate) fn waiting_for(run: &RunLine, now: Timestamp) -> String {
    let standing = waiting_words::of_line(run, &clock(now));
    standing.map_or_else(|| "-".to_owned(), |standing| first_line(&standing.what))
}

/// Writes the processes of a run below its page, if there are any.
pub(crate) fn write_processes(out: &mut dyn Write, look: Look, processes: &[ProcessView]) -> io::Result<()> {
    for (index, process) in processes.iter().enumerate() {
        let name = if index == 0 { "processes" } else { "" };
        let command = first_line(&process.command);
        writeln!(out, "{} {} {command}", look.paint.dim(format!("{name:<12}")), process.pid)?;
    }
    Ok(())
}

/// Writes the fallbacks of the run's provider.
pub(crate) fn write_fallbacks(out: &mut dyn Write, look: Look, fallbacks: &str) -> io::Result<()> {
    writeln!(out, "{} {fallbacks}", look.paint.dim(format!("{:<12}", "fallback")))
}

/// Writes the page of one run.
pub(crate) fn write(out: &mut dyn Write, look: Look, run: &RunView, now: Timestamp) -> io::Result<()> {
    let paint = look.paint;
    // One of these lines contains text from outside.
    let mut line = |name: &str, value: &str| {
        let value = clean_painted(value);
        writeln!(out, "{} {}", paint.dim(format!("{name:<12}")), value.replace(['\n', '\t'], " "))
    };
    line("run", &paint.bold(run.id))?;
    if let Some(name) = &run.name {
        line("name", &one_line(name))?;
    }
    line("title", &first_line(&run.title))?;
    let mut state = paint.state(run.state);
    if let Some(code) = run.exit_code {
        state += &format!(" (exit code {code})");
    }
    if run.stop_requested_at.is_some() && !run.state.is_terminal() {
        state += ", being ended";
    }
    line("state", &state)?;
    if let Some(standing) = waiting_words::of_run(run, &clock(now)) {
        let since = run.waiting_for.as_ref().map(|waits| format!(" (for {})", span(now.since(waits.since))));
        line("waiting for", &format!("{}{}", first_line(&standing.what), since.unwrap_or_default()))?;
        if let Some(why) = standing.why {
            line("", &inline(&why))?;
        }
        if let Some(help) = standing.help {
            line("", &first_line(&help))?;
        }
    }
    if let Some(inference) = &run.inference {
        let next = inference.next_at.map(|at| format!(", next at {}", clock(now).at(at))).unwrap_or_default();
        let age = span(now.since(inference.failed_at));
        line("inference", &format!("try {} of {}{next}", inference.attempt, inference.attempts))?;
        line("", &format!("failed {age} ago ({}): {}", word(&inference.fault), first_line(&inference.error)))?;
    }
    if run.root != run.id {
        line("root", &run.root.to_string())?;
    }
    for (name, other) in [("parent", run.parent), ("retry of", run.retry_of), ("continues", run.continues)] {
        if let Some(other) = other {
            line(name, &other.to_string())?;
        }
    }
    let labels: Vec<String> =
        run.labels.iter().map(|(key, value)| one_line(&format!("{key}={value}")).into_owned()).collect();
    if !labels.is_empty() {
        line("labels", &labels.join(" "))?;
    }
    line("lane", &format!("share {}, priority {}", one_line(&run.share), word(&run.priority)))?;
    line(
        "provider",
        &match &run.model {
            Some(model) => one_line(&format!("{} ({model})", run.provider)).into_owned(),
            None => one_line(&run.provider).into_owned(),
        },
    )?;
    if let Some(stand_in) = &run.stand_in {
        line("stand-in", &one_line(&format!("{stand_in}, while {} is left alone", run.provider)))?;
    }
    line("workdir", &first_line(&run.workdir))?;
    if !run.env.is_empty() {
        line("env", &one_line(&run.env.join(" ")))?;
    }
    line(
        "submitted",
        &format!("{} ({} ago) by uid {}", run.submitted_at, span(now.since(run.submitted_at)), run.owner),
    )?;
    if let Some(at) = run.started_at {
        line("started", &at.to_string())?;
    }
    if let Some(at) = run.ended_at {
        line("ended", &format!("{at} (after {})", span(at.since(run.submitted_at))))?;
    }
    line("steps", &run.steps.to_string())?;
    line("time", &timing(run))?;
    let usage = &run.usage;
    let cost = usage.cost_usd.map(|cost| format!(", {cost:.4} USD")).unwrap_or_default();
    line("tokens", &format!("{} in, {} out{cost}", usage.input_tokens, usage.output_tokens))?;
    if run.usage_tree.tokens() != usage.tokens() {
        let tree = &run.usage_tree;
        line("with tree", &format!("{} in, {} out", tree.input_tokens, tree.output_tokens))?;
    }
    for denial in &run.denials {
        line("denied", &first_line(denial))?;
    }
    for call in &run.calls {
        line(
            "call",
            &format!("{} {}: {} ({})", call.call, one_line(&call.tool), quoted(&call.summary), how_far(call, now)),
        )?;
    }
    let error = run.error.as_deref().filter(|error| *error != run.state.as_str());
    for text in [run.answer.as_deref(), error].into_iter().flatten() {
        writeln!(out)?;
        block(out, look, text)?;
    }
    Ok(())
}

/// The state of a call, and the time since it changed.
fn how_far(call: &LiveCall, now: Timestamp) -> String {
    let age = span(now.since(call.since));
    match call.state {
        CallState::Pending => format!("not begun for {age}"),
        CallState::Executing => format!("executing for {age}"),
        CallState::OffLane => format!("waiting off the lane for {age}"),
        CallState::Returning => format!("waiting for its permit for {age}"),
        CallState::Asking => format!("asking a person for {age}"),
        CallState::Waiting => format!("waiting for runs for {age}"),
        CallState::Finished => format!("finished {age} ago"),
    }
}

fn timing(run: &RunView) -> String {
    let t = &run.timing;
    let parts = [
        ("queued", t.queued),
        ("lane", t.lane),
        ("model", t.model),
        ("retry", t.retry),
        ("tools", t.tools),
        ("waiting", t.waiting),
        ("paused", t.paused),
        ("down", t.down),
    ];
    let parts: Vec<String> = parts
        .into_iter()
        .filter(|(_, part)| *part != Span::ZERO)
        .map(|(name, part)| format!("{name} {}", span(part)))
        .collect();
    let total = span(t.total());
    if parts.is_empty() { total } else { format!("{total} ({})", parts.join(", ")) }
}

/// The name of a plain enum's variant, as in JSON.
pub(crate) fn word<T: serde::Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(word)) => word,
        _ => String::new(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub(crate) fn sample() -> RunView {
        serde_json::from_str(
            r#"{"schema":"harness.run/1","id":"0123456789abc","name":"nightly","root":"0123456789abc","parent":null,
            "labels":{"team":"a"},"share":"default","priority":"normal","owner":1000,"state":"waiting",
            "waiting_for":{"kind":"person","id":"00000000000qq","since":"2026-11-30T11:01:30Z","position":null},
            "workdir":"/srv","provider":"scripted","model":null,"title":"say hello","steps":2,"limits":{},
            "on_interaction":"wait","submitted_at":"2026-11-30T11:00:00Z","started_at":"2026-11-30T11:00:01Z",
            "ended_at":null,"answer":null,"error":null,"exit_code":null,
            "usage":{"input_tokens":10,"output_tokens":5,"cache_read_input_tokens":0,"cache_creation_input_tokens":0,
            "reasoning_output_tokens":0,"cost_usd":null},
            "usage_tree":{"input_tokens":10,"output_tokens":5,"cache_read_input_tokens":0,
            "cache_creation_input_tokens":0,"reasoning_output_tokens":0,"cost_usd":null},
            "timing":{"queued":1,"lane":0,"model":0,"retry":0,"tools":0,"waiting":89,"paused":0},"denials":[]}"#,
        )
        .unwrap()
    }

    #[test]
    fn a_page_says_what_the_run_waits_for_and_how_to_go_on() {
        let run = sample();
        let mut out = Vec::new();
        write(&mut out, Look::PLAIN, &run, run.submitted_at + Span::from_secs(100)).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("state        waiting\n"), "{text}");
        assert!(text.contains("waiting for  a person (00000000000qq) (for 10s)\n"), "{text}");
        assert!(text.contains("harnessctl reply 00000000000qq TEXT\n"), "{text}");
        assert!(text.contains("time         1m30s (queued 1.0s, waiting 1m29s)\n"), "{text}");
    }

    #[test]
    fn a_finished_run_ends_with_its_answer() {
        let mut run = sample();
        run.answer = Some("it is done".into());
        let mut out = Vec::new();
        write(&mut out, Look::PLAIN, &run, run.submitted_at).unwrap();
        assert!(String::from_utf8(out).unwrap().ends_with("\n\n| it is done\n"));
    }
}
