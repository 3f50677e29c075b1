//! Lists the running jobs, and guarantees by a guard for each that it has exactly one outcome.
//!
//! An [`OutcomeGuard`] is made when a job starts. Settling consumes it, so a job is settled at most once. A guard that
//! is dropped by a panic, an abort or a runtime that shuts down settles itself.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use harness_protocol::id::{CallId, RunId};
use tokio::sync::{Notify, Semaphore};
use tokio::task::AbortHandle;

use crate::inbox::Report;
use crate::process::{Cancel, Canceller, canceller};
use crate::world::api::{JobId, Outcome, Settlement, Work};

/// Where reports go. Must not wait.
pub type ReportTo = Arc<dyn Fn(Report) + Send + Sync>;

/// The jobs that are out.
pub(super) struct Registry {
    out: Mutex<BTreeMap<JobId, Out>>,
    /// Slots that have not reported yet; a job leaves `out` just before it does.
    unsettled: AtomicUsize,
    settled: Notify,
    report: ReportTo,
}

struct Out {
    canceller: Canceller,
    resumption: Arc<Resumption>,
    task: Option<AbortHandle>,
}

/// How a job that was off its lane learns that it has a permit again, and what a person said.
#[derive(Debug)]
pub(super) struct Resumption {
    /// Returns that were asked for and not granted.
    pub(super) asked: AtomicU32,
    pub(super) granted: Semaphore,
    pub(super) settled: Settled,
}

/// What a person has said to a job that asked. A job asks one thing at a time.
#[derive(Debug, Default)]
pub(super) struct Settled {
    settlement: Mutex<Option<Settlement>>,
    came: Notify,
}

impl Settled {
    fn put(&self, settlement: Settlement) {
        *self.settlement.lock().unwrap_or_else(PoisonError::into_inner) = Some(settlement);
        self.came.notify_one();
    }

    /// Takes what has come so far.
    pub(super) fn take(&self) -> Option<Settlement> {
        self.settlement.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Waits for what a person says.
    pub(super) async fn said(&self) -> Settlement {
        loop {
            // A notice that came before is kept, so that none is missed in between.
            if let Some(settlement) = self.take() {
                return settlement;
            }
            self.came.notified().await;
        }
    }
}

/// The promise of one outcome.
pub(super) struct OutcomeGuard {
    job: JobId,
    /// `None` once settled.
    registry: Option<Arc<Registry>>,
}

/// A job that has its slot.
pub(super) struct Opened {
    pub(super) slot: OutcomeGuard,
    pub(super) cancel: Cancel,
    pub(super) resumption: Arc<Resumption>,
}

impl Registry {
    pub(super) fn new(report: ReportTo) -> Self {
        Self { out: Mutex::default(), unsettled: AtomicUsize::new(0), settled: Notify::new(), report }
    }

    fn out(&self) -> MutexGuard<'_, BTreeMap<JobId, Out>> {
        self.out.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the slot of a job; `None` where that job is out already.
    pub(super) fn open(self: &Arc<Self>, job: JobId) -> Option<Opened> {
        let (canceller, cancel) = canceller();
        let resumption =
            Arc::new(Resumption { asked: AtomicU32::new(0), granted: Semaphore::new(0), settled: Settled::default() });
        let mut out = self.out();
        if out.contains_key(&job) {
            return None;
        }
        out.insert(job, Out { canceller, resumption: Arc::clone(&resumption), task: None });
        self.unsettled.fetch_add(1, Ordering::AcqRel);
        Some(Opened { slot: OutcomeGuard { job, registry: Some(Arc::clone(self)) }, cancel, resumption })
    }

    /// Says which task executes a job, unless it has ended by now.
    pub(super) fn attach(&self, job: JobId, task: AbortHandle) {
        if let Some(out) = self.out().get_mut(&job) {
            out.task = Some(task);
        }
    }

    /// Asks a job to end, if it is out.
    pub(super) fn cancel(&self, job: JobId, force: bool) {
        if let Some(out) = self.out().get(&job) {
            out.canceller.stop(force);
        }
    }

    /// Asks all jobs of a run to end.
    pub(super) fn cancel_run(&self, run: RunId, force: bool) {
        let first = JobId { run, work: Work::Call(CallId::from_u64(0)) };
        let last = JobId { run, work: Work::Inference { step: u32::MAX, attempt: u32::MAX } };
        self.out().range(first..=last).for_each(|(_, out)| out.canceller.stop(force));
    }

    /// Asks all jobs to end.
    pub(super) fn cancel_all(&self, force: bool) {
        self.out().values().for_each(|out| out.canceller.stop(force));
    }

    /// Ends the tasks of all jobs where they stand.
    pub(super) fn abort_all(&self) {
        self.out().values().filter_map(|out| out.task.as_ref()).for_each(AbortHandle::abort);
    }

    /// Lets a job that has asked for it go on.
    pub(super) fn go_on(&self, job: JobId) {
        if let Some(out) = self.out().get(&job) {
            let one_less = |asked: u32| asked.checked_sub(1);
            if out.resumption.asked.fetch_update(Ordering::AcqRel, Ordering::Acquire, one_less).is_ok() {
                out.resumption.granted.add_permits(1);
            }
        }
    }

