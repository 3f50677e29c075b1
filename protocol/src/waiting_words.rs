//! Writes the sentence that says why a run or a lane does not proceed. Every command and the log take it from here, so
//! that all of them say the same.
//!
//! Pure: the time and the time zone are arguments. Programs must not parse these sentences: they read the fields of the
//! view.

use jiff::tz::TimeZone;

use crate::id::{InteractionId, RunId};
use crate::lane::{LaneReport, Limiter};
use crate::run::{InferenceView, OpenQuestion, RunLine, RunState, RunView, WaitKind, WaitingFor};
use crate::terminal_safe::quoted;
use crate::time::{Span, Timestamp};

/// Characters of an id within a sentence.
const SHORT: usize = 8;
/// Times that are nearer than this are shown with seconds.
const SOON: Span = Span::from_secs(120);
/// Name of the tool lane; every other lane has the name of its provider.
const TOOL_LANE: &str = "tool";

/// The present time, and the time zone of the reader.
#[derive(Debug, Clone)]
pub struct Clock {
    /// The present time.
    pub now: Timestamp,
    /// The time zone of the reader.
    pub zone: TimeZone,
}

impl Clock {
    /// A clock for a reader without a time zone.
    pub const fn utc(now: Timestamp) -> Self {
        Self { now, zone: TimeZone::UTC }
    }

    /// A time for people: `06:34`, with seconds if it is near, with the date if it is not today.
    pub fn at(&self, at: Timestamp) -> String {
        let local = |at: Timestamp| {
            let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
            let instant = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX);
            self.zone.to_datetime(instant)
        };
        let (then, now) = (local(at), local(self.now));
        let time = if at.since(self.now) <= SOON {
            format!("{:02}:{:02}:{:02}", then.hour(), then.minute(), then.second())
        } else {
            format!("{:02}:{:02}", then.hour(), then.minute())
        };
        let within_a_day = at.since(self.now) < Span::from_secs(20 * 3600);
        if then.date() == now.date() || within_a_day { time } else { format!("{} {time}", then.date()) }
    }
}

/// The reason why a run or a lane does not proceed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Standing {
    /// The reason, in a few words.
    pub what: String,
    /// The provider's error, or the run's question, if there is one.
    pub why: Option<String>,
    /// The command that helps, or the remark that no command does.
    pub help: Option<String>,
}

impl Standing {
    /// The reason, the error and the help, in one line. The error, or the question, is in quotation marks: a server or
    /// a model said it.
    pub fn line(&self) -> String {
        let why = self.why.as_deref().map(|why| format!(": {}", quoted(why))).unwrap_or_default();
        let help = self.help.as_deref().map(|help| format!("; {help}")).unwrap_or_default();
        format!("{}{why}{help}", self.what)
    }
}

/// Why a lane grants no permit: `quota, until 06:34, 41 runs wait`.
pub fn hold(limiter: Limiter, until: Option<Timestamp>, waiting: u32, clock: &Clock) -> String {
    let mut text = limiter.as_str().to_owned();
    match (limiter, until) {
        (_, Some(until)) => text += &format!(", until {}", clock.at(until)),
        (Limiter::Quota | Limiter::Credentials | Limiter::Key, None) => text += ", until a provider check goes well",
        _ => {}
    }
    match waiting {
        0 => {}
        1 => text += ", 1 run waits",
        many => text += &format!(", {many} runs wait"),
    }
    text
}

/// The command that helps against this limiter; `None` if nothing has to be done.
pub fn help(limiter: Limiter, lane: &str, ends_by_itself: bool) -> Option<String> {
    let check = format!("harnessctl provider check {lane}");
    Some(match limiter {
        Limiter::None => return None,
        Limiter::Width => format!("wider: harnessctl relieve {lane}"),
        Limiter::Share => {
            "its share is at its max; no command changes that, `[share]` of the configuration does".to_owned()
        }
        Limiter::RateLimit | Limiter::Failing => format!("it is asked again by itself; at once: {check}"),
        Limiter::Quota if ends_by_itself => {
            format!("it goes on by itself; at once: {check}; not by itself: harnessctl lane pause {lane}")
        }
        Limiter::Quota => format!("once there is more: {check}"),
        Limiter::Credentials => format!("once they are good: {check}"),
        Limiter::Key => format!("put the key there and restart the daemon, or where it is a file: {check}"),
        Limiter::Storage => "harnessctl daemon status".to_owned(),
        Limiter::Paused => format!("harnessctl lane resume {lane}"),
        Limiter::Draining => "harnessctl daemon undrain".to_owned(),
    })
}

