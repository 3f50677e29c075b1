//! Measures the disk space that the state directory takes.

use std::path::Path;

use harness_protocol::rpc::DiskUsage;
use nix::sys::statvfs::statvfs;

use super::FILE;

/// What the files of the journal take below `state_dir`, and what is free there.
pub fn usage(state_dir: &Path) -> DiskUsage {
    let size = |name: &str| state_dir.join(name).metadata().map_or(0, |file| file.len());
    DiskUsage {
        journal_bytes: ["", "-wal", "-shm"].iter().map(|end| size(&format!("{FILE}{end}"))).sum(),
        output_bytes: None,
        ballast_bytes: size("ballast"),
        free_bytes: free(state_dir),
    }
}

/// What is free for us in the file system of `dir`, where that can be told.
pub(super) fn free(dir: &Path) -> Option<u64> {
    statvfs(dir).ok().map(|stat| stat.blocks_available().saturating_mul(stat.fragment_size()))
}
