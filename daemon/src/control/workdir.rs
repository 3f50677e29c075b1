//! Checks the working directory that a submit names: does its path mean the same folder to the daemon as to the client?
//!
//! A connection may pass one descriptor for a request that asks for it; all others are closed, and so is a descriptor
//! whose line has ended without asking for it. Folders are looked at and descriptors are closed off the connection,
//! because either may hang; one at a time for each connection, and the connection keeps its place until that has really
//! ended. It must not decide about rights: `rights` does.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use harness_protocol::folder::FolderId;
use harness_protocol::rpc::SubmitParams;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::limits::connections::Slot;
use crate::fair_queue::Party;
use crate::folders::{Folders, LookError};
use crate::refusal::{Refusal, WorkdirRefusal};

/// Descriptors that are kept: that of the present line, and that of the next one, whose begin may have come with the
/// present line's end.
const KEPT: usize = 2;
/// Bytes of the longest path on Linux. The world refuses a longer one, so it is not looked at.
const LONGEST_PATH: usize = 4096;
/// Directory in which calls start when a run names none.
const ROOT: &str = "/";

/// The state of a connection's working directories.
pub(super) struct Workdirs {
    folders: Folders,
    party: Party,
    slot: Arc<Slot>,
    passed: VecDeque<OwnedFd>,
    /// The last path that was looked at, and its folder. It counts for requests that had come when the look began.
    latest: Option<(Arc<str>, FolderId)>,
    /// Bytes that had come when that look began, and were not read yet.
    covered: u64,
    /// Free while no look of this connection is under way.
    looking: Arc<Semaphore>,
}

impl Workdirs {
    pub(super) fn new(folders: Folders, party: Party, slot: Arc<Slot>) -> Self {
        let looking = Arc::new(Semaphore::new(1));
        Self { folders, party, slot, passed: VecDeque::new(), latest: None, covered: 0, looking }
    }

    /// Whether its peer may pass descriptors now.
    pub(super) fn may_pass(&self) -> bool {
        self.folders.may_pass(self.party)
    }

    /// So many bytes were read, with these descriptors beside them. Gives `false`, to stop reading, where closing
    /// unwanted descriptors hangs.
    pub(super) fn arrived(&mut self, bytes: usize, passed: &mut Vec<OwnedFd>) -> bool {
        match self.covered.checked_sub(bytes as u64) {
            Some(rest) => self.covered = rest,
            None => self.latest = None,
        }
        if passed.is_empty() {
            return true;
        }
        // One beside a request; any further ones are closed.
        let mut rest = passed.drain(..);
        self.passed.extend(rest.next());
        let mut unwanted: Vec<OwnedFd> = rest.collect();
        while self.passed.len() > KEPT {
            unwanted.extend(self.passed.pop_front());
        }
        self.close(unwanted)
    }

    /// Every line that had begun has ended: the remaining descriptors belong to no line.
    pub(super) fn no_line_is_open(&mut self) -> bool {
        let unwanted = self.passed.drain(..).collect();
        self.close(unwanted)
    }

    fn close(&self, unwanted: Vec<OwnedFd>) -> bool {
        if unwanted.is_empty() {
            return true;
        }
        let looking = Arc::clone(&self.looking).try_acquire_owned().ok();
        let goes_on = looking.is_some();
        self.folders.close(self.party, unwanted, (looking, Arc::clone(&self.slot)));
        goes_on
    }

    /// The permit and the slot for a look; `None` while an earlier look hangs.
    fn begin(&self) -> Option<(OwnedSemaphorePermit, Arc<Slot>)> {
        Some((Arc::clone(&self.looking).try_acquire_owned().ok()?, Arc::clone(&self.slot)))
    }

    /// A look begins now: it counts for requests that have come by now. Earlier looks no longer count.
    fn begin_to_cover(&mut self, unread: u64) {
        (self.latest, self.covered) = (None, unread);
    }

    /// Finds the folder that a submit means, and writes it into its specification. Gives the reason of a refusal.
    /// `unread` is the number of bytes that have come on the connection and were not read.
    pub(super) async fn find(
        &mut self,
        params: &mut SubmitParams,
        unread: impl FnOnce() -> u64,
    ) -> Option<Box<Refusal>> {
        let found = self.found(params, unread).await;
        match found {
            Ok(found) => {
                params.spec.workdir_id = found;
                None
            }
            Err(refusal) => Some(Box::new(refusal.into())),
        }
    }

