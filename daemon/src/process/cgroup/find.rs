//! Finds the cgroup of version 2 of this process, and tells whether the daemon may divide it into cgroups below. Reads
//! only.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

/// Exists where systemd is the service manager.
const SYSTEMD: &str = "/run/systemd/system";
/// The attributes by which systemd marks a delegated cgroup: the first is visible to all, the second only to root.
const MARKS: &[&str] = &["user.delegate", "trusted.delegate"];

/// The useful controllers of a cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Controllers {
    pub(super) memory: bool,
    pub(super) pids: bool,
}

/// Why limits are not set by cgroups.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoGroups {
    #[error("this process is in no cgroup of version 2 that is mounted here")]
    None,
    #[error("{} is not delegated (Delegate= of its unit)", .0.display())]
    NotDelegated(PathBuf),
    #[error("other processes than this one are in {}", .0.display())]
    Shared(PathBuf),
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl NoGroups {
    pub(super) fn at(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { path: path.to_owned(), source }
    }
}

/// The cgroup of this process, if it is ours alone, and its controllers.
pub(super) fn find() -> Result<(PathBuf, Controllers), NoGroups> {
    let read = |path: &str| fs::read_to_string(path).map_err(NoGroups::at(Path::new(path)));
    let path = path(&read("/proc/self/cgroup")?, &read("/proc/self/mountinfo")?).ok_or(NoGroups::None)?;
    usable(path, Path::new(SYSTEMD).exists(), std::process::id())
}

fn usable(path: PathBuf, is_marked: bool, own: u32) -> Result<(PathBuf, Controllers), NoGroups> {
    let read = |name| fs::read_to_string(path.join(name)).map_err(NoGroups::at(&path.join(name)));
    let controllers = Controllers::parse(&read("cgroup.controllers")?);
    if is_marked && !MARKS.iter().any(|mark| has_mark(&path, mark)) {
        return Err(NoGroups::NotDelegated(path));
    }
    // A process that is not ours must be neither moved nor limited.
    if read("cgroup.procs")?.lines().any(|line| line != own.to_string()) {
        return Err(NoGroups::Shared(path));
    }
    Ok((path, controllers))
}

fn has_mark(path: &Path, mark: &str) -> bool {
    let mut value = [0; 4];
    rustix::fs::getxattr(path, mark, &mut value).is_ok_and(|length| value.get(..length) == Some(b"1"))
}

impl Controllers {
    fn parse(text: &str) -> Self {
        let has = |name| text.split_ascii_whitespace().any(|found| found == name);
        Self { memory: has("memory"), pids: has("pids") }
    }
}

/// The path of the cgroup that `/proc/self/cgroup` names, by the mounts of `/proc/self/mountinfo`.
pub(super) fn path(cgroup: &str, mountinfo: &str) -> Option<PathBuf> {
    let own = Path::new(cgroup.lines().find_map(|line| line.strip_prefix("0::"))?);
    // A cgroup outside of our namespace's root begins with `/..`.
    if own.components().any(|component| component == Component::ParentDir) {
        return None;
    }
    mountinfo.lines().find_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        if file_system.split(' ').next() != Some("cgroup2") {
            return None;
        }
        let mut fields = mount.split(' ').skip(3).map(unescaped);
        let (root, point) = (fields.next()?, fields.next()?);
        let below = own.strip_prefix(root).ok()?;
        // An empty join would add a slash.
        Some(if below.as_os_str().is_empty() { point } else { point.join(below) })
    })
}

/// Decodes a field, in which blanks and the like are written as `\040`.
fn unescaped(field: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let octal = after.get(..3).filter(|_| first == b'\\').and_then(|digits| str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[3..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const HYBRID: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime shared:3 - cgroup2 cgroup2 rw
";
    const UNIFIED: &str = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_own_cgroup_is_found_through_the_mounts() {
        let service = "0::/system.slice/harnessd.service\n";
        let found = |cgroup, mounts| path(cgroup, mounts).map(|path| path.display().to_string());
        assert_eq!(found(service, UNIFIED).unwrap(), "/sys/fs/cgroup/system.slice/harnessd.service");
        let hybrid = format!("8:pids:/other\n4:memory:/another\n{service}");
        assert_eq!(found(&hybrid, HYBRID).unwrap(), "/sys/fs/cgroup/unified/system.slice/harnessd.service");
        assert_eq!(found("0::/\n", UNIFIED).unwrap(), "/sys/fs/cgroup");
    }

    #[test]
    fn in_a_partly_mounted_tree_only_mounted_cgroups_are_found() {
        let part = "30 23 0:26 /a.slice /my\\040cgroups\\134x rw - cgroup2 cgroup2 rw\n";
        assert_eq!(path("0::/a.slice/b", part), Some("/my cgroups\\x/b".into()));
        assert_eq!(path("0::/a.slice.d/b", part), None);
        assert_eq!(path("0::/a.slice/b", &format!("{part}{UNIFIED}")), Some("/my cgroups\\x/b".into()));
        assert_eq!(path("0::/c", &format!("{part}{UNIFIED}")), Some("/sys/fs/cgroup/c".into()));
    }

    #[test]
    fn without_version_2_or_outside_of_the_namespace_there_is_none() {
        assert_eq!(path("4:memory:/x\n", UNIFIED), None);
        assert_eq!(path("0::/x\n", "31 23 0:28 / /sys/fs/cgroup rw - cgroup cgroup rw,memory\n"), None);
        assert_eq!(path("0::/../x\n", UNIFIED), None);
        assert_eq!(path("", ""), None);
    }

    /// A directory that looks like a cgroup.
    fn looks_like(controllers: &str, procs: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("cgroup.controllers"), controllers).unwrap();
        fs::write(dir.path().join("cgroup.procs"), procs).unwrap();
        dir
    }

    fn said(dir: &tempfile::TempDir, is_marked: bool) -> String {
        let found = usable(dir.path().to_owned(), is_marked, 17);
        let text = found.map_or_else(|none| none.to_string(), |(_, controllers)| format!("{controllers:?}"));
        text.replace(dir.path().to_str().unwrap(), "GROUP")
    }

    #[test]
    fn controllers_are_told_and_none_is_needed() {
        let dir = looks_like("cpuset cpu io memory hugetlb pids rdma\n", "17\n");
        assert_eq!(said(&dir, false), "Controllers { memory: true, pids: true }");
        assert_eq!(said(&looks_like("pids\n", "17\n"), false), "Controllers { memory: false, pids: true }");
        let none = "Controllers { memory: false, pids: false }";
        assert_eq!(said(&looks_like("\n", "17\n"), false), none);
        assert_eq!(said(&looks_like("cpu memory_recursiveprot\n", "17\n"), false), none);
    }

    #[test]
    fn a_cgroup_that_is_shared_or_not_delegated_is_not_ours() {
        let dir = looks_like("memory pids\n", "17\n4242\n");
        assert_eq!(said(&dir, false), "other processes than this one are in GROUP");
        let dir = looks_like("memory pids\n", "17\n");
        assert_eq!(said(&dir, true), "GROUP is not delegated (Delegate= of its unit)");
    }

    #[test]
    fn a_directory_that_is_no_cgroup_is_told() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(said(&dir, false), "GROUP/cgroup.controllers: No such file or directory (os error 2)");
    }
}
