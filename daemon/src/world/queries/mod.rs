//! Answers reads of the world: runs, transcripts, lanes, interactions, counts. It must not change anything.

mod lanes;
mod pages;

pub use pages::PAGE_BYTES;
use pages::{list, pending, show};

use std::collections::BTreeMap;
use std::sync::Arc;

use harness_protocol::id::{CallId, RunId, Seq};
use harness_protocol::rpc::{
    InteractionListParams, Interactions as InteractionPage, ListDetail, ListParams, RunPage, Selector, ShowParams,
    Shown,
};
use harness_protocol::run::{Entry, RunLine, RunState, RunView};
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::{Span, Timestamp};

use super::Folded;
use super::api::{Caller, Finished, KeySpace, Now, Operator};
use super::commands::{select, submit};
use super::model::clock::SMALL;
use super::model::indexes::{Daemon, Interactions, Runs, Setup};
use crate::config::Config;
use crate::refusal::{NameRefusal, Refusal};
use crate::tools::Catalogue;
use crate::world::view::run::view;
use crate::world::view::size_limits::{fit, fit_list, line_bytes, view_bytes};

/// Runs of the world for a page of a list.
#[derive(Debug)]
pub struct Listed {
    /// The runs that fit, the newest first.
    pub runs: Vec<ListedRun>,
    /// Runs of the world from this number on were looked at; 0 where that is all of them.
    pub down_to: u64,
}

/// A run on a page of a list, cut to what a list holds.
#[derive(Debug)]
pub struct ListedRun {
    /// The run's number in the order of submission.
    pub number: u64,
    /// As it is shown.
    pub shown: ListedAs,
    /// About how many bytes that takes.
    pub bytes: usize,
}

/// How a run is shown on a page of a list.
#[derive(Debug)]
pub enum ListedAs {
    /// With all that a list holds of it.
    Whole(Box<RunView>),
    /// As a line.
    Line(Box<RunLine>),
}

impl ListedAs {
    /// The run that it shows.
    pub const fn run(&self) -> RunId {
        match self {
            Self::Whole(view) => view.id,
            Self::Line(line) => line.id,
        }
    }

    /// Puts it on a page.
    pub fn put_on(self, page: &mut RunPage) {
        match self {
            Self::Whole(view) => page.runs.push(*view),
            Self::Line(line) => page.lines.push(*line),
        }
    }
}

impl ListedRun {
    /// Cuts a view to what a list holds, or to its line.
    pub fn new(number: u64, mut view: RunView, detail: ListDetail) -> Self {
        match detail {
            ListDetail::Whole => {
                fit_list(&mut view);
                let bytes = view_bytes(&view);
                Self { number, shown: ListedAs::Whole(Box::new(view)), bytes }
            }
            ListDetail::Line => {
                fit(&mut view);
                Self::line(number, view.into())
            }
        }
    }

    /// A run that is shown as a line.
    pub fn line(number: u64, line: RunLine) -> Self {
        Self { number, bytes: line_bytes(&line), shown: ListedAs::Line(Box::new(line)) }
    }

    /// Reduces what is shown to a line.
    pub fn into_line(self) -> Self {
        match self.shown {
            ListedAs::Whole(view) => Self::line(self.number, (*view).into()),
            ListedAs::Line(_) => self,
        }
    }
}

/// A run that was asked for by name.
#[derive(Debug)]
pub enum Named {
    /// It is in the world.
    Here(Box<RunView>),
    /// It is not; the operator means it by this name.
    Gone(String, Operator),
}

/// Which entries of a transcript are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TranscriptPage {
    /// How many are left out.
    pub cursor: Option<u64>,
    /// At most so many.
    pub limit: Option<u32>,
}

impl TranscriptPage {
    /// The page that is asked for, if one is.
    pub fn of(params: &ShowParams) -> Option<Self> {
        params.transcript.then_some(Self { cursor: params.cursor, limit: params.limit })
    }
}

impl Folded {
    /// The time that the world would give to what happens now.
    pub fn time(&self, now: Now) -> Timestamp {
        self.clock.look(now, self.world.resource::<Daemon>().last_at)
    }

    /// By how much events are ahead of the wall clock; nothing where it is little.
    pub fn ahead(&self, now: Now) -> Option<Span> {
        Some(self.time(now).since(now.wall)).filter(|ahead| *ahead > SMALL)
    }

    /// The run that this caller means by id, unique prefix, name or `@last`: to an operator by name one that an
    /// operator submitted, to a run one of its own tree. All else here takes the id that this has found: a name has one
    /// meaning in one request.
    ///
    /// # Errors
    /// If there is no such run, or there are several; to a run these are of its tree.
    pub fn find(&self, name: &str, caller: Caller) -> Result<RunId, NameRefusal> {
        self.read(|reads| select::one(reads, name, caller)).map(|(run, _)| run)
    }

    /// The state of a run; `None` once it has left the world.
    pub fn state_of(&self, run: RunId) -> Option<RunState> {
        self.read(|reads| select::state(reads, reads.entity(run)?))
    }

    /// A run as it is shown; `None` once it has left the world.
    pub fn view(&self, run: RunId, now: Now) -> Option<RunView> {
        let at = self.time(now);
        self.read(|reads| view(reads, reads.entity(run)?, at))
    }

    /// Top of the tree of a run.
    pub fn root_of(&self, run: RunId) -> Option<RunId> {
        self.read(|reads| reads.identity(reads.entity(run)?).map(|identity| identity.root))
    }

