//! Answers from the journal what clients ask about runs that have left the world: views, lists, waits, exports, texts,
//! and the sources of retries and messages. Changes nothing.
//!
//! The listing of a run is stored. All other details are folded from the run's own events, in a world of its own, so
//! that there is no second way to interpret events. A method that reads the journal blocks for as long as the disk
//! takes: the rest of the driver must call it off the driver's thread (`off_to`, or `blocking`).

use std::collections::BTreeSet;
use std::sync::Arc;

use harness_protocol::event::{Event, EventBody};
use harness_protocol::id::{CallId, RunId, Seq};
use harness_protocol::json_size::value_bytes;
use harness_protocol::rpc::{
    Blob, BlobParams, ExportParams, Exported, ListParams, RunPage, Selector, Shown, Unchanged, UnchangedReason,
    WaitReply,
};
use harness_protocol::run::{RunState, RunView};
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::{Span, Timestamp};

use crate::blocking::Blocking;
use crate::config::Config;
use crate::control::request::OutputPlace;
use crate::control::subscription::without_values;
use crate::fair_queue::Party;
use crate::journal::Record;
use crate::journal::history::{History, Query};
use crate::refusal::{JournalRefusal, NameRefusal, Refusal, RunRefusal};
use crate::tools::Catalogue;
use crate::world::api::{Finished, KeySpace, MadeRun, Now, Operator};
use crate::world::queries::{Listed, ListedRun, Named, PAGE_BYTES, TranscriptPage};
use crate::world::view::{REPLY_BYTES, fit, leave_room};
use crate::world::{Engine, Folded};

/// Most events in one reply of an export.
const EXPORTED: usize = 2_000;
/// Bytes of a text that one reply has. As JSON each may take six.
const BLOB_PART: usize = 1024 * 1024;
/// Bytes of the largest event that fits into an answer beside the view of its run.
const MOST_EVENT: usize = REPLY_BYTES - 512 * 1024;

/// The runs that are no longer in the world.
#[derive(Clone)]
pub(super) struct Archive {
    pub(super) history: History,
    config: Arc<Config>,
    tools: Catalogue,
    blocking: Blocking,
}

impl Archive {
    pub(super) fn new(history: History, engine: &Engine, blocking: Blocking) -> Self {
        let (config, tools) = engine.setup();
        Self { history, config: Arc::new(config.clone()), tools: tools.clone(), blocking }
    }

    /// Executes `work`, which may block, when it is the turn of `party`.
    pub(super) fn off_to(&self, party: Party, work: impl FnOnce(&Self) + Send + 'static) {
        let archive = self.clone();
        self.blocking.run(party, move || work(&archive));
    }

    /// A world with one run, from the run's own events. The run does not leave that world.
    fn world_of(&self, run: RunId) -> Result<Folded, JournalRefusal> {
        let records = self.history.of(run)?.into_iter().filter_map(known);
        let events: Vec<Arc<Event>> = records.filter(|event| event.body != EventBody::RunArchived).collect();
        Ok(Folded::of((*self.config).clone(), self.tools.clone(), 0, events.iter().map(|event| &**event)))
    }

    /// A run as it is listed. If its leaving is still being committed, there is no listing yet: it is folded from its
    /// events.
    pub(super) fn view(&self, run: RunId) -> Result<RunView, Refusal> {
        if let Some(mut view) = self.history.view(run)? {
            // An older daemon may have written a listing larger than a frame.
            fit(&mut view);
            return Ok(view);
        }
        let view = self.world_of(run)?.view(run, Now { wall: Timestamp::default(), mono: Span::ZERO });
        view.ok_or_else(|| RunRefusal::Pruned { run }.into())
    }

    /// The run that a prefix of ids means, where `found` in the world may not be the only one.
    ///
    /// # Errors
    /// If several runs fit.
    pub(super) fn only(&self, name: &str, found: RunId, operator: Operator) -> Result<RunId, Refusal> {
        match self.history.find(name, operator) {
            Err(refusal) if refusal.is_ambiguous() => Err(refusal),
            run => Ok(run.unwrap_or(found)),
        }
    }

    pub(super) fn show(&self, run: RunId, transcript: Option<TranscriptPage>, now: Now) -> Result<Shown, Refusal> {
        let view = self.view(run)?;
        if transcript.is_none() {
            return Ok(Shown { run: view, transcript: Vec::new(), cursor: None, processes: Vec::new(), held: None });
        }
        match self.world_of(run)?.show(run, transcript, now) {
            Some(shown) => {
                let mut view = view;
                let entries = value_bytes(&shown.transcript);
                leave_room(&mut view, REPLY_BYTES.saturating_sub(entries));
                Ok(Shown { run: view, ..shown })
            }
            // The record that made it cannot be read: only its listing is known.
            None => Ok(Shown { run: view, transcript: Vec::new(), cursor: None, processes: Vec::new(), held: None }),
        }
    }

