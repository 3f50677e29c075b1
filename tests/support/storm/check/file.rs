//! Checks the SQLite file of a storm's daemon: it is not damaged, and its tables agree with the replies over the
//! socket.

use std::collections::BTreeSet;

use rusqlite::{Connection, OpenFlags};

use super::Found;
use crate::Place;

pub(super) fn check(found: &mut Found<'_>, place: &Place) {
    let path = place.state("harness.db");
    let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let word: String = db.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
    if word != "ok" {
        found.lost(format!("the file is not whole: {word}"));
    }
    let numbers = |sql: &str| -> BTreeSet<u64> {
        let mut statement = db.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, i64>(0)).unwrap();
        rows.map(|row| row.unwrap().cast_unsigned()).collect()
    };
    let rows = numbers("SELECT seq FROM event");
    let shown: BTreeSet<u64> = found.events.keys().copied().collect();
    if rows != shown {
        let differ: Vec<_> = rows.symmetric_difference(&shown).take(10).collect();
        found.lost(format!("rows and events that are shown differ: {differ:?}"));
    }
    let mut statement = db.prepare("SELECT id, state, archived, seq FROM run").unwrap();
    let runs: Vec<(String, Option<String>, bool, i64)> = statement
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let ids: BTreeSet<&String> = runs.iter().map(|(id, ..)| id).collect();
    let listed: BTreeSet<&String> = found.runs.keys().collect();
    if ids != listed {
        let differ: Vec<String> = ids.symmetric_difference(&listed).take(10).map(|id| (**id).clone()).collect();
        found.lost(format!("rows and runs that are listed differ: {differ:?}"));
    }
    for (id, state, _, seq) in &runs {
        if state.as_deref() != found.runs.get(id).map(|run| run.state.as_str()) {
            found.lost(format!("run {id} is {state:?} in its row"));
        }
        let made = found.events.get(&seq.cast_unsigned());
        if made.is_none_or(|made| made["kind"] != "run-submitted" || made["run"] != id.as_str()) {
            found.lost(format!("run {id} was not made by event {seq}"));
        }
    }
    let without = "SELECT count(*) FROM run LEFT JOIN listing USING (number) WHERE archived = 1 AND view IS NULL";
    let without: u32 = db.query_row(without, [], |row| row.get(0)).unwrap();
    let too_many = "SELECT count(*) FROM listing LEFT JOIN run USING (number) WHERE id IS NULL OR archived = 0";
    let too_many: u32 = db.query_row(too_many, [], |row| row.get(0)).unwrap();
    if (without, too_many) != (0, 0) {
        found.lost(format!("{without} runs have left without a listing, {too_many} listings are of no such run"));
    }
    let keys = "SELECT count(*) - count(DISTINCT idempotency_key) FROM run WHERE idempotency_key IS NOT NULL";
    let doubled: u32 = db.query_row(keys, [], |row| row.get(0)).unwrap();
    if doubled > 0 {
        found.lost(format!("{doubled} runs have the key of another one"));
    }
}
