//! The daemon's health for people.

use std::io::{self, Write};

use harness_protocol::rpc::{DaemonStatusReply, Health};
use harness_protocol::time::Timestamp;

use crate::output::Look;
use crate::render::units::{bytes, span};

/// Writes the status of the daemon.
pub(crate) fn write(out: &mut dyn Write, look: Look, status: &DaemonStatusReply, now: Timestamp) -> io::Result<()> {
    let paint = look.paint;
    let mut line = |name: &str, value: &str| writeln!(out, "{} {value}", paint.dim(format!("{name:<12}")));
    let health = match status.health {
        Health::Serving => paint.green("serving"),
        Health::Draining => paint.yellow("draining: nothing new starts (harnessctl daemon undrain)"),
        Health::Held => paint.red(format!("held: {}", status.held.as_deref().unwrap_or("the journal cannot commit"))),
    };
    line("daemon", &health)?;
    line("version", &format!("{} (protocol {})", status.version, status.protocol))?;
    line("pid", &status.pid.to_string())?;
    line("started", &format!("{} ({} ago)", status.started_at, span(now.since(status.started_at))))?;
    let owner = if status.socket_activated { " (systemd's)" } else { "" };
    line("socket", &format!("{}{owner}", status.socket))?;
    line("state in", &status.state_dir)?;
    let runs: Vec<String> =
        status.runs.iter().filter(|(_, n)| **n > 0).map(|(state, number)| format!("{number} {state}")).collect();
    line("runs", &if runs.is_empty() { "none".to_owned() } else { runs.join(", ") })?;
    line("executing", &status.executing.to_string())?;
    let questions = if status.pending > 0 { " (harnessctl pending)" } else { "" };
    line("questions", &format!("{}{questions}", status.pending))?;
    line("last event", &status.last_seq.to_string())?;
    line("connections", &status.connections.to_string())?;
    if let Some(rss) = status.rss_bytes {
        line("memory", &bytes(rss))?;
    }
    if let Some(files) = status.open_files {
        line("open files", &files.to_string())?;
    }
    Ok(())
}
