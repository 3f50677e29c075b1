//! Starts `harnessd --on-demand`, and waits until it reports that it serves, or why it does not.
//!
//! The daemon gets no terminal, no directory and no ignored signals of the process that happens to start it. It must
//! not decide whether a daemon is started: `launch` does.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::launch::error::StartError;
use crate::output::note;
use crate::render::text::one_line;

/// Time limit of a start, long enough for a busy machine.
const START_LIMIT: Duration = Duration::from_secs(60);
/// How long the command waits for a start without a message.
pub(crate) const UNTIL_TOLD: Duration = Duration::from_secs(1);
/// The beginning of a line with which a daemon names its step of the start.
const DOING: &str = "doing ";
/// How long the last words of a daemon may take to arrive after its end.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// The exit code of a daemon that found the lock held by another daemon.
const LOCKED: i32 = 75;
/// Most bytes of a failing daemon's message that are passed on.
const MAX_SAID: u64 = 16 * 1024;

/// How a start succeeded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Spawned {
    /// The new daemon serves.
    Ready,
    /// Another daemon holds the lock: it serves, starts or leaves.
    AnotherHasTheLock {
        /// The message of the daemon that did not get the lock.
        said: String,
    },
}

/// Starts the daemon.
pub(crate) fn spawn(program: &Path, socket: &Path) -> Result<Spawned, StartError> {
    unignore_signals();
    let here = std::env::current_dir().unwrap_or_default();
    let mut child = Command::new(program)
        .envs(made_absolute(&here, &|name| std::env::var_os(name)))
        .arg("--on-demand")
        .arg("--socket")
        .arg(socket)
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // Ctrl-C on our terminal must not reach it.
        .process_group(0)
        .spawn()
        .map_err(|source| StartError::Spawn { program: program.to_owned(), source })?;
    let (say, heard) = mpsc::channel();
    if let Some(stderr) = child.stderr.take() {
        let say = say.clone();
        std::thread::spawn(move || {
            let mut said = Vec::new();
            // A read error ends its message, as the end of the stream does.
            let _ended = stderr.take(MAX_SAID).read_to_end(&mut said);
            drop(say.send(Heard::Stderr(String::from_utf8_lossy(&said).trim().to_owned())));
        });
    }
    std::thread::spawn(move || {
        let doing = say.clone();
        let ready = child.stdout.take().is_some_and(|stdout| says_ready(stdout, &doing));
        // Its standard output ended without the line `ready`: it is ending, or about to.
        drop(say.send(if ready { Heard::Ready } else { Heard::Ended(child.wait().ok()) }));
    });
    await_word(&heard)
}

/// Makes paths in variables absolute: the daemon has another working directory than we have.
fn made_absolute(here: &Path, var: &dyn Fn(&str) -> Option<OsString>) -> Vec<(&'static str, PathBuf)> {
    ["HARNESS_STATE_DIR", "HARNESS_CONFIG"]
        .into_iter()
        .filter_map(|name| Some((name, PathBuf::from(var(name).filter(|value| !value.is_empty())?))))
        .filter(|(_, path)| path.is_relative())
        .map(|(name, path)| (name, here.join(path)))
        .collect()
}

fn await_word(heard: &mpsc::Receiver<Heard>) -> Result<Spawned, StartError> {
    let mut said = None;
    let mut status = None;
    let mut slow = Slow::new(Instant::now());
    while status.is_none() || said.is_none() {
        let wait = if status.is_some() { LAST_WORDS } else { slow.rest() };
        match heard.recv_timeout(wait) {
            Ok(Heard::Ready) => return Ok(Spawned::Ready),
            Ok(Heard::Doing(what)) => slow.doing(what),
            Err(mpsc::RecvTimeoutError::Timeout) if slow.is_due() && status.is_none() => slow.tell(),
            // Its message has arrived, or will in a moment; unless a child of its own keeps the pipe open.
            Ok(Heard::Ended(ended)) => status = Some(ended),
            Ok(Heard::Stderr(text)) => said = Some(text),
            Err(_) if status.is_some() => break,
            Err(_) => return Err(StartError::NotReady { seconds: START_LIMIT.as_secs(), doing: slow.doing }),
        }
    }
    let is_locked = status.flatten().is_some_and(|status| status.code() == Some(LOCKED));
    let said = said.filter(|said| !said.is_empty()).unwrap_or_else(|| match status.flatten() {
        Some(status) => format!("it ended ({status}) and said nothing"),
        None => "it ended and said nothing".to_owned(),
    });
    if is_locked { Ok(Spawned::AnotherHasTheLock { said }) } else { Err(StartError::Failed { said }) }
}

