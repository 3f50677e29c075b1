//! Read access to the world: runs, transcripts, lanes, interactions, counts. Must never change anything.

mod lanes;

use std::collections::BTreeMap;
use std::sync::Arc;

use bevy_ecs::entity::Entity;
use harness_protocol::id::{CallId, RunId, Seq};
use harness_protocol::json_size::text_bytes;
use harness_protocol::rpc::{
    InteractionListParams, Interactions as InteractionPage, ListParams, Selector, ShowParams, Shown,
};
use harness_protocol::run::{Entry, InteractionKind, InteractionView, RunState, RunView};
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::{Span, Timestamp};

use super::Engine;
use super::api::{Caller, Finished, KeySpace, Now, Operator};
use super::commands::{select, submit};
use super::model::clock::SMALL;
use super::model::components::{Batch, Children, Identity, Spec, Transcript};
use super::model::indexes::{Daemon, Interactions, Runs, Setup};
use crate::config::Config;
use crate::refusal::{NameRefusal, Refusal};
use crate::tools::Catalogue;
use crate::world::view::fit::{REPLY_BYTES, entry_bytes, fit_entry, fit_list, fit_text, leave_room, view_bytes};
use crate::world::view::run::{PlacesSeen, view, view_among};

/// Runs that a list looks at for one page.
const MOST_SCANNED: usize = 50_000;
/// Bytes of text on one page of a transcript.
pub const PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Interactions in one reply.
const MOST_INTERACTIONS: usize = 1_000;

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
    pub view: RunView,
    /// About how many bytes that takes.
    pub bytes: usize,
}

