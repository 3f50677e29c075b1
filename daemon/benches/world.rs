//! Measures the cost of the world: a no-op batch, against a semaphore with a set of tasks that does the same; and a
//! step with nothing to do.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]

mod common;

use std::sync::Arc;

use common::{World, asks, done, started};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use tokio::runtime::Builder;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

/// Batches at once.
const AT_ONCE: usize = 64;
const WIDTH: u32 = 8;

/// Each iteration is one no-op batch of each of 64 runs: the model asks, the batch queues, is granted, its call has its
/// result, the model is asked again. Eight at once.
fn batches(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("no-op batches, 64 runs, width 8");
    group.throughput(Throughput::Elements(AT_ONCE as u64));
    group.sample_size(20);
    group.bench_function("the whole world", |bencher| {
        bencher.iter_batched_ref(
            || {
                let mut world = World::new(WIDTH);
                let inferences = world.submit(AT_ONCE);
                (world, inferences)
            },
            |(world, inferences)| {
                let inputs = inferences.drain(..).map(|job| asks(job, "shell", r#"{"command":"true"}"#)).collect();
                let mut calls = started(&world.step(inputs));
                while !calls.is_empty() {
                    let jobs = started(&world.step(calls.drain(..).map(done).collect()));
                    let (next, thinking): (Vec<_>, Vec<_>) =
                        jobs.into_iter().partition(|job| matches!(job.work, harnessd::world::api::Work::Call(_)));
                    calls = next;
                    inferences.extend(thinking);
                }
                assert_eq!(inferences.len(), AT_ONCE);
            },
            criterion::BatchSize::LargeInput,
        );
    });
    for (name, threads) in [("tokio, one worker", 1), ("tokio, two workers", 2)] {
        let runtime = Builder::new_multi_thread().worker_threads(threads).build().unwrap();
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                runtime.block_on(async {
                    let permits = Arc::new(Semaphore::new(WIDTH as usize));
                    let (told, mut tells) = mpsc::unbounded_channel();
                    let mut tasks = JoinSet::new();
                    for run in 0..AT_ONCE {
                        let (permits, told) = (Arc::clone(&permits), told.clone());
                        tasks.spawn(async move {
                            let permit = permits.acquire_owned().await.unwrap();
                            told.send(run).unwrap();
                            drop(permit);
                        });
                    }
                    while tasks.join_next().await.is_some() {}
                    for _ in 0..AT_ONCE {
                        tells.recv().await.unwrap();
                    }
                });
            });
        });
    }
    group.finish();
}

/// A step with nothing to do, with that many runs that wait for a person.
fn idle(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a step with nothing to do");
    for waiting in [1_000, 100_000, 1_000_000] {
        let mut world = World::new(WIDTH);
        world.waiting(waiting);
        assert_eq!(world.engine.next_deadline(), None, "an idle world wants no wake-up");
        group.bench_with_input(BenchmarkId::new("waiting runs", waiting), &waiting, |bencher, _| {
            bencher.iter(|| world.step(Vec::new()));
        });
    }
    group.finish();
    let mut group = criterion.benchmark_group("one more submit");
    group.sample_size(20);
    for waiting in [1_000, 1_000_000] {
        let mut world = World::new(WIDTH);
        world.waiting(waiting);
        group.bench_with_input(BenchmarkId::new("waiting runs", waiting), &waiting, |bencher, _| {
            bencher.iter(|| world.submit(1));
        });
    }
    group.finish();
}

criterion_group!(benches, batches, idle);
criterion_main!(benches);
