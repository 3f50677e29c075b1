//! Builds the report of a lane. It reads the lane, and must not change it.

use std::collections::HashMap;

use harness_protocol::id::RunId;
use harness_protocol::lane::{LANE_SCHEMA, LaneReport, Limiter, QueueWait, ReliefView, ShareReport};
use harness_protocol::time::{Span, Timestamp};
use hdrhistogram::Histogram;

use super::{Lane, TicketId, TicketState};

/// The longest wait that is recorded, in microseconds: a day. Longer waits count as this long.
const LONGEST: u64 = 86_400_000_000;
/// A new histogram begins after this time. The previous one is kept for as long again.
const PERIOD: Span = Span::from_secs(900);

/// How long tickets waited for their first permit, over the last 15 to 30 minutes, to two digits.
#[derive(Debug)]
pub(super) struct Waits {
    current: Histogram<u32>,
    before: Histogram<u32>,
    began: Timestamp,
}

impl Default for Waits {
    fn default() -> Self {
        #[expect(
            clippy::expect_used,
            reason = "the bounds are constants that the library accepts, as every test shows"
        )]
        let empty = || Histogram::new_with_bounds(1, LONGEST, 2).expect("constant bounds");
        Self { current: empty(), before: empty(), began: Timestamp::default() }
    }
}

impl Waits {
    pub(super) fn record(&mut self, wait: Span, now: Timestamp) {
        self.turn(now);
        self.current.saturating_record(wait.as_micros().clamp(1, LONGEST));
    }

    fn turn(&mut self, now: Timestamp) {
        let age = now.since(self.began);
        if age < PERIOD {
            return;
        }
        std::mem::swap(&mut self.current, &mut self.before);
        self.current.reset();
        if age >= PERIOD + PERIOD {
            self.before.reset();
        }
        self.began = now;
    }

    fn summary(&self, now: Timestamp) -> QueueWait {
        let age = now.since(self.began);
        let mut all = Histogram::<u32>::new_from(&self.current);
        // The bounds are the same, so adding cannot fail.
        if age < PERIOD + PERIOD {
            let _ = all.add(&self.current);
        }
        if age < PERIOD {
            let _ = all.add(&self.before);
        }
        if all.is_empty() {
            return QueueWait::default();
        }
        let quantile = |q| Span::from_micros(all.value_at_quantile(q));
        QueueWait {
            count: all.len(),
            p50_seconds: quantile(0.5),
            p95_seconds: quantile(0.95),
            p99_seconds: quantile(0.99),
            max_seconds: Span::from_micros(all.max()),
        }
    }
}

/// A ticket as the report knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claimed {
    /// The run that holds the ticket.
    pub run: RunId,
    /// The state of the ticket.
    pub state: TicketState,
    /// Permits that it holds.
    pub permits: u16,
    /// Since when it has been in its state.
    pub since: Timestamp,
}

/// The last place that is reported; later places are `None`.
const MOST_PLACE: u32 = 1_000;

/// Places of tickets at one moment.
#[derive(Debug)]
pub struct Places(HashMap<u32, u32>);

impl Places {
    /// The result of [`Lane::position`] for a ticket at that moment.
    pub fn of(&self, id: TicketId) -> Option<u32> {
        self.0.get(&id.slot).copied()
    }
}

impl Lane {
    /// The report, with an empty list of holders: the caller knows the runs of the tickets, and adds them.
    pub fn report(&self, now: Timestamp) -> LaneReport {
        let oldest =
            self.slab.iter().filter(|ticket| ticket.state == TicketState::Queued).map(|ticket| ticket.since).min();
        LaneReport {
            schema: LANE_SCHEMA.to_owned(),
            name: self.name.clone(),
            width: self.width(),
            configured_width: self.configured_width,
            wanted: self.waiting(),
            queued: self.tickets(TicketState::Queued),
            busy: self.tickets(TicketState::Busy),
            parked: self.tickets(TicketState::Parked) + self.tickets(TicketState::Deferred),
            resuming: self.tickets(TicketState::Resuming),
            permits: self.permits,
            saturated: self.is_saturated(),
            saturated_since: self.saturation.since(),
            limiter: self.limiter(),
            paused: self.paused,
            held: None,
            reliefs: self
                .reliefs
                .iter()
                .map(|(&id, relief)| ReliefView { id, by: relief.by, since: relief.since, until: relief.until })
                .collect(),
            saturation: self.saturation.shares(now),
            queue_wait: self.waits.summary(now),
            oldest_queued_seconds: oldest.map(|since| now.since(since)),
            granted_total: self.granted,
            shares: self.share_reports(),
            holders: Vec::new(),
        }
    }

    fn share_reports(&self) -> Vec<ShareReport> {
        let with_tickets = self.shares.iter().filter(|share| share.tickets.iter().any(|&n| n > 0));
        with_tickets
            .map(|share| ShareReport {
                share: share.settings.name.clone(),
                weight: share.settings.weight.max(1),
                max: share.settings.max,
                wanted: share.tickets[TicketState::Queued as usize] + share.tickets[TicketState::Resuming as usize],
                queued: share.tickets[TicketState::Queued as usize],
                busy: share.tickets[TicketState::Busy as usize],
                parked: share.tickets[TicketState::Parked as usize] + share.tickets[TicketState::Deferred as usize],
                resuming: share.tickets[TicketState::Resuming as usize],
                permits: share.permits,
            })
            .collect()
    }

