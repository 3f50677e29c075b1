//! Measures starting `/bin/true` and capturing its output: through the executor of jobs and the tool `shell`, and with
//! bare `tokio::process`. Reports the rates and the daemon's own CPU time.
//!
//! `cargo bench -p harnessd --bench spawn`. Both sides alternate in one run, so that a busy machine slows both; look at
//! the ratios.
#![allow(missing_docs, clippy::unwrap_used, clippy::panic, clippy::print_stdout, clippy::disallowed_methods)]

use std::collections::HashMap;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness_protocol::id::{CallId, RunId};
use harness_protocol::spec::RunSpec;
use harnessd::config::Config;
use harnessd::folders::{self, Folders};
use harnessd::inbox::Report;
use harnessd::inference::http::{Environment, Providers};
use harnessd::jobs::{Executor, ExecutorConfig, PlanExecutor, Scripts};
use harnessd::process::{KeeperProgram, Keepers, Outputs, Sealed, Standing};
use harnessd::tools;
use harnessd::world::api::{CallTask, Job, JobId, Outcome, Task, Work};
use nix::sys::resource::{UsageWho, getrusage};
use tokio::runtime::Handle;
use tokio::sync::{broadcast, oneshot};

/// Runs side by side, each of one side and then the other.
const ROUNDS: usize = 6;

async fn bare() {
    let output = tokio::process::Command::new("/bin/true")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .output()
        .await
        .unwrap();
    assert!(output.status.success() && output.stdout.is_empty() && output.stderr.is_empty());
}

/// An executor of jobs, and who waits for which of them.
struct Jobs {
    executor: Executor,
    waiting: Arc<Mutex<HashMap<JobId, oneshot::Sender<Outcome>>>>,
}

impl Jobs {
    fn new(keepers: &Arc<Keepers>, outputs: Outputs) -> Self {
        let config = Config::default();
        let around = (std::env::vars_os(), Path::new("/s.sock"));
        let folders = Folders::new(folders::boot());
        let calls = PlanExecutor::new(tools::catalogue(), &config.shell, around, outputs, Arc::clone(keepers), folders);
        let waiting = Arc::<Mutex<HashMap<JobId, oneshot::Sender<Outcome>>>>::default();
        let told = Arc::clone(&waiting);
        let report = move |report| {
            if let Report::Outcome(job, outcome) = report
                && let Some(waits) = told.lock().unwrap().remove(&job)
            {
                drop(waits.send(outcome));
            }
        };
        let executor_config = ExecutorConfig {
            calls: Arc::new(calls),
            providers: Arc::new(Providers::new(&config, Environment::default()).unwrap()),
            scripts: Arc::new(Scripts::new(Handle::current())),
            keepers: Arc::clone(keepers),
        };
        Self { executor: Executor::new(executor_config, Arc::new(report), broadcast::channel(16).0), waiting }
    }

    async fn call(&self, number: u64) {
        let spec = Arc::new(RunSpec { workdir: Some("/".into()), ..RunSpec::default() });
        let task = CallTask { tool: "shell".into(), args: r#"{"argv":["/bin/true"]}"#.into(), ask: None, spec };
        let id = JobId { run: RunId::from_u64(1 + number % 64), work: Work::Call(CallId::from_u64(number)) };
        let (sender, outcome) = oneshot::channel();
        self.waiting.lock().unwrap().insert(id, sender);
        self.executor.start(vec![Job { id, task: Task::Call(task) }]);
        let Outcome::Call(result) = outcome.await.unwrap() else { panic!("the call has no result") };
        assert_eq!(result.exit_code, Some(0));
    }
}

fn own_cpu() -> Duration {
    let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
    let micros = |time: nix::sys::time::TimeVal| {
        Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()).cast_unsigned())
    };
    micros(usage.user_time()) + micros(usage.system_time())
}

/// Rate, and CPU of our own per spawn in microseconds.
async fn measure<F: Future<Output = ()> + Send>(
    count: usize,
    concurrency: usize,
    one: impl Fn(usize) -> F + Send + Sync + Clone + 'static,
) -> (f64, f64) {
    let next = Arc::new(AtomicUsize::new(0));
    let (begun, cpu) = (Instant::now(), own_cpu());
    let workers: Vec<_> = (0..concurrency)
        .map(|_| {
            let (next, one) = (Arc::clone(&next), one.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= count {
                        return;
                    }
                    one(number).await;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    let micros = (own_cpu() - cpu).as_secs_f64() * 1e6;
    (count as f64 / begun.elapsed().as_secs_f64(), micros / count as f64)
}

async fn compare(jobs: &Arc<Jobs>, name: &str, count: usize) {
    for concurrency in [1, 8, 64] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let jobs = Arc::clone(jobs);
            let call = move |number: usize| {
                let jobs = Arc::clone(&jobs);
                async move { jobs.call(number as u64).await }
            };
            ours.push(measure(count, concurrency, call).await);
            theirs.push(measure(count, concurrency, |_| bare()).await);
        }
        let median = |of: &[(f64, f64)], which: fn(&(f64, f64)) -> f64| {
            let mut values: Vec<f64> = of.iter().map(which).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let (rate, bare_rate) = (median(&ours, |of| of.0), median(&theirs, |of| of.0));
        let (cpu, bare_cpu) = (median(&ours, |of| of.1), median(&theirs, |of| of.1));
        println!(
            "{name:>6} x{concurrency:<3} keepers {rate:6.0}/s {cpu:5.0} us   tokio {bare_rate:6.0}/s {bare_cpu:5.0} \
             us   rate {:.2}  own CPU {:.2}",
            rate / bare_rate,
            cpu / bare_cpu
        );
    }
}

fn main() {
    // `cargo test --benches` asks for no measurement.
    let measured = std::env::args().any(|arg| arg == "--bench");
    let count = if measured { 2_000 } else { 20 };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let program = KeeperProgram {
            program: Sealed::at(env!("CARGO_BIN_EXE_harnessd")),
            args: vec!["keeper".into()],
            env: Vec::new(),
            lock: None,
        };
        let keepers = Arc::new(Keepers::new(program, Standing::read()));
        let dir = tempfile::tempdir().unwrap();
        let outputs = Outputs::new(dir.path());
        let jobs = Arc::new(Jobs::new(&keepers, outputs));
        compare(&jobs, "small", count).await;
        let large = vec![1u8; if measured { 1 << 30 } else { 1 << 20 }];
        compare(&jobs, "1 GiB", count).await;
        assert!(large.iter().step_by(1 << 16).all(|&byte| byte == 1));
        keepers.shut_down().await;
    });
}
