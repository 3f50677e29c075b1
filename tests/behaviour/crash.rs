//! A daemon that is killed at any instant, over and over, under load: nothing that a client was told is lost or doubled.
//!
//! `HARNESS_CRASH_SECONDS` makes it longer, `HARNESS_CRASH_SEED` repeats the choices of a run that is in the log.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use harness_tests::storm::{Chance, Storm, check};
use harness_tests::{Daemon, Place, found_within, now, program};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Few finished runs and events stay in memory, so that most is answered from the journal.
const CONFIG: &str = "[limits]\nfinished_runs = 40\nevents = 400\n[lane.tool]\nwidth = 6\n";
/// Points of the path of a commit, as `HARNESS_CRASH_AT` has them.
const POINTS: [&str; 5] = ["before-write", "written", "synced", "before-effect", "after-effect"];
/// How long a point may be waited for that is never passed.
const AT_A_POINT: Duration = Duration::from_secs(2);
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

/// One round: a daemon lives for a while under load, and goes. Says how it went.
fn round(place: &Place, chance: &mut Chance) -> &'static str {
    let end = choose(chance);
    let mut env = Vec::new();
    let at;
    if let End::AtAPoint(point) = end {
        let passes = if chance.percent(30) { chance.below(6) } else { chance.below(80) };
        at = format!("{point}:{}", passes + 1);
        env.push(("HARNESS_CRASH_AT", at.as_str()));
    }
    let mut child = Daemon::spawn(place, &[], &env);
    let ended = match end {
        End::AtAPoint(point) => {
            let limit = now() + AT_A_POINT;
            let died = found_within(AT_A_POINT * 2, "the point or its time", || match child.try_wait().unwrap() {
                Some(status) => Some(Some(status)),
                None => (now() >= limit).then_some(None),
            });
            if let Some(status) = died {
                killed(status);
                return point;
            }
            end_of(&mut child, Signal::SIGKILL)
        }
        End::AtAnInstant => {
            std::thread::sleep(chance.millis(5, 900));
            end_of(&mut child, Signal::SIGKILL)
        }
        End::ByAStop => {
            std::thread::sleep(chance.millis(200, 900));
            let status = end_of(&mut child, Signal::SIGTERM);
            assert_eq!(status.code(), Some(0), "it stops well: {status}");
            return "stop";
        }
    };
    killed(ended);
    "any instant"
}

fn end_of(child: &mut Child, signal: Signal) -> ExitStatus {
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
    found_within(SOON, "it ends", || child.try_wait().unwrap())
}

#[track_caller]
fn killed(status: ExitStatus) {
    assert_eq!(status.signal(), Some(Signal::SIGKILL as i32), "it did not end by itself: {status}");
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
    let (end, mut ends) = (now() + Duration::from_secs(seconds), BTreeMap::<&str, u32>::new());
    while now() < end {
        *ends.entry(round(&place, &mut chance)).or_default() += 1;
    }
    let _daemon = place.start();
    let (begun, told) = (now(), storm.end());
    let (ended, rounds) = (now(), ends.values().sum::<u32>());
    let verdict = check::check(&place, &told);
    println!("{:.1?} until all had ended, {:.1?} to check", ended - begun, ended.elapsed());
    println!("{rounds} rounds, {} kills: {ends:?}", rounds - ends.get("stop").copied().unwrap_or(0));
    println!("told: {:?}, {} events seen", told.counts, told.events.len());
    println!("{verdict}");
    assert!(verdict.losses.is_empty(), "HARNESS_CRASH_SEED={seed}: {verdict}");
    assert!(verdict.executed > 0 && rounds > 1, "something happened");
}
