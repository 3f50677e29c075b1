//! A daemon that is killed at any instant, over and over, under load: nothing that a client was told is lost or
//! doubled. This also holds where a backup replaces the journal, except for changes after the backup, and in a copy
//! that another daemon serves.
//!
//! `HARNESS_CRASH_SECONDS` makes it longer, `HARNESS_CRASH_SEED` repeats the choices of a run that is in the log.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use harness_tests::storm::{Backup, Chance, Copy, Line, Storm, check};
use harness_tests::{Daemon, Place, Process, eventually, found_within, now, program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Few finished runs and events stay in memory, so that most is answered from the journal.
const CONFIG: &str = "[limits]\nfinished_runs = 40\nevents = 400\n[lane.tool]\nwidth = 6\n";
/// Points of the path of a commit, as `HARNESS_CRASH_AT` has them.
const POINTS: [&str; 5] = ["before-write", "written", "synced", "before-effect", "after-effect"];
/// How long a point may be waited for that is never passed.
const AT_A_POINT: Duration = Duration::from_secs(2);
/// From here on a daemon has got going.
const LONG_ENOUGH: Duration = Duration::from_millis(300);
/// How long a stop may take.
const SOON: Duration = Duration::from_secs(15);

/// A number from the environment.
pub(crate) fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().map_or(otherwise, |text| text.parse().unwrap())
}

/// A seed: the one that is wanted, or another one each time.
pub(crate) fn seed() -> u64 {
    #[expect(clippy::disallowed_methods, reason = "a seed that is another one each time, and is printed")]
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    number("HARNESS_CRASH_SEED", u64::from(time.subsec_nanos()))
}

/// How a daemon was made to go.
#[derive(Debug, Clone, Copy)]
enum End {
    AtAnInstant,
    AtAPoint(&'static str),
    ByAStop,
}

fn choose(chance: &mut Chance) -> End {
    match chance.below(20) {
        0 => End::ByAStop,
        1..=9 => End::AtAnInstant,
        _ => End::AtAPoint(chance.pick(&POINTS)),
    }
}

/// Actions beside the killing, each with its percentage.
const BACKUPS: u64 = 40;
const RESTORES: u64 = 12;
const COPIES: u64 = 10;
/// Backups that are kept.
const MOST_BACKUPS: usize = 3;

/// A storm whose daemon is killed, and whose history branches.
struct Rounds {
    place: Place,
    chance: Chance,
    storm: Storm,
    backups: Vec<Backup>,
    /// The copy that is served at the moment.
    copy: Option<Copy>,
    /// How many backups took the journal's place, and how many copies were served.
    restored: u32,
    copied: u32,
    /// When half of the time is over.
    half: Instant,
    /// How often what happened.
    ends: BTreeMap<&'static str, u32>,
    losses: Vec<String>,
}

impl Rounds {
    /// One round, and what is done while no daemon lives.
    fn go_on(&mut self) {
        let end = self.round();
        *self.ends.entry(end).or_default() += 1;
        if self.copy.as_ref().is_some_and(Copy::is_over) {
            self.look_at_the_copy();
        }
        let late = now() > self.half;
        if self.copy.is_none() && (self.chance.percent(COPIES) || (late && self.copied == 0)) {
            self.copy();
        }
        if !self.backups.is_empty() && (self.chance.percent(RESTORES) || (late && self.restored == 0)) {
            self.restored += 1;
            let at = usize::try_from(self.chance.below(self.backups.len() as u64)).unwrap();
            self.storm.put_back(&self.backups[at]);
        }
    }

    fn copy(&mut self) {
        self.copied += 1;
        self.copy = Some(self.storm.copy(&mut self.chance));
    }

    fn look_at_the_copy(&mut self) {
        let Some(copy) = self.copy.take() else { return };
        let verdict = self.storm.look_at(copy);
        self.losses.extend(verdict.losses.iter().map(|loss| format!("in a copy: {loss}")));
    }

    /// Something beside a daemon that lives: a backup, or a copy of what is under its hands while it stands still.
    fn branch(&mut self, daemon: &Child) {
        if self.chance.percent(BACKUPS) || self.backups.is_empty() {
            let number = self.ends.values().sum::<u32>() as usize;
            self.backups.push(self.storm.back_up(number, self.chance.percent(50)));
            if self.backups.len() > MOST_BACKUPS {
                self.backups.remove(0);
            }
        }
        if self.copy.is_none() && self.chance.percent(COPIES) {
            let daemon = Process(daemon.id());
            daemon.signal(Signal::SIGSTOP);
            eventually("all of it stands still", || daemon.all_stopped());
            self.copy();
            daemon.signal(Signal::SIGCONT);
        }
    }

