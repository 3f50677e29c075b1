//! Outputs: what a call is said to have written is there, also where a backup took the journal's place.

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
            // What it wrote in a history that a backup has replaced stays, where it writes nothing in this one.
            let is_of_another = bytes == 0 && found.told.again.contains_key(call);
            if there != bytes && !(may_be_gone && there == 0) && !is_of_another {
                wrong.push(format!("call {call} of run {run} wrote {bytes} bytes to {stream}, and {there} are there"));
            }
        }
    }
    found.wrong.append(&mut wrong);
}
