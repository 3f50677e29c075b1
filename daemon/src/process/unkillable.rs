//! Tells processes that SIGKILL does not end, and ends their wait where that is allowed.
//!
//! The kernel waits uninterruptibly for a file system that has begun to answer: a disk, NFS, or FUSE, whose server may
//! be the very process that waits. Such a process is killed, executes nothing of its program any more, and stays. It is
//! *past its end*.
//!
//! ```text
//!   all that is left is past its end ─ 2 s ─▶ abort its FUSE file systems ─ 2 s ─▶ give it up, and say what ends it
//! ```
//!
//! The only place that aborts a FUSE connection. It must not abort one that is mounted where this process is as well:
//! that one is an operator's (sshfs), and is only named.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::signal::kill;
use nix::unistd::Pid;

/// Where the kernel lists the connections of FUSE, if that file system is mounted.
const CONNECTIONS: &str = "/sys/fs/fuse/connections";
/// How long processes may be past their end before their file systems are aborted, and before they are given up.
/// Together shorter than [`KILL_WAIT`](super::timing::KILL_WAIT).
const ABORTED_AFTER: Duration = Duration::from_secs(2);
const GIVEN_UP_AFTER: Duration = Duration::from_secs(4);
/// SIGKILL in the kernel's sets of signals.
const KILLED: u64 = 1 << 8;
/// A thread that has begun to exit (`PF_EXITING`): it never executes its program again.
const EXITING: u64 = 0x4;
/// Position of these flags behind the state, as proc_pid_stat(5) counts the fields.
const FLAGS: usize = 9 - 4;
/// Processes and file systems that are named at most.
const MOST_NAMED: usize = 20;

/// Whether no thread of a process executes anything of its program any more, although the kernel may keep it for ever:
/// each has ended, or is exiting, or waits uninterruptibly with a SIGKILL that is pending. Also true of one that is
/// gone.
pub(super) fn is_past_end(pid: i32) -> bool {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return kill(Pid::from_raw(pid), None) == Err(Errno::ESRCH);
    };
    // A thread that can still run may have started others that are not listed: it is listed itself.
    threads.flatten().all(|thread| {
        let read = |file: &str| fs::read(thread.path().join(file));
        match (read("stat"), read("status")) {
            (Ok(stat), Ok(status)) => is_thread_past_end(&stat, &status),
            // It has gone meanwhile.
            _ => !thread.path().exists(),
        }
    })
}

/// The rule for one thread, by its files `stat` and `status`.
fn is_thread_past_end(stat: &[u8], status: &[u8]) -> bool {
    let Some((state, flags)) = state_and_flags(stat) else { return false };
    let waits = matches!(state, b'D' | b'I');
    let is_killed =
        ["SigPnd:", "ShdPnd:"].into_iter().filter_map(|name| set(status, name)).any(|set| set & KILLED != 0);
    matches!(state, b'Z' | b'X' | b'x') || flags & EXITING != 0 || (waits && is_killed)
}

fn state_and_flags(stat: &[u8]) -> Option<(u8, u64)> {
    // The name may contain any character.
    let behind_the_name = stat.iter().rposition(|&byte| byte == b')')? + 1;
    let mut fields = str::from_utf8(stat.get(behind_the_name..)?).ok()?.split_ascii_whitespace();
    let state = fields.next()?.bytes().next()?;
    Some((state, fields.nth(FLAGS)?.parse().ok()?))
}

/// A set of signals in `status`.
fn set(status: &[u8], name: &str) -> Option<u64> {
    let line = status.split(|&byte| byte == b'\n').find_map(|line| line.strip_prefix(name.as_bytes()))?;
    u64::from_str_radix(str::from_utf8(line).ok()?.trim(), 16).ok()
}

/// What is to be done about processes that were killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// They may end by themselves, or by another SIGKILL.
    Wait,
    /// Their file systems are to be aborted.
    Abort,
    /// Nothing that we may do ends them.
    GiveUp,
}

/// How long what is left has been past its end.
#[derive(Debug, Default)]
pub(super) struct Stuck {
    since: Option<Instant>,
    aborted: bool,
}

impl Stuck {
    /// The next step, after another look: whether all that is left is past its end.
    pub(super) fn step(&mut self, is_all_past_end: bool) -> Step {
        #[expect(clippy::disallowed_methods, reason = "keepers and starts have no driver to ask for the time")]
        let now = Instant::now();
        self.step_at(now, is_all_past_end)
    }

    fn step_at(&mut self, now: Instant, is_all_past_end: bool) -> Step {
        if !is_all_past_end {
            *self = Self::default();
            return Step::Wait;
        }
        let waited = now.saturating_duration_since(*self.since.get_or_insert(now));
        if waited >= GIVEN_UP_AFTER {
            return Step::GiveUp;
        }
        if waited >= ABORTED_AFTER && !std::mem::replace(&mut self.aborted, true) {
            return Step::Abort;
        }
        Step::Wait
    }
}

