//! Connects to the daemon, and starts one if none runs.
//!
//! Two daemons never serve one state directory, by the daemon's lock: a daemon that does not get the lock exits, and
//! this command connects to the one that has it. Must never start a daemon from inside a run, or where the directory of
//! the socket may belong to another user (`may_start`). Must never give out a connection before `server_identity` has
//! checked the server. A socket that the user may not open is an error, and no reason to start a daemon. If no process
//! serves the socket, the lock of the state directory tells which daemon runs elsewhere.

pub(crate) mod error;
pub(crate) mod inside_run;
pub(crate) mod lock_holder;
pub(crate) mod server_identity;
pub(crate) mod spawn;

use std::ffi::OsStr;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use harness_files::{Dir, Refusal};
use harness_protocol::paths::SYSTEM_SOCKET;
use interprocess::os::unix::uds_local_socket::Stream;

use crate::client::connect::{ConnectError, connect};
use crate::client::timeouts::PATIENCE;
use crate::launch::error::StartError;
use crate::launch::inside_run::{Inside, inside};
use crate::launch::lock_holder::Holder;
use crate::launch::spawn::{Spawned, UNTIL_TOLD, spawn};
use crate::output::note;

/// Time between two looks at a socket that another process is about to open.
const LOOK_AGAIN: Duration = Duration::from_millis(25);
/// How long a daemon may take to bind a removed socket again: it looks once a second.
const UNTIL_BOUND_AGAIN: Duration = Duration::from_secs(3);
/// Number of looks between two attempts at a start: the daemon that held the lock may have been leaving.
const LOOKS_PER_START: u32 = 12;

/// Where to look for a daemon.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    /// The socket on which a daemon is looked for.
    pub(crate) socket: PathBuf,
    /// Whether the user named this socket: then no other socket is tried.
    pub(crate) named: bool,
    /// The state directory of a daemon that would be started.
    pub(crate) state_dir: PathBuf,
}

/// A connection, and how it was made.
#[derive(Debug)]
pub(crate) struct Found {
    /// The open connection.
    pub(crate) stream: Stream,
    /// The socket that was connected to. If no process serves the given socket, this is the socket of the daemon that
    /// holds the state directory.
    pub(crate) socket: PathBuf,
    /// Whether the daemon was started for it.
    pub(crate) started: bool,
    /// The daemon that holds the state directory, if the socket was found through its lock.
    pub(crate) holder: Option<u32>,
}

/// Connects to the running daemon. Nothing is sent to any other process.
pub(crate) fn find(place: &Place) -> Result<Found, StartError> {
    let found = reach(place)?;
    server_identity::check(&found.stream, &found.socket, &place.state_dir, found.holder)?;
    Ok(found)
}

fn reach(place: &Place) -> Result<Found, StartError> {
    match connect(&place.socket, PATIENCE) {
        Ok(stream) => Ok(Found { stream, socket: place.socket.clone(), started: false, holder: None }),
        Err(ConnectError::Absent) => match Holder::of(&place.state_dir)? {
            Some(holder) => elsewhere(place, holder),
            None => Err(match no_socket(&place.socket) {
                Some(what) => StartError::NoSocket { socket: place.socket.clone(), what },
                None => StartError::NotRunning { socket: place.socket.clone() },
            }),
        },
        Err(error) => Err(explain(error, &place.socket)),
    }
}

/// Connects to the daemon that holds the state directory. No process serves the given socket.
fn elsewhere(place: &Place, holder: Holder) -> Result<Found, StartError> {
    let (pid, state_dir) = (holder.pid, place.state_dir.clone());
    match holder.socket {
        Some(socket) if socket != place.socket && place.named => Err(StartError::Elsewhere { pid, socket, state_dir }),
        Some(socket) if socket != place.socket && holder.by_link => Err(StartError::Linked { pid, socket, state_dir }),
        Some(socket) if socket != place.socket => match connect(&socket, PATIENCE) {
            Ok(stream) => Ok(Found { stream, socket, started: false, holder: Some(pid) }),
            Err(ConnectError::Absent) => Err(unreachable(pid, socket, true)),
            Err(error) => Err(explain(error, &socket)),
        },
        Some(socket) => Err(unreachable(pid, socket, true)),
        None => Err(unreachable(pid, place.socket.clone(), false)),
    }
}

