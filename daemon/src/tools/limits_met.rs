//! Describes whether a kernel limit ended a command.
//!
//! The only place with these words. It says that a limit ended a command only if nothing else ends a command that way;
//! otherwise it lists the limits that were in force.

use std::time::Duration;

use harness_protocol::envelope::Kept;
use harness_protocol::limit::{CallLimit, CallLimits};

use crate::process::{Grouped, Meeting};

/// How much of the end of a stream is looked at.
const LOOKED_AT: usize = 8 * 1024;
/// 128 and a signal: the exit codes of SIGABRT, SIGBUS, SIGKILL, SIGSEGV, SIGXCPU, SIGXFSZ.
const ABORTED: u8 = 134;
const BUS: u8 = 135;
const KILLED: u8 = 137;
const SEGMENT: u8 = 139;
const CPU_TIME: u8 = 152;
const FILE_SIZE: u8 = 153;

/// A command that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ended<'a> {
    /// Its exit code, or that of its shell's child.
    pub(super) code: u8,
    pub(super) cpu: Duration,
    /// How it came off with the limits that are of its whole run.
    pub(super) grouped: Grouped,
    pub(super) streams: [&'a Kept; 2],
}

/// What is told of the limits that were in force.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) text: String,
    /// The limit that was certainly met.
    pub(super) met: Option<CallLimit>,
}

/// What is to be told of the limits that were in force.
pub(super) fn told(ended: Ended<'_>, limits: &CallLimits) -> Option<Told> {
    if let Some((limit, value)) = limits.set().find(|(limit, _)| is_proof(*limit, ended.code)) {
        let text = format!("ended by the limit of {}, {}", limit.what(), limit.amount(value));
        return Some(Told { text, met: Some(limit) });
    }
    // The kernel has counted these, whatever the end looks like.
    let counted = limits.set().filter_map(|(limit, value)| counted(limit, value, ended));
    let counted = counted
        .reduce(|Told { text, met }, other| Told { text: format!("{text}; {}", other.text), met: met.or(other.met) });
    if counted.is_some() || ended.code == 0 {
        return counted;
    }
    let fits = limits.set().filter(|(limit, value)| fits(*limit, *value, ended));
    let fits: Vec<String> = fits.map(|(limit, value)| format!("{} {}", limit.what(), limit.amount(value))).collect();
    (!fits.is_empty()).then(|| Told { text: format!("limits in force: {}", fits.join(", ")), met: None })
}

fn counted(limit: CallLimit, value: u64, ended: Ended<'_>) -> Option<Told> {
    // A cgroup does not count addresses.
    let what = if limit == CallLimit::AddressSpaceBytes { "memory" } else { limit.what() };
    let (how, met) = match (ended.grouped.with(limit), limit) {
        (Meeting::NotSet | Meeting::Kept, _) => return None,
        (Meeting::MetByOthers, _) => ("background children of the run met", None),
        // Who meets this one is killed.
        (Meeting::Met, CallLimit::AddressSpaceBytes) if ended.code != 0 => ("ended by", Some(limit)),
        (Meeting::Met, _) => ("met", Some(limit)),
    };
    Some(Told { text: format!("{how} the limit of {what}, {} for the whole run", limit.amount(value)), met })
}

const fn is_proof(limit: CallLimit, code: u8) -> bool {
    matches!((limit, code), (CallLimit::CpuSeconds, CPU_TIME) | (CallLimit::FileSizeBytes, FILE_SIZE))
}

/// Whether a command that met a limit may end like this.
fn fits(limit: CallLimit, value: u64, ended: Ended<'_>) -> bool {
    if ended.grouped.with(limit) != Meeting::NotSet {
        // It is known not to have been met.
        return false;
    }
    let says = |words: &[&str]| ended.streams.iter().any(|kept| says(kept, words));
    match limit {
        // Who is deaf to the signal is killed a second later.
        CallLimit::CpuSeconds => ended.code == KILLED && ended.cpu.as_secs() >= value,
        CallLimit::AddressSpaceBytes => {
            matches!(ended.code, ABORTED | BUS | KILLED | SEGMENT)
                || says(&["memory", "bad_alloc", "failed to map segment", "can't start new thread"])
        }
        CallLimit::OpenFiles => says(&["too many open files"]),
        CallLimit::FileSizeBytes => says(&["file too large"]),
        CallLimit::Processes => {
            says(&["cannot fork", "can't fork", "resource temporarily unavailable", "can't start new thread"])
        }
    }
}

