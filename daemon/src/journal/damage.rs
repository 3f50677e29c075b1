//! Collects the data that the journal still has about runs whose first record cannot be read. Reads only: what becomes
//! of such a run, the world decides.

use std::collections::BTreeMap;

use harness_protocol::event::Ending;
use harness_protocol::id::RunId;
use harness_protocol::run::{RUN_SCHEMA, RunState, RunView, Timing, Usage, exit};
use harness_protocol::time::Timestamp;
use rusqlite::{Connection, OptionalExtension, Row};

/// The columns of a run that are read here.
pub const COLUMNS: &str =
    "run.owner, run.parent, run.root, run.name, run.labels, run.submitted_at, run.ended_at, run.state";

/// The title of a run whose listing cannot be read.
const UNLISTED: &str = "(what it is listed as cannot be read)";
/// The error that is shown for an end of which only the state can be read.
const UNKNOWN: &str = "how it ended cannot be read";

/// The run from its row, and from its end if it has one; `None` if there is no such row.
///
/// # Errors
/// If the file cannot be read.
pub fn view(db: &Connection, run: RunId, ending: Option<Ending>) -> Result<Option<RunView>, rusqlite::Error> {
    let sql = format!("SELECT {COLUMNS} FROM run WHERE id = ?1 AND archived = 0");
    let found = db.query_row(&sql, [run.to_string()], |row| of_row(run, row, 0)).optional()?;
    Ok(found.map(|view| with(view, ending)))
}

/// A run that has left the world and whose listing cannot be read, from its row. Its columns begin at `first`.
///
/// # Errors
/// If the row cannot be read either.
pub fn listed(run: RunId, row: &Row<'_>, first: usize) -> Result<RunView, rusqlite::Error> {
    Ok(RunView { title: UNLISTED.to_owned(), ..with(of_row(run, row, first)?, None) })
}

/// Runs in the table that have not left the world and that `is_made` does not know.
///
/// # Errors
/// If the file cannot be read.
pub fn unmade(db: &Connection, is_made: impl Fn(RunId) -> bool) -> Result<Vec<RunId>, rusqlite::Error> {
    let mut read = db.prepare("SELECT id FROM run WHERE archived = 0 ORDER BY number")?;
    let ids = read.query_map([], |row| row.get::<_, String>(0))?;
    let mut unmade = Vec::new();
    for id in ids {
        unmade.extend(id?.parse().ok().filter(|run| !is_made(*run)));
    }
    Ok(unmade)
}

fn of_row(run: RunId, row: &Row<'_>, first: usize) -> Result<RunView, rusqlite::Error> {
    // A value that is not text, or not UTF-8, counts as missing.
    let text = |at: usize| Ok::<_, rusqlite::Error>(row.get::<_, Option<String>>(first + at).ok().flatten());
    let id = |text: Option<String>| text.and_then(|text| text.parse().ok());
    let time = |at: Option<i64>| at.and_then(super::record::time);
    let labels: BTreeMap<String, String> =
        text(4)?.and_then(|labels| serde_json::from_str(&labels).ok()).unwrap_or_default();
    Ok(RunView {
        schema: RUN_SCHEMA.to_owned(),
        id: run,
        name: text(3)?.map(Into::into),
        root: id(text(2)?).unwrap_or(run),
        parent: id(text(1)?),
        retry_of: None,
        continues: None,
        labels,
        share: "default".into(),
        priority: Default::default(),
        owner: row.get(first).unwrap_or_default(),
        state: text(7)?.and_then(|state| state.parse().ok()).unwrap_or(RunState::Queued),
        waiting_for: None,
        workdir: "/".into(),
        env: Vec::new(),
        provider: "".into(),
        model: None,
        title: "(what it was asked cannot be read)".to_owned(),
        steps: 0,
        limits: Default::default(),
        on_interaction: Default::default(),
        submitted_at: time(row.get(first + 5)?).unwrap_or_default(),
        started_at: None,
        ended_at: time(row.get(first + 6)?),
        stop_requested_at: None,
        answer: None,
        error: None,
        exit_code: None,
        usage: Usage::default(),
        usage_tree: Usage::default(),
        timing: Timing::default(),
        denials: Vec::new(),
        inference: None,
        stand_in: None,
        calls: Vec::new(),
        questions: Vec::new(),
        cut: Vec::new(),
    })
}

fn with(view: RunView, ending: Option<Ending>) -> RunView {
    let Some(ending) = ending else {
        return match view.state {
            // The run succeeded; its answer cannot be read.
            RunState::Succeeded => RunView { exit_code: Some(exit::SUCCEEDED), ..view },
            RunState::Failed => RunView { error: Some(UNKNOWN.into()), exit_code: Some(exit::FAILED), ..view },
            RunState::Cancelled => RunView { error: Some(UNKNOWN.into()), exit_code: Some(exit::CANCELLED), ..view },
            _ => RunView { ended_at: None::<Timestamp>, ..view },
        };
    };
    let (state, answer, error, exit_code) = match ending {
        Ending::Succeeded { answer } => (RunState::Succeeded, Some(answer), None, exit::SUCCEEDED),
        Ending::Failed { error, exit_code } => (RunState::Failed, None, Some(error), exit_code),
        Ending::Cancelled { error } => (RunState::Cancelled, None, Some(error), exit::CANCELLED),
    };
    RunView { state, answer, error, exit_code: Some(exit_code), ..view }
}