    /// Tells a job what a person said to what it asked.
    pub(super) fn answer(&self, job: JobId, settlement: Settlement) {
        if let Some(out) = self.out().get(&job) {
            out.resumption.settled.put(settlement);
        }
    }

    /// Waits until every job that was out has reported its outcome.
    pub(super) async fn emptied(&self) {
        loop {
            let settled = self.settled.notified();
            if self.unsettled.load(Ordering::Acquire) == 0 {
                return;
            }
            settled.await;
        }
    }

    pub(super) fn report(&self, report: Report) {
        (self.report)(report);
    }

    fn close(&self, job: JobId, outcome: Outcome) {
        self.out().remove(&job);
        self.report(Report::Outcome(job, outcome));
        if self.unsettled.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.settled.notify_waiters();
        }
    }
}

impl OutcomeGuard {
    /// Reports the outcome.
    pub(super) fn settle(mut self, outcome: Outcome) {
        if let Some(registry) = self.registry.take() {
            registry.close(self.job, outcome);
        }
    }
}

impl Drop for OutcomeGuard {
    fn drop(&mut self) {
        if let Some(registry) = self.registry.take() {
            let outcome = if std::thread::panicking() {
                Outcome::Panicked("the code of the job panicked".to_owned())
            } else {
                Outcome::Lost
            };
            registry.close(self.job, outcome);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    const RUN: RunId = RunId::from_u64(1);

    fn job(number: u64) -> JobId {
        JobId { run: RUN, work: Work::Call(CallId::from_u64(number)) }
    }

    fn registry() -> (Arc<Registry>, Arc<Mutex<Vec<Report>>>) {
        let reports = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&reports);
        (Arc::new(Registry::new(Arc::new(move |report| into.lock().unwrap().push(report)))), reports)
    }

    fn outcome(of: impl FnOnce(OutcomeGuard)) -> Vec<Report> {
        let (registry, reports) = registry();
        of(registry.open(job(1)).unwrap().slot);
        assert!(registry.out().is_empty());
        let reports = reports.lock().unwrap();
        reports.clone()
    }

    #[test]
    fn a_slot_that_is_dropped_settles_itself() {
        assert_eq!(outcome(drop), [Report::Outcome(job(1), Outcome::Lost)]);
        let outcome = outcome(|slot| {
            let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let _slot = slot;
                panic!("on purpose");
            }));
            assert!(panicked.is_err());
        });
        assert!(matches!(&outcome[..], [Report::Outcome(_, Outcome::Panicked(_))]));
    }

    #[test]
    fn a_job_that_is_out_is_not_opened_again() {
        let (registry, reports) = registry();
        let opened = registry.open(job(1)).unwrap();
        assert!(registry.open(job(1)).is_none());
        assert!(reports.lock().unwrap().is_empty());
        drop(opened);
        assert!(registry.open(job(1)).is_some());
    }

    #[test]
    fn a_cancel_of_a_run_takes_its_jobs_and_no_others() {
        let (registry, _reports) = registry();
        let other = RunId::from_u64(2);
        let opened = [
            job(u64::MAX),
            JobId { run: RUN, work: Work::Inference { step: 3, attempt: 1 } },
            JobId { run: other, work: Work::Call(CallId::from_u64(0)) },
        ]
        .map(|job| registry.open(job).unwrap());
        registry.cancel_run(RUN, false);
        assert_eq!(opened.map(|opened| opened.cancel.is_wanted()), [true, true, false]);
    }

    #[test]
    fn nobody_goes_on_who_has_not_asked() {
        let (registry, _reports) = registry();
        let opened = registry.open(job(1)).unwrap();
        registry.go_on(job(1));
        assert_eq!(opened.resumption.granted.available_permits(), 0);
        opened.resumption.asked.store(1, Ordering::Release);
        registry.go_on(job(1));
        registry.go_on(job(1));
        assert_eq!(opened.resumption.granted.available_permits(), 1);
    }

    proptest! {
        #[test]
        fn every_slot_reports_once_however_it_goes(ways in proptest::collection::vec(0u8..4, 1..30)) {
            let (registry, reports) = registry();
            let mut open = Vec::new();
            for (number, way) in (0u64..).zip(&ways) {
                let slot = registry.open(job(number)).unwrap().slot;
                match way {
                    0 => slot.settle(Outcome::Lost),
                    1 => drop(slot),
                    2 => {
                        registry.cancel(job(number), true);
                        registry.go_on(job(number));
                        open.push(slot);
                    }
                    _ => open.push(slot),
                }
            }
            open.into_iter().rev().for_each(|slot| slot.settle(Outcome::Panicked(String::new())));
            let mut jobs: Vec<_> = reports.lock().unwrap().iter().map(|report| match report {
                Report::Outcome(job, _) | Report::Ask(job, _) => *job,
            }).collect();
            jobs.sort_unstable();
            prop_assert_eq!(jobs, (0..ways.len() as u64).map(job).collect::<Vec<_>>());
            prop_assert_eq!(registry.unsettled.load(Ordering::Acquire), 0);
        }
    }
}
