//! Drives a storm: load of all kinds from many clients, over a daemon that goes away at any instant and comes back.
//!
//! It records the replies that the clients got. The test kills the daemon, fills its disk, restores a backup or copies
//! its state; the [checker](check) compares in the end.

mod branches;
mod chance;
pub mod check;
mod clients;
mod commands;
mod ids;
mod line;
mod scripts;
mod told;
mod watchers;

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{self, JoinHandle};
use std::time::Duration;

pub use branches::{Backup, Copy};
pub use chance::Chance;
pub use line::{Line, Note, Trouble};
pub use scripts::TOKENS;
use serde_json::{Value, json};
pub use told::Told;

use crate::{LOOK_AGAIN, PATIENCE, Place, now};

/// Lines of the daemon's log that are told where something does not end.
const LOG_LINES: usize = 40;

/// Runs that may be live before a submitter waits.
const MOST_LIVE: u64 = 60;

/// What clients do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Mood {
    /// They make load of every kind.
    Stormy,
    /// They bring everything to its end, and begin nothing.
    Calm,
    /// They disconnect and end.
    Over,
}

/// What the clients share.
struct Shared {
    place: Place,
    told: Mutex<Told>,
    /// What came of a history that was gone by the time.
    past: Mutex<Told>,
    mood: AtomicU8,
    /// Number of the next submit.
    next: AtomicU64,
    /// Number of the last event: up to here watchers watch.
    last: AtomicU64,
}

/// A storm under way.
pub struct Storm {
    shared: Arc<Shared>,
    clients: Vec<JoinHandle<()>>,
    watchers: Vec<JoinHandle<()>>,
}

impl Shared {
    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap()
    }

    /// The same for what was promised in an era: where that is over, it goes where nothing is expected of it.
    fn told_in(&self, era: u64) -> MutexGuard<'_, Told> {
        let told = self.told();
        if told.era == era { told } else { self.past.lock().unwrap() }
    }

    /// What was begun in this era has told the run of a submit. Where the era is over, it may be of either history.
    fn submitted(&self, era: u64, number: u64, run: &str, seq: u64) {
        let mut told = self.told();
        if told.era == era { told.submitted(number, run, seq) } else { told.perhaps_submitted(number, run) }
    }

    /// What clients still try, and how many runs live.
    fn is_open(&self) -> (Vec<u64>, u64) {
        let told = self.told();
        let open = told.submits.iter().filter(|(_, submit)| submit.is_open()).map(|(number, _)| *number).collect();
        drop(told);
        (open, live(&self.place))
    }

    /// What the daemon says of itself, and the end of its log.
    fn state(&self) -> String {
        let status = self.place.rpc("daemon.status", json!({}));
        let log = std::fs::read_to_string(self.place.path("daemon.log")).unwrap_or_default();
        let from = log.lines().count().saturating_sub(LOG_LINES);
        let last: Vec<&str> = log.lines().skip(from).collect();
        let told = self.told();
        format!("told: {:?}; put off: {:#?}; {status}\n{}", told.counts, told.put_off, last.join("\n"))
    }

    /// Lets one client loose.
    fn start(self: &Arc<Self>, chance: &mut Chance, body: fn(&Self, Chance)) -> JoinHandle<()> {
        let (shared, chance) = (Arc::clone(self), chance.split());
        thread::spawn(move || body(&shared, chance))
    }

    fn era(&self) -> u64 {
        self.told().era
    }

    fn mood(&self) -> Mood {
        match self.mood.load(Ordering::SeqCst) {
            0 => Mood::Stormy,
            1 => Mood::Calm,
            _ => Mood::Over,
        }
    }

    /// A connection, as soon as a daemon listens; none where the storm is over before.
    fn line(&self) -> Option<Line> {
        while self.mood() != Mood::Over {
            if let Some(line) = self.try_line() {
                return Some(line);
            }
            thread::sleep(LOOK_AGAIN);
        }
        None
    }

    /// A connection, if a daemon listens.
    fn try_line(&self) -> Option<Line> {
        let era = self.era();
        let mut line = Line::open(&self.place.socket())?;
        line.era = era;
        // No daemon lives while an era begins.
        (self.era() == era).then_some(line)
    }
}

impl Storm {
    /// Lets the clients loose on the daemon of a place, whether there is one yet or not.
    pub fn begin(place: &Place, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            place: place.clone(),
            told: Mutex::default(),
            past: Mutex::default(),
            mood: AtomicU8::new(Mood::Stormy as u8),
            next: AtomicU64::new(1),
            last: AtomicU64::new(u64::MAX),
        });
        let mut chance = Chance::new(seed);
        let mut start = |body: fn(&Shared, Chance)| shared.start(&mut chance, body);
        let clients = vec![
            start(clients::submit),
            start(clients::submit),
            start(clients::answer),
            start(clients::meddle),
            start(commands::submit_and_wait),
            start(commands::submit_once),
            start(commands::submit_batches),
        ];
        let watchers = vec![start(watchers::everything), start(watchers::everything), start(watchers::one_run)];
        Self { shared, clients, watchers }
    }

    /// The events that were seen so far.
    pub fn seen(&self) -> usize {
        self.shared.told().events.len()
    }

    /// Lets everything come to its end, with a daemon that stays, and gives what the clients were told.
    #[must_use]
    pub fn end(self) -> Told {
        let place = self.shared.place.clone();
        self.shared.mood.store(Mood::Calm as u8, Ordering::SeqCst);
        let clients = self.clients;
        let end = now() + PATIENCE;
        loop {
            let (open, live) = self.shared.is_open();
            if open.is_empty() && live == 0 {
                break;
            }
            assert!(now() < end, "submits {open:?} are still tried, and {live} runs live; {}", self.shared.state());
            thread::sleep(LOOK_AGAIN);
        }
        self.shared.mood.store(Mood::Over as u8, Ordering::SeqCst);
        clients.into_iter().for_each(|client| client.join().unwrap());
        let last = place.rpc("daemon.status", json!({}))["last_seq"].as_u64().unwrap();
        self.shared.last.store(last, Ordering::SeqCst);
        self.watchers.into_iter().for_each(|watcher| watcher.join().unwrap());
        let mut told = std::mem::take(&mut *self.shared.told());
        told.add_past(std::mem::take(&mut *self.shared.past.lock().unwrap()));
        told
    }
}

/// How many runs have not ended, by the daemon's own count.
fn live(place: &Place) -> u64 {
    live_in(&place.rpc("daemon.status", json!({})))
}

fn live_in(status: &Value) -> u64 {
    let states = ["queued", "thinking", "acting", "waiting", "paused"];
    states.iter().filter_map(|state| status["runs"][state].as_u64()).sum()
}

/// A moment in which others get on.
fn pause(chance: &mut Chance) {
    thread::sleep(chance.millis(1, 20).max(Duration::from_millis(1)));
}