    async fn found(
        &mut self,
        params: &SubmitParams,
        unread: impl FnOnce() -> u64,
    ) -> Result<Option<FolderId>, WorkdirRefusal> {
        let path = params.spec.workdir.clone().unwrap_or_else(|| ROOT.into());
        let named = || path.to_string();
        let claimed = params.spec.workdir_id;
        let passed = if params.passes_workdir { self.passed.pop_front() } else { None };
        if params.passes_workdir && passed.is_none() && claimed.is_none() {
            return Err(WorkdirRefusal::NoDescriptor);
        }
        if !path.starts_with('/') || path.contains('\0') || path.len() > LONGEST_PATH {
            // The world refuses an invalid path, with its own words.
            return Ok(None);
        }
        let there = claimed.is_some() || passed.is_some();
        let refused = |error: LookError| match &error {
            LookError::Silent => WorkdirRefusal::Silent { path: named(), why: error.to_string() },
            LookError::NoFolderPassed => WorkdirRefusal::NoFolderPassed,
            LookError::NotOpened(_) => WorkdirRefusal::NotThere { path: named(), why: error.to_string(), there },
        };
        let (found, wanted) = match (passed, &self.latest) {
            (Some(passed), _) => {
                let held = self.begin().ok_or(WorkdirRefusal::StillLooking)?;
                self.begin_to_cover(unread());
                let both = self.folders.look_at_both(self.party, &path, passed, held).await;
                let (found, passed) = both.map_err(refused)?;
                (found, Some(passed))
            }
            (None, Some((latest, found))) if *latest == path => (*found, claimed),
            (None, _) => {
                let held = self.begin().ok_or(WorkdirRefusal::StillLooking)?;
                self.begin_to_cover(unread());
                (self.folders.look(self.party, &path, held).await.map_err(refused)?, claimed)
            }
        };
        if let Some(wanted) = wanted
            && (wanted.device, wanted.inode) != (found.device, found.inode)
        {
            return Err(WorkdirRefusal::Other { path: named(), found: Box::new(found), wanted: Box::new(wanted) });
        }
        self.latest = Some((path, found));
        Ok(Some(found))
    }
}

impl Drop for Workdirs {
    fn drop(&mut self) {
        let unwanted: Vec<OwnedFd> = self.passed.drain(..).collect();
        if !unwanted.is_empty() {
            self.folders.close(self.party, unwanted, Arc::clone(&self.slot));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::MetadataExt;
    use std::path::Path;

    use harness_protocol::rpc::SubmitParams;
    use harness_protocol::spec::RunSpec;

    use super::super::limits::connections::Crowd;
    use super::super::rights::Who;
    use super::*;

    /// U22: pipelined submits of one folder share looks, and none is older than the coming of its request.
    #[tokio::test]
    async fn a_look_does_for_what_had_come_when_it_began_and_for_nothing_later() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let slot = Crowd::new(1).enter(&Who::Operator { uid: 0 }).unwrap();
        let mut workdirs = Workdirs::new(Folders::new(None), Party::Process(1), Arc::new(slot));
        fs::create_dir(at("a")).unwrap();
        fs::create_dir(at("b")).unwrap();
        let (first, second) = (inode(&at("a")), inode(&at("b")));
        let mut find = async |arrived: usize, name: &str, unread: u64| {
            assert!(workdirs.arrived(arrived, &mut Vec::new()));
            let spec = RunSpec { workdir: Some(at(name).to_str().unwrap().into()), ..RunSpec::default() };
            let mut params = SubmitParams { spec, ..SubmitParams::default() };
            let refused = workdirs.find(&mut params, || unread).await;
            refused.map_or_else(|| params.spec.workdir_id.map(|folder| folder.inode), |_| None)
        };
        // A hundred bytes more have come by then.
        assert_eq!(find(50, "a", 100).await, Some(first));
        fs::rename(at("a"), at("c")).unwrap();
        fs::rename(at("b"), at("a")).unwrap();
        assert_eq!(find(60, "a", 0).await, Some(first), "it had come before");
        assert_eq!(find(41, "a", 100).await, Some(second), "one byte of it came later");
        // A look at another path, also one that finds nothing, makes none of the earlier ones newer.
        assert_eq!(find(1, "nothing", 1_000).await, None);
        fs::rename(at("a"), at("b")).unwrap();
        fs::rename(at("c"), at("a")).unwrap();
        assert_eq!(find(1, "a", 0).await, Some(first));
    }
}
