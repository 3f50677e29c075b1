//! What the state takes on disk.

use std::path::Path;

use harness_protocol::rpc::DiskUsage;
use nix::sys::statvfs::statvfs;

use super::FILE;

/// What the files of the journal take below `state_dir`, and what is free there.
pub fn usage(state_dir: &Path) -> DiskUsage {
    let size = |name: &str| state_dir.join(name).metadata().map_or(0, |file| file.len());
    let free = statvfs(state_dir).ok().map(|stat| stat.blocks_available().saturating_mul(stat.fragment_size()));
    DiskUsage {
        journal_bytes: ["", "-wal", "-shm"].iter().map(|end| size(&format!("{FILE}{end}"))).sum(),
        output_bytes: None,
        ballast_bytes: size("ballast"),
        free_bytes: free,
    }
}
