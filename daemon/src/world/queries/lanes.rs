//! Builds the reports of lanes, with the runs that hold or want permits.

use std::sync::Arc;

use harness_protocol::lane::{Holder, LaneHold, LaneReport};
use harness_protocol::rpc::Lanes as LaneList;
use harness_protocol::time::Timestamp;

use super::super::Folded;
use super::super::api::Now;
use super::super::model::components::Stage;
use super::super::model::indexes::{Lanes, TOOL_LANE};
use crate::lane::Lane;
use crate::world::view::reads::Reads;
use crate::world::view::run::summary;

/// Holders in one report.
const MOST_HOLDERS: usize = 100;

impl Folded {
    /// Every lane's report, the tool lane first. A lane whose provider is not configured any more is told of as long as
    /// something is in it.
    pub fn lanes(&self, now: Now) -> LaneList {
        let at = self.time(now);
        let providers = &self.setup().0.providers;
        let is_there = |lane: &&Lane| {
            let name = lane.name();
            &**name == TOOL_LANE || providers.contains_key(name) || lane.has_tickets()
        };
        self.read(|reads| {
            let lanes = reads.lanes.iter().filter(is_there).map(|lane| report(reads, lane, at)).collect();
            LaneList { lanes }
        })
    }

    /// Width of a lane by configuration; `None` where there is no such lane.
    pub fn configured_width(&self, lane: &str) -> Option<u32> {
        self.world.resource::<Lanes>().get(lane).map(Lane::configured_width)
    }
}

fn report(reads: &Reads<'_, '_>, lane: &Lane, at: Timestamp) -> LaneReport {
    let mut report = lane.report(at);
    let hold = reads.health.get(&report.name).and_then(|breaker| breaker.hold.as_ref());
    report.held = hold.map(|hold| LaneHold {
        limiter: Some(hold.limiter),
        since: hold.since,
        until: hold.until,
        error: Arc::clone(&hold.error),
    });
    let is_tool_lane = &*report.name == TOOL_LANE;
    for claimed in lane.holders().into_iter().take(MOST_HOLDERS) {
        let Some(run) = reads.entity(claimed.run).and_then(|entity| reads.whole(entity)) else { continue };
        let run_name = run.spec.0.name.clone();
        if !is_tool_lane {
            let (id, since, tool) = (claimed.run, claimed.since, report.name.clone());
            let command = format!("step {}", run.life.step);
            report.holders.push(Holder { run: id, run_name, call: None, tool, command, since });
            continue;
        }
        let Some(batch) = run.batch else { continue };
        for call in batch.0.calls.iter().filter(|call| call.stage == Stage::Executing) {
            report.holders.push(Holder {
                run: claimed.run,
                run_name: run_name.clone(),
                call: Some(call.id),
                tool: call.tool.clone(),
                command: summary(call),
                since: call.since,
            });
        }
    }
    report.holders.sort_by_key(|holder| (holder.since, holder.call));
    report.holders.truncate(MOST_HOLDERS);
    report
}
