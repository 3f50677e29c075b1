//! Starts daemons as users other than that of the tests.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use crate::programs::copy_program;
use crate::{Daemon, Output, Place, Running, need, need_root, program};

/// A user that no other process has.
const SOMEBODY: u32 = 61_234;

impl Place {
    /// Gives the place to a user, and starts a daemon as that one, with these words before the command line.
    ///
    /// # Panics
    /// Where the tests do not run as root: such a test is ignored by default.
    pub fn start_as(&self, user: u32, before: &[&str]) -> Daemon {
        need_root();
        need("setpriv", "util-linux");
        // Where we build, others may have no access.
        let own = self.path("harnessd");
        // An earlier daemon of the place may have left it, and be executed by keepers that are still at their end.
        if !own.exists() {
            copy_program(&program("harnessd"), &own);
        }
        give(&self.path(""), user);
        let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
        let own = format!("exec {}", own.display());
        let become_them = ["setpriv", &uid, &gid, "--clear-groups", "sh", "-c", &own];
        self.start_behind(&[before, &become_them].concat())
    }
}

impl Place {
    /// Starts a daemon here that is not root's, with all programs beside it where its user may execute them: as this
    /// user, where the tests do not run as root.
    pub fn start_unprivileged(&self, more: &[&Path]) -> Daemon {
        self.start_unprivileged_behind(&[], more)
    }

    /// The same with these words before the command line.
    pub fn start_unprivileged_behind(&self, before: &[&str], more: &[&Path]) -> Daemon {
        let bin = self.path("bin");
        fs::create_dir_all(&bin).unwrap();
        let ours = ["harnessd", "harnessctl"].map(program);
        for own in ours.iter().map(std::path::PathBuf::as_path).chain(more.iter().copied()) {
            let to = bin.join(own.file_name().unwrap());
            // A file that is being executed cannot be written to.
            if !to.exists() {
                copy_program(own, &to);
            }
        }
        if nix::unistd::geteuid().is_root() { self.start_as(SOMEBODY, before) } else { self.start_behind(before) }
    }
}

impl Place {
    /// Runs `harnessctl` as the user of [`start_unprivileged`](Self::start_unprivileged), from the same place.
    pub fn ctl_unprivileged(&self, words: &[&str]) -> Output {
        let own = self.path("bin/harnessctl");
        let mut command = if nix::unistd::geteuid().is_root() {
            let mut command = self.command("setpriv");
            command.args([format!("--reuid={SOMEBODY}"), format!("--regid={SOMEBODY}"), "--clear-groups".to_owned()]);
            command.arg(own);
            command
        } else {
            self.command(own)
        };
        command.args(words);
        Running::start(command).finish()
    }
}

fn give(path: &Path, user: u32) {
    chown(path, Some(user), Some(user)).unwrap();
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path(), user));
    }
}
