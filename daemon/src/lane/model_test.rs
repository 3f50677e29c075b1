//! Tests the lane against a small model made of plain lists, by random sequences of operations.
#![cfg(test)]

use std::collections::VecDeque;

use harness_protocol::id::{ReliefId, RunId};
use harness_protocol::spec::Priority;
use harness_protocol::time::Timestamp;
use proptest::prelude::*;

use super::*;

/// A ticket of the model.
#[derive(Debug, Clone)]
struct Simple {
    id: TicketId,
    claim: Claim,
    state: TicketState,
    permits: u16,
}

/// The roots in the order of their turns, each with its tickets in order.
type Ring = VecDeque<(RunId, VecDeque<TicketId>)>;

/// The rules of a lane, written as simply as possible.
#[derive(Debug)]
struct Model {
    width: u32,
    relieved: u32,
    paused: bool,
    /// Weight, bound, and the pass for each class.
    shares: Vec<(u32, Option<u32>, [u64; 4])>,
    tickets: Vec<Simple>,
    /// For each class and share, the roots in the order of their turns, each with its tickets in order.
    queues: Vec<Vec<Ring>>,
    turn: usize,
    time: [u64; 4],
}

impl Model {
    fn class(ticket: &Simple) -> Option<usize> {
        match ticket.state {
            TicketState::Resuming => Some(0),
            TicketState::Queued => Some(1 + ticket.claim.priority as usize),
            TicketState::Busy | TicketState::Parked | TicketState::Deferred => None,
        }
    }

    fn ticket(&mut self, id: TicketId) -> &mut Simple {
        self.tickets.iter_mut().find(|t| t.id == id).unwrap()
    }

    fn permits(&self) -> u32 {
        self.tickets.iter().map(|t| u32::from(t.permits)).sum()
    }

    fn share_permits(&self, share: usize) -> u32 {
        self.tickets.iter().filter(|t| usize::from(t.claim.share.0) == share).map(|t| u32::from(t.permits)).sum()
    }

    fn is_full(&self, share: usize) -> bool {
        self.shares[share].1.is_some_and(|max| self.share_permits(share) >= max)
    }

    fn waiting_in(&self, share: usize) -> usize {
        self.tickets.iter().filter(|t| usize::from(t.claim.share.0) == share && Self::class(t).is_some()).count()
    }

    fn waiting(&self) -> usize {
        (0..self.shares.len()).map(|share| self.waiting_in(share)).sum()
    }

    fn join(&mut self, id: TicketId) {
        let ticket = self.ticket(id).clone();
        let share = usize::from(ticket.claim.share.0);
        let class = Self::class(&ticket).unwrap();
        let queue = &mut self.queues[class][share];
        if queue.is_empty() {
            self.shares[share].2[class] = self.shares[share].2[class].max(self.time[class]);
        }
        match queue.iter_mut().find(|(root, _)| *root == ticket.claim.root) {
            Some((_, list)) => list.push_back(id),
            None => queue.push_back((ticket.claim.root, VecDeque::from([id]))),
        }
    }

    fn take_out(&mut self, id: TicketId) {
        let ticket = self.ticket(id).clone();
        if let Some(class) = Self::class(&ticket) {
            let queue = &mut self.queues[class][usize::from(ticket.claim.share.0)];
            for (_, list) in queue.iter_mut() {
                list.retain(|&other| other != id);
            }
            queue.retain(|(_, list)| !list.is_empty());
        }
        self.ticket(id).permits = 0;
    }

    fn next(&self) -> Option<TicketId> {
        if self.paused || self.permits() >= self.width + self.relieved {
            return None;
        }
        let first = |class: usize| {
            (0..self.shares.len())
                .filter(|&share| !self.queues[class][share].is_empty() && !self.is_full(share))
                .min_by_key(|&share| (self.shares[share].2[class], share))
                .map(|share| self.queues[class][share][0].1[0])
        };
        first([0, 1, 0, 2, 0, 1, 0, 3][self.turn]).or_else(|| (0..4).find_map(first))
    }

