//! Looks up in the journal what a request names and the world alone does not know, before the request takes effect.
//!
//! Owns which requests need that. The reads are done off the driver, a bounded number at a time, by turns; meanwhile
//! only the request's own connection waits. A look-up begins when all earlier steps are committed: then every run that
//! has left the world is in the journal.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use harness_protocol::event::{Event, EventBody};
use harness_protocol::id::{IdPrefix, RunId};
use harness_protocol::rpc::{Changed, ErrorKind, RpcError, Selector};
use harness_protocol::submit_key::SubmitKey;

use super::LOOKUPS;
use super::archive::Archive;
use crate::blocking::Blocking;
use crate::control::request::{Read, Request, Wanted};
use crate::inbox::Inbox;
use crate::world::Engine;
use crate::world::api::{Command, KeySpace, may_be_an_id};

/// What has to be read before a request can be dealt with.
#[derive(Debug)]
enum Question {
    /// How these runs ended, of those that are selected: they have left the world.
    Ended(Selector, Vec<String>),
    /// Which run was made under this key.
    Key(KeySpace, Arc<str>),
    /// Which run was made under this key of its client's.
    Sent(SubmitKey),
    /// The same, or which one was told something under it.
    Told(SubmitKey),
    /// This run, as far as another one can come from it.
    Finished(String),
    /// Whether this prefix of the id of a run of the world, or name of a child, is one of another run's, too.
    Only(String, RunId),
}

/// Look-ups that are due or under way.
pub(super) struct Lookups {
    blocking: Blocking,
    /// Where runs are read as a whole, which may take hundreds of megabytes: one at a time.
    folds: Blocking,
    inbox: Inbox<Request>,
    archive: Archive,
    due: Vec<(Request, Question)>,
    /// Keys that were looked up for requests that are not done, and whether a run was made under them since.
    keys: BTreeMap<Arc<str>, Weak<AtomicBool>>,
}

impl Lookups {
    /// On threads of the runtime of `blocking`, but not behind what waits there.
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

    /// Whether some are to be begun.
    pub(super) fn are_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Gives a request back that can be dealt with, all that it names known. One that cannot comes again by itself.
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

    /// Why a request is refused whatever would be found: nothing is read for it. A run that is gone on from may be
    /// large.
    pub(super) fn refusal(request: &Request, engine: &Engine) -> Option<RpcError> {
        let (name, message) = match &request.wanted {
            // What may have been done already is not refused before that is known.
            Wanted::Command(Command::Retry { sent, .. } | Command::Message { sent, .. }, _)
                if sent.key.is_some_and(|key| !sent.first || sent.made.is_some() || engine.knows_submit(key)) =>
            {
                return None;
            }
            Wanted::Command(Command::Retry { run, left: None, .. }, _) => (run, None),
            Wanted::Command(Command::Message { run, text, left: None, .. }, _) => (run, Some(&**text)),
            _ => return None,
        };
        let is_gone = engine.find(name, request.caller.uid).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        is_gone.then(|| engine.refuses_new(message)).flatten()
    }

