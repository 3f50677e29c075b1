//! Checks the outputs of a storm's calls: every reported output exists, also if a backup replaced the journal.

use super::Found;
use crate::Place;

pub(super) fn check(found: &mut Found<'_>, place: &Place) {
    let mut wrong = Vec::new();
    for event in found.events.values().filter(|event| event["kind"] == "call-finished") {
        let (run, result) = (event["run"].as_str().unwrap(), &event["result"]);
        if found.is_pruned(run) || result["interrupted"] == true {
            continue;
        }
        let may_be_gone = found.told.without_outputs.contains(run);
        let call = result["call"].as_str().unwrap();
        for stream in ["stdout", "stderr"] {
            let bytes = result[stream]["bytes"].as_u64().unwrap_or(0);
            let file = place.state(&format!("outputs/{run}/{call}.{stream}"));
            let there = file.metadata().map_or(0, |file| file.len());
            // The result names no file: there was nothing to keep, whatever the call wrote in a history that a backup
            // has replaced, or no room for it.
            let has_no_file = result[stream]["path"].is_null() && (bytes == 0 || found.told.disk_was_full);
            if there != bytes && !(may_be_gone && there == 0) && !has_no_file {
                wrong.push(format!("call {call} of run {run} wrote {bytes} bytes to {stream}, and {there} are there"));
            }
        }
    }
    found.wrong.append(&mut wrong);
}