    fn grant(&mut self, id: TicketId) {
        let ticket = self.ticket(id).clone();
        let share = usize::from(ticket.claim.share.0);
        let class = Self::class(&ticket).unwrap();
        let queue = &mut self.queues[class][share];
        let (root, mut list) = queue.pop_front().unwrap();
        list.pop_front();
        if !list.is_empty() {
            queue.push_back((root, list));
        }
        self.time[class] = self.shares[share].2[class];
        self.shares[share].2[class] += SCALE / u64::from(self.shares[share].0);
        self.turn = (self.turn + 1) % 8;
        let ticket = self.ticket(id);
        ticket.state = TicketState::Busy;
        ticket.permits = 1;
    }
}

#[derive(Debug, Clone)]
enum Op {
    Enter { root: u64, share: u16, priority: Priority, parked: bool },
    Grant,
    Extra(usize),
    Keep(usize),
    Park(usize),
    Resume(usize),
    Leave(usize),
    Resize(u32),
    Relieve(u32),
    Undo,
    Pause(bool),
}

fn op() -> impl Strategy<Value = Op> {
    let priority = prop_oneof![Just(Priority::High), Just(Priority::Normal), Just(Priority::Low)];
    prop_oneof![
        6 => (0u64..5, 0u16..3, priority, prop::bool::weighted(0.1))
            .prop_map(|(root, share, priority, parked)| Op::Enter { root, share, priority, parked }),
        6 => Just(Op::Grant),
        1 => (0usize..32).prop_map(Op::Extra),
        1 => (0usize..32).prop_map(Op::Keep),
        2 => (0usize..32).prop_map(Op::Park),
        2 => (0usize..32).prop_map(Op::Resume),
        3 => (0usize..32).prop_map(Op::Leave),
        1 => (0u32..6).prop_map(Op::Resize),
        1 => (0u32..4).prop_map(Op::Relieve),
        1 => Just(Op::Undo),
        1 => any::<bool>().prop_map(Op::Pause),
    ]
}

fn settings(width: u32) -> Settings {
    let share = |name: &str, weight, max| ShareSettings { name: name.into(), weight, max };
    Settings {
        name: "tool".into(),
        width,
        shares: vec![share("default", 1, None), share("heavy", 3, None), share("bounded", 1, Some(2))],
    }
}

