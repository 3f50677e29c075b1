//! Defines the limits of the processes of a call: their names, their bounds, and the words for people. Pure.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::spec::Limits;

/// A limit of the processes of a call. It holds for each process; a limit that a cgroup sets holds for all processes of
/// the run together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum CallLimit {
    /// Seconds of CPU time.
    CpuSeconds,
    /// Bytes of address space; if a cgroup sets it, bytes of memory.
    AddressSpaceBytes,
    /// Open file descriptors.
    OpenFiles,
    /// Bytes of a file that is written.
    FileSizeBytes,
    /// Processes of the run, if a cgroup sets it. Otherwise processes of the same user on the whole machine; root is
    /// not bound by that.
    Processes,
}

impl CallLimit {
    /// All limits, in the order in which they are shown.
    pub const ALL: [Self; 5] =
        [Self::CpuSeconds, Self::AddressSpaceBytes, Self::OpenFiles, Self::FileSizeBytes, Self::Processes];

    /// Its name on the wire, on the command line and in the configuration.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CpuSeconds => "cpu_seconds",
            Self::AddressSpaceBytes => "address_space_bytes",
            Self::OpenFiles => "open_files",
            Self::FileSizeBytes => "file_size_bytes",
            Self::Processes => "processes",
        }
    }

    /// The limit of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|limit| limit.name() == name)
    }

    /// The allowed values. With a lower limit no program could be loaded.
    pub const fn bounds(self) -> RangeInclusive<u64> {
        match self {
            Self::CpuSeconds => 1..=1 << 30,
            Self::AddressSpaceBytes => 1 << 24..=1 << 50,
            Self::OpenFiles => 16..=1 << 20,
            Self::FileSizeBytes => 0..=1 << 50,
            Self::Processes => 1..=1 << 22,
        }
    }

    /// Whether its values are bytes.
    pub const fn is_bytes(self) -> bool {
        matches!(self, Self::AddressSpaceBytes | Self::FileSizeBytes)
    }

    /// The limited thing, in words for a person.
    pub const fn what(self) -> &'static str {
        match self {
            Self::CpuSeconds => "CPU time",
            Self::AddressSpaceBytes => "address space",
            Self::OpenFiles => "open files",
            Self::FileSizeBytes => "file size",
            Self::Processes => "processes",
        }
    }

    /// A value of this limit, to be shown to a person.
    pub const fn amount(self, value: u64) -> Amount {
        Amount { limit: self, value }
    }

    /// The value of this limit in `limits`.
    pub const fn of(self, limits: &CallLimits) -> Option<u64> {
        match self {
            Self::CpuSeconds => limits.cpu_seconds,
            Self::AddressSpaceBytes => limits.address_space_bytes,
            Self::OpenFiles => limits.open_files,
            Self::FileSizeBytes => limits.file_size_bytes,
            Self::Processes => limits.processes,
        }
    }

    /// The value of this limit in `limits`, to be changed.
    pub const fn of_mut(self, limits: &mut CallLimits) -> &mut Option<u64> {
        match self {
            Self::CpuSeconds => &mut limits.cpu_seconds,
            Self::AddressSpaceBytes => &mut limits.address_space_bytes,
            Self::OpenFiles => &mut limits.open_files,
            Self::FileSizeBytes => &mut limits.file_size_bytes,
            Self::Processes => &mut limits.processes,
        }
    }
}

/// Limits of the processes of a call; see [`CallLimit`]. A missing limit is no limit here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallLimits {
    /// Seconds of CPU time.
    pub cpu_seconds: Option<u64>,
    /// Bytes of address space; if a cgroup sets it, bytes of memory.
    pub address_space_bytes: Option<u64>,
    /// Open file descriptors.
    pub open_files: Option<u64>,
    /// Bytes of a file that is written.
    pub file_size_bytes: Option<u64>,
    /// Processes of the run, if a cgroup sets it. Otherwise processes of the same user on the whole machine; root is
    /// not bound by that.
    pub processes: Option<u64>,
}

impl CallLimits {
    /// These limits; missing ones are taken from `other`.
    pub fn or(self, other: Self) -> Self {
        self.with(other, |mine, theirs| mine.or(theirs))
    }

