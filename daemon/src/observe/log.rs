//! Sets up the log: its destination and its filter.
//!
//! The log goes to a file if the daemon was started on demand; else to systemd's journal if standard error is the
//! journal; else to standard error. It must not block or end the daemon: lines that cannot be written are dropped.

use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use nix::sys::stat::fstat;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry};

use super::log_writer::Lines;
use super::rotating::Rotating;

/// The log file, in the state directory.
const FILE: &str = "harnessd.log";

/// The filter for log lines, by level and target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter(String);

impl FromStr for Filter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        // A bare word that is not a level would be taken for a target, and nothing else would be logged.
        for part in text.split(',').filter(|part| !part.contains('=')) {
            if part.is_empty() || part.parse::<LevelFilter>().is_err() {
                return Err(format!("{part:?} is no level: off, error, warn, info, debug, trace"));
            }
        }
        EnvFilter::try_new(text).map(|_| Self(text.to_owned())).map_err(|error| error.to_string())
    }
}

/// The destination of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The journal of systemd.
    Journal,
    /// Standard error of the daemon.
    Stderr,
    /// A file in the state directory, rotated.
    File(PathBuf),
}

/// A log that is set up. Dropping it waits for a moment until the lines so far are written.
#[must_use]
pub struct Log {
    /// The destination of its lines.
    pub target: Target,
    lines: Option<Lines>,
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(lines) = &self.lines {
            lines.flush();
        }
    }
}

/// Sets up the log of this process. With `file_in` it goes to a file in that directory.
///
/// # Errors
/// If the file cannot be opened, or a log was set up before.
pub fn init(filter: &Filter, file_in: Option<&Path>) -> io::Result<Log> {
    let (layer, log) = match file_in {
        Some(dir) => {
            let path = dir.join(FILE);
            to_lines(Rotating::open(&path)?, Target::File(path))?
        }
        None => match journal() {
            Some(layer) => (layer, Log { target: Target::Journal, lines: None }),
            None => to_lines(io::stderr(), Target::Stderr)?,
        },
    };
    let filter = EnvFilter::try_new(&filter.0).map_err(io::Error::other)?;
    tracing_subscriber::registry().with(layer.with_filter(filter)).try_init().map_err(io::Error::other)?;
    log_panics();
    Ok(log)
}

type AnyLayer = Box<dyn Layer<Registry> + Send + Sync>;

fn to_lines(stream: impl io::Write + Send + 'static, target: Target) -> io::Result<(AnyLayer, Log)> {
    let lines = Lines::to(stream)?;
    let layer = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        // Internal errors would be printed by a macro that panics if standard error is closed.
        .log_internal_errors(false)
        .with_writer(lines.clone());
    Ok((layer.boxed(), Log { target, lines: Some(lines) }))
}

/// The journal, if standard error goes there and it can be reached.
fn journal() -> Option<AnyLayer> {
    let told = std::env::var("JOURNAL_STREAM").ok()?;
    let found = fstat(io::stderr()).ok()?;
    if !names(&told, found.st_dev, found.st_ino) {
        return None;
    }
    let layer = tracing_journald::layer().ok()?;
    Some(layer.with_syslog_identifier("harnessd".to_owned()).boxed())
}

/// Whether `DEVICE:INODE` names this file.
fn names(told: &str, device: u64, inode: u64) -> bool {
    let Some((told_device, told_inode)) = told.split_once(':') else { return false };
    (told_device.parse(), told_inode.parse()) == (Ok(device), Ok(inode))
}

/// Logs every panic as an error. The hook that was installed before wrote to standard error, which may be closed.
fn log_panics() {
    std::panic::set_hook(Box::new(|info| {
        let message = info.payload_as_str().unwrap_or("no message");
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(%place, backtrace = %std::backtrace::Backtrace::capture(), "panic: {message}");
    }));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    #[test]
    fn a_filter_is_a_level_or_names_targets() {
        for good in ["info", "OFF", "warn,harnessd::control=trace", "harnessd=debug"] {
            assert!(good.parse::<Filter>().is_ok(), "{good}");
        }
        for bad in ["loud", "info,louder", "harnessd=loud", ""] {
            assert!(bad.parse::<Filter>().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_journal_is_told_by_device_and_inode() {
        assert!(names("8:12345", 8, 12_345));
        assert!(!names("8:12345", 8, 12_346));
        assert!(!names("8", 8, 8) && !names("", 0, 0) && !names("a:b", 0, 0));
    }
}
