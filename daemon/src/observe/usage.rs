//! Reads the daemon's own resource usage from `/proc`. A figure that cannot be read is left out.

use std::fs;

/// Resident memory, in bytes.
pub fn resident_bytes() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Open descriptors, the one used for counting left out.
pub fn open_files() -> Option<u32> {
    let count = fs::read_dir("/proc/self/fd").ok()?.count();
    u32::try_from(count.saturating_sub(1)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_daemon_knows_what_it_uses() {
        assert!(resident_bytes().is_some_and(|bytes| bytes > 100_000));
        assert!(open_files().is_some_and(|count| count >= 3));
    }
}
