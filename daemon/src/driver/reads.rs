//! Answers requests that only read the world. A caller inside a run sees its own tree only; the table of rights
//! (`control::rights`) decides which methods it may call at all.

use std::collections::BTreeSet;
use std::sync::{Arc, PoisonError};

use harness_protocol::event::Gap;
use harness_protocol::id::{RunId, Seq};
use harness_protocol::lane::Limiter;
use harness_protocol::rpc::{
    DaemonStatusReply, DiskUsage, ErrorKind, Finding, Health, ListParams, OutputParams, PruneParams, RpcError, RunPage,
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
use crate::fair::Party;
use crate::journal::epochs::{self, Epoch};
use crate::world::Engine;
use crate::world::api::{Caller, Now};
use crate::world::queries::{Listed, Named};
use crate::world::view::while_held;

/// Most runs of a tree that one subscription can follow from the start.
const MOST_FOLLOWED: u32 = 100_000;

pub(super) fn forbidden() -> RpcError {
    let message = "a tool of a run may submit children of it and look at its own tree, nothing else";
    RpcError::new(ErrorKind::Forbidden, message)
}

/// The data that a read may use: the world and the archive.
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
    /// Finds a run of the world that the caller may look at.
    pub(super) fn find(&self, name: &str) -> Result<RunId, RpcError> {
        let found = self.engine.find_for(name, self.caller)?;
        match self.caller.run {
            Some(own) if self.engine.root_of(found) != self.engine.root_of(own) => Err(forbidden()),
            // Whether it is also a prefix of another run's id was looked up before.
            Some(_) | None => Ok(found),
        }
    }

    /// Whether to look in the journal for a run that the world does not have. A caller inside a run has its tree in the
    /// world.
    fn is_elsewhere(&self, error: &RpcError) -> bool {
        error.kind() == ErrorKind::NotFound && self.caller.run.is_none()
    }

    /// Reads the archive. While the disk does not answer, that is refused: the client would wait for it.
    fn read_journal(&self, responder: Responder, work: impl FnOnce(&Archive, Responder) + Send + 'static) {
        match &self.service.held {
            Some(why) if self.service.silent => {
                let error = RpcError::new(ErrorKind::Held, format!("held: {why}; what is not in memory is not read"));
                responder.send::<()>(Err(error.retry_after(LONGEST_RETRY.into())));
            }
            _ => self.archive.off_to(self.party, move |archive| work(archive, responder)),
        }
    }

    /// Answers a read.
    pub(super) fn answer(&self, read: Read, responder: Responder) {
        let (uid, now, held) = (self.caller.uid, self.now, self.service.held.clone());
        match read {
            Read::Show(params) => match self.find(&params.run) {
                Ok(run) => self.show(run, &params, responder),
                Err(error) if self.is_elsewhere(&error) => self.read_journal(responder, move |archive, responder| {
                    responder.send(archive.show(params, uid, now).map(|shown| Shown { held, ..shown }));
                }),
                Err(error) => responder.send::<()>(Err(error)),
            },
            Read::List(params) => self.list(params, responder),
            Read::Export(params) => match self.find(&params.run) {
                Ok(run) => {
                    let view = self.engine.view(run, now);
                    self.read_journal(responder, move |archive, responder| {
                        responder.send(archive.export(&params, run, view));
                    });
                }
                Err(error) if self.is_elsewhere(&error) => self.read_journal(responder, move |archive, responder| {
                    let found = archive.history.find(&params.run, uid);
                    responder.send(found.and_then(|run| archive.export(&params, run, None)));
                }),
                Err(error) => responder.send::<()>(Err(error)),
            },
            Read::Interactions(params) => responder.send(Ok(self.engine.interactions(params))),
            Read::Lanes => {
                let mut lanes = self.engine.lanes(now);
                if held.is_some() {
                    lanes.lanes.iter_mut().for_each(|lane| lane.limiter = Limiter::Storage);
                }
                responder.send(Ok(lanes));
            }
            // A status takes another way.
            Read::Status => responder.send::<()>(Err(forbidden())),
        }
    }

    fn show(&self, run: RunId, params: &ShowParams, responder: Responder) {
        match self.engine.show(params, self.caller.uid, self.now) {
            Ok(mut shown) => {
                mark_held(self.service, std::slice::from_mut(&mut shown.run), self.now);
                shown.held.clone_from(&self.service.held);
                let processes = Arc::clone(&self.service.processes);
                self.near.run(self.party, move || {
                    shown.processes = processes(run);
                    responder.send(Ok(shown));
                });
            }
            Err(error) => responder.send::<()>(Err(error)),
        }
    }

    fn list(&self, mut params: ListParams, responder: Responder) {
        let (uid, held) = (self.caller.uid, self.service.held.clone());
        let root = match self.top_of_list(&mut params) {
            Ok(root) => root,
            Err(error) => return responder.send::<()>(Err(error)),
        };
        let insider = self.caller.run.is_some();
        if !params.select.runs.is_empty() {
            let named = self.engine.named(&params.select.runs, uid, self.now).map(|mut named| {
                for one in &mut named {
                    if let Named::Here(run) = one {
                        mark_held(self.service, std::slice::from_mut(&mut **run), self.now);
                    }
                }
                named
            });
            let within = |run: &RunView| root.is_none_or(|root| self.engine.is_in_tree(run.id, root));
            let allowed = named.and_then(|named| {
                let strange = named.iter().any(|one| match one {
                    Named::Here(run) => !within(run),
                    Named::Gone(_) => true,
                });
                if insider && strange { Err(forbidden()) } else { Ok(named) }
            });
            return match allowed {
                Ok(mut named) => {
                    named.retain(|one| !matches!(one, Named::Here(run) if !within(run)));
                    self.read_journal(responder, move |archive, responder| {
                        responder.send(archive.named(&params, named, uid).map(|page| RunPage { held, ..page }));
                    });
                }
                Err(error) => responder.send::<()>(Err(error)),
            };
        }
        match self.engine.list(&params, uid, self.now) {
            Ok(mut listed) => {
                listed.runs.iter_mut().for_each(|run| {
                    mark_held(self.service, std::slice::from_mut(&mut run.view), self.now);
                });
                if self.service.silent {
                    // Archived runs are left out, but the reply says that the daemon is held.
                    let page = Archive::page(&params, listed, Vec::new(), false);
                    return responder.send(Ok(RunPage { held, ..page }));
                }
                self.archive.off_to(self.party, move |archive| {
                    responder.send(archive.list(&params, root, listed).map(|page| RunPage { held, ..page }));
                });
            }
            // The wanted tree has left the world as a whole.
            Err(error) if self.is_elsewhere(&error) => self.read_journal(responder, move |archive, responder| {
                let name = params.root.take().unwrap_or_default();
                let nothing = Listed { runs: Vec::new(), down_to: 0 };
                let found = archive.history.find(&name, uid);
                let page = found.and_then(|root| archive.list(&params, Some(root), nothing));
                responder.send(page.map(|page| RunPage { held, ..page }));
            }),
            Err(error) => responder.send::<()>(Err(error)),
        }
    }

    /// The root of the listed tree, if it is in the world.
    fn top_of_list(&self, params: &mut ListParams) -> Result<Option<RunId>, RpcError> {
        if let (Some(own), None) = (self.caller.run, &params.root) {
            // A run that has left the world has no tree there any more.
            params.root = Some(self.engine.root_of(own).ok_or_else(forbidden)?.to_string());
        }
        match &params.root {
            Some(root) => match self.find(root) {
                Err(error) if self.is_elsewhere(&error) => Ok(None),
                found => found.map(Some),
            },
            None => Ok(None),
        }
    }

    /// Answers a wait for a run that is not in the world.
    pub(super) fn wait_in_archive(&self, error: RpcError, params: WaitParams, responder: Responder) {
        if !self.is_elsewhere(&error) {
            return responder.send::<()>(Err(error));
        }
        let uid = self.caller.uid;
        self.read_journal(responder, move |archive, responder| {
            responder.send(archive.waited(&params.run, &params.states, uid));
        });
    }

    /// Prunes: first names become ids, those of the world by the world, the others by the journal.
    pub(super) fn prune(&self, params: PruneParams, housekeeper: &Housekeeper, responder: Responder) {
        let select = &params.select;
        let names_some = !select.runs.is_empty() || select.has_filter();
        if !names_some && !select.all && params.older_than_seconds.is_none() && params.keep.is_none() {
            let message = "name the runs, or select them by label, state or age, or all";
            return responder.send::<()>(Err(RpcError::new(ErrorKind::Invalid, message)));
        }
        let found: Result<Vec<ToPrune>, RpcError> = select.runs.iter().map(|name| self.to_prune(name)).collect();
        let (uid, now, housekeeper) = (self.caller.uid, self.engine.time(self.now), housekeeper.clone());
        match found {
            Ok(found) => self.archive.off_to(self.party, move |archive| {
                let runs: Result<Vec<String>, RpcError> =
                    found.into_iter().map(|one| one.resolved(archive, uid)).collect();
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

    fn to_prune(&self, name: &str) -> Result<ToPrune, RpcError> {
        let is_live = |run| self.engine.state_of(run).is_some_and(|state| !state.is_terminal());
        match self.find(name) {
            Ok(run) if is_live(run) => {
                let message = format!("run {run} is live; cancel it first");
                Err(RpcError::new(ErrorKind::NoLongerApplies, message))
            }
            Ok(run) => {
                let view = self.engine.view(run, self.now);
                let root = view.as_ref().map_or(run, |view| view.root);
                if is_live(root) {
                    let message = format!("run {run} stays: something of its tree is live and may ask for its answer");
                    return Err(RpcError::new(ErrorKind::NoLongerApplies, message));
                }
                is_top(run, view.and_then(|view| view.parent), root)?;
                Ok(ToPrune::Here(name.to_owned(), run))
            }
            Err(error) if self.is_elsewhere(&error) => Ok(ToPrune::Gone(name.to_owned())),
            Err(error) => Err(error),
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
            waited_behind,
            journal,
        }
    }

    /// Resolves a subscription and sends it to the caller. If the caller has left, there is no subscription.
    pub(super) fn follow(&self, last: Seq, params: SubscribeParams, tell: oneshot::Sender<Result<Follow, RpcError>>) {
        let follow = self.try_follow(last, &params);
        match follow {
            Err(error) if self.is_elsewhere(&error) && params.run.is_some() => {
                let (uid, epochs) = (self.caller.uid, Arc::clone(&self.service.epochs));
                self.archive.off_to(self.party, move |archive| {
                    drop(tell.send(follow_archived(archive, last, params, uid, epochs)));
                });
            }
            follow => drop(tell.send(follow)),
        }
    }

    fn try_follow(&self, last: Seq, params: &SubscribeParams) -> Result<Follow, RpcError> {
        let epochs = Arc::clone(&self.service.epochs);
        let (after, gap) = start(last, params, &epochs)?;
        let engine = self.engine;
        if !params.runs.is_empty() {
            return self.follow_several(last, after, gap, params);
        }
        let (top, tree) = match (&params.run, self.caller.run) {
            (Some(name), _) => (Some(self.find(name)?), params.tree),
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
            return Err(too_large());
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
    ) -> Result<Follow, RpcError> {
        let engine = self.engine;
        if params.run.is_some() || params.tree {
            return Err(RpcError::new(ErrorKind::Invalid, "a subscription is of one run, or of several"));
        }
        if params.runs.len() > MOST_FOLLOWED as usize {
            return Err(too_large());
        }
        let own = self.caller.run.map(|own| engine.root_of(own).ok_or_else(forbidden)).transpose()?;
        if own.is_some_and(|own| params.runs.iter().any(|&run| engine.root_of(run) != Some(own))) {
            return Err(forbidden());
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
    pub(super) fn output(&self, params: OutputParams, tell: oneshot::Sender<Result<OutputPlace, RpcError>>) {
        let place = self.find(&params.run).and_then(|run| match self.engine.is_live_call(run, params.call) {
            Some(live) => Ok(OutputPlace { run, call: params.call, live }),
            None => {
                let message = format!("run {run} has no call {}", params.call);
                Err(RpcError::new(ErrorKind::Invalid, message))
            }
        });
        match place {
            Err(error) if self.is_elsewhere(&error) => {
                let uid = self.caller.uid;
                self.archive.off_to(self.party, move |archive| drop(tell.send(archive.output(&params, uid))));
            }
            Err(error) if error.kind() == ErrorKind::Invalid => {
                drop(tell.send(Err(RpcError::new(ErrorKind::NotFound, error.message))));
            }
            place => drop(tell.send(place)),
        }
    }
}

/// A run to prune.
enum ToPrune {
    /// It is in the world, under this name and id.
    Here(String, RunId),
    /// It is not in the world; this is its name.
    Gone(String),
}

impl ToPrune {
    /// The id of the run. The journal knows it where the world does not.
    fn resolved(self, archive: &Archive, uid: u32) -> Result<String, RpcError> {
        match self {
            Self::Here(name, run) => archive.only(&name, run, uid).map(|run| run.to_string()),
            Self::Gone(name) => {
                let run = archive.history.find(&name, uid)?;
                let view = archive.view(run)?;
                is_top(run, view.parent, view.root)?;
                Ok(run.to_string())
            }
        }
    }
}

/// Only whole trees are removed, so the run must be a root.
fn is_top(run: RunId, parent: Option<RunId>, root: RunId) -> Result<(), RpcError> {
    if parent.is_none() {
        return Ok(());
    }
    let message = format!("run {run} belongs to the tree of {root}, which goes as a whole: prune that");
    Err(RpcError::new(ErrorKind::Invalid, message))
}

/// The number after which a subscription begins, and the gap before it.
fn start(last: Seq, params: &SubscribeParams, epochs: &[Epoch]) -> Result<(Seq, Option<Gap>), RpcError> {
    let after = params.after.unwrap_or(last);
    epochs::resume(epochs, params.epoch, after, last).ok_or_else(|| {
        let message = format!("event {after} has not happened; the last one is {last}");
        RpcError::new(ErrorKind::NoLongerApplies, message)
    })
}

fn too_large() -> RpcError {
    let message = format!("the tree has more than {MOST_FOLLOWED} runs; follow all events, or a part of the tree");
    RpcError::new(ErrorKind::Invalid, message)
}

fn follow_archived(
    archive: &Archive,
    last: Seq,
    params: SubscribeParams,
    uid: u32,
    epochs: Arc<[Epoch]>,
) -> Result<Follow, RpcError> {
    let (after, gap) = start(last, &params, &epochs)?;
    let top = archive.history.find(params.run.as_deref().unwrap_or_default(), uid)?;
    let mut runs = BTreeSet::from([top]);
    if params.tree {
        runs.extend(archive.history.tree_below(top, MOST_FOLLOWED)?);
    }
    if runs.len() >= MOST_FOLLOWED as usize {
        return Err(too_large());
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