    /// For each limit, the smaller value of these and `other`.
    pub fn within(self, other: Self) -> Self {
        self.with(other, |mine, theirs| match (mine, theirs) {
            (Some(mine), Some(theirs)) => Some(mine.min(theirs)),
            (mine, theirs) => mine.or(theirs),
        })
    }

    fn with(mut self, other: Self, choose: impl Fn(Option<u64>, Option<u64>) -> Option<u64>) -> Self {
        for limit in CallLimit::ALL {
            let place = limit.of_mut(&mut self);
            *place = choose(*place, limit.of(&other));
        }
        self
    }

    /// The limits that are set, with their values.
    pub fn set(&self) -> impl Iterator<Item = (CallLimit, u64)> {
        CallLimit::ALL.into_iter().filter_map(|limit| Some((limit, limit.of(self)?)))
    }
}

impl From<&Limits> for CallLimits {
    fn from(limits: &Limits) -> Self {
        let &Limits { cpu_seconds, address_space_bytes, open_files, file_size_bytes, processes, .. } = limits;
        Self { cpu_seconds, address_space_bytes, open_files, file_size_bytes, processes }
    }
}

impl Limits {
    /// Replaces the limits of calls among these.
    pub fn set_of_calls(&mut self, of_calls: CallLimits) {
        let CallLimits { cpu_seconds, address_space_bytes, open_files, file_size_bytes, processes } = of_calls;
        *self = Self { cpu_seconds, address_space_bytes, open_files, file_size_bytes, processes, ..self.clone() };
    }
}

/// A value of a limit: `2 s`, `64 MiB`, `100000 bytes`, `40`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Amount {
    limit: CallLimit,
    value: u64,
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.value;
        match self.limit {
            CallLimit::CpuSeconds => write!(f, "{value} s"),
            CallLimit::OpenFiles | CallLimit::Processes => write!(f, "{value}"),
            CallLimit::AddressSpaceBytes | CallLimit::FileSizeBytes => {
                // A larger unit is used only where it is exact.
                let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
                match units.into_iter().find(|(bits, _)| value > 0 && value.is_multiple_of(1 << bits)) {
                    Some((bits, unit)) => write!(f, "{} {unit}", value >> bits),
                    None => write!(f, "{value} bytes"),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_has_a_name_of_its_own_and_a_place_of_its_own() {
        let mut limits = CallLimits::default();
        for (value, limit) in (100..).zip(CallLimit::ALL) {
            assert_eq!(CallLimit::named(limit.name()), Some(limit));
            assert_eq!(serde_json::to_value(limit).ok(), Some(limit.name().into()));
            *limit.of_mut(&mut limits) = Some(value);
        }
        let values: Vec<_> = CallLimit::ALL.iter().filter_map(|limit| limit.of(&limits)).collect();
        assert_eq!(values, [100, 101, 102, 103, 104]);
        assert_eq!(CallLimit::named("mood"), None);
    }

    #[test]
    fn of_two_the_first_or_the_narrower_ones_are_taken() {
        let one = CallLimits { cpu_seconds: Some(5), open_files: Some(9), ..CallLimits::default() };
        let other = CallLimits { cpu_seconds: Some(3), processes: Some(7), ..CallLimits::default() };
        let of = |cpu| CallLimits { cpu_seconds: Some(cpu), open_files: Some(9), processes: Some(7), ..one };
        assert_eq!((one.or(other), one.within(other)), (of(5), of(3)));
        let mut limits = Limits { max_steps: Some(1), ..Limits::default() };
        limits.set_of_calls(one);
        assert_eq!((CallLimits::from(&limits), limits.max_steps), (one, Some(1)));
        assert_eq!(one.set().collect::<Vec<_>>(), [(CallLimit::CpuSeconds, 5), (CallLimit::OpenFiles, 9)]);
    }

    #[test]
    fn amounts_are_told_exactly() {
        let bytes = |value| CallLimit::AddressSpaceBytes.amount(value).to_string();
        assert_eq!([bytes(64 << 20), bytes(1 << 31), bytes(1536)], ["64 MiB", "2 GiB", "1536 bytes"]);
        assert_eq!([bytes(0), bytes(3 << 10)], ["0 bytes", "3 KiB"]);
        assert_eq!(CallLimit::CpuSeconds.amount(2).to_string(), "2 s");
        assert_eq!(CallLimit::Processes.amount(40).to_string(), "40");
    }
}
