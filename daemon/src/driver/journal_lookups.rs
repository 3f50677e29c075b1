//! Looks up in the journal what a request names and the world does not know for sure (a finished run, an idempotency
//! key, the beginning of an id), before the request takes effect.
//!
//! The reads are done off the driver, a bounded number at a time, by turns. Meanwhile the request's own connection is
//! held, and no other one. The driver must commit all earlier steps before it calls `begin`: then every run that has
//! left the world is in the journal. While the daemon is held it calls `begin` all the same, for reads alone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use harness_protocol::event::{Event, EventBody};
use harness_protocol::id::{IdPrefix, RunId};
use harness_protocol::rpc::{Changed, Selector};
use harness_protocol::submit_key::SubmitKey;

use super::LOOKUPS;
use super::archive::Archive;
use crate::blocking::Blocking;
use crate::control::request::{Read, Request, Wanted};
use crate::inbox::Inbox;
use crate::refusal::Refusal;
use crate::world::Engine;
use crate::world::api::{Caller, Command, KeySpace, Operator};

/// A read that a request needs first.
#[derive(Debug)]
enum Question {
    /// How the selected runs that have left the world ended.
    Ended(Selector, Vec<String>, Operator),
    /// The run that was made under this idempotency key.
    Key(KeySpace, Arc<str>),
    /// The run that was made under this random key of its client.
    Sent(SubmitKey),
    /// The run that was made, or that got a message, under this random key.
    Told(SubmitKey),
    /// This run, as the source of a new run.
    Finished(String, Operator),
    /// Whether this id prefix of a run in the world also fits another run.
    Only(String, RunId, Operator),
}

/// Look-ups that wait or are under way.
pub(super) struct Lookups {
    blocking: Blocking,
    /// Executes folds of whole runs, one at a time: each may take hundreds of megabytes.
    folds: Blocking,
    inbox: Inbox<Request>,
    archive: Archive,
    due: Vec<(Request, Question)>,
    /// Keys of pending requests that were looked up, and whether a run was made under them since.
    keys: BTreeMap<Arc<str>, Weak<AtomicBool>>,
}

impl Lookups {
    /// Look-ups on threads of the runtime of `blocking`, with a queue of their own.
    pub(super) fn new(blocking: &Blocking, inbox: Inbox<Request>, archive: Archive) -> Self {
        Self {
            blocking: blocking.beside(LOOKUPS),
            folds: blocking.beside(1),
            inbox,
            archive,
            due: Vec::new(),
            keys: BTreeMap::new(),
        }
    }

    /// Whether look-ups wait to be begun.
    pub(super) fn are_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Gives a request back if all that it names is known. Otherwise the request comes again after its look-up.
    pub(super) fn resolved(&mut self, mut request: Request, engine: &Engine) -> Option<Request> {
        match self.question(&mut request, engine) {
            Some(question) => {
                if let Question::Key(_, key) = &question {
                    request.known.key_used = Some(self.watch(key));
                }
                self.inbox.hold(request.connection.0, Vec::new());
                self.due.push((request, question));
                None
            }
            None => Some(request),
        }
    }

    /// The refusal of a request that no look-up could prevent, so nothing is read for it. A source run may be large.
    pub(super) fn refusal(request: &Request, engine: &Engine) -> Option<Refusal> {
        let (name, message) = match &request.wanted {
            // A request that may have taken effect already is not refused before that is known.
            Wanted::Command(Command::Retry { sent, .. } | Command::Message { sent, .. }, _)
                if sent.key.is_some_and(|key| !sent.first || sent.made.is_some() || engine.knows_submit(key)) =>
            {
                return None;
            }
            Wanted::Command(Command::Retry { run, left: None, .. }, _) => (run, None),
            Wanted::Command(Command::Message { run, text, left: None, .. }, _) => (run, Some(&**text)),
            _ => return None,
        };
        let is_gone = engine.find(name, request.caller).is_err_and(|refusal| refusal.is_unknown_run());
        is_gone.then(|| engine.refuses_new(message)).flatten()
    }

