//! A deputy (`harnessd deputy`): a process of ours that becomes a subordinate user, and signals processes of that user.
//! A start uses it, by way of `reach`, to end what an earlier daemon has left.
//!
//! ```text
//!   start ─▶ a user namespace of its own ─▶ newuidmap maps its user 0 to the subordinate user ─▶ becomes user 0
//!        ─▶ a signal for each line that it is sent, until its input ends
//! ```
//!
//! A process of a run can become a subordinate user of its own user, by a program of that user with the set-user-id
//! bit. The kernel lets only that user and root signal it. `newuidmap` lets the daemon become every *subordinate* user
//! that a run can become; other users stay out of reach.
//!
//! Owns that process, and the way to it. Another process may take over a deputy, and gains nothing: the first act of a
//! deputy is to lower its mark (`RLIMIT_LOCKS`) to 0, by which it counts as inside a run. Until then it cannot be
//! traced, because it executes a copy of the program that cannot be read (except where the daemon is root). It inherits
//! neither files nor an environment. It sends KILL, STOP and CONT alone, to the pid with the start time that it is
//! given. Each wait for it ends after two seconds. Must never decide which process is signalled.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl::set_dumpable;
use nix::unistd::{Uid, setresuid};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::survivors::lower;
use crate::process::Sealed;
use crate::process::tree::proc_stat::stat;

/// The first word of a deputy's command line, after its name.
pub const DEPUTY: &str = "deputy";
/// Where the program is that gives a process a subordinate user. Never `PATH`: a run may write where that leads.
const NEWUIDMAP: [&str; 4] =
    ["/usr/bin/newuidmap", "/bin/newuidmap", "/usr/local/bin/newuidmap", "/run/wrappers/bin/newuidmap"];
/// How long an answer of a deputy is waited for, and the end of `newuidmap`; and how often it is looked for.
const ANSWER: u16 = 2_000;
const LOOKS: u32 = 1_000;
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// Deputies that live at once, and how many die for the same user, whose processes may end them, until it gets no more.
const MOST_AT_ONCE: usize = 16;
const MOST_DEATHS: u32 = 5;
/// The answers of a deputy: it has a user namespace, it is the user, it has sent the signal, it could not.
const APART: u8 = b'a';
const READY: u8 = b'r';
const SENT: u8 = b'y';
const NOT_SENT: u8 = b'n';

/// Why there is no deputy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NoDeputy {
    /// The user is no subordinate one of ours, and does not become one.
    NotAllowed,
    /// It ended or was stopped, as processes of our user and of that one may do to it: the next one may come to be.
    Died,
}

/// The deputies of this process, started when they are needed.
pub(super) struct Deputies {
    program: Option<Sealed>,
    start: fn(&Sealed, u32) -> Result<Deputy, NoDeputy>,
    alive: BTreeMap<u32, Deputy>,
    /// The user that was signalled last.
    latest: Option<u32>,
    deaths: BTreeMap<u32, u32>,
}

impl Default for Deputies {
    fn default() -> Self {
        let (alive, deaths) = (BTreeMap::new(), BTreeMap::new());
        Self { program: None, start: Deputy::start, alive, latest: None, deaths }
    }
}

impl Deputies {
    /// Sends a signal to a process of that user which began at that time. Gives whether it was sent.
    pub(super) fn signal(&mut self, user: u32, pid: i32, started: u64, signal: Signal) -> bool {
        while self.deaths.get(&user).is_none_or(|deaths| *deaths < MOST_DEATHS) {
            match self.of(user).and_then(|deputy| deputy.signal(pid, started, signal).ok_or(NoDeputy::Died)) {
                Ok(sent) => return sent,
                Err(NoDeputy::NotAllowed) => _ = self.deaths.insert(user, MOST_DEATHS),
                Err(NoDeputy::Died) => *self.deaths.entry(user).or_default() += 1,
            }
            self.alive.remove(&user);
        }
        false
    }

    fn of(&mut self, user: u32) -> Result<&mut Deputy, NoDeputy> {
        let latest = self.latest.replace(user);
        if !self.alive.contains_key(&user) {
            if self.alive.len() >= MOST_AT_ONCE {
                // Users are signalled in turns: the latest one will be needed again after all others.
                match latest.filter(|latest| self.alive.contains_key(latest)) {
                    Some(latest) => drop(self.alive.remove(&latest)),
                    None => drop(self.alive.pop_last()),
                }
            }
            let deputy = (self.start)(self.program.get_or_insert_with(Sealed::own), user)?;
            self.alive.insert(user, deputy);
        }
        self.alive.get_mut(&user).ok_or(NoDeputy::Died)
    }
}

struct Deputy {
    child: Child,
    to: ChildStdin,
    from: ChildStdout,
}

