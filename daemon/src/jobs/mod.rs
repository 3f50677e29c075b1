//! Executes jobs: from [`Job`] to exactly one [`Report::Outcome`], whatever happens in between.
//!
//! ```text
//! start ──▶ slot made ──▶ task: a call or an inference ──▶ slot settled ──▶ outcome in the inbox
//!                              │                                ▲
//!                              ├── panics: caught, Panicked ────┤
//!                              └── dropped, aborted: Lost ──────┘
//! ```
//!
//! The only place that starts the tasks of calls and inferences. It must not know a component or a queue: its input is
//! a job, a cancel or a resume, and its output goes through the report.

mod deltas;
mod inferences;
mod off_lane;
mod plans;
mod registry;
mod scripts;

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use harness_protocol::id::RunId;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;

pub use self::deltas::{DeltaSender, Deltas};
pub use self::off_lane::{Cancelled, LaneHandle};
pub use self::plans::{Context, ExecuteCall, Execution, PlanExecutor};
pub use self::registry::ReportTo;
pub use self::scripts::Scripts;

use self::registry::{Opened, Registry};
#[cfg(doc)]
use crate::inbox::Report;
use crate::inference::http::Providers;
use crate::process::{self, Keepers};
use crate::world::api::{Job, JobId, Outcome, Settlement, Task, Work};

/// Jobs that begin on one worker, one after the other.
const TOGETHER: usize = 16;
/// How long a shutdown lets jobs end by themselves: the grace of their processes, SIGKILL and some air.
const GRACE: Duration = Duration::from_millis(3_500);
/// And how long it waits for those that it ended itself.
const LAST: Duration = Duration::from_secs(1);

/// What an executor works with.
pub struct ExecutorConfig {
    /// The part that executes calls.
    pub calls: Arc<dyn ExecuteCall>,
    /// The clients of all configured providers.
    pub providers: Arc<Providers>,
    /// Where scripts are played, off the workers of the runtime.
    pub scripts: Arc<Scripts>,
    /// Those that start processes; shared with the tools that have some started.
    pub keepers: Arc<Keepers>,
}

/// Executes jobs. Clones are the same executor.
#[derive(Clone)]
pub struct Executor {
    inner: Arc<Inner>,
    runtime: Handle,
}

struct Inner {
    config: ExecutorConfig,
    registry: Arc<Registry>,
    deltas: DeltaSender,
    closed: AtomicBool,
}

