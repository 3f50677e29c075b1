//! Builds the pages of runs, of a transcript and of open questions.
//!
//! A page looks at the runs that are on it and at a few more. If runs are selected by their tree, a label, a state or a
//! wait, it looks at 50,000 runs at most, and may have fewer than were asked for.

use bevy_ecs::entity::Entity;
use harness_protocol::id::{InteractionId, RunId};
use harness_protocol::interaction::InteractionView;
use harness_protocol::json_size::text_bytes;
use harness_protocol::rpc::{InteractionListParams, Interactions as InteractionPage, ListDetail, ListParams, Shown};
use harness_protocol::time::Timestamp;

use super::super::commands::select;
use super::super::model::indexes::OpenInteraction;
use super::{Listed, ListedRun, TranscriptPage};
use crate::world::view::line::line;
use crate::world::view::reads::Reads;
use crate::world::view::run::{PlacesSeen, view, view_among};
use crate::world::view::size_limits::{REPLY_BYTES, entry_bytes, fit_entry, fit_text, leave_room};

/// Runs that a list looks at for one page.
const MOST_SCANNED: usize = 50_000;
/// Bytes of text on one page of a transcript.
pub const PAGE_BYTES: usize = 2 * 1024 * 1024;
/// Interactions in one reply.
const MOST_INTERACTIONS: usize = 1_000;

/// Runs of the world, the newest first: those of the tree below `top`, or all.
pub(super) fn list(reads: &Reads<'_, '_>, params: &ListParams, top: Option<RunId>, at: Timestamp) -> Listed {
    let limit = params.page_size();
    let runs = &reads.runs;
    let mut listed = Listed { runs: Vec::new(), down_to: 0 };
    let places = PlacesSeen::default();
    let mut bytes = 0;
    let below = params.cursor.unwrap_or(u64::MAX);
    // No run is older than the top of its tree: below that, a list of a tree depends on nothing that there is.
    let first = top.and_then(|top| reads.identity(reads.entity(top)?)).map_or(0, |identity| identity.number);
    let mut live = runs.live.range(first..below.max(first)).rev().peekable();
    let mut finished = runs.finished.range(first..below.max(first)).rev().peekable();
    for _ in 0..MOST_SCANNED {
        let newer_is_live = match (live.peek(), finished.peek()) {
            (Some((l, _)), Some((f, _))) => l > f,
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => break,
        };
        let next = if newer_is_live { live.next() } else { finished.next() };
        let Some((&number, &entity)) = next else { break };
        let is_below = top.is_none_or(|top| reads.is_in_tree(entity, top));
        let wanted = is_below && select::fits(reads, entity, &params.select);
        let shown = |entity| match params.detail {
            ListDetail::Line => line(reads, entity, &places).map(|line| ListedRun::line(number, line)),
            ListDetail::Whole => {
                let view = view_among(reads, entity, at, Some(&places))?;
                Some(ListedRun::new(number, view, ListDetail::Whole))
            }
        };
        if let Some(run) = wanted.then(|| shown(entity)).flatten() {
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

/// One run, with a page of its transcript where that is wanted.
pub(super) fn show(
    reads: &Reads<'_, '_>,
    entity: Entity,
    transcript: Option<TranscriptPage>,
    at: Timestamp,
) -> Option<Shown> {
    let run = view(reads, entity, at)?;
    let mut shown = Shown { run, transcript: Vec::new(), cursor: None, processes: Vec::new(), held: None };
    let Some(page) = transcript else { return Some(shown) };
    let entries = &reads.whole(entity)?.transcript.0;
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

/// Open questions, the oldest first.
pub(super) fn pending(reads: &Reads<'_, '_>, params: InteractionListParams) -> InteractionPage {
    let all = &reads.interactions;
    let limit = params.limit.map_or(MOST_INTERACTIONS, |limit| (limit as usize).clamp(1, MOST_INTERACTIONS));
    let mut bytes = 0;
    let mut rest = all.open_after(params.cursor.unwrap_or(0)).peekable();
    let mut page: Vec<(InteractionId, &OpenInteraction)> = Vec::new();
    while let Some(&(id, open)) = rest.peek()
        && page.len() < limit
    {
        let subject = open.subject.as_ref().map_or(0, |subject| text_bytes(subject));
        bytes += text_bytes(&open.question).min(PAGE_BYTES) + subject.min(PAGE_BYTES) + 300;
        if bytes > PAGE_BYTES && !page.is_empty() {
            break;
        }
        page.push((id, open));
        rest.next();
    }
    let cursor = rest.peek().and_then(|_| page.last()).map(|(_, open)| open.number);
    let shown = |(id, open): (InteractionId, &OpenInteraction)| {
        let run = reads.entity(open.run);
        InteractionView {
            id,
            run: open.run,
            run_name: run.and_then(|run| reads.spec(run)).and_then(|spec| spec.0.name.clone()),
            parent: run.and_then(|run| reads.identity(run)).and_then(|identity| identity.parent),
            kind: open.kind,
            question: fit_text(&open.question, PAGE_BYTES),
            subject: open.subject.as_ref().map(|subject| fit_text(subject, PAGE_BYTES)),
            since: open.since,
            expires_at: open.expires_at,
        }
    };
    let interactions = page.into_iter().map(shown).collect();
    InteractionPage { interactions, cursor, total: u32::try_from(all.open.len()).unwrap_or(u32::MAX) }
}
