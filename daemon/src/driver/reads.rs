//! Answers what is asked of the world without changing it. A caller that descends from a run sees its own tree only.

use std::collections::BTreeSet;

use harness_protocol::id::{RunId, Seq};
use harness_protocol::lane::Limiter;
use harness_protocol::rpc::{
    DaemonStatusReply, ErrorKind, Health, ListParams, OutputParams, RpcError, SubscribeParams,
};
use harness_protocol::run::{RunView, WaitKind, WaitingFor};

use super::Service;
use crate::control::request::{Follow, OutputPlace, Read, Responder};
use crate::world::Engine;
use crate::world::boundary::{Caller, Now};

/// Runs of a tree that a subscription can follow from the start.
const MOST_FOLLOWED: u32 = 100_000;

pub(super) fn forgotten(run: RunId) -> RpcError {
    RpcError::new(ErrorKind::NotFound, format!("run {run} is no longer in memory"))
}

pub(super) fn forbidden() -> RpcError {
    let message = "a tool of a run may submit children of it and look at its own tree, nothing else";
    RpcError::new(ErrorKind::Forbidden, message)
}

/// Finds a run that the caller may look at.
pub(super) fn find(engine: &Engine, name: &str, caller: Caller) -> Result<RunId, RpcError> {
    let found = engine.find(name, caller.uid)?;
    match caller.run {
        Some(own) if engine.root_of(found) != engine.root_of(own) => Err(forbidden()),
        _ => Ok(found),
    }
}

/// Answers a read.
pub(super) fn answer(engine: &Engine, service: &Service, read: Read, caller: Caller, responder: Responder, now: Now) {
    match read {
        Read::Show(params) => {
            let shown = find(engine, &params.run, caller).and_then(|run| {
                let mut shown = engine.show(&params, caller.uid, now)?;
                mark_held(service, std::slice::from_mut(&mut shown.run), now);
                shown.held.clone_from(&service.held);
                shown.processes = (service.processes)(run);
                Ok(shown)
            });
            responder.send(shown);
        }
        Read::List(params) => responder.send(list(engine, params, caller, now).map(|mut page| {
            mark_held(service, &mut page.runs, now);
            page.held.clone_from(&service.held);
            page
        })),
        Read::Status | Read::Interactions(_) | Read::Lanes if caller.run.is_some() => {
            responder.send::<()>(Err(forbidden()))
        }
        Read::Interactions(params) => responder.send(Ok(engine.interactions(params))),
        Read::Lanes => {
            let mut lanes = engine.lanes(now);
            if service.held.is_some() {
                lanes.lanes.iter_mut().for_each(|lane| lane.limiter = Limiter::Storage);
            }
            responder.send(Ok(lanes));
        }
        Read::Status => responder.send(Ok(status(engine, service))),
    }
}

/// While the journal cannot commit, that is what live runs wait for.
fn mark_held(service: &Service, runs: &mut [RunView], now: Now) {
    if service.held.is_some() {
        for run in runs.iter_mut().filter(|run| !run.state.is_terminal()) {
            let storage = || WaitingFor { kind: WaitKind::Storage, id: String::new(), since: now.wall, position: None };
            run.waiting_for.get_or_insert_with(storage);
        }
    }
}

fn list(
    engine: &Engine,
    mut params: ListParams,
    caller: Caller,
    now: Now,
) -> Result<harness_protocol::rpc::RunPage, RpcError> {
    if let Some(own) = caller.run {
        if let Some(root) = &params.root {
            find(engine, root, caller)?;
        } else {
            // A run that is forgotten has no tree to look at any more.
            params.root = Some(engine.root_of(own).ok_or_else(forbidden)?.to_string());
        }
    }
    engine.list(&params, caller.uid, now)
}

fn status(engine: &Engine, service: &Service) -> DaemonStatusReply {
    let health = match &service.held {
        Some(_) => Health::Held,
        None if engine.is_draining() => Health::Draining,
        None => Health::Serving,
    };
    DaemonStatusReply {
        schema: "harness.status/1".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: format!("{}.{}", harness_protocol::PROTOCOL_MAJOR, harness_protocol::PROTOCOL_MINOR),
        pid: std::process::id(),
        started_at: service.started_at,
        health,
        held: service.held.clone(),
        socket: service.socket.clone(),
        state_dir: service.state_dir.clone(),
        socket_activated: service.socket_activated,
        runs: engine.counts(),
        pending: engine.open_interactions(),
        executing: engine.executing(),
        last_seq: engine.last_seq(),
        connections: (service.connections)(),
        rss_bytes: crate::observe::usage::resident_bytes(),
        open_files: crate::observe::usage::open_files(),
    }
}

/// What a subscription means.
pub(super) fn follow(engine: &Engine, last: Seq, params: SubscribeParams, caller: Caller) -> Result<Follow, RpcError> {
    let after = params.after.unwrap_or(last);
    if after > last {
        let message = format!("event {after} has not happened; the last one is {last}");
        return Err(RpcError::new(ErrorKind::NoLongerApplies, message));
    }
    let (top, tree) = match (&params.run, caller.run) {
        (Some(name), _) => (Some(find(engine, name, caller)?), params.tree),
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
        let message = format!("the tree has more than {MOST_FOLLOWED} runs; follow all events, or a part of the tree");
        return Err(RpcError::new(ErrorKind::Invalid, message));
    }
    // Nothing of a run comes before the event that made it, so nothing of it can have been missed there.
    let after = top.and_then(|top| engine.made_by(top)).map_or(after, |made| after.max(Seq(made.0 - 1)));
    let kinds = params.kinds.into_iter().collect();
    Ok(Follow { after, last, runs, with_children: tree, kinds, deltas: params.deltas })
}

/// Where the output is that is asked for.
pub(super) fn output(engine: &Engine, params: &OutputParams, caller: Caller) -> Result<OutputPlace, RpcError> {
    let run = find(engine, &params.run, caller)?;
    match engine.is_live_call(run, params.call) {
        Some(live) => Ok(OutputPlace { run, call: params.call, live }),
        None => Err(RpcError::new(ErrorKind::NotFound, format!("run {run} has no call {}", params.call))),
    }
}
