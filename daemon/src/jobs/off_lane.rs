//! Gives back the permit of a job's lane while the job waits for something without a time bound, and asks for one again
//! afterwards.
//!
//! Every [`Ask::OffLane`] and every [`Ask::Open`] is followed by exactly one [`Ask::Return`], also if the wait is
//! dropped, cancelled or panics. Both come before the outcome of the job.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use harness_protocol::folder::FolderId;

use super::registry::{Registry, Resumption};
use crate::inbox::Report;
use crate::process::Cancel;
use crate::world::api::{Ask, Asked, JobId, Settlement};

/// The place of a job in its lane.
pub struct LaneHandle {
    job: JobId,
    registry: Arc<Registry>,
    resumption: Arc<Resumption>,
    cancel: Cancel,
    /// Returns that were asked for and not waited for.
    returning: u32,
}

/// The job is to end: it has no permit, and must not go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("cancelled while it waited off its lane")]
pub struct Cancelled;

impl LaneHandle {
    pub(super) fn new(job: JobId, registry: Arc<Registry>, resumption: Arc<Resumption>, cancel: Cancel) -> Self {
        Self { job, registry, resumption, cancel, returning: 0 }
    }

    /// Tells which folder the working directory of the run is, in this boot.
    pub fn found(&self, folder: FolderId) {
        self.registry.report(Report::Ask(self.job, Ask::Found(folder)));
    }

    /// Waits for `future` without a permit, and then until the world grants one again. After this wait is dropped, the
    /// job has no permit until the next call returns.
    ///
    /// # Errors
    /// [`Cancelled`] if the job has to end: the wait was given up, and there is no permit.
    pub async fn off_lane<F: Future>(&mut self, future: F) -> Result<F::Output, Cancelled> {
        self.come_back().await?;
        self.wait(Ask::OffLane, future).await
    }

    /// Asks a person, and waits for what comes of it without a permit, and then until the world grants one again.
    ///
    /// # Errors
    /// [`Cancelled`] if the job has to end: nothing is asked any more, and there is no permit.
    pub async fn ask(&mut self, asked: Asked) -> Result<Settlement, Cancelled> {
        self.come_back().await?;
        let resumption = Arc::clone(&self.resumption);
        // What is left is for a question that was given up: it came before the permit of that wait.
        drop(resumption.settled.take());
        self.wait(Ask::Open(asked), resumption.settled.said()).await
    }

    async fn wait<F: Future>(&mut self, why: Ask, future: F) -> Result<F::Output, Cancelled> {
        let mut cancel = self.cancel.clone();
        let away = Away::leave(self, why);
        let output = tokio::select! {
            biased;
            _ = cancel.wanted() => Err(Cancelled),
            output = future => Ok(output),
        };
        drop(away);
        let output = output?;
        self.come_back().await?;
        Ok(output)
    }

    async fn come_back(&mut self) -> Result<(), Cancelled> {
        if self.cancel.is_wanted() {
            return Err(Cancelled);
        }
        while self.returning > 0 {
            tokio::select! {
                biased;
                _ = self.cancel.wanted() => return Err(Cancelled),
                granted = self.resumption.granted.acquire() => granted.map_err(|_| Cancelled)?.forget(),
            }
            self.returning -= 1;
        }
        Ok(())
    }
}

/// The time away. Its end asks for the return, whatever ends it.
struct Away<'a>(&'a mut LaneHandle);

impl<'a> Away<'a> {
    fn leave(lane_handle: &'a mut LaneHandle, why: Ask) -> Self {
        lane_handle.registry.report(Report::Ask(lane_handle.job, why));
        Self(lane_handle)
    }
}

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.returning += 1;
        self.0.resumption.asked.fetch_add(1, Ordering::AcqRel);
        self.0.registry.report(Report::Ask(self.0.job, Ask::Return));
    }
}