impl ListedRun {
    /// Cuts a view to what a list holds.
    pub fn new(number: u64, mut view: RunView) -> Self {
        fit_list(&mut view);
        let bytes = view_bytes(&view);
        Self { number, view, bytes }
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

impl Engine {
    /// The time that the world would give to what happens now.
    pub fn time(&self, now: Now) -> Timestamp {
        self.clock.look(now, self.world.resource::<Daemon>().last_at)
    }

    /// By how much events are ahead of the wall clock; nothing where it is little.
    pub fn ahead(&self, now: Now) -> Option<Span> {
        Some(self.time(now).since(now.wall)).filter(|ahead| *ahead > SMALL)
    }

    /// The run that this caller means by id, unique prefix, name or `@last`. To a run only the whole id means one that
    /// is not of its tree. All else here takes the id that this has found: a name has one meaning in one request.
    ///
    /// # Errors
    /// If there is no such run, or there are several; to a run these are of its tree.
    pub fn find(&self, name: &str, caller: Caller) -> Result<RunId, NameRefusal> {
        select::one(&self.world, name, caller).map(|(run, _)| run)
    }

    /// Whether a name means a child here, so that the journal has to be asked for a run of an operator's that has it.
    pub fn is_child_by_name(&self, name: &str, operator: Operator) -> bool {
        select::is_child_by_name(&self.world, name, operator)
    }

    /// The state of a run; `None` once it has left the world.
    pub fn state_of(&self, run: RunId) -> Option<RunState> {
        select::state(&self.world, self.entity(run)?)
    }

    /// A run as it is shown; `None` once it has left the world.
    pub fn view(&self, run: RunId, now: Now) -> Option<RunView> {
        view(&self.world, self.entity(run)?, self.time(now))
    }

    /// Top of the tree of a run.
    pub fn root_of(&self, run: RunId) -> Option<RunId> {
        self.world.get::<Identity>(self.entity(run)?).map(|identity| identity.root)
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
        select::some(&self.world, select, between, most)
    }

    /// Whether a run of the world has what is selected.
    pub fn fits(&self, run: RunId, select: &Selector) -> bool {
        self.entity(run).is_some_and(|entity| select::fits(&self.world, entity, select))
    }

    /// The highest number of a run.
    pub fn last_number(&self) -> u64 {
        self.world.resource::<Runs>().live.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Number of the event that made a run.
    pub fn made_by(&self, run: RunId) -> Option<Seq> {
        self.world.get::<Identity>(self.entity(run)?).map(|identity| identity.seq)
    }

    /// Runs from `run` up to the top of its tree, as far as they are known.
    pub fn is_in_tree(&self, run: RunId, top: RunId) -> bool {
        let mut at = Some(run);
        while let Some(current) = at {
            if current == top {
                return true;
            }
            at = self.entity(current).and_then(|entity| self.world.get::<Identity>(entity)).and_then(|i| i.parent);
        }
        false
    }

    /// Runs below `top`, at most `most` of them.
    pub fn tree_below(&self, top: RunId, most: u32) -> Vec<RunId> {
        let mut found: Vec<RunId> = Vec::new();
        let mut next = Some(top);
        let mut at = 0;
        while let Some(run) = next {
            let children = self.entity(run).and_then(|entity| self.world.get::<Children>(entity));
            found.extend(children.into_iter().flat_map(|children| children.0.iter().copied()));
            if found.len() >= most as usize {
                break;
            }
            next = found.get(at).copied();
            at += 1;
        }
        found.truncate(most as usize);
        found
    }

    fn entity(&self, run: RunId) -> Option<Entity> {
        self.world.resource::<Runs>().by_id.get(&run).copied()
    }

    /// Runs that are here, newest first, with their numbers: those of the tree below `top`, or all.
    pub fn list(&self, params: &ListParams, top: Option<RunId>, now: Now) -> Listed {
        let limit = params.page_size();
        let at = self.time(now);
        let runs = self.world.resource::<Runs>();
        let mut listed = Listed { runs: Vec::new(), down_to: 0 };
        let places = PlacesSeen::default();
        let mut bytes = 0;
        let below = params.cursor.unwrap_or(u64::MAX);
        let mut live = runs.live.range(..below).rev().peekable();
        let mut finished = runs.finished.range(..below).rev().peekable();
        for _ in 0..MOST_SCANNED {
            let newer_is_live = match (live.peek(), finished.peek()) {
                (Some((l, _)), Some((f, _))) => l > f,
                (Some(_), None) => true,
                (None, Some(_)) => false,
                (None, None) => break,
            };
            let next = if newer_is_live { live.next() } else { finished.next() };
            let Some((&number, &entity)) = next else { break };
            let Some(id) = self.world.get::<Identity>(entity).map(|identity| identity.id) else { continue };
            let wanted =
                select::fits(&self.world, entity, &params.select) && top.is_none_or(|top| self.is_in_tree(id, top));
            if let Some(view) = wanted.then(|| view_among(&self.world, entity, at, Some(&places))).flatten() {
                let run = ListedRun::new(number, view);
                bytes += run.bytes;
                listed.runs.push(run);
            }
            listed.down_to = number;
            if listed.runs.len() >= limit || bytes > PAGE_BYTES {
                break;
            }
        }
        if live.peek().is_none() && finished.peek().is_none() {
            listed.down_to = 0;
        }
        listed
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
        select::finished(&self.world, self.entity(run)?)
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
        wrong.err().map(Refusal::from).or_else(|| submit::closed(&self.world).map(Refusal::from))
    }

    /// What is configured, and which tools there are.
    pub fn setup(&self) -> (&Config, &Catalogue) {
        let setup = self.world.resource::<Setup>();
        (&setup.config, &setup.tools)
    }

    /// One run, with a page of its transcript where that is wanted; `None` once it has left the world.
    pub fn show(&self, run: RunId, transcript: Option<TranscriptPage>, now: Now) -> Option<Shown> {
        let entity = self.entity(run)?;
        let run = view(&self.world, entity, self.time(now))?;
        let mut shown = Shown { run, transcript: Vec::new(), cursor: None, processes: Vec::new(), held: None };
        let Some(page) = transcript else { return Some(shown) };
        let entries = self.world.get::<Transcript>(entity).map_or(&[][..], |transcript| &transcript.0);
        let first = usize::try_from(page.cursor.unwrap_or(0)).unwrap_or(usize::MAX).min(entries.len());
        let limit = page.limit.unwrap_or(1_000).clamp(1, 1_000) as usize;
        let mut bytes = 0;
        for entry in entries[first..].iter().take(limit) {
            let entry = fit_entry(entry);
            bytes += entry_bytes(&entry);
            if bytes > PAGE_BYTES && !shown.transcript.is_empty() {
                break;
            }
            shown.transcript.push(entry);
        }
        // The entries are what was asked for; what the run answered is one of them.
        leave_room(&mut shown.run, REPLY_BYTES.saturating_sub(shown.transcript.iter().map(entry_bytes).sum()));
        let next = first + shown.transcript.len();
        shown.cursor = (next < entries.len()).then_some(next as u64);
        Some(shown)
    }

    /// Open interactions, oldest first.
    pub fn interactions(&self, params: InteractionListParams) -> InteractionPage {
        let all = self.world.resource::<Interactions>();
        let limit = params.limit.map_or(MOST_INTERACTIONS, |limit| (limit as usize).clamp(1, MOST_INTERACTIONS));
        let after = params.cursor.unwrap_or(0);
        let mut bytes = 0;
        let mut rest = all.open_after(after).peekable();
        let mut page = Vec::new();
        while let Some(&(id, open)) = rest.peek()
            && page.len() < limit
        {
            bytes += text_bytes(&open.question).min(PAGE_BYTES) + 300;
            if bytes > PAGE_BYTES && !page.is_empty() {
                break;
            }
            page.push((id, open));
            rest.next();
        }
        let cursor = rest.peek().and_then(|_| page.last()).map(|(_, open)| open.number);
        let interactions: Vec<InteractionView> = page
            .into_iter()
            .map(|(id, open)| InteractionView {
                id,
                run: open.run,
                run_name: self.entity(open.run).and_then(|e| self.world.get::<Spec>(e)).and_then(|s| s.0.name.clone()),
                parent: self.entity(open.run).and_then(|e| self.world.get::<Identity>(e)).and_then(|i| i.parent),
                kind: InteractionKind::Question,
                question: fit_text(&open.question, PAGE_BYTES),
                since: open.since,
            })
            .collect();
        InteractionPage { interactions, cursor, total: u32::try_from(all.open.len()).unwrap_or(u32::MAX) }
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
        let entity = self.entity(run)?;
        if let Some(state) = self.world.get::<Batch>(entity).and_then(|batch| batch.0.call(call)) {
            return Some(state.stage.has_job());
        }
        let entries = &self.world.get::<Transcript>(entity)?.0;
        let known = entries.iter().any(|entry| match entry {
            Entry::Result { result } => result.call == call,
            _ => false,
        });
        known.then_some(false)
    }
}
