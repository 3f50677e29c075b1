//! Answers requests that only read the world. A caller inside a run sees its own tree only. Which methods a caller may
//! use at all is decided before, by the table of rights (`control::rights`).

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use harness_protocol::event::Gap;
use harness_protocol::id::{RunId, Seq};
use harness_protocol::lane::Limiter;
use harness_protocol::rpc::{
    DaemonStatusReply, DiskUsage, Finding, Health, ListDetail, ListParams, OutputParams, PruneParams, RunPage,
    Selector, ShowParams, Shown, SubscribeParams, WaitParams,
};
use harness_protocol::run::{CallState, RunView, WaitKind, WaitingFor};

use tokio::sync::oneshot;

use super::Service;
use super::archive::Archive;
use super::commit::LONGEST_RETRY;
use super::housekeeping::Housekeeper;
use crate::blocking::Blocking;
use crate::control::request::{Follow, OutputPlace, Read, Responder};
use crate::fair_queue::Party;
use crate::journal::epochs::{self, Epoch};
use crate::refusal::{Fault, HeldRequest, JournalRefusal, NameRefusal, Refusal, RunRefusal, SubscriptionRefusal};
use crate::world::Engine;
use crate::world::api::{Caller, Now, Operator};
use crate::world::queries::{Listed, ListedAs, ListedRun, Named, TranscriptPage};
use crate::world::view::while_held;

/// Most runs of a tree that one subscription can follow from the start.
const MOST_FOLLOWED: u32 = 100_000;

pub(super) const fn forbidden() -> Refusal {
    Refusal::OwnTreeOnly { run: None }
}

/// Where a run is that was named.
#[derive(Debug)]
pub(super) enum Place {
    /// In the world; it has this id.
    Here(RunId),
    /// Not there. The journal may know what this operator means.
    Elsewhere(Operator),
}

/// The tree that a list is of.
enum Tree {
    /// All of them.
    Any,
    /// The one below this run of the world.
    Below(RunId),
    /// The one below the run that the journal may know by this name.
    Elsewhere(String, Operator),
}

impl Tree {
    fn top(&self) -> Option<RunId> {
        match self {
            Self::Below(top) => Some(*top),
            Self::Any | Self::Elsewhere(..) => None,
        }
    }
}

/// What one read sees: the world, and what has left it.
pub(super) struct View<'v> {
    pub(super) engine: &'v Engine,
    pub(super) service: &'v Service,
    pub(super) archive: &'v Archive,
    /// Executes reads of `/proc`: not behind a disk that does not answer.
    pub(super) near: &'v Blocking,
    pub(super) caller: Caller,
    pub(super) party: Party,
    pub(super) now: Now,
}