fn check(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let mut lane = Lane::new(settings(2));
    let mut model = Model {
        width: 2,
        relieved: 0,
        paused: false,
        shares: vec![(1, None, [0; 4]), (3, None, [0; 4]), (1, Some(2), [0; 4])],
        tickets: Vec::new(),
        queues: vec![vec![VecDeque::new(); 3]; 4],
        turn: 0,
        time: [0; 4],
    };
    let (mut reliefs, mut made) = (Vec::new(), 0u64);
    for (step, op) in ops.into_iter().enumerate() {
        let now = Timestamp::from_micros(1_000_000 + step as u64);
        let pick =
            |n: usize, model: &Model| (!model.tickets.is_empty()).then(|| model.tickets[n % model.tickets.len()].id);
        match op {
            Op::Enter { root, share, priority, parked } => {
                made += 1;
                let claim =
                    Claim { run: RunId::from_u64(made), root: RunId::from_u64(root), share: ShareId(share), priority };
                let id = if parked { lane.enter_parked(claim, now) } else { lane.enter(claim, now) };
                let state = if parked { TicketState::Parked } else { TicketState::Queued };
                model.tickets.push(Simple { id, claim, state, permits: 0 });
                if !parked {
                    model.join(id);
                }
            }
            Op::Grant => {
                let next = model.next();
                prop_assert_eq!(lane.peek().map(|(id, _)| id), next);
                if let Some(id) = next {
                    prop_assert!(lane.permits() < lane.width());
                    lane.grant(id, now);
                    model.grant(id);
                }
            }
            Op::Extra(n) => {
                if let Some(id) = pick(n, &model) {
                    let ticket = model.ticket(id).clone();
                    let possible = ticket.state == TicketState::Busy
                        && !model.paused
                        && model.waiting() == 0
                        && model.permits() < model.width + model.relieved
                        && !model.is_full(usize::from(ticket.claim.share.0));
                    prop_assert_eq!(lane.grant_extra(id, now), possible);
                    model.ticket(id).permits += u16::from(possible);
                }
            }
            Op::Keep(n) => {
                if let Some(id) = pick(n, &model) {
                    lane.keep(id, 1, now);
                    model.ticket(id).permits = model.ticket(id).permits.min(1);
                }
            }
            Op::Park(n) => {
                if let Some(id) = pick(n, &model) {
                    lane.park(id, now);
                    model.take_out(id);
                    let ticket = model.ticket(id);
                    let never_held = matches!(ticket.state, TicketState::Queued | TicketState::Deferred);
                    ticket.state = if never_held { TicketState::Deferred } else { TicketState::Parked };
                }
            }
            Op::Resume(n) => {
                if let Some(id) = pick(n, &model) {
                    lane.resume(id, now);
                    let next = match model.ticket(id).state {
                        TicketState::Parked => Some(TicketState::Resuming),
                        TicketState::Deferred => Some(TicketState::Queued),
                        _ => None,
                    };
                    if let Some(next) = next {
                        model.ticket(id).state = next;
                        model.join(id);
                    }
                }
            }
            Op::Leave(n) => {
                if let Some(id) = pick(n, &model) {
                    lane.leave(id, now);
                    model.take_out(id);
                    model.tickets.retain(|t| t.id != id);
                    prop_assert_eq!(lane.state(id), None);
                    lane.leave(id, now);
                }
            }
            Op::Resize(width) => {
                lane.resize(width, now);
                model.width = width.max(1);
            }
            Op::Relieve(by) => {
                reliefs.push((ReliefId::from_u64(step as u64), by));
                let widths = lane.relieve(ReliefId::from_u64(step as u64), by, None, now);
                model.relieved += by;
                prop_assert_eq!(widths.after - widths.before, by);
            }
            Op::Undo => {
                if let Some((id, by)) = reliefs.pop() {
                    lane.end_relief(id, now);
                    model.relieved -= by;
                }
            }
            Op::Pause(paused) => {
                lane.set_paused(paused);
                model.paused = paused;
            }
        }
        prop_assert_eq!(lane.check(), Ok(()));
        prop_assert_eq!(lane.width(), model.width + model.relieved);
        prop_assert_eq!(lane.permits(), model.permits());
        prop_assert_eq!(lane.peek().map(|(id, _)| id), model.next());
        let places = lane.places();
        for ticket in &model.tickets {
            prop_assert_eq!(places.of(ticket.id), lane.position(ticket.id));
            prop_assert_eq!(
                lane.claimed(ticket.id).map(|c| (c.run, c.state, c.permits)),
                Some((ticket.claim.run, ticket.state, ticket.permits))
            );
        }
    }
    Ok(())
}

