//! Measures the cost of a lane's operations with a hundred thousand tickets in its queue.
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::print_stdout)]

use std::hint::black_box;

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use harness_protocol::id::RunId;
use harness_protocol::spec::Priority;
use harness_protocol::time::Timestamp;
use harnessd::lane::{Claim, Lane, Settings, ShareId, ShareSettings, TicketId};

const QUEUED: u64 = 100_000;

fn claim(run: u64, roots: u64) -> Claim {
    // Ids are spread as the world spreads them.
    let id = |n: u64| RunId::from_u64(n.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let priority = [Priority::High, Priority::Normal, Priority::Low][(run % 3) as usize];
    Claim { run: id(run), root: id(run % roots), share: ShareId((run % 3) as u16), priority }
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(1_800_000_000_000_000 + micros)
}

/// A lane with a hundred thousand queued tickets of that many roots.
fn full(roots: u64) -> (Lane, Vec<TicketId>) {
    let share = |name: &str, weight| ShareSettings { name: name.into(), weight, max: None };
    let shares = vec![share("default", 1), share("batch", 3), share("people", 5)];
    let mut lane = Lane::new(Settings { name: "tool".into(), width: 8, shares });
    let ids = (0..QUEUED).map(|run| lane.enter(claim(run, roots), at(run))).collect();
    (lane, ids)
}

fn operations(criterion: &mut Criterion) {
    for (name, roots) in [("each its own root", QUEUED), ("a thousand roots", 1_000)] {
        let mut group = criterion.benchmark_group(format!("lane, 100,000 queued, {name}"));
        group.throughput(Throughput::Elements(1));
        let (mut lane, mut ids) = full(roots);
        println!("{name}: {} bytes for each queued ticket", lane.footprint() / ids.len());
        let mut time = QUEUED;
        group.bench_function("grant the next, let it leave, let another enter", |bencher| {
            bencher.iter(|| {
                time += 1;
                let (id, _) = lane.peek().unwrap();
                lane.grant(id, at(time));
                lane.leave(id, at(time));
                lane.enter(claim(time, roots), at(time));
            });
        });
        let (mut lane, _) = full(roots);
        group.bench_function("peek", |bencher| bencher.iter(|| black_box(lane.peek())));
        group.bench_function("grant, park, resume", |bencher| {
            bencher.iter(|| {
                time += 1;
                let (id, _) = lane.peek().unwrap();
                lane.grant(id, at(time));
                lane.park(id, at(time));
                lane.resume(id, at(time));
            });
        });
        let (mut lane, fresh) = full(roots);
        ids = fresh;
        let mut next = 0usize;
        group.bench_function("cancel from anywhere in the queue, let another enter", |bencher| {
            bencher.iter(|| {
                time += 1;
                // A step that is prime to the length reaches every place in a scattered order.
                next = (next + 61_803) % ids.len();
                lane.leave(ids[next], at(time));
                ids[next] = lane.enter(claim(time, roots), at(time));
            });
        });
        group.finish();
    }
}

fn beside_a_channel(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("for comparison");
    group.bench_function("VecDeque push and pop, 100,000 queued", |bencher| {
        let mut queue: std::collections::VecDeque<u64> = (0..QUEUED).collect();
        bencher.iter(|| {
            let next = queue.pop_front().unwrap();
            queue.push_back(black_box(next));
        });
    });
    group.bench_function("tokio semaphore, acquire and release, uncontended", |bencher| {
        let semaphore = tokio::sync::Semaphore::new(8);
        bencher.iter_batched(|| (), |()| drop(semaphore.try_acquire().unwrap()), BatchSize::SmallInput);
    });
}

criterion_group!(benches, operations, beside_a_channel);
criterion_main!(benches);