impl View<'_> {
    /// Whether to look in the journal for a run that the world does not have. A caller inside a run has its tree in the
    /// world.
    pub(super) fn place(&self, name: &str) -> Result<Place, Refusal> {
        // Whether a prefix of this run's id is also one of another run's id was looked up before.
        match (self.engine.find(name, self.caller), self.caller.operator()) {
            (Err(error), Some(operator)) if error.is_unknown_run() => Ok(Place::Elsewhere(operator)),
            (found, _) => Ok(found.map(Place::Here)?),
        }
    }

    /// Reads the archive. While the disk does not answer, that is refused: the client would wait for it.
    fn read_journal(&self, responder: Responder, work: impl FnOnce(&Archive, Responder) + Send + 'static) {
        match &self.service.held {
            Some(why) if self.service.silent => {
                let (why, request) = (Some(why.clone()), HeldRequest::NotRead);
                responder.send::<()>(Err(JournalRefusal::Held { why, retry: LONGEST_RETRY.into(), request }.into()));
            }
            _ => self.archive.off_to(self.party, move |archive| work(archive, responder)),
        }
    }

    /// Answers a read.
    pub(super) fn answer(&self, read: Read, responder: Responder) {
        let (now, held) = (self.now, self.service.held.clone());
        match read {
            Read::Show(params) => match self.place(&params.run) {
                Ok(Place::Here(run)) => self.show(run, &params, responder),
                Ok(Place::Elsewhere(operator)) => self.read_journal(responder, move |archive, responder| {
                    let found = archive.history.find(&params.run, operator);
                    let shown = found.and_then(|run| archive.show(run, TranscriptPage::of(&params), now));
                    responder.send(shown.map(|shown| Shown { held, ..shown }));
                }),
                Err(error) => responder.send::<()>(Err(error)),
            },
            Read::List(params) => self.list(params, responder),
            Read::Export(params) => match self.place(&params.run) {
                Ok(Place::Here(run)) => {
                    let view = self.engine.view(run, now);
                    self.read_journal(responder, move |archive, responder| {
                        responder.send(archive.export(&params, run, view));
                    });
                }
                Ok(Place::Elsewhere(operator)) => self.read_journal(responder, move |archive, responder| {
                    let found = archive.history.find(&params.run, operator);
                    responder.send(found.and_then(|run| archive.export(&params, run, None)));
                }),
                Err(error) => responder.send::<()>(Err(error)),
            },
            Read::Blob(params) => {
                // A run that has left has no tree to look at any more.
                let top = self.caller.run.map(|own| self.engine.root_of(own).ok_or_else(forbidden)).transpose();
                match top {
                    Ok(top) => self.read_journal(responder, move |archive, responder| {
                        responder.send(archive.blob(&params, top));
                    }),
                    Err(error) => responder.send::<()>(Err(error)),
                }
            }
            Read::Interactions(params) => responder.send(Ok(self.engine.interactions(params))),
            Read::Lanes => {
                let mut lanes = self.engine.lanes(now);
                if held.is_some() {
                    lanes.lanes.iter_mut().for_each(|lane| lane.limiter = Limiter::Storage);
                }
                responder.send(Ok(lanes));
            }
            // A status takes another way.
            Read::Status => responder.send::<()>(Err(Fault::OtherRequest.into())),
        }
    }

    fn show(&self, run: RunId, params: &ShowParams, responder: Responder) {
        match self.engine.show(run, TranscriptPage::of(params), self.now) {
            Some(mut shown) => {
                mark_held(self.service, std::slice::from_mut(&mut shown.run), self.now);
                shown.held.clone_from(&self.service.held);
                let processes = Arc::clone(&self.service.processes);
                self.near.run(self.party, move || {
                    shown.processes = processes(run);
                    responder.send(Ok(shown));
                });
            }
            None => responder.send::<()>(Err(RunRefusal::NotHere { run }.into())),
        }
    }

    fn list(&self, params: ListParams, responder: Responder) {
        let held = self.service.held.clone();
        let tree = match self.tree_of_list(&params) {
            Ok(tree) => tree,
            Err(error) => return responder.send::<()>(Err(error)),
        };
        if !params.select.runs.is_empty() {
            return match self.named(&params.select.runs, tree.top()) {
                Ok(named) => self.read_journal(responder, move |archive, responder| {
                    responder.send(archive.named(&params, named).map(|page| RunPage { held, ..page }));
                }),
                Err(error) => responder.send::<()>(Err(error)),
            };
        }
        let root = match tree {
            // Archived runs are left out, but the reply says that the daemon is held.
            Tree::Elsewhere(name, operator) => {
                return self.read_journal(responder, move |archive, responder| {
                    let nothing = Listed { runs: Vec::new(), down_to: 0 };
                    let found = archive.history.find(&name, operator);
                    let page = found.and_then(|root| archive.list(&params, Some(root), nothing));
                    responder.send(page.map(|page| RunPage { held, ..page }));
                });
            }
            Tree::Below(top) => Some(top),
            Tree::Any => None,
        };
        let listed = self.list_world(&params, root);
        if self.service.silent {
            // The wanted tree has left the world as a whole.
            let page = Archive::page(&params, listed, Vec::new(), false);
            return responder.send(Ok(RunPage { held, ..page }));
        }
        self.archive.off_to(self.party, move |archive| {
            responder.send(archive.list(&params, root, listed).map(|page| RunPage { held, ..page }));
        });
    }

    /// The runs of the world on a page, with what they wait for now.
    fn list_world(&self, params: &ListParams, root: Option<RunId>) -> Listed {
        if self.service.held.is_none() {
            return self.engine.list(params, root, self.now);
        }
        // Whether a run waits for the journal depends on its calls, which a line does not have.
        let whole = ListParams { detail: ListDetail::Whole, ..params.clone() };
        let mut listed = self.engine.list(&whole, root, self.now);
        for run in &mut listed.runs {
            if let ListedAs::Whole(view) = &mut run.shown {
                wait_for_storage(view, self.now);
            }
        }
        if params.detail == ListDetail::Line {
            listed.runs = listed.runs.into_iter().map(ListedRun::into_line).collect();
        }
        listed
    }

    /// The runs that the caller names, in that order; of those of the world the ones of the tree below `top` alone.
    fn named(&self, names: &[String], top: Option<RunId>) -> Result<Vec<Named>, Refusal> {
        let mut named = Vec::new();
        for name in names {
            match self.place(name)? {
                Place::Here(run) if top.is_none_or(|top| self.engine.is_in_tree(run, top)) => {
                    let mut view = self.engine.listed(run, self.now).ok_or(RunRefusal::NotHere { run })?;
                    mark_held(self.service, std::slice::from_mut(&mut view), self.now);
                    named.push(Named::Here(Box::new(view)));
                }
                Place::Here(_) => {}
                Place::Elsewhere(operator) => named.push(Named::Gone(name.clone(), operator)),
            }
        }
        Ok(named)
    }

    /// The tree of which runs are listed.
    fn tree_of_list(&self, params: &ListParams) -> Result<Tree, Refusal> {
        match (&params.root, self.caller.run) {
            (Some(root), _) => self.place(root).map(|place| match place {
                Place::Here(top) => Tree::Below(top),
                Place::Elsewhere(operator) => Tree::Elsewhere(root.clone(), operator),
            }),
            // A run that has left has no tree to look at any more.
            (None, Some(own)) => self.engine.root_of(own).map(Tree::Below).ok_or_else(forbidden),
            (None, None) => Ok(Tree::Any),
        }
    }

    /// Answers a wait for a run that is not in the world.
    pub(super) fn wait_in_archive(&self, operator: Operator, params: WaitParams, responder: Responder) {
        self.read_journal(responder, move |archive, responder| {
            let found = archive.history.find(&params.run, operator);
            responder.send(found.and_then(|run| archive.waited(run, &params.states)));
        });
    }

    /// Prunes: first names become ids, those of the world by the world, the others by the journal.
    pub(super) fn prune(&self, params: PruneParams, housekeeper: &Housekeeper, responder: Responder) {
        let select = &params.select;
        let names_some = !select.runs.is_empty() || select.has_filter();
        if !names_some && !select.all && params.older_than_seconds.is_none() && params.keep.is_none() {
            return responder.send::<()>(Err(NameRefusal::NothingToPrune.into()));
        }
        let found: Result<Vec<ToPrune>, Refusal> = select.runs.iter().map(|name| self.to_prune(name)).collect();
        let (now, housekeeper) = (self.engine.time(self.now), housekeeper.clone());
        match found {
            Ok(found) => self.archive.off_to(self.party, move |archive| {
                let runs: Result<Vec<String>, Refusal> = found.into_iter().map(|one| one.resolved(archive)).collect();
                match runs {
                    Ok(runs) => {
                        let select = Selector { runs, ..params.select };
                        housekeeper.prune(PruneParams { select, ..params }, now, responder);
                    }
                    Err(error) => responder.send::<()>(Err(error)),
                }
            }),
            Err(error) => responder.send::<()>(Err(error)),
        }
    }

    fn to_prune(&self, name: &str) -> Result<ToPrune, Refusal> {
        let operator = self.caller.operator().ok_or_else(forbidden)?;
        let is_live = |run| self.engine.state_of(run).is_some_and(|state| !state.is_terminal());
        match self.place(name)? {
            Place::Here(run) if is_live(run) => Err(RunRefusal::Live { run }.into()),
            Place::Here(run) => {
                let view = self.engine.view(run, self.now);
                let root = view.as_ref().map_or(run, |view| view.root);
                if is_live(root) {
                    return Err(RunRefusal::TreeLive { run }.into());
                }
                is_top(run, view.and_then(|view| view.parent), root)?;
                Ok(ToPrune::Here(name.to_owned(), run, operator))
            }
            Place::Elsewhere(operator) => Ok(ToPrune::Gone(name.to_owned(), operator)),
        }
    }

    /// The part of a status that the world knows. `waited_behind` is that of the asking connection.
    pub(super) fn status(&self, waited_behind: u64) -> DaemonStatusReply {
        let (engine, service) = (self.engine, self.service);
        let health = match &service.held {
            Some(_) => Health::Held,
            None if engine.is_draining() => Health::Draining,
            None => Health::Serving,
        };
        let mut journal = service.journal.lock().unwrap_or_else(PoisonError::into_inner).clone();
        journal.findings.extend(engine.ahead(self.now).map(|seconds| Finding::ClockAhead { seconds }));
        DaemonStatusReply {
            schema: "harness.status/1".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: format!("{}.{}", harness_protocol::PROTOCOL_MAJOR, harness_protocol::PROTOCOL_MINOR),
            pid: std::process::id(),
            started_at: service.started_at,
            health,
            held: service.held.clone(),
            stuck: service.stuck,
            socket: service.socket.clone(),
            state_dir: service.state_dir.clone(),
            socket_activated: service.socket_activated,
            runs: engine.counts(),
            pending: engine.open_interactions(),
            executing: engine.executing(),
            last_seq: engine.last_seq(),
            connections: (service.connections)(),
            rss_bytes: None,
            open_files: None,
            disk: DiskUsage::default(),
            left_processes: Vec::new(),
            waited_behind,
            journal,
            config: service.config.clone(),
        }
    }

    /// Resolves a subscription and sends it to the caller. If the caller has left, there is no subscription.
    pub(super) fn follow(&self, last: Seq, params: SubscribeParams, tell: oneshot::Sender<Result<Follow, Refusal>>) {
        let named = params.run.as_deref().map(|name| self.place(name)).transpose();
        let follow = match named {
            Ok(Some(Place::Elsewhere(operator))) => {
                let epochs = Arc::clone(&self.service.epochs);
                return self.archive.off_to(self.party, move |archive| {
                    drop(tell.send(follow_archived(archive, last, params, operator, epochs)));
                });
            }
            Ok(Some(Place::Here(run))) => self.try_follow(last, &params, Some(run)),
            Ok(None) => self.try_follow(last, &params, None),
            Err(error) => Err(error),
        };
        drop(tell.send(follow));
    }

    fn try_follow(&self, last: Seq, params: &SubscribeParams, run: Option<RunId>) -> Result<Follow, Refusal> {
        let epochs = Arc::clone(&self.service.epochs);
        let (after, gap) = start(last, params, &epochs)?;
        let engine = self.engine;
        if !params.runs.is_empty() {
            return self.follow_several(last, after, gap, params);
        }
        let (top, tree) = match (run, self.caller.run) {
            (Some(run), _) => (Some(run), params.tree),
            (None, Some(own)) => (Some(engine.root_of(own).ok_or_else(forbidden)?), true),
            (None, None) => (None, false),
        };
        let runs = top.map(|top| {
            let mut runs = BTreeSet::from([top]);
            if tree {
                runs.extend(engine.tree_below(top, MOST_FOLLOWED));
            }
            runs
        });
        if runs.as_ref().is_some_and(|runs| runs.len() >= MOST_FOLLOWED as usize) {
            return Err(too_large().into());
        }
        // No event of a run comes before the one that made it, so none can have been missed there.
        let after = top.and_then(|top| engine.made_by(top)).map_or(after, |made| after.max(Seq(made.0 - 1)));
        let kinds = params.kinds.iter().cloned().collect();
        Ok(Follow { after, last, runs, with_children: tree, kinds, deltas: params.deltas, gap, epochs })
    }

    /// Resolves a subscription to several runs. Runs that are not in the world are not looked up: their events are in
    /// the journal.
    fn follow_several(
        &self,
        last: Seq,
        after: Seq,
        gap: Option<Gap>,
        params: &SubscribeParams,
    ) -> Result<Follow, Refusal> {
        let engine = self.engine;
        if params.run.is_some() || params.tree {
            return Err(SubscriptionRefusal::OneOrSeveral.into());
        }
        if params.runs.len() > MOST_FOLLOWED as usize {
            return Err(too_large().into());
        }
        let own = self.caller.run.map(|own| engine.root_of(own).ok_or_else(forbidden)).transpose()?;
        let is_foreign = |run: &&RunId| own.is_some() && engine.root_of(**run) != own;
        if let Some(run) = params.runs.iter().find(is_foreign) {
            return Err(NameRefusal::NoRunInTree { name: run.to_string() }.into());
        }
        // No event of these runs comes before the first of those that made them.
        let made: Option<Vec<Seq>> = params.runs.iter().map(|&run| engine.made_by(run)).collect();
        let first = made.and_then(|made| made.into_iter().min());
        let after = first.map_or(after, |made| after.max(Seq(made.0 - 1)));
        let (runs, kinds) = (params.runs.iter().copied().collect(), params.kinds.iter().cloned().collect());
        let (deltas, epochs) = (params.deltas, Arc::clone(&self.service.epochs));
        Ok(Follow { after, last, runs: Some(runs), with_children: false, kinds, deltas, gap, epochs })
    }

    /// Tells the caller where the output of a call is. The caller may be gone.
    pub(super) fn output(&self, params: OutputParams, tell: oneshot::Sender<Result<OutputPlace, Refusal>>) {
        let OutputParams { run: name, call, .. } = params;
        let place = match self.place(&name) {
            Ok(Place::Elsewhere(operator)) => {
                return self.archive.off_to(self.party, move |archive| {
                    let found = archive.history.find(&name, operator);
                    drop(tell.send(found.and_then(|run| archive.output(run, call))));
                });
            }
            Ok(Place::Here(run)) => match self.engine.is_live_call(run, call) {
                Some(live) => Ok(OutputPlace { run, call, live }),
                None => Err(NameRefusal::NoCall { run, call }.into()),
            },
            Err(error) => Err(error),
        };
        drop(tell.send(place));
    }
}