    /// Live runs that are selected by label, by state, by what they wait for, or all, with numbers in `between`: above
    /// the first, up to the second. At most
    /// `most.0` of them, of `most.1` that are looked at; also the number to go on after.
    ///
    /// # Errors
    /// Where nothing is selected.
    pub fn select(
        &self,
        select: &Selector,
        between: (u64, u64),
        most: (usize, usize),
    ) -> Result<(Vec<RunId>, Option<u64>), NameRefusal> {
        self.read(|reads| select::some(reads, select, between, most))
    }

    /// Whether a run of the world has what is selected.
    pub fn fits(&self, run: RunId, select: &Selector) -> bool {
        self.read(|reads| reads.entity(run).is_some_and(|entity| select::fits(reads, entity, select)))
    }

    /// The highest number of a run.
    pub fn last_number(&self) -> u64 {
        self.world.resource::<Runs>().live.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Number of the event that made a run.
    pub fn made_by(&self, run: RunId) -> Option<Seq> {
        self.read(|reads| reads.identity(reads.entity(run)?).map(|identity| identity.seq))
    }

    /// Runs from `run` up to the top of its tree, as far as they are known.
    pub fn is_in_tree(&self, run: RunId, top: RunId) -> bool {
        run == top || self.read(|reads| reads.entity(run).is_some_and(|entity| reads.is_in_tree(entity, top)))
    }

    /// Runs below `top`, at most `most` of them.
    pub fn tree_below(&self, top: RunId, most: u32) -> Vec<RunId> {
        self.read(|reads| {
            let below = reads.entity(top).into_iter().flat_map(|top| reads.below(top)).take(most as usize);
            below.filter_map(|run| reads.identity(run)).map(|identity| identity.id).collect()
        })
    }

    /// Runs that are here, newest first, with their numbers: those of the tree below `top`, or all.
    pub fn list(&self, params: &ListParams, top: Option<RunId>, now: Now) -> Listed {
        let at = self.time(now);
        self.read(|reads| list(reads, params, top, at))
    }

    /// A run as a list shows it; `None` once it has left the world.
    pub fn listed(&self, run: RunId, now: Now) -> Option<RunView> {
        self.view(run, now).map(|mut view| {
            fit_list(&mut view);
            view
        })
    }

    /// A finished run, as far as another one can come from it.
    pub fn finished(&self, run: RunId) -> Option<Finished> {
        self.read(|reads| select::finished(reads, reads.entity(run)?))
    }

    /// The keys among which that of a submit by this caller is looked up.
    pub fn key_space(&self, caller: Caller) -> KeySpace {
        let root = caller.run.map(|run| self.root_of(run).unwrap_or(run));
        KeySpace::of(root, caller.uid)
    }

    /// Whether a run that is here was made under an idempotency key.
    pub fn knows_key(&self, space: KeySpace, key: &Arc<str>) -> bool {
        self.world.resource::<Runs>().keys.contains_key(&(space, Arc::clone(key)))
    }

    /// Whether a run that is here was made under a key that its client made.
    pub fn knows_submit(&self, key: SubmitKey) -> bool {
        self.world.resource::<Runs>().submit_keys.contains_key(&key)
    }

    /// What stands against a new run that goes on from another one, whichever that is; with a message, what is wrong
    /// with that.
    pub fn refuses_new(&self, message: Option<&str>) -> Option<Refusal> {
        let limit = self.setup().0.limits.text_bytes;
        let wrong = message.map_or(Ok(()), |text| submit::check_message(text, limit));
        let closed = || submit::closed(self.world.resource(), self.world.resource(), self.world.resource());
        wrong.err().map(Refusal::from).or_else(|| closed().map(Refusal::from))
    }

    /// What is configured, and which tools there are.
    pub fn setup(&self) -> (&Config, &Catalogue) {
        let setup = self.world.resource::<Setup>();
        (&setup.config, &setup.tools)
    }

    /// One run, with a page of its transcript where that is wanted; `None` once it has left the world.
    pub fn show(&self, run: RunId, transcript: Option<TranscriptPage>, now: Now) -> Option<Shown> {
        let at = self.time(now);
        self.read(|reads| show(reads, reads.entity(run)?, transcript, at))
    }

    /// Open interactions, oldest first.
    pub fn interactions(&self, params: InteractionListParams) -> InteractionPage {
        self.read(|reads| pending(reads, params))
    }

    /// Runs by state.
    pub fn counts(&self) -> BTreeMap<RunState, u32> {
        let states = &self.world.resource::<Runs>().states;
        states.iter().filter(|(_, count)| **count > 0).map(|(&state, &count)| (state, count)).collect()
    }

    /// Jobs that are out.
    pub fn executing(&self) -> u32 {
        self.world.resource::<Runs>().executing
    }

    /// Interactions that are open.
    pub fn open_interactions(&self) -> u32 {
        u32::try_from(self.world.resource::<Interactions>().open.len()).unwrap_or(u32::MAX)
    }

    /// Whether nothing new starts.
    pub fn is_draining(&self) -> bool {
        self.world.resource::<Daemon>().draining
    }

    /// Number of the last event.
    pub fn last_seq(&self) -> Seq {
        self.world.resource::<Daemon>().last_seq
    }

    /// Whether a call of a run is still to have its result; `None` where the run has no such call.
    pub fn is_live_call(&self, run: RunId, call: CallId) -> Option<bool> {
        self.read(|reads| {
            let run = reads.whole(reads.entity(run)?)?;
            if let Some(state) = run.batch.and_then(|batch| batch.0.call(call)) {
                return Some(state.stage.has_job());
            }
            let known = run.transcript.0.iter().any(|entry| match entry {
                Entry::Result { result } => result.call == call,
                _ => false,
            });
            known.then_some(false)
        })
    }
}
