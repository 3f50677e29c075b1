//! Raises the resource limits that the daemon inherits, for itself, and gives the inherited values back to tools.
//!
//! A shell's `ulimit` is meant for the commands of that shell, and the daemon outlives the shell: a limit of file size
//! or of CPU time would end the daemon by a signal in the middle of its work. A limit that stays below what the daemon
//! needs ends the start with an error. The only place that decides which limits matter to the daemon, and the least
//! values that it can work with.

use std::fmt;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// The value that means that there is no limit.
const INFINITE: u64 = nix::libc::RLIM_INFINITY;
const MIB: u64 = 1024 * 1024;

/// A limit that matters to the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    resource: Resource,
    /// The name by which a keeper knows it.
    name: &'static str,
    /// The name of the limited resource, for people.
    words: &'static str,
    /// The letter of the shell's `ulimit`.
    letter: char,
    /// The least value that the daemon needs.
    least: u64,
    /// The divisor of the value for people, and its unit.
    unit: (u64, &'static str),
    /// Whether to ask for more than the hard limit, which root may have.
    beyond: bool,
}

const KINDS: [Kind; 6] = [
    Kind {
        resource: Resource::RLIMIT_NOFILE,
        name: "open-files",
        words: "open files",
        letter: 'n',
        least: 48,
        unit: (1, ""),
        beyond: false,
    },
    Kind {
        resource: Resource::RLIMIT_FSIZE,
        name: "file-size",
        words: "file size",
        letter: 'f',
        least: 256 * MIB,
        unit: (MIB, " MiB"),
        beyond: true,
    },
    // The kernel kills at the hard limit, however late that is.
    Kind {
        resource: Resource::RLIMIT_CPU,
        name: "cpu-time",
        words: "CPU time",
        letter: 't',
        least: INFINITE,
        unit: (1, " s"),
        beyond: true,
    },
    Kind {
        resource: Resource::RLIMIT_AS,
        name: "address-space",
        words: "address space",
        letter: 'v',
        least: 1024 * MIB,
        unit: (MIB, " MiB"),
        beyond: true,
    },
    Kind {
        resource: Resource::RLIMIT_DATA,
        name: "data",
        words: "data",
        letter: 'd',
        least: 512 * MIB,
        unit: (MIB, " MiB"),
        beyond: true,
    },
    Kind {
        resource: Resource::RLIMIT_NPROC,
        name: "processes",
        words: "processes of this user",
        letter: 'u',
        least: 64,
        unit: (1, ""),
        beyond: true,
    },
];

/// The limits that were inherited: tools get them back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits(Vec<(&'static str, u64, u64)>);

/// A limit that is too low for the daemon, and that it cannot raise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooLow {
    words: &'static str,
    letter: char,
    hard: String,
    least: String,
}

impl fmt::Display for TooLow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { words, letter, hard, least } = self;
        write!(
            f,
            "the limit of {words} that the daemon inherits is {hard}, it needs {least}, and it cannot raise it; start \
             it from a shell without that limit (see it: ulimit -H -{letter})"
        )
    }
}

impl std::error::Error for TooLow {}

impl Limits {
    /// Raises the inherited limits of this process, as far as possible.
    ///
    /// # Errors
    /// If a remaining limit would end the daemon.
    pub fn raise() -> Result<Self, TooLow> {
        let mut inherited = Vec::new();
        for kind in KINDS {
            let Ok((soft, hard)) = getrlimit(kind.resource) else { continue };
            inherited.push((kind.name, soft, hard));
            if kind.beyond && hard < INFINITE && setrlimit(kind.resource, INFINITE, INFINITE).is_ok() {
                continue;
            }
            if soft < hard {
                // If that fails, the limit stays as it was, and is checked below.
                _ = setrlimit(kind.resource, hard, hard);
            }
            // Root is not bound by the number of its processes.
            let binds = kind.resource != Resource::RLIMIT_NPROC || !nix::unistd::geteuid().is_root();
            if hard < kind.least && binds {
                return Err(kind.too_low(hard));
            }
        }
        Ok(Self(inherited))
    }

    /// The limits as arguments for a keeper.
    pub fn words(&self) -> impl Iterator<Item = String> {
        self.0.iter().map(|(name, soft, hard)| format!("{name}={soft}:{hard}"))
    }
}

impl Kind {
    fn too_low(&self, hard: u64) -> TooLow {
        let (divisor, unit) = self.unit;
        let shown = |value: u64| match value {
            INFINITE => "no limit".to_owned(),
            value => format!("{}{unit}", value / divisor),
        };
        let Self { words, letter, least, .. } = *self;
        TooLow { words, letter, hard: shown(hard), least: shown(least) }
    }
}

/// Sets the limit that an argument names; does nothing for any other argument.
pub(crate) fn give_back(word: &str) {
    let Some((name, values)) = word.split_once('=') else { return };
    let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else { return };
    let Some((soft, hard)) = values.split_once(':') else { return };
    if let (Ok(soft), Ok(hard)) = (soft.parse(), hard.parse()) {
        // If it cannot be set, the daemon's own stays.
        _ = setrlimit(kind.resource, soft, hard);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_limit_that_is_too_low_is_told_with_the_needed_value_and_its_place() {
        for (kind, hard, told) in [
            (KINDS[0], 20, "open files that the daemon inherits is 20, it needs 48"),
            (KINDS[1], 10 * MIB, "file size that the daemon inherits is 10 MiB, it needs 256 MiB"),
            (KINDS[2], 60, "CPU time that the daemon inherits is 60 s, it needs no limit"),
            (KINDS[3], 100 * MIB, "address space that the daemon inherits is 100 MiB, it needs 1024 MiB"),
            (KINDS[5], 5, "processes of this user that the daemon inherits is 5, it needs 64"),
        ] {
            let said = kind.too_low(hard).to_string();
            assert!(said.contains(told), "{said}");
            assert!(said.ends_with(&format!("ulimit -H -{})", kind.letter)), "{said}");
        }
    }

    #[test]
    fn a_word_that_is_no_limit_changes_nothing() {
        let before: Vec<_> = KINDS.iter().map(|kind| getrlimit(kind.resource).unwrap()).collect();
        for word in ["", "open-files", "open-files=", "open-files=1", "open-files=x:y", "core=0:0", "=1:1"] {
            give_back(word);
        }
        let after: Vec<_> = KINDS.iter().map(|kind| getrlimit(kind.resource).unwrap()).collect();
        assert_eq!(before, after);
    }
}