    fn question(&self, request: &mut Request, engine: &Engine) -> Option<Question> {
        let caller = request.caller;
        let find = |name: &str| engine.find(name, caller.uid);
        let is_gone = |name: &String| find(name).is_err_and(|error| error.kind() == ErrorKind::NotFound);
        let is_child = |name: &str| engine.is_child_by_name(name, caller.uid);
        match &mut request.wanted {
            // Only one that is sent again may be that of a run that has left the world.
            Wanted::Command(Command::Submit { sent, .. }, _) if sent.to_be_looked_up().is_some() => {
                sent.to_be_looked_up().filter(|key| !engine.knows_submit(*key)).map(Question::Sent)
            }
            Wanted::Command(Command::Retry { sent, .. } | Command::Message { sent, .. }, _)
                if caller.run.is_none()
                    && sent.key.is_some_and(|key| engine.knows_submit(key) || sent.made.is_some()) =>
            {
                // It was done already, whatever has become of the run that it names.
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
            _ if caller.run.is_some() => None,
            Wanted::Command(Command::Cancel { select, .. } | Command::Pause(select) | Command::Resume(select), _) => {
                let is_asked = |name: &String| is_gone(name) || is_child(name);
                if !select.runs.iter().any(is_asked) {
                    return None;
                }
                let (gone, here) = std::mem::take(&mut select.runs).into_iter().partition(is_asked);
                select.runs = here;
                let which = Selector { runs: Vec::new(), ..select.clone() };
                Some(Question::Ended(which, gone))
            }
            Wanted::Command(Command::Retry { run, left: None, .. } | Command::Message { run, left: None, .. }, _)
                if is_gone(run) =>
            {
                Some(Question::Finished(run.clone()))
            }
            Wanted::Command(Command::Answer { interaction: name, .. }, _) => {
                let is_asked = !may_be_an_id(name) && is_child(name);
                is_asked.then(|| find(name).ok()).flatten().map(|found| Question::Only(name.clone(), found))
            }
            wanted => {
                let name = name_of(wanted)?;
                let found = find(name).ok()?;
                // Also where it is the name of that run: of those that have left, one may have an id that begins like
                // this.
                let is_prefix = name.parse::<IdPrefix>().is_ok_and(|prefix| !prefix.is_whole());
                (is_prefix || is_child(name)).then(|| Question::Only(name.clone(), found))
            }
        }
    }

    /// These events happened: a key that was found free may have been used by one of them.
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

    /// A key is looked up from now on: what tells whether it was used since.
    fn watch(&mut self, key: &Arc<str>) -> Arc<AtomicBool> {
        self.keys.retain(|_, used| used.strong_count() > 0);
        if let Some(used) = self.keys.get(key).and_then(Weak::upgrade) {
            return used;
        }
        let used = Arc::new(AtomicBool::new(false));
        self.keys.insert(Arc::clone(key), Arc::downgrade(&used));
        used
    }

    /// Begins what is due. All that was stepped is committed.
    pub(super) fn begin(&mut self) {
        for (request, question) in self.due.drain(..) {
            let (archive, hold) = (self.archive.clone(), Hold::new(&self.inbox, &request));
            let place = if matches!(question, Question::Finished(_)) { &self.folds } else { &self.blocking };
            place.run(request.party, move || answer(request, question, &archive, hold));
        }
    }
}

/// A connection that is held until this is dropped.
pub(super) struct Hold {
    inbox: Inbox<Request>,
    connection: u64,
    first: Option<Request>,
}

impl Hold {
    /// The connection of a request is held already.
    pub(super) fn new(inbox: &Inbox<Request>, request: &Request) -> Self {
        Self { inbox: inbox.clone(), connection: request.connection.0, first: None }
    }

    /// The request comes again, with what is known of it now.
    pub(super) fn release_with(mut self, request: Request) {
        self.first = Some(request);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.inbox.release(self.connection, self.first.take());
    }
}

/// Answers a question: the request comes again with the answer, or is answered by it.
fn answer(mut request: Request, question: Question, archive: &Archive, hold: Hold) {
    let uid = request.caller.uid;
    let is_told = matches!(question, Question::Told(_));
    let refused = match question {
        Question::Ended(select, gone) => match archive.ended(&select, &gone, uid) {
            Ok((mut ended, mut here)) => {
                request.known.ended.append(&mut ended);
                let nothing_left = match &mut request.wanted {
                    Wanted::Command(
                        Command::Cancel { select, .. } | Command::Pause(select) | Command::Resume(select),
                        _,
                    ) => {
                        // Those have come into the world since: it knows them now.
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
                    // It was looked for, as it need not be for one that is sent for the first time.
                    (sent.made, sent.first) = (found, true);
                }
                None
            }
            Err(error) => Some(error),
        },
        Question::Finished(name) => match archive.finished_by_name(&name, uid) {
            Ok(found) => {
                if let Wanted::Command(Command::Retry { left, .. } | Command::Message { left, .. }, _) =
                    &mut request.wanted
                {
                    // Nothing where it is in the world by now.
                    *left = found;
                }
                None
            }
            Err(error) => Some(error),
        },
        Question::Only(name, found) => match archive.only(&name, found, uid) {
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

/// The one run that a request names.
fn name_of(wanted: &mut Wanted) -> Option<&mut String> {
    match wanted {
        Wanted::Command(Command::Retry { run, .. } | Command::Message { run, .. }, _) => Some(run),
        Wanted::Command(Command::Answer { interaction, .. }, _) => Some(interaction),
        Wanted::Read(Read::Show(params), _) => Some(&mut params.run),
        Wanted::Read(Read::Export(params), _) => Some(&mut params.run),
        Wanted::Read(Read::List(params), _) => params.root.as_mut(),
        Wanted::Wait(params, _) => Some(&mut params.run),
        Wanted::Subscribe(params, _) => params.run.as_mut(),
        Wanted::Output(params, _) => Some(&mut params.run),
        _ => None,
    }
}
