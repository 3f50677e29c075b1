//! Handles outputs of runs that the journal does not know, at a start.
//!
//! Must not delete anything that the journal does not list as pruned: outputs of unknown runs are moved aside, and back
//! when a journal comes that knows the run. If the journal is not the one that was here before, outputs of unknown runs
//! stay where they are.

use std::collections::BTreeSet;

use harness_protocol::id::RunId;
use harness_protocol::rpc::Finding;
use tracing::{error, info, warn};

use crate::journal::history::History;
use crate::process::Outputs;
use crate::refusal::JournalRefusal;

/// Looks for outputs of unknown runs. Gives the problem, if there is one.
///
/// # Errors
/// If the journal cannot be read; then nothing was changed.
pub fn sweep(outputs: &Outputs, history: &History, is_the_one: bool) -> Result<Option<Finding>, JournalRefusal> {
    take_back(outputs, history)?;
    let mut strange = BTreeSet::new();
    for run in outputs.runs() {
        if !history.knows(run)? {
            strange.insert(run);
        }
    }
    if strange.is_empty() {
        return Ok(None);
    }
    if !is_the_one {
        let runs = strange.len() as u64;
        warn!(runs, "there are outputs of runs that the journal does not know; they stay where they are");
        return Ok(Some(Finding::UnknownOutputs { runs, moved_to: None }));
    }
    let pruned = history.pruned_of(&strange)?;
    for run in &pruned {
        // The daemon died between the pruning and the removal.
        if let Err(error) = outputs.remove(*run) {
            error!(%error, %run, "the outputs of a pruned run stay");
        }
    }
    if !pruned.is_empty() {
        info!(runs = pruned.len(), "outputs of pruned runs were removed");
    }
    let unknown: Vec<RunId> = strange.difference(&pruned).copied().collect();
    Ok(set_aside(outputs, &unknown))
}

/// Backups are restored in any order: a later one may know runs that an earlier one did not.
fn take_back(outputs: &Outputs, history: &History) -> Result<(), JournalRefusal> {
    let mut runs = 0;
    for run in outputs.aside() {
        if !history.knows(run)? {
            continue;
        }
        match outputs.take_back(run) {
            Ok(back) => runs += u64::from(back),
            Err(error) => error!(%error, %run, "the outputs of a run cannot be moved back to where they were"),
        }
    }
    if runs > 0 {
        info!(runs, "outputs that had been moved aside are back: the journal knows their runs");
    }
    Ok(())
}

fn set_aside(outputs: &Outputs, unknown: &[RunId]) -> Option<Finding> {
    let (mut runs, mut moved_to) = (0, None);
    for run in unknown {
        match outputs.set_aside(*run) {
            Ok(aside) => {
                runs += 1;
                moved_to = Some(aside.display().to_string());
            }
            Err(error) => error!(%error, %run, "the outputs of an unknown run cannot be moved aside"),
        }
    }
    let moved_to = moved_to?;
    warn!(runs, moved_to, "outputs of runs that the journal does not know were moved aside; nothing was deleted");
    Some(Finding::UnknownOutputs { runs, moved_to: Some(moved_to) })
}
