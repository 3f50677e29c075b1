//! Resets the signal dispositions that programs under test inherit to their defaults, as from a terminal, however the
//! tests were started.
//!
//! A shell starts a background job with SIGINT and SIGQUIT ignored, `nohup` ignores SIGHUP, and every process below
//! would inherit that.

use std::fs;
use std::sync::Arc;
use std::sync::Once;

/// The highest signal that has a name.
const LAST: i32 = 31;
/// The test harness itself ignores it, and `Command` gives programs the default back.
const SIGPIPE: i32 = 13;

/// Gives each signal that this process ignores a handler without effect: it still ignores the signal, and what it
/// starts does not.
pub(crate) fn give_defaults_to_children() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let status = fs::read_to_string("/proc/self/status").unwrap();
        for signal in ignored(&status).filter(|&signal| signal != SIGPIPE) {
            signal_hook::flag::register(signal, Arc::default()).unwrap();
        }
    });
}

fn ignored(status: &str) -> impl Iterator<Item = i32> {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let mask = u64::from_str_radix(line.trim(), 16).unwrap();
    (1..=LAST).filter(move |signal| mask >> (signal - 1) & 1 == 1)
}