fn unreachable(pid: u32, socket: PathBuf, settled: bool) -> StartError {
    let in_place = no_socket(&socket);
    StartError::Unreachable { pid, socket, settled, in_place }
}

/// The kind of the entry at the path of a socket, if it is not a socket.
fn no_socket(path: &Path) -> Option<&'static str> {
    let kind = path.symlink_metadata().ok()?.file_type();
    if kind.is_socket() {
        None
    } else if kind.is_file() {
        Some("a file")
    } else if kind.is_dir() {
        Some("a directory")
    } else if kind.is_symlink() {
        // A link to a socket counts as one.
        path.metadata().map_or(Some("a link that leads nowhere"), |found| {
            (!found.file_type().is_socket()).then_some("a link to something else")
        })
    } else {
        Some("a pipe or a device")
    }
}

/// Connects to the daemon. Starts it if there is none, unless the place may belong to another user. `asked` says that
/// the user asked for a daemon, and for nothing else.
pub(crate) fn find_or_start(place: &Place, asked: bool) -> Result<Found, StartError> {
    match find_soon(place) {
        Err(StartError::NotRunning { .. }) => {
            may_start(place, asked, &Ground::of(&place.socket, Path::new(SYSTEM_SOCKET)))?;
            let program = daemon_program().ok_or_else(|| StartError::NoProgram { socket: place.socket.clone() })?;
            start(place, &program)
        }
        found => found,
    }
}

/// Facts about the place of a daemon that would be started.
#[derive(Debug, Clone)]
struct Ground {
    /// The directory of the socket, or the first existing one above it.
    dir: PathBuf,
    /// The owner of the directory. If another user made a link on the path, that user's id.
    owner: u32,
    /// Whether other users may create files in it, or replace it.
    is_open: bool,
    own: u32,
    inside: Option<Inside>,
    /// Whether the directory of the system's socket exists.
    has_system: bool,
}

impl Ground {
    fn of(socket: &Path, system: &Path) -> Self {
        let own = nix::unistd::geteuid().as_raw();
        let dir = socket.ancestors().skip(1).find(|dir| dir.exists()).unwrap_or(Path::new("/")).to_owned();
        let (owner, is_open) = match Dir::open(&dir) {
            Ok(held) => {
                let found = rustix::fs::fstat(&held).map_or((0, 0), |found| (found.st_uid, found.st_mode));
                (found.0, found.1 & 0o002 != 0 || !held.is_ours())
            }
            Err(error) => match error.get_ref().and_then(|why| why.downcast_ref()) {
                Some(Refusal::Link(_, owner)) => (*owner, true),
                _ => (0, true),
            },
        };
        let system = system.parent().and_then(|dir| dir.metadata().ok());
        let has_system = system.is_some_and(|system| is_for_others(own, system.uid(), system.mode()));
        Self { dir, owner, is_open, own, inside: inside(), has_system }
    }
}

/// Whether a place of that owner and mode serves other users, too. A place of root's own daemon is closed to all
/// others, who cannot have meant it.
fn is_for_others(own: u32, owner: u32, mode: u32) -> bool {
    ![0, own].contains(&owner) || mode & 0o055 != 0
}

/// A run may be able to remove the socket of another user's daemon, or to make its service fail. The next user who runs
/// a command must not get a daemon of their own instead: it would act with their rights on requests that were meant for
/// the other daemon.
fn may_start(place: &Place, asked: bool, ground: &Ground) -> Result<(), StartError> {
    let (socket, dir) = (place.socket.clone(), ground.dir.clone());
    if let Some(inside) = ground.inside {
        return Err(StartError::InsideRun { socket, inside });
    }
    // A directory of root may be shared by all users, as /tmp is.
    let is_ours = ground.owner == ground.own;
    if !is_ours && socket == Path::new(SYSTEM_SOCKET) {
        return Err(StartError::SystemNotRunning { socket });
    }
    if !(is_ours || asked && ground.owner == 0) {
        return Err(StartError::OfAnother { socket, dir, owner: ground.owner });
    }
    if !asked && ground.is_open {
        return Err(StartError::Public { socket, dir });
    }
    if !asked && !place.named && ground.has_system {
        return Err(StartError::SystemGone { socket });
    }
    Ok(())
}