    /// A page of the runs in the world and of those that have left it, newest first.
    pub(super) fn list(&self, params: &ListParams, root: Option<RunId>, listed: Listed) -> Result<RunPage, Refusal> {
        let below = params.cursor.unwrap_or(u64::MAX);
        let query = Query { select: params.select.clone(), root };
        let (left, more_left) = self.history.page(&query, below, listed.down_to, params.page_size())?;
        Ok(Self::page(params, listed, left, more_left))
    }

    /// A page of the runs in the world, and of those in `left`, newest first. `more_left` says whether there are more
    /// of the latter.
    pub(super) fn page(params: &ListParams, listed: Listed, left: Vec<(u64, RunView)>, more_left: bool) -> RunPage {
        let limit = params.page_size();
        let here: BTreeSet<RunId> = match left.is_empty() {
            true => BTreeSet::new(),
            false => listed.runs.iter().map(|run| run.shown.run()).collect(),
        };
        let mut runs = listed.runs;
        if more_left && let Some(&(last, _)) = left.last() {
            // Older runs come after the ones that were not read yet.
            runs.retain(|run| run.number > last);
        }
        // A run that left meanwhile is in both.
        let left = left.into_iter().filter(|(_, view)| !here.contains(&view.id));
        runs.extend(left.map(|(number, view)| ListedRun::new(number, view, params.detail)));
        runs.sort_by_key(|run| std::cmp::Reverse(run.number));
        let mut page = RunPage::default();
        let (mut bytes, mut count, all) = (0, 0, runs.len());
        for ListedRun { number, shown, bytes: of_one } in runs {
            bytes += of_one;
            if count >= limit || (bytes > PAGE_BYTES && count > 0) {
                break;
            }
            shown.put_on(&mut page);
            page.cursor = Some(number);
            count += 1;
        }
        if count == all && !more_left {
            // All runs down to the end of the world's page were considered.
            page.cursor = (listed.down_to > 0).then_some(listed.down_to);
        }
        page
    }

    /// The named runs, in that order, on one page: as many as fit.
    pub(super) fn named(&self, params: &ListParams, named: Vec<Named>) -> Result<RunPage, Refusal> {
        let mut page = RunPage::default();
        let first = usize::try_from(params.cursor.unwrap_or(0)).unwrap_or(usize::MAX);
        let (mut bytes, mut count) = (0, 0);
        for (index, one) in named.into_iter().enumerate().skip(first) {
            let view = match one {
                Named::Here(view) => *view,
                Named::Gone(name, operator) => self.view(self.history.find(&name, operator)?)?,
            };
            if !params.select.fits(&view) {
                continue;
            }
            let listed = ListedRun::new(index as u64, view, params.detail);
            bytes += listed.bytes;
            if (bytes > PAGE_BYTES || count >= 1_000) && count > 0 {
                page.cursor = Some(listed.number);
                break;
            }
            listed.shown.put_on(&mut page);
            count += 1;
        }
        Ok(page)
    }

    /// Why selected runs that have left cannot change; and the names of those that have come into the world meanwhile.
    pub(super) fn ended(
        &self,
        select: &Selector,
        names: &[String],
        operator: Operator,
    ) -> Result<(Vec<Unchanged>, Vec<String>), Refusal> {
        let (mut ended, mut here) = (Vec::<Unchanged>::new(), Vec::new());
        for name in names {
            let run = self.history.find(name, operator)?;
            if !self.history.has_left(run)? {
                here.push(run.to_string());
                continue;
            }
            let view = self.view(run)?;
            if select.fits(&view) && !ended.iter().any(|one| one.run == view.id) {
                // What has left the world has ended.
                let reason = UnchangedReason::of_ended(view.state).unwrap_or(UnchangedReason::BeingEnded);
                ended.push(Unchanged::new(view.id, reason));
            }
        }
        Ok((ended, here))
    }

    /// The reply to a client that waits for an archived run: the run has ended.
    pub(super) fn waited(&self, run: RunId, states: &[RunState]) -> Result<WaitReply, Refusal> {
        let run = self.view(run)?;
        let reached = is_reached(states, run.state);
        Ok(WaitReply { run, reached })
    }

