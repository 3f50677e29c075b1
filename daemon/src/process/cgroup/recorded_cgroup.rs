//! Records which cgroup holds the processes of a daemon, so that the next daemon of the same state directory can end
//! them.
//!
//! A process can lower the limit that is its mark, and can kill its keeper and its daemon; but it cannot leave a cgroup
//! unless it moves itself. The only place with the file of that record, and with the name that distinguishes such a
//! cgroup from those of other state directories. A run can write to the file, so a cgroup of another name must not be
//! touched, whatever the file says.

use std::ffi::OsString;
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use harness_files::{Opening, open_regular};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use super::{CALLS, emptied, kill};

/// Name of the file, and the most bytes of it that are read.
const FILE: &str = "cgroup";
const LONGEST: u64 = 4096;

/// A state directory, and the name of its cgroups.
#[derive(Debug, Clone)]
pub(in crate::process) struct StateName {
    file: PathBuf,
    calls: String,
}

impl StateName {
    /// The state directory with this number, which no other one has.
    pub(in crate::process) fn new(state_dir: &Path, number: u32) -> Self {
        Self { file: state_dir.join(FILE), calls: format!("{CALLS}{number:08x}") }
    }

    /// Name of the cgroup with all processes that its daemon starts.
    pub(super) fn calls(&self) -> &str {
        &self.calls
    }

    /// Path of the file that says where that cgroup is.
    pub(super) fn path(&self) -> &Path {
        &self.file
    }

    /// Records the path of that cgroup.
    pub(super) fn note(&self, calls: &Path) -> io::Result<()> {
        let mut file = open_regular(&self.file, Opening::Keep)?;
        file.set_len(0)?;
        file.write_all(calls.as_os_str().as_bytes())
    }

    /// Ends leftovers of an earlier daemon in its cgroup, wherever that was.
    pub(in crate::process) fn end_left(&self) {
        let left = self.noted().filter(|calls| self.is_of_it(calls) && is_populated(calls));
        let Some(calls) = left else { return };
        let cgroup = calls.display();
        tracing::warn!(%cgroup, "processes that an earlier daemon had left in its cgroup are ended");
        kill(&calls);
        if !emptied(&calls) {
            tracing::error!(%cgroup, "processes that an earlier daemon had left in its cgroup live on");
        }
    }

    fn noted(&self) -> Option<PathBuf> {
        let mut path = Vec::new();
        let file = open_regular(&self.file, Opening::ReadInPlace).ok()?;
        file.take(LONGEST).read_to_end(&mut path).ok()?;
        // A run can write the file. A link that is named as the cgroup is would lead to any other one.
        fs::canonicalize(OsString::from_vec(path)).ok()
    }

    /// Whether a cgroup belongs to this state directory: no other one is touched, whatever the file says.
    fn is_of_it(&self, calls: &Path) -> bool {
        let is_named_so = calls.file_name().is_some_and(|name| name == self.calls.as_str());
        is_named_so && statfs(calls).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC)
    }
}

fn is_populated(group: &Path) -> bool {
    let events = fs::read_to_string(group.join("cgroup.events")).unwrap_or_default();
    events.lines().any(|line| line == "populated 1")
}