/// Aborts the FUSE file systems that are mounted for these processes and not for us, where our user may. Every wait for
/// them ends. Gives the number of aborted ones.
pub(super) fn end_waits(pids: impl IntoIterator<Item = i32>) -> usize {
    let abort = |number: &u32| fs::write(Path::new(CONNECTIONS).join(number.to_string()).join("abort"), "1").is_ok();
    theirs(pids).iter().filter(|number| abort(number)).count()
}

/// What is told of processes that are past their end: their pids, and what ends them.
pub(super) fn told(pids: &BTreeSet<i32>) -> String {
    let named: Vec<String> = pids.iter().take(MOST_NAMED).map(i32::to_string).collect();
    let mut text = format!(
        "SIGKILL does not end {}: it is pending, and the kernel waits for a file system that does not answer; nothing \
         is executed there any more",
        named.join(" ")
    );
    let theirs = theirs(pids.iter().copied());
    if !theirs.is_empty() {
        text.push_str(". Root ends the wait (where that directory is empty, first: mount -t fusectl none ");
        _ = write!(text, "{CONNECTIONS}):");
        for number in theirs.iter().take(MOST_NAMED) {
            _ = write!(text, " echo 1 > {CONNECTIONS}/{number}/abort;");
        }
        return text.trim_end_matches(';').to_owned();
    }
    let ours: Vec<String> = connections(&mountinfo("self")).iter().take(MOST_NAMED).map(named_ours).collect();
    if ours.is_empty() {
        _ = write!(text, ". No FUSE file system is mounted there: a disk or a network has to come back");
    } else {
        _ = write!(
            text,
            ". It may be a disk, a network, or one of these of FUSE, which root ends (echo 1 > \
             {CONNECTIONS}/NUMBER/abort): {}",
            ours.join(", ")
        );
    }
    text
}

/// A connection of our own mount namespace, with the number of its requests that wait, as far as we may read it.
fn named_ours(number: &u32) -> String {
    match fs::read_to_string(Path::new(CONNECTIONS).join(number.to_string()).join("waiting")) {
        Ok(waiting) => format!("{number} ({} requests wait)", waiting.trim()),
        Err(_) => number.to_string(),
    }
}

/// The connections that are mounted for these processes and not for us.
fn theirs(pids: impl IntoIterator<Item = i32>) -> BTreeSet<u32> {
    let all: BTreeSet<u32> = pids.into_iter().flat_map(connections_of).collect();
    if all.is_empty() {
        return all;
    }
    let own = mountinfo("self");
    // What cannot be told from ours is not touched.
    if own.is_empty() { BTreeSet::new() } else { all.difference(&connections(&own)).copied().collect() }
}

/// The connections that are mounted for any thread of a process. The first thread shows none once it has ended.
fn connections_of(pid: i32) -> BTreeSet<u32> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let names = threads.filter_map(|thread| thread.file_name().into_string().ok());
    names.flat_map(|thread| connections(&mountinfo(&format!("{pid}/task/{thread}")))).collect()
}

fn mountinfo(process: &str) -> Vec<u8> {
    fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default()
}

/// The numbers of the FUSE connections in a `mountinfo`, as the kernel names them: of the device (12 and 20 bits).
fn connections(mountinfo: &[u8]) -> BTreeSet<u32> {
    // Bytes: paths need not be text. A blank in a path is written as \040.
    mountinfo.split(|&byte| byte == b'\n').filter_map(connection).collect()
}

