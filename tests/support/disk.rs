//! Mounts a small disk under a state directory, which a test can fill or make fail.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;

use crate::{Output, Place, Running, need};

/// Looks, one after the other, at which nothing can be written to a disk that is full.
const LOOKS_AT_A_FULL_DISK: u32 = 12;

/// How long a slow disk does not answer, and how long it does.
const SILENT: Duration = Duration::from_millis(80);
const ANSWERS: Duration = Duration::from_millis(20);

/// A disk of its own for the state of a place. It goes with this value, which is to be dropped before the place and
/// after the daemon.
pub struct Disk {
    at: PathBuf,
}

impl Disk {
    /// One in memory, of so many MiB.
    ///
    /// # Panics
    /// Where nothing can be mounted: a test with a disk is ignored unless it is run by root.
    pub fn in_memory(place: &Place, megabytes: u32) -> Self {
        Self::mounted(place, &["-t", "tmpfs", "-o", &format!("size={megabytes}m"), "harness-tests"])
    }

    /// One in a file, of so many MiB, which can be made to fail.
    ///
    /// # Panics
    /// Where nothing can be mounted.
    pub fn in_a_file(place: &Place, megabytes: u64) -> Self {
        need("mkfs.ext4", "e2fsprogs");
        let image = place.path("disk.img");
        File::create(&image).unwrap().set_len(megabytes << 20).unwrap();
        let image = image.to_str().unwrap().to_owned();
        run("mkfs.ext4", &["-q", &image]).exits(0);
        Self::mounted(place, &["-o", "loop", &image])
    }

    fn mounted(place: &Place, words: &[&str]) -> Self {
        let at = place.state("");
        fs::create_dir_all(&at).unwrap();
        run("mount", &[words, &[at.to_str().unwrap()]].concat()).exits(0);
        // A new file system is open to all, and a state directory is not.
        fs::set_permissions(&at, fs::Permissions::from_mode(0o700)).unwrap();
        Self { at }
    }

    fn filler(&self) -> PathBuf {
        self.at.join("filler")
    }

    /// Fills it to the last byte, and what comes free for a while: a daemon takes room, and gives it back, while it
    /// looks for its ballast.
    pub fn fill(&self) {
        let mut filler = OpenOptions::new().create(true).append(true).open(self.filler()).unwrap();
        let mut full = 0;
        while full < LOOKS_AT_A_FULL_DISK {
            let before = filler.metadata().unwrap().len();
            for size in [1 << 20, 1 << 12, 1] {
                let piece = vec![b'x'; size];
                while filler.write_all(&piece).is_ok() {}
            }
            full = if filler.metadata().unwrap().len() == before { full + 1 } else { 0 };
            std::thread::sleep(crate::LOOK_AGAIN);
        }
    }

    /// Fills it so that the journal of a daemon that is at rest has no room left for a single commit.
    pub fn fill_around(&self) {
        let path = self.at.join("harness.db");
        // What the log has room for already would be room.
        let db = Connection::open(&path).unwrap();
        let truncated = db.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, i64>(0));
        drop(db);
        self.fill();
        assert_eq!(truncated, Ok(0), "the log was emptied");
    }

    /// Makes room again.
    pub fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    /// Makes the file system find an error; after that it refuses every write. For a disk in a file.
    pub fn fail(&self) {
        run("mount", &["-o", "remount,abort", self.at.to_str().unwrap()]).exits(0);
    }

    /// Makes the disk read-only, or writable again. No process may have a file on it open for writing.
    pub fn only_read(&self, only: bool) {
        run("mount", &["-o", if only { "remount,ro" } else { "remount,rw" }, self.at.to_str().unwrap()]).exits(0);
    }

    /// Lets it answer nothing that is written to it until what this gives is dropped, which must be before the daemon
    /// is. For one in a file.
    ///
    /// # Panics
    /// Where that cannot be had.
    pub fn freeze(&self) -> Frozen<'_> {
        need("fsfreeze", "util-linux");
        run("fsfreeze", &["--freeze", self.at.to_str().unwrap()]).exits(0);
        Frozen(self)
    }

    /// Makes it slow: it answers what is written to it in between, over and over, until what this gives is dropped.
    pub fn slow(&self) -> Slow {
        let (stop, stopped) = mpsc::channel();
        let disk = Self { at: self.at.clone() };
        let pulses = thread::spawn(move || {
            while stopped.recv_timeout(ANSWERS).is_err() {
                let frozen = disk.freeze();
                let over = stopped.recv_timeout(SILENT).is_ok();
                drop(frozen);
                if over {
                    break;
                }
            }
            // It is mounted as long as the other one lives.
            std::mem::forget(disk);
        });
        Slow { stop, pulses: Some(pulses) }
    }

    /// Where it is mounted.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

/// A disk that does not answer; it does again when this is dropped.
pub struct Frozen<'d>(&'d Disk);

impl Drop for Frozen<'_> {
    fn drop(&mut self) {
        run("fsfreeze", &["--unfreeze", self.0.at.to_str().unwrap()]);
    }
}

/// A disk that is slow as long as this lives.
pub struct Slow {
    stop: mpsc::Sender<()>,
    pulses: Option<JoinHandle<()>>,
}

impl Drop for Slow {
    fn drop(&mut self) {
        let _ = self.stop.send(());
        drop(self.pulses.take().map(JoinHandle::join));
    }
}

fn run(program: &str, words: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.args(words);
    Running::start_reading(command, Stdio::null()).finish()
}

impl Drop for Disk {
    fn drop(&mut self) {
        run("umount", &["--lazy", self.at.to_str().unwrap()]);
    }
}
