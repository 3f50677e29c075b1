//! Queues the messages for the driver: the reports of jobs in order of arrival, and requests by fair turns. (Signals
//! come by `driver/signals.rs`.)
//!
//! A report always fits: each job sends exactly one outcome, and asks for one thing at a time. A request needs room: a
//! connection with too many queued requests waits and reads no further. Turns go round robin over the parties, and
//! within a party over its connections. Requests of one connection stay in order. The driver can *hold* a connection:
//! its next request stays here until the one before is done. Must not interpret a request.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::fair_queue::{Party, Round};
use crate::world::api::{Ask, JobId, Outcome};

/// Most requests of one connection in the inbox; further ones stay unread in its socket.
const OF_CONNECTION: usize = 128;
/// A connection that waits for room is woken when it has no more than this many requests left. If it were woken for
/// each free place, it would put its requests in one by one.
const FEW: usize = OF_CONNECTION / 2;
/// Most requests in the inbox of all processes of one run together.
const OF_RUN: usize = 16;
/// Most requests of one turn, of all connections together.
pub const TURN: usize = 32;
/// Most requests of one turn that may take milliseconds each.
const HEAVY: usize = 4;
/// Most reports of one turn.
const REPORTS: usize = 512;

/// A message of a job for the driver.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// The job ended.
    Outcome(JobId, Outcome),
    /// The job asks its lane for something.
    Ask(JobId, Ask),
}

/// How a request is queued, by what it costs the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Changes something; takes microseconds.
    Change,
    /// Reads something; takes microseconds.
    Light,
    /// Reads much; takes up to milliseconds.
    Heavy,
    /// The connection is gone. Always fits, and is the last of its connection.
    Left,
}

/// A request that an inbox can queue.
pub trait Queued {
    /// The connection of the request.
    fn connection(&self) -> u64;
    /// The party of that connection.
    fn party(&self) -> Party;
    /// The kind of the request.
    fn kind(&self) -> Kind;
}

/// A connection that has requests in the inbox.
#[derive(Debug)]
struct Line<R> {
    queue: VecDeque<R>,
    party: Party,
    /// Whether its next request waits until the one before is done.
    held: bool,
    /// The count of finished requests when the present first request became the first.
    since: u64,
    /// The most requests of others that a request of this connection has waited behind.
    most_behind: u64,
    room: Arc<Notify>,
}

/// The connections of a party that may have a turn, by the kind of their next request.
#[derive(Debug, Default)]
struct Lines {
    light: Round<u64>,
    heavy: Round<u64>,
    /// Queued requests of all its connections.
    count: usize,
    /// Number of its connections with queued requests.
    lines: usize,
    room: Arc<Notify>,
}

#[derive(Debug)]
struct Queues<R> {
    reports: VecDeque<Report>,
    lines: BTreeMap<u64, Line<R>>,
    parties: BTreeMap<Party, Lines>,
    light: Round<Party>,
    heavy: Round<Party>,
    /// Queued requests of all parties.
    count: usize,
    /// Those of them whose connection is not held.
    ready: usize,
    /// Requests that were taken and are not done.
    in_turn: u64,
    /// Requests that are done.
    done: u64,
    /// The number of messages that the driver waits for: fewer do not wake it.
    enough: usize,
}

/// An inbox. Clones are the same inbox.
#[derive(Debug)]
pub struct Inbox<R> {
    shared: Arc<Shared<R>>,
}

#[derive(Debug)]
struct Shared<R> {
    queues: Mutex<Queues<R>>,
    came: Notify,
    max_requests: usize,
}

impl<R> Clone for Inbox<R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<R: Queued> Queues<R> {
    /// Whether this connection may queue one more request. A connection with an empty queue always may, unless it
    /// belongs to a run, so a full inbox locks no operator out.
    fn has_room(&self, connection: u64, party: Party, most: usize) -> bool {
        if matches!(party, Party::Run(_)) && self.parties.get(&party).is_some_and(|lines| lines.count >= OF_RUN) {
            return false;
        }
        let own = self.lines.get(&connection).map_or(0, |line| line.queue.len());
        own == 0 || (own < OF_CONNECTION && self.count < most)
    }

