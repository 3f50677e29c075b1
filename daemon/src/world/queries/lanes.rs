//! The reports of lanes, with the runs that hold or want permits.

use std::sync::Arc;

use harness_protocol::lane::{Holder, LaneHold, LaneReport};
use harness_protocol::rpc::Lanes as LaneList;
use harness_protocol::time::Timestamp;

use super::super::Engine;
use super::super::api::Now;
use super::super::model::components::{Batch, Life, Spec, Stage};
use super::super::model::indexes::{Lanes, ProviderHealth, Runs, TOOL_LANE};
use crate::lane::Lane;
use crate::world::view::run::summary;

/// Holders in one report.
const MOST_HOLDERS: usize = 100;

impl Engine {
    /// Every lane's report, the tool lane first.
    pub fn lanes(&self, now: Now) -> LaneList {
        let at = self.time(now);
        LaneList { lanes: self.world.resource::<Lanes>().iter().map(|lane| self.lane_report(lane, at)).collect() }
    }

    /// Width of a lane by configuration; `None` where there is no such lane.
    pub fn configured_width(&self, lane: &str) -> Option<u32> {
        self.world.resource::<Lanes>().get(lane).map(Lane::configured_width)
    }

    fn lane_report(&self, lane: &Lane, at: Timestamp) -> LaneReport {
        let mut report = lane.report(at);
        let hold = self.world.resource::<ProviderHealth>().get(&report.name).and_then(|breaker| breaker.hold.as_ref());
        report.held = hold.map(|hold| LaneHold {
            limiter: Some(hold.limiter),
            since: hold.since,
            until: hold.until,
            error: Arc::clone(&hold.error),
        });
        let is_tool_lane = &*report.name == TOOL_LANE;
        for claimed in lane.holders().into_iter().take(MOST_HOLDERS) {
            let Some(&entity) = self.world.resource::<Runs>().by_id.get(&claimed.run) else { continue };
            let run_name = self.world.get::<Spec>(entity).and_then(|spec| spec.0.name.clone());
            if !is_tool_lane {
                let step = self.world.get::<Life>(entity).map_or(0, |life| life.step);
                let (run, since, tool) = (claimed.run, claimed.since, report.name.clone());
                report.holders.push(Holder { run, run_name, call: None, tool, command: format!("step {step}"), since });
                continue;
            }
            let Some(batch) = self.world.get::<Batch>(entity) else { continue };
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
}