    /// A daemon lives for a while under load, and goes. Says how it went.
    fn round(&mut self) -> &'static str {
        let end = choose(&mut self.chance);
        let mut env = Vec::new();
        let at;
        if let End::AtAPoint(point) = end {
            let passes = if self.chance.percent(30) { self.chance.below(6) } else { self.chance.below(80) };
            at = format!("{point}:{}", passes + 1);
            env.push(("HARNESS_CRASH_AT", at.as_str()));
        }
        let mut child = Daemon::spawn(&self.place, &[], &env);
        let ended = match end {
            End::AtAPoint(point) => {
                let limit = now() + AT_A_POINT;
                let died = found_within(AT_A_POINT * 2, "the point or its time", || match child.try_wait().unwrap() {
                    Some(status) => Some(Some(status)),
                    None => (now() >= limit).then_some(None),
                });
                if let Some(status) = died {
                    killed(status, &self.place);
                    return point;
                }
                end_of(&mut child, Signal::SIGKILL)
            }
            End::AtAnInstant => {
                let more = self.chance.millis(5, 900);
                std::thread::sleep(more);
                if more > LONG_ENOUGH && Line::open(&self.place.socket()).is_some() {
                    self.branch(&child);
                }
                end_of(&mut child, Signal::SIGKILL)
            }
            End::ByAStop => {
                std::thread::sleep(self.chance.millis(200, 900));
                let serves = Line::open(&self.place.socket()).is_some();
                let status = end_of(&mut child, Signal::SIGTERM);
                // A daemon that does not serve yet may still be where a signal simply ends it.
                let too_early = !serves && status.signal() == Some(Signal::SIGTERM as i32);
                assert!(status.code() == Some(0) || too_early, "it stops well: {status}");
                return "stop";
            }
        };
        killed(ended, &self.place);
        "any instant"
    }
}

fn end_of(child: &mut Child, signal: Signal) -> ExitStatus {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
    found_within(SOON, "it ends", || child.try_wait().unwrap())
}

#[track_caller]
fn killed(status: ExitStatus, place: &Place) {
    let log = || std::fs::read_to_string(place.path("daemon.log")).unwrap_or_default();
    let told = |log: String| log.lines().rev().take(20).map(str::to_owned).collect::<Vec<_>>();
    let signal = status.signal();
    assert!(signal == Some(Signal::SIGKILL as i32), "it ended by itself: {status}; latest first: {:#?}", told(log()));
}

#[test]
fn nothing_that_a_client_was_told_is_lost_or_doubled_by_any_crash() {
    let (seconds, seed) = (number("HARNESS_CRASH_SECONDS", 12), seed());
    println!("HARNESS_CRASH_SEED={seed}");
    let mut chance = Chance::new(seed);
    let place = Place::configured(CONFIG);
    // Built before the clock runs.
    let _ = program("harnessd");
    let storm = Storm::begin(&place, chance.below(u64::MAX));
    let (ends, losses) = (BTreeMap::new(), Vec::new());
    let (begun, length) = (now(), Duration::from_secs(seconds));
    let mut rounds = Rounds {
        place,
        chance,
        storm,
        backups: Vec::new(),
        copy: None,
        restored: 0,
        copied: 0,
        half: begun + length / 2,
        ends,
        losses,
    };
    while now() < begun + length {
        rounds.go_on();
    }
    rounds.look_at_the_copy();
    let Rounds { place, storm, ends, mut losses, restored, copied, .. } = rounds;
    let _daemon = place.start();
    let (begun, told) = (now(), storm.end());
    let (ended, rounds) = (now(), ends.values().sum::<u32>());
    let verdict = check::check(&place, &told);
    println!("{:.1?} until all had ended, {:.1?} to check", ended - begun, ended.elapsed());
    println!("{rounds} rounds, {} kills: {ends:?}", rounds - ends.get("stop").copied().unwrap_or(0));
    println!("{restored} backups restored, {copied} copies served");
    println!("told: {:?}, {} events seen, {} ids", told.counts, told.events.len(), told.ids.len());
    println!("{verdict}");
    losses.extend(verdict.losses.iter().cloned());
    assert!(losses.is_empty(), "HARNESS_CRASH_SEED={seed}: {losses:#?}");
    assert!(verdict.executed > 0 && rounds > 1 && restored > 0 && copied > 0, "something happened");
}