    /// The entry of the request's connection. Also counts the request.
    fn line_for(&mut self, request: &R) -> &mut Line<R> {
        let party = request.party();
        let of_party = self.parties.entry(party).or_default();
        of_party.count += 1;
        self.count += 1;
        let line = self.lines.entry(request.connection()).or_insert_with(|| {
            of_party.lines += 1;
            let room = if matches!(party, Party::Run(_)) { Arc::clone(&of_party.room) } else { Arc::default() };
            Line { queue: VecDeque::new(), party, held: false, since: 0, most_behind: 0, room }
        });
        self.ready += usize::from(!line.held);
        line
    }

    fn push(&mut self, request: R) {
        let connection = request.connection();
        let line = self.line_for(&request);
        line.queue.push_back(request);
        if line.queue.len() == 1 {
            let done = self.done;
            self.first_of(connection, done);
        }
    }

    /// A connection has a new first request, which waits from now on. `done` is the count of finished requests.
    fn first_of(&mut self, connection: u64, done: u64) {
        if let Some(line) = self.lines.get_mut(&connection) {
            line.since = done;
        }
        self.enter(connection);
    }

    /// Enters a connection into the round for the kind of its first request.
    fn enter(&mut self, connection: u64) {
        let Some(line) = self.lines.get(&connection).filter(|line| !line.held) else { return };
        let Some(first) = line.queue.front() else { return };
        let (party, heavy) = (line.party, first.kind() == Kind::Heavy);
        let of_party = self.parties.entry(party).or_default();
        let (lines, parties) =
            if heavy { (&mut of_party.heavy, &mut self.heavy) } else { (&mut of_party.light, &mut self.light) };
        lines.enter(connection);
        parties.enter(party);
    }

    /// The connection with the next turn. Those in `waits` get none.
    fn next_line(&mut self, heavy: bool, waits: &BTreeSet<u64>) -> Option<u64> {
        let (lines, parties) = (&self.lines, &mut self.parties);
        let is_ready = |connection: u64| {
            lines.get(&connection).is_some_and(|line| {
                let fits = line.queue.front().is_some_and(|first| (first.kind() == Kind::Heavy) == heavy);
                fits && !line.held && !waits.contains(&connection)
            })
        };
        let round = if heavy { &mut self.heavy } else { &mut self.light };
        let mut found = None;
        round.next(|party| {
            let Some(of_party) = parties.get_mut(&party) else { return false };
            let of_party = if heavy { &mut of_party.heavy } else { &mut of_party.light };
            found = of_party.next(is_ready);
            found.is_some()
        })?;
        found
    }

    /// Number of messages that can be taken.
    fn pending(&self) -> usize {
        self.reports.len() + self.ready
    }

    /// Takes the first request of a connection that is not held.
    fn pop(&mut self, connection: u64) -> Option<R> {
        let line = self.lines.get_mut(&connection)?;
        let request = line.queue.pop_front()?;
        self.count -= 1;
        self.ready -= 1;
        let party = line.party;
        let of_party = self.parties.get_mut(&party)?;
        of_party.count -= 1;
        if request.kind() == Kind::Left {
            self.lines.remove(&connection);
            of_party.lines -= 1;
            if of_party.lines == 0 {
                self.parties.remove(&party);
            }
        }
        Some(request)
    }

    /// Takes the requests of a turn, quick ones first. A change behind a read of the same connection stays for the next
    /// turn, because changes are made before reads are answered. Also returns the signals for connections that wait for
    /// room.
    fn turn(&mut self) -> (Vec<R>, Vec<Arc<Notify>>) {
        let (mut taken, mut has_read, mut waits) = (Vec::new(), BTreeSet::new(), BTreeSet::new());
        let mut rooms = BTreeMap::new();
        for (heavy, most) in [(false, TURN - HEAVY), (true, HEAVY)] {
            let all = taken.len() + most;
            while taken.len() < all
                && let Some(connection) = self.next_line(heavy, &waits)
            {
                let Some(line) = self.lines.get_mut(&connection) else { break };
                let kind = line.queue.front().map_or(Kind::Left, Queued::kind);
                if kind == Kind::Change && has_read.contains(&connection) {
                    waits.insert(connection);
                    continue;
                }
                if matches!(kind, Kind::Light | Kind::Heavy) {
                    has_read.insert(connection);
                }
                // It waited behind the requests that were done since it became the first of its connection, and behind
                // those before it in this turn.
                let now = self.done + taken.len() as u64;
                line.most_behind = line.most_behind.max(now.saturating_sub(line.since));
                if line.queue.len() <= FEW {
                    rooms.entry(connection).or_insert_with(|| Arc::clone(&line.room));
                }
                taken.extend(self.pop(connection));
                self.first_of(connection, now + 1);
            }
        }
        for connection in waits {
            self.enter(connection);
        }
        self.in_turn += taken.len() as u64;
        (taken, rooms.into_values().collect())
    }
}

