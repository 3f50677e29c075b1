//! The start: opens the journal and makes the world from it.
//!
//! Owns the order. Nothing is served before the world is what it was; a journal that cannot be used is told of and left alone.

use std::collections::BTreeMap;
use std::path::Path;

use harness_protocol::event::{Ending, EventBody};
use harness_protocol::id::RunId;
use rusqlite::Connection;
use tracing::{error, info, warn};

use crate::config::Config;
use crate::driver::Clock;
use crate::journal::history::History;
use crate::journal::replay::{Replay, past};
use crate::journal::schema::{self, Fresh, OpenError};
use crate::journal::{self, FILE, Record, Store, lost};
use crate::tools;
use crate::world::Engine;
use crate::world::boundary::Damage;

/// What a daemon goes on with.
pub struct Restored {
    /// The world, as it was.
    pub engine: Engine,
    /// Where it goes on.
    pub store: Store,
    /// What there was before.
    pub history: History,
    /// What cannot be read.
    pub damage: Damage,
}

/// Why a start has no world.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] OpenError),
    /// The journal has no thread to be written by.
    #[error("cannot start the thread that writes the journal: {0}")]
    Writer(std::io::Error),
}

/// Makes the world from the journal of a state directory. There is a new journal where there was none.
///
/// # Errors
/// Where the journal cannot be used.
pub fn restore(state_dir: &Path, config: &Config) -> Result<Restored, RestoreError> {
    let clock = Clock::start();
    let path = state_dir.join(FILE);
    let db = schema::open(&path, || Ok(Fresh { id_key: journal::fresh_key()? }))?;
    let before = past(&db, &path)?;
    let mut engine = Engine::new(config.clone(), tools::catalogue(), before.id_key);
    let (events, unreadable) = replay(&mut engine, &path)?;
    engine.catch_up(&before.made);
    let damage = damage(unreadable, &engine, &db).map_err(|error| OpenError::of(&path, &error))?;
    schema::keep(&db, &path)?;
    if events > 0 {
        let runs = engine.counts().values().sum::<u32>();
        info!(events, runs, last = %before.made.last_seq, took_milliseconds = clock.now().mono.as_micros() / 1000, "went on from the journal");
    }
    let store = Store::start(db, &path).map_err(RestoreError::Writer)?;
    Ok(Restored { engine, store, history: History::new(&path), damage })
}

/// Runs of which a record cannot be read, and how they ended, where that can be.
type Unreadable = BTreeMap<RunId, Option<Ending>>;

/// Lets everything happen again. Tells how much that was, and of which runs a record cannot be read.
fn replay(engine: &mut Engine, path: &Path) -> Result<(u64, Unreadable), OpenError> {
    let mut unreadable = Unreadable::new();
    let mut events = 0;
    for record in Replay::start(path)? {
        match record? {
            // What follows on what cannot be read is not known to follow. Only an end is one, whatever was before.
            Record::Event(event) if let Some(end) = event.run.and_then(|run| unreadable.get_mut(&run)) => {
                if let EventBody::RunFinished { ending } = &event.body {
                    *end = Some(ending.clone());
                    engine.replay(&event);
                }
            }
            Record::Event(event) => {
                events += 1;
                engine.replay(&event);
            }
            Record::Unknown(seq, run, event) => {
                warn!(%seq, ?run, kind = ?event.get("kind"), "an event of a kind that this daemon does not know is left as it is");
            }
            Record::Unreadable(seq, Some(run), why) => {
                error!(%seq, %run, why, "a record cannot be read; its run ends here, if it has not ended already");
                unreadable.entry(run).or_default();
            }
            Record::Unreadable(seq, None, why) => error!(%seq, why, "a record cannot be read, and is left out"),
        }
    }
    Ok((events, unreadable))
}

/// What is to be done about runs of which a record cannot be read.
fn damage(unreadable: Unreadable, engine: &Engine, db: &Connection) -> Result<Damage, rusqlite::Error> {
    let mut damage = Damage::default();
    for (run, ending) in unreadable {
        if engine.made_by(run).is_none() {
            damage.lost.extend(lost::view(db, run, ending)?);
        } else if ending.is_none() {
            damage.unreadable.push(run);
        }
    }
    Ok(damage)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use regex::Regex;

    use super::*;
    use crate::journal::{Commit, CommitClass, Writer};
    use crate::world::simulation;

    /// The world as text, but for the numbers of tickets: a lane that never saw those that are gone gives others.
    fn text(engine: &Engine) -> String {
        Regex::new(r"TicketId\([^)]*\)|TicketId \{[^}]*\}")
            .unwrap()
            .replace_all(&engine.digest_of_runs(), "T")
            .into_owned()
    }

    #[test]
    fn the_world_that_is_made_from_the_file_is_the_world_that_was_live() {
        for seed in 40..52 {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join(FILE);
            let (live, commits) = simulation::history(seed, 300);
            let db = schema::open(&path, || Ok(Fresh { id_key: seed })).unwrap();
            let mut writer = Writer::new(db, &path);
            let mut archived = 0;
            for (events, left) in commits {
                archived += left.len();
                writer.commit(&Commit { events, archived: left }, CommitClass::Written).unwrap();
            }
            assert!(archived > 0, "nothing has left the world in this history");
            drop(writer);
            let db = schema::open(&path, || unreachable!()).unwrap();
            let before = past(&db, &path).unwrap();
            let mut engine = Engine::new(simulation::config(), simulation::tools(), before.id_key);
            let (_, unreadable) = replay(&mut engine, &path).unwrap();
            engine.catch_up(&before.made);
            assert!(unreadable.is_empty());
            let (before, after) = (text(&live), text(&engine));
            let differ = before.lines().zip(after.lines()).find(|(a, b)| a != b);
            if let Some((live, restored)) = differ {
                let at = live.bytes().zip(restored.bytes()).take_while(|(a, b)| a == b).count().saturating_sub(80);
                panic!("seed {seed}: live {:.400}\nrestored {:.400}", &live[at..], &restored[at..]);
            }
            assert_eq!(before.lines().count(), after.lines().count());
        }
    }

    #[test]
    fn a_new_state_directory_is_an_empty_world() {
        let dir = tempfile::tempdir().unwrap();
        let restored = restore(dir.path(), &Config::default()).unwrap();
        assert_eq!(restored.engine.last_seq().0, 0);
        assert!(restored.damage.unreadable.is_empty());
    }
}
