//! Renders the status of the daemon for people. It must not ask the daemon: it gets the status.

use std::io::{self, Write};

use harness_protocol::rpc::{ConfigReport, DaemonStatusReply, DiskUsage, Health};
use harness_protocol::time::Timestamp;

use crate::render::style::Look;
use crate::render::text::{clean_painted, one_line};
use crate::render::units::{bytes, span};

/// Writes the status of the daemon.
pub(crate) fn write(out: &mut dyn Write, look: Look, status: &DaemonStatusReply, now: Timestamp) -> io::Result<()> {
    let paint = look.paint;
    let mut line =
        |name: &str, value: &str| writeln!(out, "{} {}", paint.dim(format!("{name:<12}")), clean_painted(value));
    let health = match status.health {
        Health::Serving => paint.green("serving"),
        Health::Draining => paint.yellow("draining: nothing new starts (harnessctl daemon undrain)"),
        Health::Held => {
            paint.red(format!("held: {}", one_line(status.held.as_deref().unwrap_or("the journal cannot commit"))))
        }
    };
    line("daemon", &health)?;
    if status.health == Health::Held {
        let what = if status.stuck {
            "nothing can be recorded: reads are answered, and stop goes through"
        } else {
            "nothing new starts; what executes ends, and cancel, reply, prune and stop go through"
        };
        line("", what)?;
    }
    line("version", &format!("{} (protocol {})", one_line(&status.version), one_line(&status.protocol)))?;
    line("pid", &status.pid.to_string())?;
    line("started", &format!("{} ({} ago)", status.started_at, span(now.since(status.started_at))))?;
    let owner = if status.socket_activated { " (systemd's)" } else { "" };
    line("socket", &format!("{}{owner}", one_line(&status.socket)))?;
    line("state in", &one_line(&status.state_dir))?;
    for (index, text) in configuration(&status.config, now).into_iter().enumerate() {
        line(if index == 0 { "config" } else { "" }, &one_line(&text))?;
    }
    if let Some(failed) = &status.config.failed {
        let ago = span(now.since(failed.at));
        line("", &paint.red(one_line(&format!("the last reload failed {ago} ago: {}", failed.message))))?;
    }
    let runs: Vec<String> =
        status.runs.iter().filter(|(_, n)| **n > 0).map(|(state, number)| format!("{number} {state}")).collect();
    line("runs", &if runs.is_empty() { "none".to_owned() } else { runs.join(", ") })?;
    line("executing", &status.executing.to_string())?;
    let questions = if status.pending > 0 { " (harnessctl pending)" } else { "" };
    line("questions", &format!("{}{questions}", status.pending))?;
    line("last event", &status.last_seq.to_string())?;
    line("connections", &status.connections.to_string())?;
    line("disk", &disk(&status.disk))?;
    for finding in &status.journal.findings {
        line("journal", &paint.red(finding))?;
    }
    for left in &status.left_processes {
        line("left", &paint.red(left))?;
    }
    if let Some(rss) = status.rss_bytes {
        line("memory", &bytes(rss))?;
    }
    if let Some(files) = status.open_files {
        line("open files", &files.to_string())?;
    }
    Ok(())
}

/// The files in force, one a line, with when they were read; of an older daemon nothing.
fn configuration(config: &ConfigReport, now: Timestamp) -> Vec<String> {
    let Some(read_at) = config.read_at else { return Vec::new() };
    let ago = span(now.since(read_at));
    match config.files.split_first() {
        None => {
            let where_to = config.places.first().map(|place| format!("; one belongs into {place}")).unwrap_or_default();
            vec![format!("no file, looked for {ago} ago{where_to}")]
        }
        Some((first, rest)) => {
            std::iter::once(format!("{first}, read {ago} ago")).chain(rest.iter().cloned()).collect()
        }
    }
}

/// `journal 12 MiB, outputs 3.0 GiB, ballast 8.0 MiB; 20 GiB free`
fn disk(usage: &DiskUsage) -> String {
    let outputs = usage.output_bytes.map_or_else(|| "not counted yet".to_owned(), bytes);
    let free = usage.free_bytes.map(|free| format!("; {} free", bytes(free))).unwrap_or_default();
    format!("journal {}, outputs {outputs}, ballast {}{free}", bytes(usage.journal_bytes), bytes(usage.ballast_bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn status(more: &serde_json::Value) -> String {
        let mut status = serde_json::json!({"schema": "harness.status/1", "version": "0.1.0", "protocol": "1.0",
            "pid": 7, "started_at": "2026-11-30T11:00:00Z", "health": "serving", "held": null, "socket": "/s",
            "state_dir": "/state", "socket_activated": false, "runs": {"succeeded": 3}, "pending": 0, "executing": 0,
            "last_seq": 9, "connections": 1, "rss_bytes": null, "open_files": null});
        status.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let status: DaemonStatusReply = serde_json::from_value(status).unwrap();
        let mut out = Vec::new();
        write(&mut out, Look::PLAIN, &status, status.started_at).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn the_size_of_the_state_on_disk_is_told_in_units_for_people() {
        let usage = |outputs: Option<u64>| {
            serde_json::json!({"disk": {"journal_bytes": 12 << 20, "output_bytes": outputs, "ballast_bytes": 8 << 20,
                "free_bytes": 20_u64 << 30}})
        };
        let told = status(&usage(Some(3 << 30)));
        assert!(told.contains("journal 12 MiB, outputs 3.0 GiB, ballast 8.0 MiB; 20 GiB free\n"), "{told}");
        assert!(status(&usage(None)).contains("outputs not counted yet,"));
    }

    #[test]
    fn the_files_in_force_are_told_with_when_they_were_read_and_a_missing_one_with_where_it_belongs() {
        let now = "2026-11-30T11:00:00Z";
        let told = status(&serde_json::json!({}));
        assert!(!told.contains("config"), "an older daemon says nothing of it: {told}");
        let of = |config: serde_json::Value| status(&serde_json::json!({ "config": config }));
        let told = of(serde_json::json!({"files": ["/c/config.toml", "/c/conf.d/a.toml"],
            "read_at": "2026-11-30T10:58:00Z"}));
        assert!(
            told.contains("config       /c/config.toml, read 2m00s ago\n             /c/conf.d/a.toml\n"),
            "{told}"
        );
        let told = of(serde_json::json!({"files": [], "read_at": now, "places": ["/home/me/c.toml", "/etc/c.toml"]}));
        assert!(told.contains("config       no file") && told.contains("one belongs into /home/me/c.toml\n"), "{told}");
        let told = of(serde_json::json!({"files": ["/c"], "read_at": now,
            "failed": {"at": now, "message": "the configuration stays as it was: /c:1: a\n/c:2: b"}}));
        assert!(told.contains("the last reload failed") && told.contains("/c:1: a"), "{told}");
        assert_eq!(told.lines().filter(|line| line.contains("/c:2: b")).count(), 1, "{told}");
    }

    #[test]
    fn a_process_that_the_daemon_may_not_end_is_named_with_what_ends_it() {
        let told = status(&serde_json::json!({"left_processes": [{"pid": 77, "user": 100_004}]}));
        assert!(told.contains("left         process 77 of user 100004 was left by a run"), "{told}");
        assert!(told.contains("as root, kill -9 77\n"), "{told}");
    }

    #[test]
    fn a_held_daemon_says_what_to_do() {
        let told = status(&serde_json::json!({"health": "held", "held": "the disk is full"}));
        assert!(
            told.contains("held: the disk is full\n") && told.contains("cancel, reply, prune and stop go through"),
            "{told}"
        );
    }
}