/// The connection of a line such as `101 81 0:47 / /a/path rw,nosuid shared:1 - fuse.sshfs source rw,user_id=0`.
fn connection(line: &[u8]) -> Option<u32> {
    let mut words = line.split(|&byte| byte == b' ');
    let device = str::from_utf8(words.nth(2)?).ok()?;
    let kind = words.skip_while(|word| *word != b"-").nth(1)?;
    let is_fuse = kind == b"fuse" || kind == b"fuseblk" || kind.starts_with(b"fuse.") || kind.starts_with(b"fuseblk.");
    let (major, minor) = device.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    is_fuse.then_some(major << 20 | minor)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn is_past(state: char, flags: u64, own: u64, shared: u64) -> bool {
        let stat = format!("12 (a) D (b) {state} 1 12 12 0 -1 {flags} 0 0 0 0 9 9\n");
        let status = format!("Name:\ta\nState:\t{state}\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t0\n");
        is_thread_past_end(stat.as_bytes(), status.as_bytes())
    }

    #[test]
    fn only_a_thread_that_never_executes_its_program_again_is_past_its_end() {
        let plain = 4_194_560;
        let table = [
            ("waits uninterruptibly, and is killed alone", ('D', plain, KILLED, 0), true),
            ("with its process", ('D', plain, 0, KILLED), true),
            ("with other signals", ('D', plain, 0, KILLED | 0x4000), true),
            ("an idle wait of the kernel", ('I', plain, KILLED, KILLED), true),
            ("is not killed: the disk may answer", ('D', plain, 0, 0), false),
            ("has got SIGTERM", ('D', plain, 0x4000, 0x4000), false),
            ("its neighbours in the set", ('D', plain, 0x280, 0x280), false),
            ("is on its way to its end", ('R', plain, KILLED, KILLED), false),
            ("sleeps", ('S', plain, 0, 0), false),
            ("a sleep that SIGKILL ends", ('S', plain, KILLED, KILLED), false),
            ("is stopped", ('T', plain, 0, 0), false),
            ("is exiting by itself, and waits in a close", ('D', plain | EXITING, 0, 0), true),
            ("the first of a pid namespace, which waits for others", ('S', plain | EXITING, 0, KILLED), true),
            ("is exiting", ('R', plain | EXITING, 0, 0), true),
            ("has ended", ('Z', plain, 0, 0), true),
            ("is being reaped", ('X', 0, 0, 0), true),
        ];
        for (what, (state, flags, own, shared), expected) in table {
            assert_eq!(is_past(state, flags, own, shared), expected, "{what}");
        }
        for nonsense in ["", "12 (a)", "12 (a) D", "12 (a) D 1 2 3 4 5 x"] {
            assert!(!is_thread_past_end(nonsense.as_bytes(), b"SigPnd:\t0000000000000100\n"), "{nonsense}");
        }
    }

    #[test]
    fn a_process_is_past_its_end_once_it_is_killed_and_not_while_it_runs() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        assert!(!is_past_end(pid) && !is_past_end(nix::unistd::getpid().as_raw()));
        child.kill().unwrap();
        // A zombie until it is reaped.
        let peek = nix::sys::wait::WaitPidFlag::WEXITED | nix::sys::wait::WaitPidFlag::WNOWAIT;
        nix::sys::wait::waitid(nix::sys::wait::Id::Pid(Pid::from_raw(pid)), peek).unwrap();
        assert!(is_past_end(pid));
        child.wait().unwrap();
        assert!(is_past_end(i32::MAX), "no such process");
    }

    #[test]
    fn fuse_connections_are_told_from_other_mounts() {
        let table: [(&str, Option<u32>); 11] = [
            ("101 81 0:47 / /a/b rw,nosuid,nodev,relatime - fuse fuse rw,user_id=0,group_id=0", Some(47)),
            ("101 81 0:300 / /a rw shared:4 master:1 - fuse.sshfs host:/ rw", Some(300)),
            ("101 81 8:17 / /a rw - fuseblk /dev/sdb1 rw", Some(8 << 20 | 17)),
            ("101 81 8:17 / /a rw - fuseblk.ntfs /dev/sdb1 rw", Some(8 << 20 | 17)),
            ("101 81 0:47 / /a rw - fusectl none rw", None),
            ("101 81 0:47 / /a rw - tmpfs fuse rw", None),
            ("101 81 0:47 / /a\\040-\\040fuse rw - ext4 fuse rw", None),
            ("101 81 0:47 / /a rw", None),
            ("101 81 0:x / /a rw - fuse fuse rw", None),
            ("101 81 47 / /a rw - fuse fuse rw", None),
            ("", None),
        ];
        for (line, expected) in table {
            assert_eq!(connection(line.as_bytes()), expected, "{line}");
        }
        let all = b"1 1 0:5 / /\xff rw - fuse a rw\n2 1 0:6 / /b rw - proc a rw\n3 1 0:5 / /c rw - fuse a rw\n";
        assert_eq!(connections(all), BTreeSet::from([5]));
    }

    /// Our own mounts, whatever they are, are never aborted: this process has no others.
    #[test]
    fn what_is_mounted_for_us_is_not_theirs() {
        assert_eq!(theirs([nix::unistd::getpid().as_raw(), i32::MAX]), BTreeSet::new());
        assert_eq!(end_waits([nix::unistd::getpid().as_raw()]), 0);
    }

    #[test]
    fn what_is_past_its_end_is_aborted_first_then_given_up_and_never_while_anything_can_run() {
        #[expect(clippy::disallowed_methods, reason = "any instant will do")]
        let start = Instant::now();
        let mut stuck = Stuck::default();
        let mut at = |millis: u64, is_past: bool| stuck.step_at(start + Duration::from_millis(millis), is_past);
        assert_eq!([at(0, true), at(1_999, true)], [Step::Wait, Step::Wait]);
        assert_eq!([at(2_000, true), at(2_100, true)], [Step::Abort, Step::Wait]);
        assert_eq!([at(3_999, true), at(4_000, true), at(9_000, true)], [Step::Wait, Step::GiveUp, Step::GiveUp]);
        // One that can run makes all of it begin anew.
        assert_eq!([at(9_001, false), at(9_002, true), at(11_001, true)], [Step::Wait, Step::Wait, Step::Wait]);
        assert_eq!([at(11_002, true), at(13_002, true)], [Step::Abort, Step::GiveUp]);
        assert!(GIVEN_UP_AFTER < crate::process::timing::KILL_WAIT);
    }

    #[test]
    fn what_is_told_names_the_processes_and_what_to_do() {
        let text = told(&BTreeSet::from([i32::MAX - 1, i32::MAX]));
        assert!(text.starts_with("SIGKILL does not end 2147483646 2147483647: "), "{text}");
    }
}