    pub(super) fn output(&self, run: RunId, call: CallId) -> Result<OutputPlace, Refusal> {
        match self.world_of(run)?.is_live_call(run, call) {
            Some(_) => Ok(OutputPlace { run, call, live: false }),
            None => Err(NameRefusal::NoCall { run, call }.into()),
        }
    }

    /// The run that was made under a key, if it has left the world. A newer one may be in the world, which knows it.
    pub(super) fn by_key(&self, space: KeySpace, key: &str) -> Result<Option<Box<Finished>>, Refusal> {
        match self.history.by_key(space, key)? {
            Some(run) if self.history.has_left(run)? => self.finished(run).map(Some),
            Some(_) | None => Ok(None),
        }
    }

    /// The run that was made under a random key of its client.
    pub(super) fn by_submit_key(&self, key: SubmitKey, is_message: bool) -> Result<Option<MadeRun>, JournalRefusal> {
        match self.history.by_submit_key(key)? {
            None if is_message => self.history.told_under(key),
            made => Ok(made),
        }
    }

    /// A run by name, as the source of a new run, if it has left the world.
    pub(super) fn finished_by_name(&self, name: &str, operator: Operator) -> Result<Option<Box<Finished>>, Refusal> {
        let run = self.history.find(name, operator)?;
        if self.history.has_left(run)? { self.finished(run).map(Some) } else { Ok(None) }
    }

    fn finished(&self, run: RunId) -> Result<Box<Finished>, Refusal> {
        let parent = self.view(run)?.parent;
        let finished = self.world_of(run)?.finished(run).ok_or(JournalRefusal::Records { run })?;
        Ok(Box::new(Finished { parent, ..finished }))
    }

    /// A part of a text, if runs name it: runs of the tree below `top` where there is one.
    pub(super) fn blob(&self, params: &BlobParams, top: Option<RunId>) -> Result<Blob, Refusal> {
        let text = self.history.text(params.hash, top)?.ok_or(NameRefusal::NoText { hash: params.hash })?;
        let wanted = usize::try_from(params.offset).unwrap_or(usize::MAX).min(text.len());
        let from = text.floor_char_boundary(wanted);
        let to = text.floor_char_boundary(from.saturating_add(BLOB_PART).min(text.len()));
        Ok(Blob { offset: from as u64, text: text[from..to].to_owned(), total: text.len() as u64 })
    }

    /// A page of all events of a run.
    pub(super) fn export(&self, params: &ExportParams, run: RunId, view: Option<RunView>) -> Result<Exported, Refusal> {
        let view = match view {
            Some(view) => view,
            None => self.view(run)?,
        };
        let after = params.cursor.unwrap_or(Seq(0));
        let limit = params.limit.map_or(EXPORTED, |limit| (limit as usize).clamp(1, EXPORTED));
        let (records, end) = self.history.after(after, Some(run), limit, PAGE_BYTES)?;
        // An export goes elsewhere, where there is no store of texts.
        let records = self.history.with_texts(records)?;
        let mut page = Exported { run: view, events: Vec::new(), cursor: None, left_out: Vec::new() };
        let (mut bytes, mut all) = (0, true);
        for record in records {
            let seq = record.seq();
            let Some(event) = known(record).map(without_values) else {
                page.left_out.push(seq);
                page.cursor = Some(seq);
                continue;
            };
            let size = value_bytes(&*event);
            if size > MOST_EVENT {
                // It is larger than any answer. An older daemon wrote it.
                page.left_out.push(seq);
                page.cursor = Some(seq);
                continue;
            }
            if bytes + size > PAGE_BYTES && !page.events.is_empty() {
                all = false;
                break;
            }
            bytes += size;
            page.events.push(event);
            page.cursor = Some(seq);
        }
        if end && all {
            page.cursor = None;
        }
        leave_room(&mut page.run, REPLY_BYTES.saturating_sub(bytes));
        Ok(page)
    }
}

fn known(record: Record) -> Option<Arc<Event>> {
    match record {
        Record::Event(event) => Some(event),
        Record::Unknown(..) => None,
        Record::Unreadable(seq, run, why) => {
            tracing::warn!(%seq, ?run, why, "a record cannot be read");
            None
        }
    }
}

/// Whether `state` is one of the wanted states; any terminal one where none is named.
pub(super) fn is_reached(states: &[RunState], state: RunState) -> bool {
    if states.is_empty() { state.is_terminal() } else { states.contains(&state) }
}
