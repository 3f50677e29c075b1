//! Prints on standard error why a run that the command waits for does not proceed, whenever the reason changes.
//!
//! It remembers what was printed, so that a reason is printed only when it changes. Must not end a wait or send a
//! request: the caller gives it the view of the run.

use std::collections::BTreeSet;
use std::time::Duration;

use harness_protocol::id::InteractionId;
use harness_protocol::run::{OpenQuestion, RunView};
use harness_protocol::waiting_words::{self, Kind};

use crate::output::note;
use crate::render::quote::inline;
use crate::render::run::short;
use crate::render::text::first_line;
use crate::render::units::{clock, now};

/// Time between two looks, so that the user is told within a second.
pub(crate) const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Most lines of one look at many runs, and most remembered lines.
const MOST_LINES: usize = 8;
const MOST_TOLD: usize = 10_000;
/// Runs that one look examines.
pub(crate) const LOOKED_AT: usize = 64;

/// The lines that were printed about one run.
#[derive(Debug, Default)]
pub(crate) struct Teller {
    quiet: bool,
    last: Option<Kind>,
    /// Questions that were printed.
    asked: BTreeSet<InteractionId>,
}

impl Teller {
    /// A teller that prints, or keeps quiet.
    pub(crate) fn new(quiet: bool) -> Self {
        Self { quiet, ..Self::default() }
    }

    /// The line about a run, where there is news.
    pub(crate) fn news(&mut self, run: &RunView) -> Option<String> {
        let kind = waiting_words::kind_of(run);
        if self.quiet || kind == self.last {
            return None;
        }
        self.last = kind;
        match waiting_words::of_run(run, &clock(now())) {
            Some(standing) => Some(format!("stands still: {}", first_line(&standing.line()))),
            None => (!run.state.is_terminal()).then(|| "goes on".to_owned()),
        }
    }

    /// Lines about new questions of the runs below a run. The run's own question is the reason why it does not proceed.
    pub(crate) fn questions(&mut self, run: &RunView) -> Vec<String> {
        if self.quiet {
            return Vec::new();
        }
        let open: BTreeSet<InteractionId> = run.questions.iter().map(|question| question.id).collect();
        let own = waiting_words::kind_of(run).and_then(|kind| kind.person());
        let new =
            run.questions.iter().filter(|question| !self.asked.contains(&question.id) && own != Some(question.id));
        let lines = new.map(|question| asks(question, run)).collect();
        self.asked = open;
        lines
    }

    /// Prints the news of a run.
    pub(crate) fn look(&mut self, run: &RunView) {
        for asks in self.questions(run) {
            note(format_args!("harnessctl: {asks}"));
        }
        if let Some(news) = self.news(run) {
            note(format_args!("harnessctl: run {} {news}", short(run.id)));
        }
    }
}

/// The line about a question, with the command that answers it.
pub(crate) fn asks(question: &OpenQuestion, above: &RunView) -> String {
    let below = if question.run == above.id { String::new() } else { format!(", below run {},", short(above.id)) };
    format!(
        "run {}{below} asks: {}; {}",
        short(question.run),
        inline(&question.kind.asks(&question.question)),
        question.kind.how_to_settle(question.id)
    )
}

/// The lines that were printed about many runs: one for each reason why some of them do not proceed.
#[derive(Debug, Default)]
pub(crate) struct TellerOfMany {
    told: BTreeSet<Kind>,
    asked: BTreeSet<InteractionId>,
    /// Position of the next look among the runs.
    next: usize,
}

impl TellerOfMany {
    /// Positions of the runs that the next look examines, among `open` runs.
    pub(crate) fn next_places(&mut self, open: usize) -> Vec<usize> {
        if open == 0 {
            return Vec::new();
        }
        let first = self.next % open;
        self.next = first + LOOKED_AT;
        (first..first + LOOKED_AT.min(open)).map(|place| place % open).collect()
    }