/// Why a lane does not proceed; `None` if it grants permits, or would grant them.
pub fn of_lane(lane: &LaneReport, clock: &Clock) -> Option<Standing> {
    let waiting = lane.wanted();
    let held = lane.held.as_ref().filter(|held| held.limiter.is_none_or(|limiter| limiter == lane.limiter));
    let until = held.and_then(|held| held.until);
    (lane.limiter != Limiter::None).then(|| Standing {
        what: hold(lane.limiter, until, waiting, clock),
        why: held.map(|held| held.error.to_string()),
        help: help(lane.limiter, &lane.name, until.is_some()),
    })
}

/// Why a run does not proceed; `None` if it proceeds, or has ended.
pub fn of_run(run: &RunView, clock: &Clock) -> Option<Standing> {
    let seen = Seen { id: run.id, share: &run.share, inference: run.inference.as_ref(), asked: &run.questions };
    standing(&seen, run.state, run.waiting_for.as_ref(), clock)
}

/// The same for the line of a run, which does not have the texts of questions.
pub fn of_line(run: &RunLine, clock: &Clock) -> Option<Standing> {
    let seen = Seen { id: run.id, share: &run.share, inference: run.inference.as_ref(), asked: &[] };
    standing(&seen, run.state, run.waiting_for.as_ref(), clock)
}

fn standing(run: &Seen<'_>, state: RunState, waits: Option<&WaitingFor>, clock: &Clock) -> Option<Standing> {
    match waits {
        _ if state.is_terminal() => None,
        Some(waits) if waits.kind == WaitKind::Storage => Some(waiting(run, waits, clock)),
        _ if state == RunState::Paused => Some(paused(run.id)),
        waits => Some(waiting(run, waits?, clock)),
    }
}

/// The facts about a waiting run: the run that is shown, or a run that it waits for.
struct Seen<'r> {
    id: RunId,
    share: &'r str,
    inference: Option<&'r InferenceView>,
    /// The questions of the shown run, and of all runs below it.
    asked: &'r [OpenQuestion],
}

fn paused(run: RunId) -> Standing {
    Standing { what: "paused".to_owned(), why: None, help: Some(format!("harnessctl resume {run}")) }
}

fn waiting(run: &Seen<'_>, waits: &WaitingFor, clock: &Clock) -> Standing {
    let id = waits.id.as_str();
    let plain = |what: String| Standing { what, why: None, help: None };
    match waits.kind {
        WaitKind::Lane | WaitKind::Provider => in_lane(run, waits, clock),
        WaitKind::Person => {
            let asked = run.asked.iter().find(|asked| asked.id.to_string() == id);
            let kind = asked.map(|asked| asked.kind).unwrap_or_default();
            Standing {
                why: asked.map(|asked| asked.kind.asks(&asked.question)),
                help: Some(kind.how_to_settle(id)),
                ..plain(format!("a person ({id})"))
            }
        }
        WaitKind::Run => for_run(run, waits, clock),
        WaitKind::Budget => plain(format!("what others hold of the budget of run {}", short(id))),
        WaitKind::Paused => paused(run.id),
        WaitKind::Storage => {
            let help = help(Limiter::Storage, "", false);
            Standing { help, ..plain("storage: the journal cannot commit".to_owned()) }
        }
    }
}

/// It waits for a run; if that does not proceed either, the reason for that.
fn for_run(run: &Seen<'_>, waits: &WaitingFor, clock: &Clock) -> Standing {
    let what = format!("run {}", short(&waits.id));
    let Some(held) = &waits.because else { return Standing { what, why: None, help: None } };
    let last = Seen { id: held.run, share: &held.share, inference: held.inference.as_ref(), asked: run.asked };
    let standing = waiting(&last, &held.waiting_for, clock);
    let id = held.run.to_string();
    let by_way = if id == waits.id { String::new() } else { format!("run {}: ", short(&id)) };
    Standing { what: format!("{what}: {by_way}{}", standing.what), ..standing }
}

/// An id within a sentence.
fn short(id: &str) -> &str {
    id.get(..SHORT).unwrap_or(id)
}