impl Deputy {
    fn start(program: &Sealed, user: u32) -> Result<Self, NoDeputy> {
        let mut command = Command::new(program.path());
        command.arg0("harnessd").arg(DEPUTY).env_clear();
        let mut deputy = Self::spawn(&mut command).ok_or(NoDeputy::Died)?;
        deputy.expect(APART)?;
        let mapped = map(deputy.child.id(), user);
        // For a process that has ended nothing is allowed.
        if mapped == Err(NoDeputy::NotAllowed) && !matches!(deputy.child.try_wait(), Ok(None)) {
            return Err(NoDeputy::Died);
        }
        mapped?;
        writeln!(deputy.to).map_err(|_| NoDeputy::Died)?;
        deputy.expect(READY)?;
        Ok(deputy)
    }

    fn spawn(command: &mut Command) -> Option<Self> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().ok()?;
        let (to, from) = (child.stdin.take()?, child.stdout.take()?);
        Some(Self { child, to, from })
    }

    fn expect(&mut self, expected: u8) -> Result<(), NoDeputy> {
        self.answer().filter(|answer| *answer == expected).map(drop).ok_or(NoDeputy::Died)
    }

    /// `None` where the deputy does not answer.
    fn signal(&mut self, pid: i32, started: u64, signal: Signal) -> Option<bool> {
        writeln!(self.to, "{} {pid} {started}", signal.as_raw()).ok()?;
        match self.answer()? {
            SENT => Some(true),
            NOT_SENT => Some(false),
            _ => None,
        }
    }

    fn answer(&mut self) -> Option<u8> {
        let mut ready = [PollFd::new(self.from.as_fd(), PollFlags::POLLIN)];
        let mut byte = [0];
        let is_there = poll(&mut ready, PollTimeout::from(ANSWER)).is_ok_and(|ready| ready > 0);
        (is_there && self.from.read_exact(&mut byte).is_ok()).then_some(byte[0])
    }
}

