//! Measures the disk space that the state directory takes, and the space that the daemon may still use. Reads only.

use std::path::Path;

use harness_protocol::rpc::DiskUsage;
use nix::libc::RLIM_INFINITY;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::statvfs::statvfs;

use super::FILE;

/// The disk space of the journal's files in `state_dir`, and the free space there.
pub fn usage(state_dir: &Path) -> DiskUsage {
    let size = |name: &str| state_dir.join(name).metadata().map_or(0, |file| file.len());
    DiskUsage {
        journal_bytes: ["", "-wal", "-shm"].iter().map(|end| size(&format!("{FILE}{end}"))).sum(),
        output_bytes: None,
        ballast_bytes: size("ballast"),
        free_bytes: free(state_dir),
    }
}

/// Free bytes for this user in the file system of `dir`; `None` if the system does not tell.
pub(super) fn free(dir: &Path) -> Option<u64> {
    statvfs(dir).ok().map(|stat| stat.blocks_available().saturating_mul(stat.fragment_size()))
}

/// The present limit of file size of this process, in bytes; `None` if there is none. Other processes of the user may
/// have lowered it since the start. The limit is raised again as far as possible before it is read.
pub(super) fn file_size_limit() -> Option<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_FSIZE).ok()?;
    if soft < hard && setrlimit(Resource::RLIMIT_FSIZE, hard, hard).is_ok() && hard == RLIM_INFINITY {
        return None;
    }
    Some(hard).filter(|&hard| hard < RLIM_INFINITY)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Runs in a process of its own, since the limit is one of the process.
    #[test]
    fn a_limit_of_file_size_that_was_lowered_is_raised_where_that_may_be_and_told_where_not() {
        if std::env::var_os("HARNESS_TEST_CHILD").is_none() {
            let name = "journal::disk::tests::\
                        a_limit_of_file_size_that_was_lowered_is_raised_where_that_may_be_and_told_where_not";
            let child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", name, "--nocapture"])
                .env("HARNESS_TEST_CHILD", "1")
                .output()
                .unwrap();
            let output = String::from_utf8_lossy(&child.stdout).into_owned();
            assert!(child.status.success() && output.contains("1 passed"), "{output}");
            return;
        }
        assert_eq!(file_size_limit(), None);
        setrlimit(Resource::RLIMIT_FSIZE, 4096, RLIM_INFINITY).unwrap();
        assert_eq!(file_size_limit(), None);
        assert_eq!(getrlimit(Resource::RLIMIT_FSIZE).unwrap().0, RLIM_INFINITY);
        setrlimit(Resource::RLIMIT_FSIZE, 4096, 8192).unwrap();
        assert_eq!(file_size_limit(), Some(8192));
    }
}