impl Executor {
    /// An executor on the runtime that this is called in.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(config: ExecutorConfig, report: ReportTo, deltas: DeltaSender) -> Self {
        let registry = Arc::new(Registry::new(report));
        let inner = Arc::new(Inner { config, registry, deltas, closed: AtomicBool::new(false) });
        Self { inner, runtime: Handle::current() }
    }

    /// Starts jobs. Each ends in exactly one outcome.
    pub fn start(&self, jobs: Vec<Job>) {
        let mut opened = jobs.into_iter().filter_map(|job| self.open(job)).peekable();
        while opened.peek().is_some() {
            let some: Vec<(Job, Opened)> = opened.by_ref().take(TOGETHER).collect();
            let own = self.clone();
            // From within the runtime: from here each of them would wake a worker by itself.
            self.runtime.spawn(async move {
                for (job, opened) in some {
                    own.begin(job, opened).await;
                }
            });
        }
    }

    fn open(&self, job: Job) -> Option<(Job, Opened)> {
        let id = job.id;
        let Some(opened) = self.inner.registry.open(id) else {
            tracing::error!(?id, "a job was started that is out already");
            return None;
        };
        if self.inner.closed.load(Ordering::Acquire) {
            opened.slot.settle(Outcome::Lost);
            return None;
        }
        Some((job, opened))
    }

    /// Begins a job. A turn of a script is mostly over at once, and needs a task of its own only where it is not.
    async fn begin(&self, job: Job, opened: Opened) {
        let is_scripted = matches!(&job.task, Task::Inference(task) if task.script.is_some());
        let (id, inner) = (job.id, Arc::clone(&self.inner));
        let mut work = Box::pin(async move { inner.execute(job, opened).await });
        let has_ended = is_scripted && poll_fn(|context| Poll::Ready(work.as_mut().poll(context).is_ready())).await;
        if !has_ended {
            let task = self.runtime.spawn(work);
            self.inner.registry.attach(id, task.abort_handle());
        }
    }

    /// Asks a job to end. It still has its one outcome. Without effect on a job that is not out.
    pub fn cancel(&self, job: JobId, force: bool) {
        self.inner.registry.cancel(job, force);
    }

    /// Asks all jobs of a run to end, and ends what its earlier calls have left. Each job still has its one outcome.
    pub fn end_calls(&self, run: RunId, force: bool) {
        self.inner.registry.cancel_run(run, force);
        self.end_background(run);
    }

    /// A job that was off its lane has its permit again.
    pub fn go_on(&self, job: JobId) {
        self.inner.registry.go_on(job);
    }

    /// What a job asked a person is settled. Without effect on a job that is not out.
    pub fn answer(&self, job: JobId, settlement: Settlement) {
        self.inner.registry.answer(job, settlement);
    }

    /// A run has ended: ends whatever is left of it.
    pub fn release(&self, run: RunId) {
        self.inner.registry.cancel_run(run, true);
        self.end_background(run);
    }

    fn end_background(&self, run: RunId) {
        let keepers = Arc::clone(&self.inner.config.keepers);
        if process::has_background(run, &keepers) {
            self.runtime.spawn(async move { process::release(run, &keepers, false).await });
        }
    }

    /// Ends all jobs and their processes, within 5 s. Each still has its one outcome: a caller that wants what executed
    /// to count as interrupted rather than cancelled stops listening before.
    pub async fn shut_down(&self) {
        // Spawned on the executor's own runtime, because the caller's runtime may lack the drivers for processes.
        let own = self.clone();
        if let Err(error) = self.runtime.spawn(async move { own.end_all().await }).await {
            tracing::error!(%error, "the jobs could not be ended in order");
        }
    }

    async fn end_all(&self) {
        self.inner.closed.store(true, Ordering::Release);
        self.inner.registry.cancel_all(false);
        let keepers = &self.inner.config.keepers;
        let all = async {
            self.inner.registry.emptied().await;
            self.release_all(false).await;
            keepers.shut_down().await;
        };
        if timeout(GRACE, all).await.is_err() {
            tracing::warn!("jobs did not end in time and are dropped");
            self.inner.registry.abort_all();
            let rest = async {
                self.inner.registry.emptied().await;
                self.release_all(true).await;
                keepers.shut_down().await;
            };
            if timeout(LAST, rest).await.is_err() {
                tracing::error!("processes live on for a moment; their keepers end them");
            }
        }
    }

    async fn release_all(&self, force: bool) {
        let keepers = &self.inner.config.keepers;
        let mut releases = JoinSet::new();
        for run in process::runs_with_background(keepers) {
            let keepers = Arc::clone(keepers);
            releases.spawn_on(async move { process::release(run, &keepers, force).await }, &self.runtime);
        }
        while releases.join_next().await.is_some() {}
    }
}

impl Inner {
    async fn execute(&self, job: Job, opened: Opened) {
        let Opened { slot, cancel, resumption } = opened;
        let Job { id, task } = job;
        let outcome = caught(async {
            match (task, id.work) {
                (Task::Call(task), Work::Call(call)) => {
                    let deltas = Deltas::new(id.run, Some(call), self.deltas.clone());
                    let lane_handle = LaneHandle::new(id, Arc::clone(&self.registry), resumption, cancel.clone());
                    let context = Context { run: id.run, call, cancel, deltas, lane_handle };
                    Outcome::Call(Arc::new(self.config.calls.call(&task, context).await))
                }
                (Task::Inference(task), Work::Inference { attempt, .. }) => {
                    let mut deltas = Deltas::new(id.run, None, self.deltas.clone());
                    let mut cancel = cancel;
                    let by = (&*self.config.providers, &*self.config.scripts);
                    Outcome::Inference(inferences::execute(by, &task, attempt, &mut cancel, &mut deltas).await)
                }
                (Task::Call(_) | Task::Inference(_), _) => {
                    tracing::error!(?id, "a job's task is not what its id says");
                    Outcome::Lost
                }
            }
        })
        .await;
        slot.settle(outcome.unwrap_or_else(Outcome::Panicked));
    }
}

/// What `future` gives, or what it says when it panics.
async fn caught<F: Future>(future: F) -> Result<F::Output, String> {
    let mut future = pin!(future);
    // Unwind safety: after a panic the future is dropped, and no other code sees its state.
    poll_fn(|context| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
        Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
        Ok(Poll::Pending) => Poll::Pending,
        Err(panic) => Poll::Ready(Err(words(&*panic))),
    })
    .await
}

fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("without a message").to_owned()
}

#[cfg(test)]
mod tests;