/// The places reach beyond the last place that is reported, with many roots and many tickets of each root.
#[test]
fn places_of_all_tickets_at_once_are_those_that_each_has() {
    for roots in [1, 2, 3, 700, 3_000] {
        let mut lane = lane(1);
        let claim = |run: u64| claim(run, run % roots, 0, Priority::Normal);
        let tickets: Vec<TicketId> = (0..4_000).map(|run| lane.enter(claim(run), Timestamp::default())).collect();
        let places = lane.places();
        assert!(
            tickets.iter().any(|&id| places.of(id) == Some(1_000)) && tickets.iter().any(|&id| places.of(id).is_none())
        );
        assert!(tickets.iter().all(|&id| places.of(id) == lane.position(id)), "{roots} roots");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn the_lane_does_what_the_model_does(ops in prop::collection::vec(op(), 1..120)) {
        check(ops)?;
    }
}

fn lane(width: u32) -> Lane {
    Lane::new(settings(width))
}

fn claim(run: u64, root: u64, share: u16, priority: Priority) -> Claim {
    Claim { run: RunId::from_u64(run), root: RunId::from_u64(root), share: ShareId(share), priority }
}

/// Grants one ticket after the other; each leaves at once. Returns the runs in the order of their grants.
fn drain(lane: &mut Lane, most: usize) -> Vec<u64> {
    let mut order = Vec::new();
    while order.len() < most {
        let Some((id, run)) = lane.peek() else { break };
        lane.grant(id, Timestamp::default());
        lane.leave(id, Timestamp::default());
        order.push(run.as_u64());
    }
    order
}

#[test]
fn a_root_with_a_thousand_tickets_does_not_shut_out_eight_small_ones() {
    let mut lane = lane(1);
    for run in 0..1000 {
        lane.enter(claim(run, 1, 0, Priority::Normal), Timestamp::default());
    }
    for small in 0..8 {
        lane.enter(claim(10_000 + small, 100 + small, 0, Priority::Normal), Timestamp::default());
    }
    let first = drain(&mut lane, 10);
    assert_eq!(first.iter().filter(|run| **run >= 10_000).count(), 8, "{first:?}");
}

#[test]
fn a_share_with_a_thousand_roots_does_not_shut_out_one_with_two() {
    let mut lane = lane(1);
    for run in 0..1000 {
        lane.enter(claim(run, run, 0, Priority::Normal), Timestamp::default());
    }
    for small in 0..2 {
        lane.enter(claim(10_000 + small, 10_000 + small, 1, Priority::Normal), Timestamp::default());
    }
    let first = drain(&mut lane, 4);
    assert_eq!(first.iter().filter(|run| **run >= 10_000).count(), 2, "{first:?}");
}

#[test]
fn tickets_go_over_to_other_shares_with_their_permits_and_in_the_order_of_their_ages() {
    let mut lane = lane(2);
    let at = |seconds: u64| Timestamp::from_micros(seconds * 1_000_000);
    let tickets: Vec<TicketId> = (0..6)
        .map(|run| {
            let share = u16::try_from(run % 3).unwrap();
            lane.enter(claim(run, run, share, Priority::Normal), at(run))
        })
        .collect();
    lane.grant(tickets[0], at(10));
    lane.grant(tickets[1], at(11));
    lane.park(tickets[1], at(12));
    lane.park(tickets[2], at(13));
    let shares = ["default", "all"].map(|name| ShareSettings { name: name.into(), weight: 1, max: None });
    let of_run =
        |run: RunId| (run != RunId::from_u64(4)).then_some(if run == RunId::from_u64(5) { "gone" } else { "all" });
    lane.set_shares(&shares, &of_run);
    lane.check().unwrap();
    assert_eq!((lane.share("all"), lane.share("heavy")), (Some(ShareId(1)), None));
    assert_eq!(tickets.iter().map(|&ticket| lane.state(ticket).unwrap()).collect::<Vec<_>>(), {
        use TicketState::{Busy, Deferred, Parked, Queued};
        [Busy, Parked, Deferred, Queued, Queued, Queued]
    });
    // Two shares with one weight take turns; in the default share run 4 is older than run 5.
    let mut served = drain(&mut lane, 3);
    let place = |run: u64| served.iter().position(|&one| one == run).unwrap();
    assert!(place(4) < place(5), "{served:?}");
    served.sort_unstable();
    assert_eq!(served, [3, 4, 5]);
    let before = lane.digest();
    lane.set_shares(&shares, &|_| None);
    assert_eq!(lane.digest(), before, "shares that are there already move nothing");
}

#[test]
fn shares_are_served_in_proportion_to_their_weights() {
    let mut lane = lane(1);
    for run in 0..400 {
        lane.enter(claim(run, run, 0, Priority::Normal), Timestamp::default());
        lane.enter(claim(1000 + run, 1000 + run, 1, Priority::Normal), Timestamp::default());
    }
    let heavy = drain(&mut lane, 400).into_iter().filter(|run| *run >= 1000).count();
    assert!((299..=301).contains(&heavy), "{heavy}");
}

#[test]
fn grants_of_a_share_in_one_class_do_not_count_in_another() {
    let mut lane = lane(1);
    for run in 0..700 {
        lane.enter(claim(run, run, 0, Priority::High), Timestamp::default());
    }
    drain(&mut lane, 600);
    for run in 0..100 {
        lane.enter(claim(1000 + run, 1000 + run, 2, Priority::High), Timestamp::default());
    }
    let old = drain(&mut lane, 100).into_iter().filter(|run| *run < 1000).count();
    assert!((49..=51).contains(&old), "{old}");
}

#[test]
fn a_ticket_that_is_put_off_before_its_first_permit_comes_back_to_its_own_class() {
    let mut lane = lane(1);
    let now = Timestamp::default();
    let low = lane.enter(claim(1, 1, 0, Priority::Low), now);
    lane.park(low, now);
    assert_eq!(lane.report(now).parked, 1);
    lane.enter(claim(2, 2, 0, Priority::High), now);
    lane.resume(low, now);
    assert_eq!((lane.state(low), lane.peek().map(|(_, run)| run.as_u64())), (Some(TicketState::Queued), Some(2)));
}

#[test]
fn fifty_resuming_tickets_behind_a_full_lane_count_as_saturation_and_do_not_starve_new_ones() {
    let mut lane = lane(1);
    let now = Timestamp::default();
    for run in 0..50 {
        let id = lane.enter_parked(claim(run, run, 0, Priority::Normal), now);
        lane.resume(id, now);
    }
    let holder = lane.enter(claim(99, 99, 0, Priority::Normal), now);
    lane.enter(claim(100, 100, 0, Priority::Low), now);
    let (first, _) = lane.peek().unwrap();
    lane.grant(first, now);
    assert!(lane.is_saturated());
    assert_eq!(lane.report(now).limiter, Limiter::Width);
    lane.leave(first, now);
    let order = drain(&mut lane, 9);
    assert!(order.contains(&99) && order.contains(&100), "{order:?}");
    assert_eq!(lane.state(holder), None);
}

#[test]
fn every_class_gets_at_least_one_grant_in_eight() {
    let mut lane = lane(1);
    for run in 0..200 {
        for (class, priority) in [Priority::High, Priority::Normal, Priority::Low].into_iter().enumerate() {
            lane.enter(claim(run + 1000 * class as u64, run, 0, priority), Timestamp::default());
        }
        let id = lane.enter_parked(claim(run + 3000, run, 0, Priority::Normal), Timestamp::default());
        lane.resume(id, Timestamp::default());
    }
    let classes: Vec<u64> = drain(&mut lane, 160).into_iter().map(|run| run / 1000).collect();
    for window in classes.windows(8) {
        for class in 0..4 {
            assert!(window.contains(&class), "{window:?}");
        }
    }
}

#[test]
fn narrowing_a_full_lane_disturbs_nothing_and_falls_to_the_new_width() {
    let mut lane = lane(3);
    let now = Timestamp::default();
    let ids: Vec<TicketId> = (0..6).map(|run| lane.enter(claim(run, run, 0, Priority::Normal), now)).collect();
    for _ in 0..3 {
        let (id, _) = lane.peek().unwrap();
        lane.grant(id, now);
    }
    assert_eq!(lane.resize(0, now), Widths { before: 3, after: 1 });
    assert_eq!((lane.permits(), lane.peek()), (3, None));
    lane.leave(ids[0], now);
    lane.leave(ids[1], now);
    assert_eq!((lane.permits(), lane.peek()), (1, None));
    lane.leave(ids[2], now);
    assert!(lane.peek().is_some());
}

#[test]
fn a_relief_of_nothing_does_nothing() {
    let mut lane = lane(3);
    let id = ReliefId::from_u64(1);
    assert_eq!(lane.relieve(id, 0, None, Timestamp::default()), Widths { before: 3, after: 3 });
    assert!(!lane.has_relief(id));
}

#[test]
fn a_share_at_its_bound_holds_back_its_own_tickets_alone() {
    let mut lane = lane(5);
    for run in 0..4 {
        lane.enter(claim(run, run, 2, Priority::High), Timestamp::default());
    }
    for _ in 0..2 {
        let (id, _) = lane.peek().unwrap();
        lane.grant(id, Timestamp::default());
    }
    assert_eq!((lane.peek(), lane.limiter()), (None, Limiter::Share));
    assert!(!lane.is_saturated());
    lane.enter(claim(9, 9, 0, Priority::Low), Timestamp::default());
    assert_eq!(lane.peek().map(|(_, run)| run.as_u64()), Some(9));
}

#[test]
fn a_ticket_takes_at_most_64_bytes_with_a_hundred_thousand_queued() {
    let mut lane = lane(1);
    for run in 0..100_000 {
        lane.enter(claim(run, run, 0, Priority::Normal), Timestamp::default());
    }
    let each = lane.footprint() / 100_000;
    assert!(each <= 64, "{each} bytes");
}