/// Connects to the running daemon. Waits for a daemon that starts, leaves, or is about to bind its socket again.
fn find_soon(place: &Place) -> Result<Found, StartError> {
    let begun = Instant::now();
    let mut told = false;
    loop {
        let patience = |settled| if settled { UNTIL_BOUND_AGAIN } else { PATIENCE };
        match find(place) {
            Err(StartError::Unreachable { settled, pid, .. }) if begun.elapsed() < patience(settled) => {
                if !told && begun.elapsed() > UNTIL_TOLD {
                    told = true;
                    note(format_args!("harnessctl: a daemon (pid {pid}) starts or leaves, and is waited for"));
                }
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(StartError::Untrusted { why, .. }) if why.may_pass() && begun.elapsed() < UNTIL_BOUND_AGAIN => {
                std::thread::sleep(LOOK_AGAIN);
            }
            found => return found,
        }
    }
}

fn start(place: &Place, program: &Path) -> Result<Found, StartError> {
    let until = Instant::now() + PATIENCE;
    loop {
        let (started, said) = match spawn(program, &place.socket)? {
            Spawned::Ready => (true, None),
            Spawned::AnotherHasTheLock { said } => (false, Some(said)),
        };
        for _look in 0..LOOKS_PER_START {
            match find(place) {
                Ok(found) => return Ok(Found { started, ..found }),
                Err(error) if error.is_absent() && Instant::now() < until => std::thread::sleep(LOOK_AGAIN),
                // The daemon that failed to start knows best why no daemon serves.
                Err(StartError::NotRunning { .. }) if said.is_some() => {
                    return Err(StartError::Failed { said: said.unwrap_or_default() });
                }
                Err(error) => return Err(error),
            }
        }
    }
}

fn explain(error: ConnectError, socket: &Path) -> StartError {
    let socket = socket.to_owned();
    match error {
        ConnectError::Absent => StartError::NotRunning { socket },
        ConnectError::Denied => StartError::Denied { socket },
        ConnectError::Other(source) => StartError::Connect { socket, source },
    }
}

/// The daemon's program, if it can be found.
pub(crate) fn daemon_program() -> Option<PathBuf> {
    program(std::env::current_exe().ok().as_deref(), std::env::var_os("PATH").as_deref())
}

/// The daemon's program: beside our own program, or else on PATH.
fn program(own: Option<&Path>, path: Option<&OsStr>) -> Option<PathBuf> {
    let beside = own.and_then(Path::parent).map(|dir| dir.join("harnessd"));
    let on_path =
        path.into_iter().flat_map(std::env::split_paths).filter(|d| d.is_absolute()).map(|d| d.join("harnessd"));
    beside.into_iter().chain(on_path).find(|candidate| is_executable(candidate))
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && nix::unistd::access(path, nix::unistd::AccessFlags::X_OK).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::error::Failure;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    /// A socket, beside a state directory that no daemon holds.
    fn at(socket: &Path) -> Place {
        Place { socket: socket.to_owned(), named: true, state_dir: socket.with_file_name("no-state") }
    }

    fn executable(path: &Path, text: &str) {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn the_program_beside_our_own_goes_before_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&other).unwrap();
        let search = || program(Some(&own.join("harnessctl")), Some(other.as_os_str()));
        assert_eq!(search(), None);
        executable(&other.join("harnessd"), "");
        assert_eq!(search(), Some(other.join("harnessd")));
        fs::write(own.join("harnessd"), "").unwrap();
        assert_eq!(search(), Some(other.join("harnessd")), "what is not executable is passed over");
        executable(&own.join("harnessd"), "");
        assert_eq!(search(), Some(own.join("harnessd")));
    }

    #[test]
    fn a_daemon_that_fails_to_start_says_why() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("harnessd");
        executable(&program, "#!/bin/sh\necho 'config.toml: line 3: no' >&2\nexit 2\n");
        let error = start(&at(&dir.path().join("s")), &program).unwrap_err();
        assert_eq!(error.to_string(), "the daemon did not start: config.toml: line 3: no");
    }

    #[test]
    fn a_daemon_that_fails_at_a_held_lock_says_so_itself() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("harnessd");
        executable(&program, "#!/bin/sh\necho 'harnessd: another daemon (pid 7) holds /x' >&2\nexit 75\n");
        let error = start(&at(&dir.path().join("s")), &program).unwrap_err();
        assert_eq!(error.to_string(), "the daemon did not start: harnessd: another daemon (pid 7) holds /x");
    }

    #[test]
    fn the_loser_of_the_race_connects_to_the_winner() {
        let dir = tempfile::tempdir().unwrap();
        let (program, socket) = (dir.path().join("harnessd"), dir.path().join("s"));
        executable(&program, "#!/bin/sh\nexit 75\n");
        let winner = UnixListener::bind(&socket).unwrap();
        assert!(!start(&at(&socket), &program).unwrap().started);
        drop(winner);
    }

    #[test]
    fn a_leaving_daemon_that_held_the_lock_is_followed_by_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let (program, socket) = (dir.path().join("harnessd"), dir.path().join("s"));
        // The first start finds the lock held by a daemon that never serves again.
        let script = "#!/bin/sh\nif [ ! -e first ]; then : > first; exit 75; fi\n: > second\necho ready\n";
        executable(
            &program,
            &script
                .replace("first", &dir.path().join("first").display().to_string())
                .replace("second", &dir.path().join("second").display().to_string()),
        );
        let second = dir.path().join("second");
        let server = {
            let (socket, second) = (socket.clone(), second);
            std::thread::spawn(move || {
                while !second.exists() {
                    std::thread::yield_now();
                }
                let listener = UnixListener::bind(socket).unwrap();
                listener.accept().unwrap();
            })
        };
        assert!(start(&at(&socket), &program).unwrap().started);
        server.join().unwrap();
    }

    #[test]
    fn the_program_is_told_the_socket_and_runs_in_the_root_directory_without_input() {
        let dir = tempfile::tempdir().unwrap();
        let (program, socket) = (dir.path().join("harnessd"), dir.path().join("s"));
        executable(&program, "#!/bin/sh\necho \"$* $PWD $(cat)\" >&2\nexit 1\n");
        let error = start(&at(&socket), &program).unwrap_err();
        let expected = format!("the daemon did not start: --on-demand --socket {} /", socket.display());
        assert_eq!(error.to_string().trim_end(), expected);
    }

    /// If a daemon of another user may have been meant, no user gets a daemon of their own instead without asking for
    /// it.
    #[test]
    fn a_daemon_is_started_only_where_nothing_of_another_user_is_meant() {
        const US: u32 = 1000;
        let run = |place: &Place, asked, ground: Ground| match may_start(place, asked, &ground) {
            Ok(()) => "starts",
            Err(StartError::OfAnother { owner, .. }) if owner == ground.owner => "of another",
            Err(StartError::SystemNotRunning { .. }) => "the system's",
            Err(StartError::Public { .. }) => "public",
            Err(StartError::SystemGone { .. }) => "the system's is gone",
            Err(StartError::InsideRun { .. }) => "inside",
            Err(other) => panic!("{other}"),
        };
        let own = Ground { dir: "/d".into(), owner: US, is_open: false, own: US, inside: None, has_system: false };
        let of = |owner| Ground { owner, ..own.clone() };
        let roots = |owner, is_open| Ground { own: 0, owner, is_open, ..own.clone() };
        let with_system = |ground| Ground { has_system: true, ..ground };
        let named = Place { named: true, ..at(Path::new("/d/s")) };
        let default = Place { named: false, ..named.clone() };
        let system = Place { named: false, ..at(Path::new(SYSTEM_SOCKET)) };
        let table = [
            ("one's own", &named, own.clone(), ["starts", "starts"]),
            ("by default", &default, own.clone(), ["starts", "starts"]),
            ("a group's", &named, Ground { is_open: true, ..own.clone() }, ["public", "starts"]),
            ("another user's", &named, of(4101), ["of another", "of another"]),
            ("another user's, for root", &named, roots(4101, false), ["of another", "of another"]),
            ("as /tmp", &named, of(0), ["of another", "starts"]),
            ("as /tmp, for root", &named, roots(0, true), ["public", "starts"]),
            ("one's own beside the system's", &named, with_system(own.clone()), ["starts", "starts"]),
            ("by default beside it", &default, with_system(own.clone()), ["the system's is gone", "starts"]),
            ("the system's", &system, with_system(of(0)), ["the system's", "the system's"]),
            ("the system's, of its user", &system, with_system(of(4101)), ["the system's", "the system's"]),
            ("the system's, for root", &system, with_system(roots(0, false)), ["the system's is gone", "starts"]),
            ("the system's, of its user, for root", &system, with_system(roots(4101, false)), ["the system's"; 2]),
            ("where there is none, for root", &system, roots(0, false), ["starts", "starts"]),
        ];
        for (what, place, ground, expected) in table {
            assert_eq!([false, true].map(|asked| run(place, asked, ground.clone())), expected, "{what}");
            let ground = Ground { inside: Some(Inside::Variable), ..ground };
            assert_eq!([false, true].map(|asked| run(place, asked, ground.clone())), ["inside"; 2], "{what}");
        }
    }

    #[test]
    fn where_a_daemon_is_started_for_the_asking_its_user_is_told_how_to_ask() {
        let place = at(Path::new("/d/s"));
        let ground =
            |owner, own| Ground { dir: "/d".into(), owner, is_open: true, own, inside: None, has_system: false };
        for (owner, own, may_be_asked) in [(0, 1000, true), (1000, 1000, true), (0, 0, true), (4101, 1000, false)] {
            let hint = may_start(&place, false, &ground(owner, own)).unwrap_err().hint().unwrap();
            let told = hint.contains("harnessctl --socket /d/s daemon start");
            let starts = may_start(&place, true, &ground(owner, own)).is_ok();
            assert_eq!((told, starts), (may_be_asked, may_be_asked), "of {owner}, for {own}: {hint}");
        }
    }

    /// Root's own daemon, started on demand without a session directory, makes the system's place as well.
    #[test]
    fn the_systems_place_counts_only_where_others_may_use_it() {
        let dir = tempfile::tempdir().unwrap();
        let (socket, system) = (dir.path().join("s"), dir.path().join("harness/control.sock"));
        let has_system = || Ground::of(&socket, &system).has_system;
        assert!(!has_system(), "there is none");
        let place = system.parent().unwrap();
        fs::create_dir(place).unwrap();
        for (mode, counts) in [(0o700, false), (0o750, true), (0o755, true), (0o711, true)] {
            fs::set_permissions(place, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(has_system(), counts, "mode {mode:o}");
        }
        for (own, owner, mode, counts) in [
            (1000, 0, 0o700, false),
            (1000, 0, 0o755, true),
            (1000, 1000, 0o700, false),
            (1000, 4101, 0o700, true),
            (0, 4101, 0o700, true),
        ] {
            assert_eq!(is_for_others(own, owner, mode), counts, "seen by {own}: of {owner}, mode {mode:o}");
        }
    }

    #[test]
    fn a_stale_socket_counts_as_none_and_a_missing_directory_too() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("s");
        drop(UnixListener::bind(&socket).unwrap());
        assert!(matches!(find(&at(&socket)), Err(StartError::NotRunning { .. })));
        assert!(matches!(find(&at(&dir.path().join("no/s"))), Err(StartError::NotRunning { .. })));
        fs::write(dir.path().join("file"), "").unwrap();
        fs::create_dir(dir.path().join("dir")).unwrap();
        std::os::unix::fs::symlink(dir.path().join("nowhere"), dir.path().join("link")).unwrap();
        for (name, told) in [("file", "a file"), ("dir", "a directory"), ("link", "a link that leads nowhere")] {
            let error = find(&at(&dir.path().join(name))).unwrap_err();
            assert!(error.to_string().ends_with(&format!("{name} is {told}, and no socket")), "{error}");
            assert_eq!(Failure::from(error).code(), 2);
        }
        let long = dir.path().join("x".repeat(200));
        assert!(matches!(find(&at(&long)), Err(StartError::Connect { .. })));
    }
}