/// Whether a stream has one of these words at its end, in any case.
fn says(kept: &Kept, words: &[&str]) -> bool {
    [&kept.head, &kept.tail].into_iter().any(|bytes| {
        let end = &bytes[bytes.len().saturating_sub(LOOKED_AT)..];
        words.iter().any(|word| end.windows(word.len()).any(|window| window.eq_ignore_ascii_case(word.as_bytes())))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: CallLimits = CallLimits {
        cpu_seconds: Some(2),
        address_space_bytes: Some(64 << 20),
        open_files: Some(40),
        file_size_bytes: Some(1000),
        processes: Some(50),
    };

    fn note(code: u8, cpu: u64, stderr: &str, limits: &CallLimits) -> Option<String> {
        note_in(Grouped::default(), code, cpu, stderr, limits).map(|told| told.text)
    }

    fn note_in(grouped: Grouped, code: u8, cpu: u64, stderr: &str, limits: &CallLimits) -> Option<Told> {
        let stderr = Kept { head: stderr.into(), ..Kept::default() };
        told(Ended { code, cpu: Duration::from_secs(cpu), grouped, streams: [&Kept::default(), &stderr] }, limits)
    }

    #[test]
    fn a_signal_that_only_a_limit_sends_is_told_as_its_doing() {
        assert_eq!(note(152, 2, "", &ALL).as_deref(), Some("ended by the limit of CPU time, 2 s"));
        assert_eq!(note(153, 0, "", &ALL).as_deref(), Some("ended by the limit of file size, 1000 bytes"));
        assert_eq!(note(152, 2, "", &CallLimits::default()), None);
    }

    #[test]
    fn an_end_that_only_looks_like_it_is_told_with_what_was_in_force() {
        for (code, cpu, stderr, told) in [
            (137, 3, "", "CPU time 2 s, address space 64 MiB"),
            (139, 0, "", "address space 64 MiB"),
            (1, 0, "Traceback:\nMemoryError\n", "address space 64 MiB"),
            (2, 0, "sh: 1: Cannot fork\n", "processes 50"),
            (1, 0, "cat: x: Too many open files", "open files 40"),
            (1, 0, "dd: File too large", "file size 1000 bytes"),
        ] {
            assert_eq!(note(code, cpu, stderr, &ALL), Some(format!("limits in force: {told}")), "{code} {stderr}");
        }
    }

    #[test]
    fn what_the_kernel_has_counted_is_told_as_what_it_was() {
        let (kept, met, others) = (Meeting::Kept, Meeting::Met, Meeting::MetByOthers);
        let whole = "for the whole run";
        for (memory, processes, code, told, limit) in [
            (met, kept, 137, "ended by the limit of memory, 64 MiB", Some(CallLimit::AddressSpaceBytes)),
            (met, kept, 0, "met the limit of memory, 64 MiB", Some(CallLimit::AddressSpaceBytes)),
            (kept, met, 2, "met the limit of processes, 50", Some(CallLimit::Processes)),
            (kept, met, 0, "met the limit of processes, 50", Some(CallLimit::Processes)),
            (others, kept, 0, "background children of the run met the limit of memory, 64 MiB", None),
        ] {
            let found = note_in(Grouped { memory, processes }, code, 0, "Cannot fork", &ALL).unwrap();
            assert_eq!(found, Told { text: format!("{told} {whole}"), met: limit });
        }
        let both = note_in(Grouped { memory: met, processes: met }, 137, 0, "", &ALL).unwrap();
        assert!(both.text.contains("memory, 64 MiB for the whole run; met the limit of processes"), "{both:?}");
        assert_eq!(both.met, Some(CallLimit::AddressSpaceBytes));
    }

    #[test]
    fn a_limit_that_is_known_not_to_have_been_met_is_not_suspected() {
        let grouped = Grouped { memory: Meeting::Kept, processes: Meeting::Kept };
        assert_eq!(note_in(grouped, 2, 0, "out of memory: Cannot fork", &ALL), None);
        assert_eq!(note_in(grouped, 137, 3, "", &ALL).unwrap().text, "limits in force: CPU time 2 s");
        assert_eq!(note_in(grouped, 152, 3, "", &ALL).unwrap().met, Some(CallLimit::CpuSeconds));
    }

    #[test]
    fn an_end_that_no_limit_explains_has_no_note() {
        assert_eq!(note(1, 0, "no such file", &ALL), None);
        assert_eq!(note(0, 9, "out of memory", &ALL), None);
        assert_eq!(note(139, 0, "Cannot fork", &CallLimits { cpu_seconds: Some(2), ..CallLimits::default() }), None);
    }
}