impl<R: Queued> Inbox<R> {
    /// An inbox for about `max_requests` requests: each connection without queued requests may add one more.
    pub fn new(max_requests: usize) -> Self {
        let queues = Mutex::new(Queues {
            reports: VecDeque::new(),
            lines: BTreeMap::new(),
            parties: BTreeMap::new(),
            light: Round::default(),
            heavy: Round::default(),
            count: 0,
            ready: 0,
            in_turn: 0,
            done: 0,
            enough: 1,
        });
        Self { shared: Arc::new(Shared { queues, came: Notify::new(), max_requests }) }
    }

    fn queues(&self) -> MutexGuard<'_, Queues<R>> {
        self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a report of a job. It always fits.
    pub fn report(&self, report: Report) {
        let is_enough = {
            let mut queues = self.queues();
            queues.reports.push_back(report);
            queues.pending() >= queues.enough
        };
        self.tell(is_enough);
    }

    fn tell(&self, is_enough: bool) {
        if is_enough {
            self.shared.came.notify_one();
        }
    }

    /// Adds a request, if there is room.
    ///
    /// # Errors
    /// Gives the request back if there is no room.
    pub fn request(&self, request: R) -> Result<(), R> {
        let is_enough = {
            let mut queues = self.queues();
            let fits = request.kind() == Kind::Left
                || queues.has_room(request.connection(), request.party(), self.shared.max_requests);
            if !fits {
                return Err(request);
            }
            queues.push(request);
            queues.pending() >= queues.enough
        };
        self.tell(is_enough);
        Ok(())
    }

    /// Adds a request once there is room for it. If the future is dropped before, nothing was added.
    pub async fn put(&self, mut request: R) {
        loop {
            let room = self.room_for(&request);
            let emptied = room.notified();
            tokio::pin!(emptied);
            // From here on no signal is missed.
            emptied.as_mut().enable();
            match self.request(request) {
                Ok(()) => return,
                Err(back) => request = back,
            }
            emptied.await;
        }
    }

    /// The signal that a request waits for when it finds no room.
    fn room_for(&self, request: &R) -> Arc<Notify> {
        let queues = self.queues();
        let of_line = queues.lines.get(&request.connection()).map(|line| &line.room);
        let of_party = queues.parties.get(&request.party()).map(|lines| &lines.room);
        of_line.or(of_party).map(Arc::clone).unwrap_or_default()
    }

    /// Takes the reports of a turn.
    pub fn take_reports(&self) -> Vec<Report> {
        let mut queues = self.queues();
        let count = queues.reports.len().min(REPORTS);
        let reports = queues.reports.drain(..count).collect();
        if !queues.reports.is_empty() {
            self.shared.came.notify_one();
        }
        reports
    }

    /// Takes the requests of a turn.
    pub fn take_requests(&self) -> Vec<R> {
        let (requests, rooms) = {
            let mut queues = self.queues();
            let taken = queues.turn();
            self.tell(queues.ready > 0);
            taken
        };
        // Notified after the lock is released, so that the connections that come at once find it free.
        rooms.iter().for_each(|room| room.notify_waiters());
        requests
    }

    /// Counts the requests of the last turn as done.
    pub fn turn_is_over(&self) {
        let mut queues = self.queues();
        queues.done += std::mem::take(&mut queues.in_turn);
    }