    fn question(&self, request: &mut Request, engine: &Engine) -> Option<Question> {
        let caller = request.caller;
        match &mut request.wanted {
            // Only a submit that is sent again may have made a run that has left the world.
            Wanted::Command(Command::Submit { sent, .. }, _) if sent.to_be_looked_up().is_some() => {
                sent.to_be_looked_up().filter(|key| !engine.knows_submit(*key)).map(Question::Sent)
            }
            Wanted::Command(Command::Retry { sent, .. } | Command::Message { sent, .. }, _)
                if caller.run.is_none()
                    && sent.key.is_some_and(|key| engine.knows_submit(key) || sent.made.is_some()) =>
            {
                // It has taken effect already, whatever has become of its source run.
                None
            }
            Wanted::Command(Command::Retry { sent, .. }, _)
                if caller.run.is_none() && sent.to_be_looked_up().is_some() =>
            {
                sent.to_be_looked_up().map(Question::Sent)
            }
            Wanted::Command(Command::Message { sent, .. }, _)
                if caller.run.is_none() && sent.to_be_looked_up().is_some() =>
            {
                sent.to_be_looked_up().map(Question::Told)
            }
            Wanted::Command(Command::Submit { idempotency_key: Some(key), known: None, .. }, _) => {
                let used = &request.known.key_used;
                let is_free = used.as_ref().is_some_and(|used| !used.load(Ordering::Acquire));
                let space = engine.key_space(caller);
                (!is_free && !engine.knows_key(space, key)).then(|| Question::Key(space, Arc::clone(key)))
            }
            // The world of a caller that descends from a run is that run's tree.
            wanted => Self::question_of_names(wanted, caller.operator()?, engine),
        }
    }

    /// What an operator's request names and the world does not know, or not for sure.
    fn question_of_names(wanted: &mut Wanted, operator: Operator, engine: &Engine) -> Option<Question> {
        let find = |name: &str| engine.find(name, Caller::from(operator));
        let is_gone = |name: &String| find(name).is_err_and(|refusal| refusal.is_unknown_run());
        match wanted {
            Wanted::Command(Command::Cancel { select, .. } | Command::Pause(select) | Command::Resume(select), _) => {
                if !select.runs.iter().any(is_gone) {
                    return None;
                }
                let (gone, here) = std::mem::take(&mut select.runs).into_iter().partition(is_gone);
                select.runs = here;
                let which = Selector { runs: Vec::new(), ..select.clone() };
                Some(Question::Ended(which, gone, operator))
            }
            Wanted::Command(Command::Retry { run, left: None, .. } | Command::Message { run, left: None, .. }, _)
                if is_gone(run) =>
            {
                Some(Question::Finished(run.clone(), operator))
            }
            // A run that asks is in the world.
            Wanted::Command(Command::Answer { .. }, _) => None,
            wanted => {
                let name = name_of(wanted)?;
                let found = find(name).ok()?;
                // Also where it is the name of that run: the id of an archived run may begin like this.
                let is_prefix = name.parse::<IdPrefix>().is_ok_and(|prefix| !prefix.is_whole());
                is_prefix.then(|| Question::Only(name.clone(), found, operator))
            }
        }
    }

    /// Notes events: a key that was found free may have been used by one of them.
    pub(super) fn note(&mut self, events: &[Arc<Event>]) {
        if self.keys.is_empty() {
            return;
        }
        for event in events {
            if let EventBody::RunSubmitted { idempotency_key: Some(key), .. } = &event.body
                && let Some(used) = self.keys.remove(key).and_then(|used| used.upgrade())
            {
                used.store(true, Ordering::Release);
            }
        }
    }

    /// Watches a key from now on: the flag says whether it was used since.
    fn watch(&mut self, key: &Arc<str>) -> Arc<AtomicBool> {
        self.keys.retain(|_, used| used.strong_count() > 0);
        if let Some(used) = self.keys.get(key).and_then(Weak::upgrade) {
            return used;
        }
        let used = Arc::new(AtomicBool::new(false));
        self.keys.insert(Arc::clone(key), Arc::downgrade(&used));
        used
    }

