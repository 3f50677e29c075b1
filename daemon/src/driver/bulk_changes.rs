//! Executes changes of many runs (cancel, pause, resume) in pieces of at most 200 runs, so that other clients have a
//! turn between two pieces.
//!
//! The selection is settled before the first piece: a run that is made later is not affected, except that a cancel also
//! ends the later descendants of a selected run. Each piece is a step and a commit of its own, and one piece at a time
//! is in a step, for all clients together. A crash or a stop in between leaves the committed pieces as they are and the
//! other runs unchanged; the client may safely ask again. A change of few runs does not come here: it is one command.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use harness_protocol::id::{RunId, Seq};
use harness_protocol::rpc::{Changed, Selector};
use tokio::runtime::Handle;
use tokio::sync::{Mutex, Semaphore, oneshot};

use super::archive::Archive;
use super::journal_lookups::Hold;
use crate::blocking::Blocking;
use crate::control::request::{Request, Wanted, Which, WhichFound};
use crate::fair_queue::Party;
use crate::inbox::Inbox;
use crate::refusal::{Fault, Refusal};
use crate::world::Engine;
use crate::world::api::{Caller, Change, Command, Operator, Reply};

/// Runs that one step changes.
const PIECE: usize = 200;
/// Changes of many runs at once: each lists the runs that it changes.
const AT_ONCE: usize = 8;
/// Runs in an answer that needs no place among the large ones.
const FEW: usize = 1_000;
/// Runs that one turn examines for the selection.
pub(super) const LOOKED_AT: usize = 10_000;
/// Names that one turn looks up.
const NAMES: usize = 500;
/// Runs that a reply lists; of more it gives the number.
const LISTED: usize = 200_000;
/// Unchanged runs that a reply lists.
const LISTED_UNCHANGED: usize = 20_000;

/// Cuts changes of many runs into pieces.
#[derive(Clone)]
pub(super) struct Sweeps {
    inbox: Inbox<Request>,
    archive: Archive,
    blocking: Blocking,
    runtime: Handle,
    /// One piece is in a step at a time, for all clients together.
    turn: Arc<Mutex<()>>,
    places: Arc<Semaphore>,
}

/// One change of many runs.
struct Sweep {
    change: Change,
    select: Selector,
    /// Its runs existed when this was the highest number of a run and the last event.
    until: (u64, Seq),
    operator: Operator,
    party: Party,
}