    /// Holds a connection: its next requests stay here until it is [released](Self::release). `back` are its requests
    /// that were taken already, in order.
    pub fn hold(&self, connection: u64, back: Vec<R>) {
        let mut queues = self.queues();
        for request in back.into_iter().rev() {
            queues.line_for(&request).queue.push_front(request);
        }
        if let Some(line) = queues.lines.get_mut(&connection)
            && !line.held
        {
            line.held = true;
            let waiting = line.queue.len();
            queues.ready -= waiting;
        }
    }

    /// Releases a connection: its earlier request is done, or comes again as `first`.
    pub fn release(&self, connection: u64, first: Option<R>) {
        {
            let mut queues = self.queues();
            if let Some(first) = first {
                queues.line_for(&first).queue.push_front(first);
            }
            if let Some(line) = queues.lines.get_mut(&connection)
                && line.held
            {
                line.held = false;
                let waiting = line.queue.len();
                queues.ready += waiting;
            }
            let done = queues.done;
            queues.first_of(connection, done);
        }
        self.shared.came.notify_one();
    }

    /// The most requests of others that a request of this connection has waited behind, counted once it was the first
    /// of its connection.
    pub fn most_behind(&self, connection: u64) -> u64 {
        self.queues().lines.get(&connection).map_or(0, |line| line.most_behind)
    }

    /// Number of messages that can be taken.
    pub fn pending(&self) -> usize {
        self.queues().pending()
    }

    /// Wakes the driver without a message.
    pub fn wake(&self) {
        self.shared.came.notify_one();
    }

