//! Selects the lane that the user named from the daemon's reports, or all lanes if none was named. An unknown name is
//! an error that lists the lanes.

use harness_protocol::lane::LaneReport;
use harness_protocol::rpc::{ErrorKind, Lanes};

use crate::error::Failure;

/// All lanes, or the one that was named.
pub(in crate::commands) fn only(lanes: Lanes, name: Option<&str>) -> Result<Vec<LaneReport>, Failure> {
    let Some(name) = name else { return Ok(lanes.lanes) };
    let names: Vec<String> = lanes.lanes.iter().map(|lane| lane.name.to_string()).collect();
    match lanes.lanes.into_iter().find(|lane| &*lane.name == name) {
        Some(lane) => Ok(vec![lane]),
        None => Err(Failure::Other {
            code: ErrorKind::NotFound.exit_code(),
            message: format!("there is no lane {name:?}"),
            hint: Some(format!("the lanes: {}", names.join(", "))),
        }),
    }
}
