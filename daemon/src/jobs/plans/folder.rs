//! Opens the working directory of a call: the folder that its run was submitted for. If another folder is at that path
//! now, the call fails.

use std::path::Path;

use harness_protocol::id::RunId;
use harness_protocol::spec::RunSpec;

use crate::fair_queue::Party;
use crate::folders::{Folders, LookError};
use crate::jobs::off_lane::LaneHandle;
use crate::process::{Cancel, SpawnError};

/// The directory of a run. A submit that names none has its calls start at the root.
pub(super) fn path(spec: &RunSpec) -> &str {
    spec.workdir.as_deref().unwrap_or("/")
}

/// Device and inode that the working directory of a run is to have in this boot, where that is known. After another
/// boot it is looked which device it is on now; the world is told.
///
/// # Errors
/// Where it is another folder, or none, or the call is cancelled meanwhile: in words for the model.
pub(super) async fn of_call(
    folders: &Folders,
    run: RunId,
    (spec, directory): (&RunSpec, &Path),
    cancel: &mut Cancel,
    lane_handle: &LaneHandle,
) -> Result<Option<(u64, u64)>, String> {
    let Some(kept) = spec.workdir_id else { return Ok(None) };
    if kept.is_of_boot(folders.boot()) {
        return Ok(Some((kept.device, kept.inode)));
    }
    let path = path(spec);
    let found = tokio::select! {
        biased;
        _ = cancel.wanted() => return Err("cancelled before it began".to_owned()),
        found = folders.look(Party::Run(run), path, ()) => found,
    };
    let found = match found {
        Ok(found) => found,
        // It has a place of its own.
        Err(LookError::NotOpened(_)) if directory.is_absolute() => return Ok(None),
        Err(error) => return Err(format!("the working directory {path} {error}")),
    };
    let (wanted, there) = ((kept.device, kept.inode), (found.device, found.inode));
    if !kept.is(&found) {
        return Err(SpawnError::OtherFolder { dir: path.into(), wanted, found: there }.to_string());
    }
    lane_handle.found(found);
    Ok(Some(there))
}