    /// What holds grants back now.
    pub fn limiter(&self) -> Limiter {
        if let Some(closed) = self.closed() {
            return closed;
        }
        if self.waiting() == 0 {
            return Limiter::None;
        }
        self.full().unwrap_or(Limiter::Share)
    }

    /// The reason that blocks every grant, even if the lane has free permits. A hold of the daemon, such as a drain,
    /// comes before a pause of the lane, because it stays when the lane is resumed.
    fn closed(&self) -> Option<Limiter> {
        self.hold.or(self.paused.then_some(Limiter::Paused)).or(self.gate)
    }

    /// The limit on all permits of the lane that is reached; `None` if a permit is free.
    fn full(&self) -> Option<Limiter> {
        match self.at_most {
            _ if self.permits >= self.width() => Some(Limiter::Width),
            Some((most, why)) if self.permits >= most => Some(why),
            _ => None,
        }
    }

    /// The reason why one waiting ticket is held back: its share may be full while the lane is not.
    pub fn limiter_of(&self, id: TicketId) -> Limiter {
        let is_full = self.slab.get(id).is_some_and(|ticket| self.shares[usize::from(ticket.share.0)].is_full());
        let share = is_full.then_some(Limiter::Share);
        self.closed().or(share).or_else(|| self.full()).unwrap_or(Limiter::None)
    }

    /// Tickets that hold permits, longest first.
    pub fn holders(&self) -> Vec<Claimed> {
        let mut holders: Vec<Claimed> = self
            .slab
            .iter()
            .filter(|ticket| ticket.permits > 0)
            .map(|t| Claimed { run: t.run, state: t.state, permits: t.permits, since: t.since })
            .collect();
        holders.sort_by_key(|holder| (holder.since, holder.run));
        holders
    }

    /// The state of one ticket.
    pub fn claimed(&self, id: TicketId) -> Option<Claimed> {
        self.slab.get(id).map(|t| Claimed { run: t.run, state: t.state, permits: t.permits, since: t.since })
    }

    /// Place of a waiting ticket within its class and share, 1 is next; `None` beyond 1,000 or when it does not wait.
    pub fn position(&self, id: TicketId) -> Option<u32> {
        self.slab.get(id)?.class()?;
        self.queues.position(&self.slab, id, MOST_PLACE)
    }

    /// The places of all waiting tickets. To ask for them one by one would cost the length of the queue each time.
    pub fn places(&self) -> Places {
        Places(self.queues.places(&self.slab, MOST_PLACE))
    }

    /// All state that decides the next actions of this lane, in a form in which two lanes can be compared.
    #[cfg(test)]
    pub(crate) fn digest(&self) -> String {
        let mut tickets: Vec<Claimed> = self
            .slab
            .iter()
            .map(|t| Claimed { run: t.run, state: t.state, permits: t.permits, since: t.since })
            .collect();
        tickets.sort_by_key(|ticket| ticket.run);
        let shares: Vec<_> = self.shares.iter().map(|s| (s.pass, s.permits, s.tickets)).collect();
        let order = self.queues.order(&self.slab);
        format!(
            "{} width {}/{} reliefs {:?} paused {} hold {:?} {:?} {:?} permits {} tickets {:?} turn {} time {:?} \
             granted {} shares {:?} {:?} {:?}",
            self.name,
            self.width,
            self.configured_width,
            self.reliefs,
            self.paused,
            self.hold,
            self.gate,
            self.at_most,
            self.permits,
            self.tickets,
            self.turn,
            self.virtual_time,
            self.granted,
            shares,
            tickets,
            order,
        )
    }

    /// Checks that the counts match the tickets. For tests.
    ///
    /// # Errors
    /// The first count that is wrong.
    pub fn check(&self) -> Result<(), String> {
        let mut tickets = [0u32; TicketState::COUNT];
        let mut permits = 0;
        let mut by_share = vec![([0u32; TicketState::COUNT], 0u32); self.shares.len()];
        for ticket in self.slab.iter() {
            let holds = u32::from(ticket.permits);
            if (ticket.state == TicketState::Busy) != (holds > 0) {
                return Err(format!("{:?} of {} holds {holds} permits", ticket.state, ticket.run));
            }
            tickets[ticket.state as usize] += 1;
            permits += holds;
            let share = &mut by_share[usize::from(ticket.share.0)];
            share.0[ticket.state as usize] += 1;
            share.1 += holds;
        }
        if (tickets, permits) != (self.tickets, self.permits) {
            return Err(format!("counted {tickets:?} and {permits}, kept {:?} and {}", self.tickets, self.permits));
        }
        for (share, counted) in self.shares.iter().zip(by_share) {
            if (share.tickets, share.permits) != counted {
                return Err(format!("share {}: counted {counted:?}", share.settings.name));
            }
        }
        let queued: usize = self.queues.order(&self.slab).iter().flat_map(|(_, _, roots)| roots).map(Vec::len).sum();
        if queued != self.waiting() as usize {
            return Err(format!("{queued} tickets stand in the queues, {} wait", self.waiting()));
        }
        Ok(())
    }

    /// Bytes that the lane's tickets take, their index included.
    pub fn footprint(&self) -> usize {
        self.slab.bytes() + self.queues.index_bytes()
    }
}