    /// Begins the waiting look-ups. All steps are committed.
    pub(super) fn begin(&mut self) {
        for (request, question) in self.due.drain(..) {
            let (archive, hold) = (self.archive.clone(), Hold::new(&self.inbox, &request));
            let place = if matches!(question, Question::Finished(..)) { &self.folds } else { &self.blocking };
            place.run(request.party, move || answer(request, question, &archive, hold));
        }
    }
}

/// Keeps a connection held until this is dropped.
pub(super) struct Hold {
    inbox: Inbox<Request>,
    connection: u64,
    first: Option<Request>,
}

impl Hold {
    /// Takes over a connection that the request holds already.
    pub(super) fn new(inbox: &Inbox<Request>, request: &Request) -> Self {
        Self { inbox: inbox.clone(), connection: request.connection.0, first: None }
    }

    /// Sends the request again, with the results.
    pub(super) fn release_with(mut self, request: Request) {
        self.first = Some(request);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inbox.release(self.connection, self.first.take());
    }
}

/// Answers a question: the request comes again with the answer, or the answer goes to its client.
fn answer(mut request: Request, question: Question, archive: &Archive, hold: Hold) {
    let is_told = matches!(question, Question::Told(_));
    let refused = match question {
        Question::Ended(select, gone, operator) => match archive.ended(&select, &gone, operator) {
            Ok((mut ended, mut here)) => {
                request.known.ended.append(&mut ended);
                let nothing_left = match &mut request.wanted {
                    Wanted::Command(
                        Command::Cancel { select, .. } | Command::Pause(select) | Command::Resume(select),
                        _,
                    ) => {
                        // These have come into the world since: it knows them now.
                        select.runs.append(&mut here);
                        select.runs.is_empty()
                    }
                    _ => false,
                };
                if nothing_left && let Wanted::Command(_, responder) = request.wanted {
                    return responder.send(Ok(Changed { unchanged: request.known.ended, ..Changed::default() }));
                }
                None
            }
            Err(error) => Some(error),
        },
        Question::Key(space, key) => match archive.by_key(space, &key) {
            Ok(found) => {
                if let Wanted::Command(Command::Submit { known, .. }, _) = &mut request.wanted {
                    *known = found;
                }
                None
            }
            Err(error) => Some(error),
        },
        Question::Sent(key) | Question::Told(key) => match archive.by_submit_key(key, is_told) {
            Ok(found) => {
                if let Wanted::Command(
                    Command::Submit { sent, .. } | Command::Retry { sent, .. } | Command::Message { sent, .. },
                    _,
                ) = &mut request.wanted
                {
                    // The search was made, though a first submit does not need it.
                    (sent.made, sent.first) = (found, true);
                }
                None
            }
            Err(refusal) => Some(refusal.into()),
        },
        Question::Finished(name, operator) => match archive.finished_by_name(&name, operator) {
            Ok(found) => {
                if let Wanted::Command(Command::Retry { left, .. } | Command::Message { left, .. }, _) =
                    &mut request.wanted
                {
                    // `None` if it is in the world by now.
                    *left = found;
                }
                None
            }
            Err(error) => Some(error),
        },
        Question::Only(name, found, operator) => match archive.only(&name, found, operator) {
            Ok(found) => {
                if let Some(name) = name_of(&mut request.wanted) {
                    *name = found.to_string();
                }
                None
            }
            Err(error) => Some(error),
        },
    };
    match refused {
        Some(error) => request.wanted.refuse(error),
        None => hold.release_with(request),
    }
}

/// The run that a request names, if it names exactly one.
fn name_of(wanted: &mut Wanted) -> Option<&mut String> {
    match wanted {
        Wanted::Command(Command::Retry { run, .. } | Command::Message { run, .. }, _) => Some(run),
        Wanted::Read(Read::Show(params), _) => Some(&mut params.run),
        Wanted::Read(Read::Export(params), _) => Some(&mut params.run),
        Wanted::Read(Read::List(params), _) => params.root.as_mut(),
        Wanted::Wait(params, _) => Some(&mut params.run),
        Wanted::Subscribe(params, _) => params.run.as_mut(),
        Wanted::Output(params, _) => Some(&mut params.run),
        _ => None,
    }
}
