//! Recognises that a process is inside a run, whatever it did to its environment: by the mark, and, for clients alone,
//! by the name of a keeper above it.
//!
//! The daemon sets and reads the mark; clients read it, because they start no daemon from inside a run. Both use the
//! rules of this module. It reads nothing itself: the callers pass in the texts of `/proc`.
//!
//! The mark is a resource limit that the kernel no longer enforces: the hard limit of file locks (`RLIMIT_LOCKS`).
//! Every process inherits it, and only root can raise it again. Outside of runs it is unlimited. A daemon sets its own
//! limit to a number, so that each process that it starts has one from its first moment. Below its keepers the number
//! is smaller, and below the keepers of a daemon that is itself inside a run it is smaller still.

/// The variable by which a call knows its run.
pub const RUN_VARIABLE: &str = "HARNESS_RUN_ID";
/// The first words of a keeper's command line.
pub const KEEPER: [&str; 2] = ["harnessd", "keeper"];
/// The name that keepers had before they were given a name: that of the link through which they were started.
const NAMELESS: &str = "/proc/self/exe";
/// The largest mark.
const LARGEST: u64 = 1 << 62;
/// Number of the bits that name the daemon which set a mark. Marks of one depth differ only in these.
const OF_DAEMON: u32 = 32;

/// Whether a command line, as `/proc/PID/cmdline` has it, is that of a keeper.
pub fn is_keeper(command_line: &[u8]) -> bool {
    let mut words = command_line.split(|&byte| byte == 0);
    let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let name = first.rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    second == KEEPER[1].as_bytes() && (name == KEEPER[0].as_bytes() || first == NAMELESS.as_bytes())
}

/// The mark for processes that a daemon starts: `own` is the daemon's hard limit, and `daemon` distinguishes it from
/// others of its depth.
pub const fn mark_below(own: u64, daemon: u32) -> u64 {
    let above = if own < LARGEST { own } else { LARGEST };
    // The upper half is smaller than that of the daemon's own mark, whatever the lower half is.
    (((above >> OF_DAEMON).saturating_sub(1)) << OF_DAEMON) | daemon as u64
}

/// Whether a process with the hard limit `hard` is inside a run of a daemon whose own hard limit is `own`.
pub const fn is_marked_below(hard: u64, own: u64) -> bool {
    hard < own
}

/// Whether a process with the hard limit `hard` is inside a run of any daemon.
pub const fn is_marked(hard: u64) -> bool {
    hard <= LARGEST
}

/// The number of daemons that have set a mark for a process with the hard limit `hard`, one below the other. Each
/// daemon sets a mark for itself and one for its processes.
pub const fn depth(hard: u64) -> u64 {
    if is_marked(hard) { (LARGEST >> OF_DAEMON) - (hard >> OF_DAEMON) } else { 0 }
}

/// Whether the daemon with the number `daemon` has set the mark `hard`.
pub const fn is_mark_of(hard: u64, daemon: u32) -> bool {
    is_marked(hard) && hard & u32::MAX as u64 == daemon as u64
}

/// Whether a daemon with the mark `daemon` gives the mark `run` to the processes that its keepers start.
pub const fn is_set_by(daemon: u64, run: u64) -> bool {
    let name = name_in(run);
    is_marked(daemon) && name_in(daemon) == name && is_marked_below(run, daemon) && mark_below(daemon, name) == run
}

/// Whether a daemon that was started with the hard limit `above` gives itself the mark `daemon`.
pub const fn is_of_a_daemon_below(daemon: u64, above: u64) -> bool {
    is_marked_below(daemon, above) && mark_below(above, name_in(daemon)) == daemon
}

/// The part of a mark that names its daemon.
const fn name_in(mark: u64) -> u32 {
    let [a, b, c, d, ..] = mark.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

/// The hard limit of file locks, from the text of a `/proc/PID/limits`.
pub fn hard_limit(limits: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max file locks"))?;
    match line.split_ascii_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_keeper_is_known_by_its_command_line() {
        for line in [
            "harnessd\0keeper\0mark=5\0",
            "/usr/bin/harnessd\0keeper\0",
            "/proc/self/exe\0keeper\0soft\0hard\0",
            "harnessd\0keeper",
        ] {
            assert!(is_keeper(line.as_bytes()), "{line:?}");
        }
        for line in
            ["", "\0", "harnessd\0", "harnessd\0--on-demand\0", "vi\0keeper\0", "harnessd keeper", "/x/exe\0keeper\0"]
        {
            assert!(!is_keeper(line.as_bytes()), "{line:?}");
        }
    }

    #[test]
    fn the_limit_is_read_from_what_the_kernel_prints() {
        let with = |soft, hard| {
            format!("Max pending signals       1  1  signals\nMax file locks            {soft}  {hard}  locks     \n")
        };
        assert_eq!(hard_limit(&with("unlimited", "unlimited")), Some(u64::MAX));
        assert_eq!(hard_limit(&with("7", "4611686014132420608")), Some(4_611_686_014_132_420_608));
        assert_eq!(hard_limit(&with("7", "")), None);
        assert_eq!(hard_limit(""), None);
        assert_eq!(hard_limit("Max file locks"), None);
    }

    #[test]
    fn outside_of_runs_no_process_is_marked() {
        assert!(!is_marked(u64::MAX) && !is_marked_below(u64::MAX, u64::MAX));
        assert!(is_marked(0) && is_marked(5) && is_marked(LARGEST));
    }

    proptest! {
        #[test]
        fn a_mark_is_smaller_than_every_one_above_it(first: u32, second: u32, third: u32) {
            let one = mark_below(u64::MAX, first);
            let two = mark_below(one, second);
            let three = mark_below(two, third);
            prop_assert!(is_marked(one) && is_marked(two) && is_marked(three));
            prop_assert!(is_marked_below(one, u64::MAX) && is_marked_below(two, one) && is_marked_below(three, two));
            prop_assert!(!is_marked_below(one, one));
            prop_assert_eq!([u64::MAX, one, two, three].map(depth), [0, 1, 2, 3]);
            prop_assert!(is_mark_of(one, first) && is_mark_of(two, second) && is_mark_of(three, third));
        }

        /// A limit that was lowered by hand is not taken for the mark of a daemon, unless it is exactly that number.
        #[test]
        fn only_the_very_numbers_that_a_daemon_sets_are_taken_for_them(first: u32, second: u32, other: u64) {
            let daemon = mark_below(u64::MAX, first);
            let run = mark_below(daemon, first);
            let nested = mark_below(run, second);
            prop_assert!(is_of_a_daemon_below(daemon, u64::MAX) && is_of_a_daemon_below(nested, run));
            prop_assert!(is_set_by(daemon, run) && is_set_by(nested, mark_below(nested, second)));
            prop_assert!(!is_set_by(u64::MAX, run) && !is_of_a_daemon_below(run, u64::MAX));
            prop_assert_eq!(is_set_by(daemon, other), other == run);
            prop_assert_eq!(is_set_by(other, run), other == daemon);
            let is_daemon = is_marked(other) && depth(other) == 1;
            prop_assert_eq!(is_of_a_daemon_below(other, u64::MAX), is_daemon);
        }

        #[test]
        fn a_limit_that_cannot_be_lowered_is_no_panic(own: u64, daemon: u32) {
            let _ = mark_below(own, daemon);
        }
    }
}
