//! Daemons of other users than the one who tests.

use std::fs;
use std::os::unix::fs::chown;
use std::path::Path;

use crate::{Daemon, Place, need, need_root, program};

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
        fs::copy(program("harnessd"), &own).unwrap();
        give(&self.path(""), user);
        let (uid, gid) = (format!("--reuid={user}"), format!("--regid={user}"));
        let own = format!("exec {}", own.display());
        let become_them = ["setpriv", &uid, &gid, "--clear-groups", "sh", "-c", &own];
        self.start_behind(&[before, &become_them].concat())
    }
}

fn give(path: &Path, user: u32) {
    chown(path, Some(user), Some(user)).unwrap();
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path(), user));
    }
}