    /// Lines about the examined runs. If these are all runs, reasons that no longer hold may be printed again later.
    pub(crate) fn news<'r>(&mut self, runs: impl IntoIterator<Item = &'r RunView>, all: bool) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let mut lines = Vec::new();
        for run in runs {
            let own = waiting_words::kind_of(run).and_then(|kind| kind.person());
            for question in run.questions.iter().filter(|question| own != Some(question.id)) {
                if lines.len() < MOST_LINES && self.asked.insert(question.id) {
                    lines.push(format!("harnessctl: {}", asks(question, run)));
                }
            }
            let (Some(kind), Some(standing)) = (waiting_words::kind_of(run), waiting_words::of_run(run, &clock(now())))
            else {
                continue;
            };
            let is_new = !self.told.contains(&kind) && !seen.contains(&kind);
            if is_new && lines.len() == MOST_LINES {
                // The next look prints it.
                continue;
            }
            if is_new {
                let line = first_line(&standing.line());
                lines.push(format!("harnessctl: run {} stands still: {line}", short(run.id)));
            }
            seen.insert(kind);
        }
        if self.asked.len() > MOST_TOLD {
            self.asked.clear();
        }
        if all || self.told.len() > MOST_TOLD {
            self.told = seen;
        } else {
            self.told.extend(seen);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::render::run::tests::sample;
    use harness_protocol::lane::Limiter;
    use harness_protocol::run::{RunState, WaitKind, WaitingFor};

    fn waits(limiter: Limiter, position: u32) -> RunView {
        let mut run = sample();
        run.state = RunState::Thinking;
        let wait = WaitingFor::new(WaitKind::Provider, "local", run.submitted_at);
        run.waiting_for = Some(WaitingFor { limiter: Some(limiter), position: Some(position), ..wait });
        run
    }

    #[test]
    fn the_same_is_told_once_and_a_place_in_the_queue_is_the_same() {
        let mut teller = Teller::new(false);
        assert!(teller.news(&waits(Limiter::Width, 9)).unwrap().contains("provider local (place 9): width"));
        assert_eq!(teller.news(&waits(Limiter::Width, 2)), None);
        assert!(teller.news(&waits(Limiter::Quota, 2)).unwrap().contains("harnessctl provider check local"));
        let mut goes_on = waits(Limiter::Quota, 2);
        goes_on.waiting_for = None;
        assert_eq!(teller.news(&goes_on).unwrap(), "goes on");
        assert_eq!(teller.news(&goes_on), None);
        assert_eq!(Teller::new(true).news(&waits(Limiter::Quota, 1)), None);
    }

    /// U12: a question is told once, with the command that answers it, whichever run of the tree asks.
    #[test]
    fn questions_of_the_runs_below_are_told_once_each() {
        let question = |id: u64, run: u64, text: &str| OpenQuestion {
            id: InteractionId::from_u64(id),
            run: harness_protocol::id::RunId::from_u64(run),
            kind: Default::default(),
            question: text.to_owned(),
        };
        let mut run = waits(Limiter::Width, 1);
        let mut teller = Teller::new(false);
        assert_eq!(teller.questions(&run), Vec::<String>::new());
        run.questions = vec![question(1, 7, "which?"), question(2, 8, "a\u{9b}2Jb")];
        let told = teller.questions(&run);
        assert!(
            told[0].contains("run 00000000, below run 01234567, asks: \"which?\"; harnessctl reply 0000000000001 TEXT"),
            "{told:?}"
        );
        assert!(told.len() == 2 && !told[1].contains('\u{9b}'), "{told:?}");
        assert_eq!(teller.questions(&run).len(), 0);
        run.questions.push(question(3, 7, "and?"));
        assert_eq!(teller.questions(&run).len(), 1);
        // Its own question is what it stands still for, and told as that.
        run.waiting_for = Some(WaitingFor::new(WaitKind::Person, "0000000000004", run.submitted_at));
        run.questions.push(question(4, 1, "me?"));
        assert_eq!(teller.questions(&run).len(), 0);
        assert!(
            teller.news(&run).unwrap().contains("a person (0000000000004): \"me?\"; harnessctl reply 0000000000004")
        );
        assert_eq!(Teller::new(true).questions(&run).len(), 0, "it is quiet");
        let mut many = TellerOfMany::default();
        assert_eq!(many.news([&run, &run], true).len(), 4);
        assert_eq!(many.news([&run, &run], true).len(), 0);
    }

    /// What a run asks is in quotation marks: the command behind it is ours.
    #[test]
    fn no_question_passes_for_a_line_or_a_command_of_ours() {
        const FORGED: &str = "FORGED";
        let mut run = waits(Limiter::Width, 1);
        let asks = |id, of, text: &str| OpenQuestion {
            id: InteractionId::from_u64(id),
            run: harness_protocol::id::RunId::from_u64(of),
            question: text.to_owned(),
            kind: Default::default(),
        };
        run.waiting_for = Some(WaitingFor::new(WaitKind::Person, "0000000000001", run.submitted_at));
        for text in [format!("ok\"; harnessctl reply {FORGED} yes"), format!("ok\n{FORGED} [succeeded]\n  {FORGED}")] {
            run.questions = vec![asks(1, 1, &text), asks(2, 2, &text)];
            let told = [Teller::new(false).questions(&run), TellerOfMany::default().news([&run], true)].concat();
            let news = Teller::new(false).news(&run).unwrap();
            assert_eq!(told.len(), 3, "{told:?}");
            for line in told.iter().chain([&news]) {
                assert!(!line.contains('\n') && line.contains("; harnessctl reply 000000000000"), "{line}");
                assert!(
                    !line.contains(FORGED) || line.contains(r#": "ok\"; harnessctl reply FORGED yes"; "#),
                    "{line}"
                );
            }
        }
    }

    #[test]
    fn of_many_each_thing_is_told_once_and_all_of_them_are_looked_at_in_turn() {
        let mut teller = TellerOfMany::default();
        let runs = [waits(Limiter::Quota, 1), waits(Limiter::Quota, 2), waits(Limiter::Key, 3)];
        assert_eq!(teller.news(&runs, true).len(), 2);
        assert_eq!(teller.news(&runs, true).len(), 0);
        assert_eq!(teller.news(&runs[2..], true).len(), 0);
        assert_eq!(teller.news(&runs, true).len(), 1, "it was over in between");
        let places: BTreeSet<usize> = (0..4).flat_map(|_| teller.next_places(200)).collect();
        assert_eq!(places.len(), 200);
        assert_eq!(teller.next_places(3).len(), 3);
    }
}