/// A run to prune.
enum ToPrune {
    /// It is in the world, under this name and id.
    Here(String, RunId, Operator),
    /// It is not in the world; this is its name.
    Gone(String, Operator),
}

impl ToPrune {
    /// The id of the run. The journal knows it where the world does not.
    fn resolved(self, archive: &Archive) -> Result<String, Refusal> {
        match self {
            Self::Here(name, run, operator) => archive.only(&name, run, operator).map(|run| run.to_string()),
            Self::Gone(name, operator) => {
                let run = archive.history.find(&name, operator)?;
                let view = archive.view(run)?;
                is_top(run, view.parent, view.root)?;
                Ok(run.to_string())
            }
        }
    }
}

/// Only whole trees are removed, so the run must be a root.
fn is_top(run: RunId, parent: Option<RunId>, root: RunId) -> Result<(), RunRefusal> {
    if parent.is_none() { Ok(()) } else { Err(RunRefusal::PartOfTree { run, root }) }
}

/// The number after which a subscription begins, and the gap before it.
fn start(last: Seq, params: &SubscribeParams, epochs: &[Epoch]) -> Result<(Seq, Option<Gap>), SubscriptionRefusal> {
    let after = params.after.unwrap_or(last);
    epochs::resume(epochs, params.epoch, after, last).ok_or(SubscriptionRefusal::NotHappened { after, last })
}

