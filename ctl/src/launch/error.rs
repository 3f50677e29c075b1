//! Defines the errors of finding or starting the daemon, each with a hint for the user. Has words only: it must not
//! start or end a process.

use std::io;
use std::path::{Path, PathBuf};

use harness_protocol::paths::SYSTEM_SOCKET;

use crate::launch::inside_run::Inside;
use crate::launch::lock_holder::Disbelief;
use crate::launch::server_identity::Untrusted;
use crate::render::text::one_line;

/// Why no daemon can be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    /// No daemon serves the socket, and the user wanted none to be started.
    #[error("no daemon serves {}", typed(socket))]
    NotRunning {
        /// The socket that no daemon serves.
        socket: PathBuf,
    },
    /// The path of the socket is something else.
    #[error("{} is {what}, and no socket", typed(socket))]
    NoSocket {
        /// The path where a socket was looked for.
        socket: PathBuf,
        /// What it is instead.
        what: &'static str,
    },
    /// The state directory belongs to a daemon with another socket than the named one.
    #[error(
        "a daemon (pid {pid}) serves {}, and holds the state directory {}; no process serves the socket that was named",
        typed(socket), state_dir.display()
    )]
    Elsewhere {
        /// Pid of the daemon.
        pid: u32,
        /// The socket that the daemon serves.
        socket: PathBuf,
        /// The state directory that it holds.
        state_dir: PathBuf,
    },
    /// A link leads to the state directory of a daemon with another socket. A run may have made it.
    #[error(
        "{} is a link, or a link is on the way to it; the daemon (pid {pid}) that holds it serves {}, and nothing was \
         sent to that one",
        state_dir.display(), typed(socket)
    )]
    Linked {
        /// The number of the daemon's process.
        pid: u32,
        /// The socket that the daemon serves.
        socket: PathBuf,
        /// The state directory that was looked at.
        state_dir: PathBuf,
    },
    /// There is a daemon, and its socket is gone.
    #[error("the daemon (pid {pid}) runs, and its socket {} {}", typed(socket), match in_place {
        Some(what) => format!("is not there: {what} is in its place"),
        None => "is not there".to_owned(),
    })]
    Unreachable {
        /// Pid of the daemon.
        pid: u32,
        /// The socket that the daemon serves.
        socket: PathBuf,
        /// It has served the socket before. Otherwise it starts, or leaves.
        settled: bool,
        /// The kind of the entry at the path instead.
        in_place: Option<&'static str>,
    },
    /// The socket is that of the system's daemon, which only root starts.
    #[error("the system's daemon does not run: no process serves {}", typed(socket))]
    SystemNotRunning {
        /// The socket that no daemon serves.
        socket: PathBuf,
    },
    /// The socket cannot be opened by this user.
    #[error("no permission to open {}", typed(socket))]
    Denied {
        /// The socket that no daemon serves.
        socket: PathBuf,
    },
    /// The process at the socket takes no connections, or the path is no address.
    #[error("cannot connect to {}: {source}", typed(socket))]
    Connect {
        /// The socket that no daemon serves.
        socket: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A process answers at the socket that is not trusted.
    #[error("at {}, {why}", typed(socket))]
    Untrusted {
        /// The socket that was tried.
        socket: PathBuf,
        /// What speaks against the process.
        why: Untrusted,
    },
    /// The content of the state directory is not a daemon's.
    #[error(transparent)]
    Disbelief(#[from] Disbelief),
    /// The socket is in a directory of another user, to whom its daemon belongs.
    #[error(
        "no daemon serves {}, and {} belongs to user {owner}, for whom none is started",
        typed(socket), dir.display()
    )]
    OfAnother {
        /// The socket that no daemon serves.
        socket: PathBuf,
        /// The socket's directory, or the first existing one above it.
        dir: PathBuf,
        /// The owner of that directory.
        owner: u32,
    },
    /// Others may write to the directory of the socket, so any user may have made the socket.
    #[error(
        "no daemon serves {}, and others may write to {} or to a directory above it, so that it may have been another \
         user's",
        typed(socket), dir.display()
    )]
    Public {
        /// The socket that no daemon serves.
        socket: PathBuf,
        /// The socket's directory, or the first existing one above it.
        dir: PathBuf,
    },
    /// The system's daemon of this machine has no socket, and the user asked for no daemon of their own.
    #[error("no daemon serves {SYSTEM_SOCKET}, where that of the system should be, nor {}", typed(socket))]
    SystemGone {
        /// The socket of a daemon of this user.
        socket: PathBuf,
    },
    /// No daemon serves the socket, and none is started from inside a run.
    #[error(
        "no daemon serves {}, and this command comes from inside a run ({inside}), from where none is started",
        typed(socket)
    )]
    InsideRun {
        /// The socket that no daemon serves.
        socket: PathBuf,
        /// How that was recognised.
        inside: Inside,
    },
    /// The daemon's program was not found.
    #[error("no daemon serves {}, and harnessd is neither beside harnessctl nor on PATH", typed(socket))]
    NoProgram {
        /// The socket that no daemon serves.
        socket: PathBuf,
    },
    /// The program cannot be started.
    #[error("cannot start {}: {source}", program.display())]
    Spawn {
        /// Path of the program that was to be started.
        program: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The daemon ended instead of serving.
    #[error("the daemon did not start: {said}")]
    Failed {
        /// Its last words.
        said: String,
    },
    /// The daemon did not say that it serves within the time limit.
    #[error("the daemon was started and is not ready after {seconds} s{}", match doing {
        Some(doing) => format!("; it is {doing}"),
        None => String::new(),
    })]
    NotReady {
        /// The time limit, in seconds.
        seconds: u64,
        /// The step of the start that it is at, where it has said that.
        doing: Option<String>,
    },
}