fn in_lane(run: &Seen<'_>, waits: &WaitingFor, clock: &Clock) -> Standing {
    let id = waits.id.as_str();
    let noun = if waits.kind == WaitKind::Lane { "lane" } else { "provider" };
    let place = waits.position.map(|position| format!(" (place {position})")).unwrap_or_default();
    let said = waits.error.as_ref().or(run.inference.map(|inference| &inference.error));
    let why = said.filter(|_| waits.kind == WaitKind::Provider).map(|error| error.to_string());
    // Between two attempts the run is in no lane.
    if let (None, Some(next), Some(inference)) = (waits.limiter, waits.until, run.inference) {
        let what =
            format!("{noun} {id}: retry, try {} of {} at {}", inference.attempt, inference.attempts, clock.at(next));
        return Standing { what, why, help: None };
    }
    let limiter = waits.limiter.unwrap_or(Limiter::None);
    let lane = if waits.kind == WaitKind::Lane { TOOL_LANE } else { id };
    let what = match limiter {
        Limiter::None => format!("{noun} {id}{place}"),
        limiter => format!("{noun} {id}{place}: {}", hold(limiter, waits.until, waits.runs.unwrap_or(0), clock)),
    };
    let help = match limiter {
        Limiter::Share => Some(format!(
            "share {} is at its max; no command changes that, `[share]` of the configuration does",
            run.share
        )),
        limiter => help(limiter, lane, waits.until.is_some()),
    };
    Standing { what, why, help }
}

/// The identity of a reason: it stays the same while the number of waiting runs and the place in the queue change.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    what: &'static str,
    id: String,
    limiter: Option<&'static str>,
    until: Option<Timestamp>,
    /// The reason of the run that it waits for, if that does not proceed either.
    because: Option<Box<Self>>,
}

impl Kind {
    /// The question that has to be answered, if the reason is a person's answer in the end.
    pub fn person(&self) -> Option<InteractionId> {
        match &self.because {
            Some(because) => because.person(),
            None if self.what == WaitKind::Person.as_str() => self.id.parse().ok(),
            None => None,
        }
    }

    fn of(waits: &WaitingFor) -> Self {
        Self {
            what: waits.kind.as_str(),
            id: waits.id.clone(),
            limiter: waits.limiter.map(Limiter::as_str),
            until: waits.until,
            because: waits.because.as_ref().map(|held| Box::new(Self::of(&held.waiting_for))),
        }
    }
}

/// The identity of the reason why a run does not proceed.
pub fn kind_of(run: &RunView) -> Option<Kind> {
    if run.state.is_terminal() {
        return None;
    }
    match &run.waiting_for {
        Some(waits) if waits.kind == WaitKind::Storage => Some(Kind::of(waits)),
        _ if run.state == RunState::Paused => {
            Some(Kind { what: WaitKind::Paused.as_str(), id: String::new(), limiter: None, until: None, because: None })
        }
        waits => waits.as_ref().map(Kind::of),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The instant 2026-11-30T11:02:00Z.
    const NOW: Timestamp = Timestamp::from_micros(1_796_036_520_000_000);

    fn after(secs: u64) -> Timestamp {
        NOW + Span::from_secs(secs)
    }

    fn clock() -> Clock {
        Clock::utc(NOW)
    }

    #[test]
    fn a_time_is_told_as_near_as_it_is() {
        let berlin = Clock { zone: TimeZone::fixed(jiff::tz::Offset::constant(1)), ..clock() };
        for (secs, utc, local) in [
            (5, "11:02:05", "12:02:05"),
            (120, "11:04:00", "12:04:00"),
            (121, "11:04", "12:04"),
            (70_320, "06:34", "07:34"),
            (46_800, "00:02", "01:02"),
            (4 * 86_400, "2026-12-04 11:02", "2026-12-04 12:02"),
        ] {
            assert_eq!((clock().at(after(secs)), berlin.at(after(secs))), (utc.to_owned(), local.to_owned()));
        }
    }

    #[test]
    fn a_hold_has_its_word_its_end_and_the_number_of_waiting_runs() {
        for (limiter, until, waiting, told) in [
            (Limiter::Quota, Some(70_320), 41, "quota, until 06:34, 41 runs wait"),
            (Limiter::Quota, None, 1, "quota, until a provider check goes well, 1 run waits"),
            (Limiter::Key, None, 0, "key, until a provider check goes well"),
            (Limiter::RateLimit, Some(7), 2, "rate-limit, until 11:02:07, 2 runs wait"),
            (Limiter::Draining, None, 3, "draining, 3 runs wait"),
            (Limiter::Width, None, 0, "width"),
        ] {
            assert_eq!(hold(limiter, until.map(after), waiting, &clock()), told);
        }
    }

    #[test]
    fn every_limiter_but_none_names_what_helps() {
        for limiter in [
            Limiter::Width,
            Limiter::Share,
            Limiter::RateLimit,
            Limiter::Quota,
            Limiter::Credentials,
            Limiter::Key,
            Limiter::Failing,
            Limiter::Storage,
            Limiter::Paused,
            Limiter::Draining,
        ] {
            let told = help(limiter, "local", false).unwrap();
            assert!(told.contains("harnessctl ") || told.contains("no command"), "{told}");
        }
        assert_eq!(help(Limiter::None, "local", true), None);
    }
}