/// Reports a start that takes longer than usual: once, and again at each further step.
struct Slow {
    began: Instant,
    told: bool,
    doing: Option<String>,
}

impl Slow {
    const fn new(began: Instant) -> Self {
        Self { began, told: false, doing: None }
    }

    /// The time until the next report; after the first one, the rest of the whole time limit.
    fn rest(&self) -> Duration {
        let all = if self.told { START_LIMIT } else { UNTIL_TOLD };
        all.saturating_sub(self.began.elapsed())
    }

    fn is_due(&self) -> bool {
        !self.told && self.began.elapsed() >= UNTIL_TOLD
    }

    fn doing(&mut self, what: String) {
        self.doing = Some(what);
        if self.told {
            self.tell();
        }
    }

    fn tell(&mut self) {
        self.told = true;
        let doing = self.doing.as_ref().map(|what| format!(": it is {}", one_line(what))).unwrap_or_default();
        note(format_args!("harnessctl: the daemon starts{doing}"));
    }
}

enum Heard {
    /// A step of the start, in its own words.
    Doing(String),
    /// It said that it serves.
    Ready,
    /// The daemon ended, with this status if it is known.
    Ended(Option<ExitStatus>),
    /// All of its standard error.
    Stderr(String),
}

fn says_ready(stdout: ChildStdout, doing: &mpsc::Sender<Heard>) -> bool {
    let mut line = String::new();
    let mut stdout = BufReader::new(stdout.take(MAX_SAID));
    loop {
        line.clear();
        match stdout.read_line(&mut line) {
            Ok(0) | Err(_) => return false,
            Ok(_) if line.trim_end() == "ready" => return true,
            Ok(_) => {
                if let Some(what) = line.trim_end().strip_prefix(DOING) {
                    // The receiver may be gone.
                    drop(doing.send(Heard::Doing(what.to_owned())));
                }
            }
        }
    }
}

/// Catches the signals that this process ignores (under `nohup`, or in the background of a script), because the daemon
/// would ignore them too. A handler without effect does as little, and the executed program gets the default back.
fn unignore_signals() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    for signal in ignored(&status) {
        // A signal that cannot be caught cannot be ignored either, so a failure here does not matter.
        let _registered = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
}

/// The ignored signals, by `/proc/PID/status`. SIGPIPE is left out: the standard library sees to that one.
fn ignored(status: &str) -> Vec<i32> {
    let mask = status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or_default();
    (1..32).filter(|&signal| mask >> (signal - 1) & 1 == 1 && signal != signal_hook::consts::SIGPIPE).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_in_the_environment_are_those_of_the_caller() {
        let var = |name: &str| match name {
            "HARNESS_STATE_DIR" => Some("state".into()),
            "HARNESS_CONFIG" => Some("/etc/own.toml".into()),
            _ => None,
        };
        let made = made_absolute(Path::new("/home/a"), &var);
        assert_eq!(made, [("HARNESS_STATE_DIR", PathBuf::from("/home/a/state"))]);
        assert!(
            made_absolute(Path::new("/home/a"), &|_| Some(OsString::new())).is_empty(),
            "empty ones count as absent"
        );
    }

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let status = "Name:\tx\nSigIgn:\t0000000000001003\nSigCgt:\t0\n";
        assert_eq!(ignored(status), [1, 2], "SIGHUP and SIGINT; SIGPIPE is 13");
        assert!(ignored("").is_empty());
    }
}