impl Drop for Deputy {
    fn drop(&mut self) {
        // The namespace that it lives in is ours, so that it can be killed whatever user it is.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a user of this machine the user 0 in the namespace of a process of ours.
fn map(pid: u32, user: u32) -> Result<(), NoDeputy> {
    let program = NEWUIDMAP.iter().find(|path| Path::new(path).exists()).ok_or(NoDeputy::NotAllowed)?;
    let mut command = Command::new(program);
    command.args([pid.to_string(), "0".to_owned(), user.to_string(), "1".to_owned()]).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|_| NoDeputy::Died)?;
    // Every process of our user can stop it, or end it.
    for _ in 0..LOOKS {
        match child.try_wait() {
            Ok(Some(status)) => return mapped(status),
            Ok(None) => std::thread::sleep(LOOK_AGAIN),
            Err(_) => return Err(NoDeputy::Died),
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    Err(NoDeputy::Died)
}

/// What the end of `newuidmap` says. It has a code where it ended by itself.
fn mapped(status: ExitStatus) -> Result<(), NoDeputy> {
    match status.code() {
        Some(0) => Ok(()),
        Some(_) => Err(NoDeputy::NotAllowed),
        None => Err(NoDeputy::Died),
    }
}

/// Is a deputy, until its input ends.
pub fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve() -> io::Result<()> {
    // Whatever becomes of this process, it is inside of all runs.
    lower(0)?;
    unshare(CloneFlags::CLONE_NEWUSER)?;
    // The files in `/proc` of a process that hides belong to root, and `newuidmap` opens one of them as our user.
    set_dumpable(true)?;
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut say = |byte: u8| output.write_all(&[byte]).and_then(|()| output.flush());
    say(APART)?;
    input.read_line(&mut String::new())?;
    set_dumpable(false)?;
    let user = Uid::from_raw(0);
    setresuid(user, user, user)?;
    say(READY)?;
    for line in input.lines() {
        say(if obey(&line?).is_some() { SENT } else { NOT_SENT })?;
    }
    Ok(())
}

/// Sends the signal that a line names; `None` where it could not be sent.
fn obey(line: &str) -> Option<()> {
    let mut words = line.split(' ');
    let number: i32 = words.next()?.parse().ok()?;
    let signal = [Signal::KILL, Signal::STOP, Signal::CONT].into_iter().find(|signal| signal.as_raw() == number)?;
    let pid: i32 = words.next()?.parse().ok().filter(|&pid| pid > 0)?;
    let started: u64 = words.next()?.parse().ok()?;
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    stat(pid).filter(|stat| !stat.dead && stat.started == started)?;
    pidfd_send_signal(process, signal).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::cell::RefCell;

    use super::*;

    /// What is not a request of ours signals no process, and neither does one that means an earlier process of the pid.
    #[test]
    fn a_deputy_sends_only_what_it_is_told_to_the_process_that_is_meant() {
        let mut child = Command::new("sleep").arg("100").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let started = stat(pid).unwrap().started;
        let kill = Signal::KILL.as_raw();
        for line in [
            String::new(),
            format!("{kill}"),
            format!("{kill} {pid}"),
            format!("{kill} {pid} {}", started + 1),
            format!("{} {pid} {started}", Signal::TERM.as_raw()),
            format!("{kill} -{pid} {started}"),
            format!("{kill} 0 {started}"),
            format!("x {pid} {started}"),
        ] {
            assert_eq!(obey(&line), None, "{line}");
            assert!(child.try_wait().unwrap().is_none(), "{line}");
        }
        assert_eq!(obey(&format!("{kill} {pid} {started}")), Some(()));
        assert!(!child.wait().unwrap().success());
    }

    thread_local! {
        /// The users for which this test has started deputies.
        static STARTED: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    }

    /// Deputies that are started like this. Each start is noted.
    fn deputies(start: fn(&Sealed, u32) -> Result<Deputy, NoDeputy>) -> Deputies {
        Deputies { program: Some(Sealed::at("/bin/false")), start, ..Deputies::default() }
    }

    fn started() -> Vec<u32> {
        STARTED.with(RefCell::take)
    }

    /// A deputy that answers so many lines, each as if it had sent the signal, and ends.
    fn answering(lines: &str) -> Result<Deputy, NoDeputy> {
        let script = "for _ in $(seq $0); do read -r line || exit; printf y; done";
        Deputy::spawn(Command::new("sh").args(["-c", script, lines])).ok_or(NoDeputy::Died)
    }

    /// A user that is no subordinate one of ours has no deputy, and is not asked about again and again.
    #[test]
    fn there_is_no_deputy_for_a_user_that_is_not_ours_to_be() {
        let mut deputies = deputies(|_, user| {
            STARTED.with_borrow_mut(|started| started.push(user));
            Err(NoDeputy::NotAllowed)
        });
        for _ in 0..3 {
            assert!(!deputies.signal(4_000_000_000, 1, 0, Signal::KILL));
        }
        assert_eq!(started(), [4_000_000_000]);
        assert!(deputies.alive.is_empty());
    }

    /// Processes of the user can end its deputy from the moment at which it has become that user.
    #[test]
    fn a_deputy_that_dies_before_it_is_ready_is_followed_by_another_one() {
        let mut deputies = deputies(|_, user| {
            STARTED.with_borrow_mut(|started| started.push(user));
            if started_before(2) { Err(NoDeputy::Died) } else { answering("9") }
        });
        assert!(deputies.signal(7, 1, 0, Signal::STOP));
        assert!(deputies.signal(7, 1, 0, Signal::KILL));
        assert_eq!(started(), [7; 3]);
    }

    fn started_before(so_many: usize) -> bool {
        STARTED.with_borrow(|started| started.len() <= so_many)
    }

    #[test]
    fn a_user_whose_deputies_die_again_and_again_gets_no_more() {
        let mut deputies = deputies(|program, user| {
            STARTED.with_borrow_mut(|started| started.push(user));
            // It ends before it says a word.
            Deputy::start(program, user)
        });
        for _ in 0..2 {
            assert!(!deputies.signal(7, 1, 0, Signal::KILL));
        }
        assert_eq!(started().len(), MOST_DEATHS as usize);
    }

    #[test]
    fn a_deputy_that_dies_between_two_signals_is_followed_by_another_one() {
        let mut deputies = deputies(|_, user| {
            STARTED.with_borrow_mut(|started| started.push(user));
            answering("1")
        });
        for _ in 0..3 {
            assert!(deputies.signal(7, 1, 0, Signal::KILL));
        }
        assert_eq!(started(), [7; 3]);
    }

    /// What counts is a death, and not that others needed the place.
    #[test]
    fn users_that_are_more_than_the_deputies_are_all_signalled_however_often() {
        let mut deputies = deputies(|_, user| {
            STARTED.with_borrow_mut(|started| started.push(user));
            answering("1000")
        });
        let users = u32::try_from(MOST_AT_ONCE).unwrap() + 1;
        let rounds = MOST_DEATHS * 4;
        for round in 0..rounds {
            for user in 0..users {
                assert!(deputies.signal(user, 1, 0, Signal::STOP), "user {user} in round {round}");
                assert!(deputies.alive.len() <= MOST_AT_ONCE);
            }
        }
        // All but a few live on: in a round two have to give way.
        let most = users + 2 * rounds;
        assert!(started().len() <= most as usize);
        assert!(deputies.deaths.is_empty());
    }

    #[test]
    fn only_what_newuidmap_says_itself_is_a_refusal() {
        let ended = |script: &str| mapped(Command::new("sh").args(["-c", script]).status().unwrap());
        assert_eq!(ended("exit 0"), Ok(()));
        assert_eq!(ended("exit 1"), Err(NoDeputy::NotAllowed));
        assert_eq!(ended("kill -9 $$"), Err(NoDeputy::Died));
    }
}