/// A path as a person can type it: in quotation marks where a shell would read more into it, and without control
/// characters. The path of a socket may come from the lock file, where a run may have written.
pub(crate) fn typed(path: &Path) -> String {
    let text = path.to_string_lossy();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+@:,=%".contains(c);
    if text.chars().all(is_plain) { text.into_owned() } else { format!("'{}'", one_line(&text).replace('\'', "'\\''")) }
}

impl StartError {
    /// Whether no daemon serves the socket now, though one may do so in a moment.
    pub(crate) fn is_absent(&self) -> bool {
        match self {
            Self::NotRunning { .. } | Self::Unreachable { .. } => true,
            Self::Untrusted { why, .. } => why.may_pass(),
            _ => false,
        }
    }

    /// What to do next.
    pub(crate) fn hint(&self) -> Option<String> {
        match self {
            Self::NotRunning { .. } => Some("start it: harnessctl daemon start".to_owned()),
            Self::SystemNotRunning { .. } => Some(
                "start it as root (systemctl start harnessd), or use one of your own: --socket PATH, XDG_RUNTIME_DIR"
                    .to_owned(),
            ),
            Self::Elsewhere { socket, .. } => Some(format!(
                "use that one: --socket {}; or start another with a state directory of its own: HARNESS_STATE_DIR",
                typed(socket)
            )),
            Self::Linked { socket, state_dir, .. } => Some(format!(
                "where that one is meant, name it: --socket {}; else look where {} leads",
                typed(socket),
                state_dir.display()
            )),
            Self::NoSocket { .. } => {
                Some("move it away, or name another place with --socket or HARNESS_SOCKET".to_owned())
            }
            Self::Unreachable { in_place: Some(_), socket, .. } => Some(format!(
                "move {} away, and the daemon binds its socket again by itself; harnessctl daemon stop ends it",
                typed(socket)
            )),
            Self::Unreachable { pid, .. } => Some(format!(
                "it binds its socket again by itself where it can; kill -HUP {pid} lets it try at once, harnessctl \
                 daemon stop ends it"
            )),
            Self::Denied { .. } => Some("ask its owner, or name another with --socket or HARNESS_SOCKET".to_owned()),
            Self::NotReady { .. } => Some("it may still be about to serve; try again".to_owned()),
            Self::Untrusted { why, .. } => Some(why.hint()),
            Self::InsideRun { .. } => Some(
                "start it from outside; for one that is only of this run: harnessd --socket PATH --state-dir DIR"
                    .to_owned(),
            ),
            Self::Disbelief(why) => Some(match why {
                Disbelief::NoFile(path) | Disbelief::Linked(path) => {
                    format!("look at it, and remove it (rm {}); a daemon makes its own", path.display())
                }
                Disbelief::Way { .. } => "name the state directory itself: HARNESS_STATE_DIR".to_owned(),
            }),
            Self::OfAnother { socket, owner: 0, .. } | Self::Public { socket, .. } => {
                Some(format!("where it is to be yours: harnessctl --socket {} daemon start", typed(socket)))
            }
            Self::OfAnother { .. } => Some(
                "its owner starts it (systemctl restart harnessd.socket harnessd); for one of your own: \
                 --socket PATH"
                    .to_owned(),
            ),
            Self::SystemGone { .. } => Some(
                "start the system's again (systemctl restart harnessd.socket harnessd), or one of your own: \
                 harnessctl daemon \
                 start"
                    .to_owned(),
            ),
            Self::NoProgram { .. } => Some("install harnessd beside harnessctl".to_owned()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_a_run_may_have_chosen_is_told_in_quotation_marks() {
        for (path, told) in [
            ("/run/user/1000/harness/control.sock", "/run/user/1000/harness/control.sock"),
            ("/x; or do this: rm -rf ~", "'/x; or do this: rm -rf ~'"),
            ("/it's", "'/it'\\''s'"),
            ("/$(reboot)", "'/$(reboot)'"),
            ("/home/m y/s", "'/home/m y/s'"),
            ("/`id`|sh", "'/`id`|sh'"),
        ] {
            assert_eq!(typed(Path::new(path)), told);
        }
        assert!(!typed(Path::new("/a\x1b[2J\nb")).contains(['\x1b', '\n']));
    }
}
