//! Makes a cgroup of version 2 for one daemon, as a service manager would.

use std::fs;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Daemon, Place, eventually, need, need_root};

/// A cgroup for one daemon. Goes with the last of its processes.
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// A new one, with the controllers for memory and processes, that is given to a user.
    ///
    /// # Panics
    /// Where the machine has none to give: such a test is ignored by default, and run in a virtual machine.
    pub fn of(user: u32) -> Self {
        let own = Self::with_any_controllers(user);
        let controllers = own.read("cgroup.controllers");
        let has = |name: &&str| controllers.split_whitespace().any(|found| found == *name);
        assert!(["memory", "pids"].iter().all(has), "version 2 has only these controllers here: {controllers:?}");
        own
    }

    /// A new one that is given to a user, whatever its controllers.
    ///
    /// # Panics
    /// Where no cgroups of version 2 are mounted, or we are not root: such a test is ignored by default.
    pub fn with_any_controllers(user: u32) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        need_root();
        let root = mounted().expect("no cgroups of version 2 are mounted");
        let own = root.join(format!("harness-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        fs::create_dir(&own).unwrap();
        let own = Self(own);
        own.give(user);
        own
    }

    fn give(&self, user: u32) {
        chown(&self.0, Some(user), Some(user)).unwrap();
        for name in ["cgroup.procs", "cgroup.subtree_control", "cgroup.threads"] {
            chown(self.0.join(name), Some(user), Some(user)).unwrap();
        }
        if Path::new("/run/systemd/system").exists() {
            need("python3", "python3");
            let mark = "import os, sys; os.setxattr(sys.argv[1], 'user.delegate', b'1')";
            let status = std::process::Command::new("python3").args(["-c", mark]).arg(&self.0).status();
            assert!(status.unwrap().success());
        }
    }

    /// Starts a daemon in it, as a user.
    pub fn start(&self, place: &Place, user: u32) -> Daemon {
        let enter = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.0.display());
        let before = ["sh", "-c", &enter, "sh"];
        if user == 0 { place.start_behind(&before) } else { place.start_as(user, &before) }
    }

    /// What a file of it says.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name)).unwrap()
    }

    /// The names of the cgroups in it.
    pub fn below(&self) -> Vec<String> {
        below(&self.0)
    }

    /// The names of the cgroups in that of all calls.
    pub fn of_calls(&self) -> Vec<String> {
        let calls = self.below().into_iter().find(|name| name.starts_with("calls-"));
        calls.map(|name| below(&self.0.join(name))).unwrap_or_default()
    }

    /// Removes what is in it.
    pub fn trim(&self) {
        trim(&self.0);
    }

    /// Whether no call has a cgroup.
    pub fn is_idle(&self) -> bool {
        self.of_calls() == ["keepers"]
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // For a daemon that lives on somewhere above.
            _ = fs::write(self.0.join("cgroup.kill"), "1");
        } else {
            // A daemon that has stopped has taken everything away that it had made.
            eventually("its cgroup can be removed", || fs::remove_dir(&self.0).is_ok());
        }
    }
}

fn below(group: &Path) -> Vec<String> {
    let entries = fs::read_dir(group).unwrap().flatten().filter(|entry| entry.path().is_dir());
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn trim(group: &Path) {
    for below in fs::read_dir(group).unwrap().flatten().map(|entry| entry.path()).filter(|path| path.is_dir()) {
        trim(&below);
        fs::remove_dir(below).unwrap();
    }
}

fn mounted() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
    line.split(' ').nth(4).map(PathBuf::from)
}
