//! Detects changes to the attributes of a keeper that its processes inherit: limits, priority, scheduling, processors,
//! cgroup, and the score by which the kernel kills when memory runs out.
//!
//! Every process of the same user may change these attributes of another process, so a call may change those of its own
//! keeper. A lowered limit cannot be raised again. So the keeper must look here before each request, and must serve
//! none after a change. Reads only.

use std::fs::File;
use std::os::unix::fs::FileExt;

use nix::sys::resource::{Resource, getrlimit};
use rustix::process::getpriority_process;

/// All resource limits of Linux.
const LIMITS: [Resource; 16] = [
    Resource::RLIMIT_AS,
    Resource::RLIMIT_CORE,
    Resource::RLIMIT_CPU,
    Resource::RLIMIT_DATA,
    Resource::RLIMIT_FSIZE,
    Resource::RLIMIT_LOCKS,
    Resource::RLIMIT_MEMLOCK,
    Resource::RLIMIT_MSGQUEUE,
    Resource::RLIMIT_NICE,
    Resource::RLIMIT_NOFILE,
    Resource::RLIMIT_NPROC,
    Resource::RLIMIT_RSS,
    Resource::RLIMIT_RTPRIO,
    Resource::RLIMIT_RTTIME,
    Resource::RLIMIT_SIGPENDING,
    Resource::RLIMIT_STACK,
];
/// The files in which the kernel tells the other attributes, and the part of each that counts. They stay open, since a
/// lowered limit would keep them from being opened.
const FILES: [(&str, Part); 4] = [
    ("/proc/self/stat", scheduling),
    ("/proc/self/status", processors),
    ("/proc/self/oom_score_adj", <[u8]>::to_vec),
    ("/proc/self/cgroup", <[u8]>::to_vec),
];
/// The fields of `stat` that count: the real-time priority and the policy, fields 40 and 41 as proc_pid_stat(5) counts
/// them. The range counts from the field after the name.
const SCHEDULING: std::ops::Range<usize> = 37..39;

/// Selects the part of a file that counts.
type Part = fn(&[u8]) -> Vec<u8>;

/// The attributes that a process hands on to its children.
#[derive(Debug, PartialEq, Eq)]
struct State {
    limits: Vec<Option<(u64, u64)>>,
    nice: Option<i32>,
    files: Vec<Vec<u8>>,
}

/// The attributes of the keeper when it began.
#[derive(Debug)]
pub(super) struct Untouched {
    files: Vec<(File, Part)>,
    began: State,
}

impl Untouched {
    /// Records the present attributes.
    pub(super) fn now() -> Self {
        let files: Vec<(File, Part)> =
            FILES.iter().filter_map(|(path, part)| Some((File::open(path).ok()?, *part))).collect();
        Self { began: State::now(&files), files }
    }

    /// Whether the attributes are still the recorded ones.
    pub(super) fn is_so(&self) -> bool {
        State::now(&self.files) == self.began
    }
}

impl State {
    fn now(files: &[(File, Part)]) -> Self {
        Self {
            limits: LIMITS.iter().map(|&limit| getrlimit(limit).ok()).collect(),
            nice: getpriority_process(None).ok(),
            files: files.iter().map(|(file, part)| part(&read(file))).collect(),
        }
    }
}

fn read(file: &File) -> Vec<u8> {
    let mut text = vec![0; 4096];
    let length = file.read_at(&mut text, 0).unwrap_or(0);
    text.truncate(length);
    text
}

fn scheduling(state: &[u8]) -> Vec<u8> {
    let behind_the_name = state.iter().rposition(|&byte| byte == b')').map_or(0, |at| at + 2);
    let rest = state.get(behind_the_name..).unwrap_or_default();
    let fields: Vec<&[u8]> = rest.split(|byte| byte.is_ascii_whitespace()).collect();
    fields.get(SCHEDULING).map(|fields| fields.join(&b' ')).unwrap_or_default()
}

fn processors(status: &[u8]) -> Vec<u8> {
    let line = status.split(|&byte| byte == b'\n').find(|line| line.starts_with(b"Cpus_allowed:"));
    line.unwrap_or_default().to_vec()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn of_what_changes_all_the_time_only_scheduling_and_processors_count() {
        // Fields 3 to 52: the value of each field is its own number.
        let fields: Vec<String> = (3..=52).map(|field| field.to_string()).collect();
        assert_eq!(scheduling(format!("42 (a) b) {}\n", fields.join(" ")).as_bytes()), b"40 41");
        assert_eq!(scheduling(b"42 (a"), b"");
        assert_eq!(processors(b"Name:\tx\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n"), b"Cpus_allowed:\t3");
        let untouched = Untouched::now();
        assert!(untouched.began.files.iter().all(|part| !part.is_empty()), "{:?}", untouched.began);
    }

    #[test]
    fn a_process_is_untouched_as_long_as_nothing_that_it_hands_on_differs() {
        let untouched = Untouched::now();
        assert!(untouched.is_so());
        assert_eq!(untouched.files.len(), FILES.len());
        let with = |change: &dyn Fn(&mut State)| {
            let mut other = Untouched::now();
            change(&mut other.began);
            other.is_so()
        };
        assert!(with(&|_| {}));
        for (at, limit) in LIMITS.iter().enumerate() {
            assert!(!with(&|state| state.limits[at] = Some((1, 1))), "{limit:?}");
        }
        for (at, (path, _)) in FILES.iter().enumerate() {
            assert!(!with(&|state| state.files[at] = b"7".to_vec()), "{path}");
        }
        assert!(!with(&|state| state.nice = Some(77)));
    }
}