impl Sweeps {
    /// Sweeps that work on the current runtime.
    pub(super) fn new(inbox: Inbox<Request>, archive: Archive, blocking: Blocking) -> Self {
        Self {
            inbox,
            archive,
            blocking,
            runtime: Handle::current(),
            turn: Arc::default(),
            places: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }

    /// Takes a request that changes many runs; gives any other one back. The request's connection is held until the
    /// answer.
    pub(super) fn take(&self, request: Request, engine: &Engine) -> Option<Request> {
        let Some(operator) = request.caller.operator() else { return Some(request) };
        let Wanted::Command(command, _) = &request.wanted else { return Some(request) };
        let Some((change, select)) = command.change() else { return Some(request) };
        if !is_large(change, select, operator, engine) {
            return Some(request);
        }
        let until = (engine.last_number(), engine.last_seq());
        let sweep = Sweep { change, select: select.clone(), until, operator, party: request.party };
        self.inbox.hold(request.connection.0, Vec::new());
        let (sweeps, hold) = (self.clone(), Hold::new(&self.inbox, &request));
        self.runtime.spawn(async move {
            // The semaphore is never closed.
            let _place = sweeps.places.acquire().await;
            let done = sweeps.all(&sweep).await;
            if let Wanted::Command(_, mut responder) = request.wanted {
                if done.as_ref().is_ok_and(|all| all.runs.len() + all.unchanged.len() > FEW) {
                    responder.room_for_large().await;
                }
                responder.send(done);
            }
            drop(hold);
        });
        None
    }

    async fn all(&self, sweep: &Sweep) -> Result<Changed, Refusal> {
        let mut all = Changed::default();
        let selected = self.settle(sweep, &mut all).await?;
        let mut seen: BTreeSet<RunId> = selected.iter().copied().collect();
        let named: BTreeSet<RunId> = if sweep.select.runs.is_empty() { BTreeSet::new() } else { seen.clone() };
        let mut rest: VecDeque<RunId> = selected.into();
        while !rest.is_empty() {
            let piece = rest.drain(..rest.len().min(PIECE)).collect();
            let (changed, below) = match self.piece(sweep, piece).await {
                Ok(done) => done,
                Err(error) => return Err(so_far(error, &all)),
            };
            // Runs below that were made since belong to it: a tree ends as a whole.
            rest.extend(below.into_iter().filter(|run| seen.insert(*run)));
            add(&mut all, changed, &named);
        }
        Ok(all)
    }

    async fn piece(&self, sweep: &Sweep, piece: Vec<RunId>) -> Result<(Changed, Vec<RunId>), Refusal> {
        let _turn = self.turn.lock().await;
        match self.ask(sweep, |tell| Wanted::Own(Command::Each(sweep.change, piece), tell)).await?? {
            Reply::Piece(changed, below) => Ok((changed, below)),
            _ => Err(Fault::OtherReply.into()),
        }
    }

    /// The runs that are selected now, a few at a time. Named runs that have left the world have ended.
    async fn settle(&self, sweep: &Sweep, all: &mut Changed) -> Result<Vec<RunId>, Refusal> {
        let mut found = Vec::new();
        let which = Selector { runs: Vec::new(), ..sweep.select.clone() };
        for names in sweep.select.runs.chunks(NAMES) {
            let which =
                Which { select: Selector { runs: names.to_vec(), ..which.clone() }, after: 0, until: sweep.until };
            let WhichFound { mut runs, gone, .. } = self.which(sweep, which).await?;
            found.append(&mut runs);
            if !gone.is_empty() {
                let (archive, which, operator) = (self.archive.clone(), sweep.select.clone(), sweep.operator);
                let ended = self.blocking.get(sweep.party, move || archive.ended(&which, &gone, operator)).await;
                // A run that came into the world meanwhile was made later.
                let (ended, _) = ended.ok_or_else(stopping)??;
                all.unchanged.extend(ended);
                all.unchanged.truncate(LISTED_UNCHANGED);
            }
        }
        let mut next = sweep.select.runs.is_empty().then_some(0);
        while let Some(after) = next {
            let which = Which { select: which.clone(), after, until: sweep.until };
            let mut page = self.which(sweep, which).await?;
            found.append(&mut page.runs);
            next = page.next;
        }
        let mut seen = BTreeSet::new();
        found.retain(|run| seen.insert(*run));
        Ok(found)
    }

    async fn which(&self, sweep: &Sweep, which: Which) -> Result<WhichFound, Refusal> {
        self.ask(sweep, |tell| Wanted::Which(which, tell)).await?
    }

    async fn ask<T>(&self, sweep: &Sweep, wanted: impl FnOnce(oneshot::Sender<T>) -> Wanted) -> Result<T, Refusal> {
        let (tell, told) = oneshot::channel();
        self.inbox.put(Request::own(sweep.operator.uid(), wanted(tell))).await;
        told.await.map_err(|_| stopping())
    }
}

/// Answers which runs are selected, as far as one turn goes.
pub(super) fn which(engine: &Engine, which: &Which, caller: Caller) -> Result<WhichFound, Refusal> {
    let Which { select, after, until } = which;
    let mut found = WhichFound::default();
    if select.runs.is_empty() {
        (found.runs, found.next) = engine.select(select, (*after, until.0), (usize::MAX, LOOKED_AT))?;
        return Ok(found);
    }
    for name in &select.runs {
        match engine.find(name, caller) {
            // A run of that name that was made later is another one.
            Ok(run) if engine.made_by(run).is_some_and(|made| made > until.1) => found.gone.push(name.clone()),
            Ok(run) if engine.fits(run, select) => found.runs.push(run),
            Ok(_) => {}
            Err(refusal) if refusal.is_unknown_run() => found.gone.push(name.clone()),
            Err(refusal) => return Err(refusal.into()),
        }
    }
    Ok(found)
}

/// Whether a change affects more runs than one step should.
fn is_large(change: Change, select: &Selector, operator: Operator, engine: &Engine) -> bool {
    if select.runs.len() > PIECE {
        return true;
    }
    let runs = if select.runs.is_empty() {
        match engine.select(select, (0, u64::MAX), (PIECE + 1, LOOKED_AT)) {
            Ok((_, Some(_))) => return true,
            Ok((runs, None)) => runs,
            // The world gives the error.
            Err(_) => return false,
        }
    } else {
        select.runs.iter().filter_map(|name| engine.find(name, operator.into()).ok()).collect()
    };
    let mut room = PIECE;
    matches!(change, Change::Cancel { .. })
        && runs.into_iter().any(|run| {
            let below = engine.tree_below(run, u32::try_from(room + 1).unwrap_or(u32::MAX)).len();
            let fits = below < room;
            room = room.saturating_sub(below + 1);
            !fits
        })
}

/// Adds the outcome of a piece. Of runs that were not named, the unchanged ones had ended by themselves.
fn add(all: &mut Changed, piece: Changed, named: &BTreeSet<RunId>) {
    all.unchanged.extend(piece.unchanged.into_iter().filter(|one| named.contains(&one.run)));
    all.unchanged.truncate(LISTED_UNCHANGED);
    let room = LISTED.saturating_sub(all.runs.len()).min(piece.runs.len());
    all.runs.extend(&piece.runs[..room]);
    all.not_listed += (piece.runs.len() - room) as u64;
}

/// The refusal that ended the change, with the number of runs that were changed before.
fn so_far(why: Refusal, all: &Changed) -> Refusal {
    Refusal::Partly { done: all.runs.len() as u64 + all.not_listed, why: Box::new(why) }
}

const fn stopping() -> Refusal {
    Refusal::Stopping { undecided: false }
}