    /// Waits until a message comes and at least `enough` messages are there. May return with fewer.
    pub async fn came(&self, enough: usize) {
        let was_silent = {
            let mut queues = self.queues();
            let before = std::mem::replace(&mut queues.enough, enough);
            // Fewer messages may be enough now, and these gave no signal when they came.
            before > enough && queues.pending() >= enough
        };
        if !was_silent {
            self.shared.came.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use harness_protocol::id::{CallId, RunId};

    use super::*;
    use crate::world::api::Work;

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Asked {
        connection: u64,
        party: Party,
        kind: Kind,
        number: u32,
    }

    impl Queued for Asked {
        fn connection(&self) -> u64 {
            self.connection
        }

        fn party(&self) -> Party {
            self.party
        }

        fn kind(&self) -> Kind {
            self.kind
        }
    }

    fn asked(connection: u64, kind: Kind, number: u32) -> Asked {
        Asked { connection, party: Party::Process(u32::try_from(connection).unwrap()), kind, number }
    }

    /// Fills up the queues of these connections.
    fn flood(inbox: &Inbox<Asked>, requests: &[Asked]) {
        for request in requests {
            while inbox.request(*request).is_ok() {}
        }
    }

    /// Takes turns until the request of this connection is taken; meanwhile the other connections keep their queues
    /// full.
    fn turns_until(inbox: &Inbox<Asked>, connection: u64, requests: &[Asked]) -> u64 {
        for _ in 0..1_000 {
            let taken = inbox.take_requests();
            flood(inbox, requests);
            inbox.turn_is_over();
            if taken.iter().any(|request| request.connection == connection) {
                return inbox.most_behind(connection);
            }
        }
        unreachable!("it never had a turn")
    }

    /// A4. However many requests others make, a connection that asks now and then waits behind at most 64 of them.
    #[test]
    fn whatever_floods_a_request_waits_behind_at_most_64_of_others() {
        let run = Party::Run(RunId::from_u64(7));
        let of = |count: u64, party: fn(u64) -> Party, kind| -> Vec<Asked> {
            (1..=count).map(|connection| Asked { connection, party: party(connection), kind, number: 0 }).collect()
        };
        let process = |connection: u64| Party::Process(u32::try_from(connection).unwrap());
        let floods: Vec<(&str, Vec<Asked>)> = vec![
            ("one connection that reads", of(1, process, Kind::Light)),
            ("one connection that changes", of(1, process, Kind::Change)),
            ("one connection that lists", of(1, process, Kind::Heavy)),
            ("a thousand connections of one process", of(1_000, |_| Party::Process(1), Kind::Light)),
            ("a thousand processes", of(1_000, process, Kind::Light)),
            ("a thousand processes that list", of(1_000, process, Kind::Heavy)),
            ("a thousand peers without a process", of(1_000, Party::Connection, Kind::Change)),
            (
                "six connections of a run",
                (1..=6).map(|c| Asked { party: run, ..asked(c, Kind::Light, 0) }).collect::<Vec<_>>(),
            ),
            (
                "readers, changers and listers",
                [
                    of(300, process, Kind::Light),
                    of(300, |c| Party::Process(u32::try_from(c).unwrap() + 300), Kind::Heavy),
                ]
                .concat()
                .into_iter()
                .enumerate()
                .map(|(at, one)| Asked { connection: at as u64 + 1, ..one })
                .collect(),
            ),
        ];
        for (what, requests) in floods {
            for kind in [Kind::Light, Kind::Change] {
                let inbox = Inbox::new(4_096);
                flood(&inbox, &requests);
                for _ in 0..100 {
                    assert!(inbox.take_requests().len() <= TURN);
                    flood(&inbox, &requests);
                    inbox.turn_is_over();
                }
                for number in 0..4 {
                    // This is the middle of a turn.
                    let _taken = inbox.take_requests();
                    inbox.request(asked(5_000, kind, number)).unwrap();
                    flood(&inbox, &requests);
                    inbox.turn_is_over();
                    let behind = turns_until(&inbox, 5_000, &requests);
                    assert!(behind <= 64, "{what}, {kind:?}: behind {behind}");
                    // It asks again once all others have had a turn as well.
                    for _ in 0..40 {
                        drop(inbox.take_requests());
                        flood(&inbox, &requests);
                        inbox.turn_is_over();
                    }
                }
            }
        }
    }

    #[test]
    fn a_connection_of_a_flooding_process_waits_no_longer_than_any_other() {
        let requests: Vec<Asked> =
            (1..=500).map(|c| Asked { party: Party::Process(1), ..asked(c, Kind::Light, 0) }).collect();
        let inbox = Inbox::new(4_096);
        flood(&inbox, &requests);
        for _ in 0..50 {
            drop(inbox.take_requests());
            flood(&inbox, &requests);
            inbox.turn_is_over();
        }
        inbox.request(Asked { party: Party::Process(1), ..asked(5_000, Kind::Change, 0) }).unwrap();
        assert!(turns_until(&inbox, 5_000, &requests) <= 64);
    }

    #[test]
    fn requests_of_one_connection_stay_in_order_and_changes_do_not_overtake_reads() {
        let inbox = Inbox::new(100);
        let kinds = [Kind::Change, Kind::Light, Kind::Change, Kind::Heavy, Kind::Light, Kind::Change, Kind::Heavy];
        for (number, kind) in kinds.into_iter().enumerate() {
            inbox.request(asked(1, kind, u32::try_from(number).unwrap())).unwrap();
        }
        let mut numbers = Vec::new();
        while inbox.pending() > 0 {
            let taken = inbox.take_requests();
            assert!(!taken.is_empty());
            let read = taken.iter().position(|one| one.kind != Kind::Change).unwrap_or(taken.len());
            assert!(taken[read..].iter().all(|one| one.kind != Kind::Change), "{taken:?}");
            numbers.extend(taken.iter().map(|one| one.number));
            inbox.turn_is_over();
        }
        assert_eq!(numbers, [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn a_connection_that_is_held_has_no_turn_and_goes_on_where_it_was() {
        let inbox = Inbox::new(100);
        (0..4).for_each(|number| inbox.request(asked(1, Kind::Change, number)).unwrap());
        inbox.request(asked(2, Kind::Change, 9)).unwrap();
        let taken = inbox.take_requests();
        let own: Vec<Asked> = taken.into_iter().filter(|one| one.connection == 1).collect();
        // Its first request needs slow work; its other requests were taken already.
        inbox.hold(1, own[1..].to_vec());
        inbox.turn_is_over();
        inbox.request(asked(1, Kind::Change, 4)).unwrap();
        assert_eq!((inbox.take_requests(), inbox.pending()), (Vec::new(), 0));
        inbox.release(1, Some(own[0]));
        let numbers: Vec<u32> = inbox.take_requests().iter().map(|one| one.number).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
    }

    #[test]
    fn a_full_inbox_takes_the_first_request_of_a_connection() {
        let inbox = Inbox::new(200);
        let requests: Vec<Asked> = (1..=10).map(|connection| asked(connection, Kind::Light, 0)).collect();
        flood(&inbox, &requests);
        assert!(inbox.request(asked(1, Kind::Light, 0)).is_err());
        assert!(inbox.request(asked(77, Kind::Light, 0)).is_ok());
    }

    #[test]
    fn all_processes_of_a_run_have_room_for_few_together() {
        let inbox = Inbox::new(4_096);
        let run = Party::Run(RunId::from_u64(7));
        let mut count = 0;
        for connection in 1..=50 {
            while inbox.request(Asked { party: run, ..asked(connection, Kind::Light, 0) }).is_ok() {
                count += 1;
            }
        }
        assert_eq!(count, OF_RUN);
    }

    #[tokio::test]
    async fn a_connection_that_waits_for_room_gets_it_once_a_request_is_taken() {
        let inbox = Inbox::new(4_096);
        let request = asked(1, Kind::Change, 0);
        flood(&inbox, &[request]);
        let waiting = tokio::spawn({
            let inbox = inbox.clone();
            async move { inbox.put(asked(1, Kind::Change, 99)).await }
        });
        let mut last = None;
        while last.is_none_or(|one: Asked| one.number != 99) {
            last = inbox.take_requests().last().copied().or(last);
            inbox.turn_is_over();
            tokio::task::yield_now().await;
        }
        waiting.await.unwrap();
    }

    /// Counts how often it is woken.
    #[derive(Debug, Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn a_connection_that_waits_is_woken_for_half_of_its_room_and_not_for_each_place() {
        let inbox = Inbox::new(4_096);
        let request = asked(1, Kind::Change, 0);
        flood(&inbox, &[request]);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut put = pin!(inbox.put(request));
        assert!(put.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        while inbox.queues().lines[&1].queue.len() > FEW {
            assert_eq!(woken.0.load(Ordering::SeqCst), 0);
            inbox.take_requests();
        }
        assert_eq!(woken.0.load(Ordering::SeqCst), 1);
        assert!(put.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
    }

    #[test]
    fn the_driver_is_woken_once_enough_is_there_and_misses_nothing_of_less() {
        let inbox = Inbox::new(4_096);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        let mut context = Context::from_waker(&waker);
        {
            let mut came = pin!(inbox.came(3));
            assert!(came.as_mut().poll(&mut context).is_pending());
            inbox.request(asked(1, Kind::Change, 0)).unwrap();
            inbox.report(Report::Ask(
                JobId { run: RunId::from_u64(1), work: Work::Call(CallId::from_u64(1)) },
                Ask::OffLane,
            ));
            assert_eq!(woken.0.load(Ordering::SeqCst), 0);
            assert!(came.as_mut().poll(&mut context).is_pending());
        }
        // The driver waits for fewer messages by now.
        assert!(pin!(inbox.came(1)).as_mut().poll(&mut context).is_ready());
        {
            let mut came = pin!(inbox.came(3));
            assert!(came.as_mut().poll(&mut context).is_pending());
            inbox.request(asked(2, Kind::Change, 0)).unwrap();
            assert_eq!(woken.0.load(Ordering::SeqCst), 1);
            assert!(came.as_mut().poll(&mut context).is_ready());
        }
        inbox.take_requests();
        assert!(pin!(inbox.came(1)).as_mut().poll(&mut context).is_ready(), "a report is there");
        assert!(pin!(inbox.came(1)).as_mut().poll(&mut context).is_pending(), "and is told of once");
    }

    #[test]
    fn a_connection_that_has_left_leaves_nothing_behind() {
        let inbox = Inbox::new(100);
        for connection in 1..=20 {
            inbox.request(asked(connection, Kind::Change, 0)).unwrap();
            inbox.request(asked(connection, Kind::Left, 1)).unwrap();
        }
        while !inbox.take_requests().is_empty() {
            inbox.turn_is_over();
        }
        let queues = inbox.queues();
        assert!(queues.lines.is_empty() && queues.parties.is_empty() && queues.count == 0 && queues.ready == 0);
    }
}