const fn too_large() -> SubscriptionRefusal {
    SubscriptionRefusal::TreeTooLarge { most: MOST_FOLLOWED }
}

fn follow_archived(
    archive: &Archive,
    last: Seq,
    params: SubscribeParams,
    operator: Operator,
    epochs: Arc<[Epoch]>,
) -> Result<Follow, Refusal> {
    let (after, gap) = start(last, &params, &epochs)?;
    let top = archive.history.find(params.run.as_deref().unwrap_or_default(), operator)?;
    let mut runs = BTreeSet::from([top]);
    if params.tree {
        runs.extend(archive.history.tree_below(top, MOST_FOLLOWED)?);
    }
    if runs.len() >= MOST_FOLLOWED as usize {
        return Err(too_large().into());
    }
    let after = archive.history.made_by(top)?.map_or(after, |made| after.max(Seq(made.0 - 1)));
    let kinds = params.kinds.into_iter().collect();
    Ok(Follow { after, last, runs: Some(runs), with_children: params.tree, kinds, deltas: params.deltas, gap, epochs })
}

/// While the journal cannot commit, live runs wait for it.
fn mark_held(service: &Service, runs: &mut [RunView], now: Now) {
    if service.held.is_some() {
        runs.iter_mut().for_each(|run| wait_for_storage(run, now));
    }
}

/// Marks a live run as waiting for the journal, unless it waits for a person or another run.
pub(super) fn wait_for_storage(run: &mut RunView, now: Now) {
    let executes = run.calls.iter().any(|call| call.state == CallState::Executing);
    let kind = run.waiting_for.as_ref().map(|wait| wait.kind);
    if while_held(kind, run.state.is_terminal(), executes) == Some(WaitKind::Storage) {
        let since = run.waiting_for.as_ref().map_or(now.wall, |wait| wait.since);
        run.waiting_for = Some(WaitingFor::new(WaitKind::Storage, "", since));
    }
}
