//! Recognises the journal of a state directory, by an identity that is kept in the journal and beside it.
//!
//! A journal has an *instance*, a random number that changes with each start. The number is stored in the journal, and
//! beside it in the file `harness.id`, which also names the journal's file (device, inode, path). The file
//! `harness.seq` has the number of the last committed event. If these do not match, the journal is a copy or an older
//! state.
//!
//! The only place that reads and writes these two files. It also moves a write-ahead log aside that belongs to another
//! journal. Must not delete a file that may have events, and must not decide what follows from a mismatch: the start
//! does.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use harness_files::{Writing, open_own, read_regular};
use harness_protocol::id::Seq;
use harness_protocol::rpc::EpochReason;
use rusqlite::{Connection, OpenFlags};
use serde::{Deserialize, Serialize};

use super::FILE;

/// Name of the file with the identity of the journal.
const ID: &str = "harness.id";
/// Name of the file with the number of the last committed event.
const MARK: &str = "harness.seq";
/// Bytes that are read of either; ours have a few hundred.
const LONGEST_NOTE: u64 = 64 * 1024;
/// Names of both files.
pub(super) const BESIDE: [&str; 2] = [ID, MARK];
/// Numbers that a new epoch skips.
pub const JUMP: u64 = 1 << 32;

/// The random number of a journal. It is 0 for a journal of the first version and for a backup.
pub type Instance = u64;

/// The identity that a state directory has recorded for its journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Known {
    instance: Instance,
    /// The instance number that was about to replace it: a start may have died between the two writes.
    #[serde(default)]
    next: Option<Instance>,
    /// Why an epoch was about to begin. It has begun once the journal has the number `next`.
    #[serde(default)]
    begins: Option<EpochReason>,
    device: u64,
    inode: u64,
    /// The boot of the system for which the device number holds.
    boot: String,
    /// Path of the state directory.
    path: PathBuf,
}

/// The records beside the journal of a state directory.
#[derive(Debug, Clone)]
pub struct Beside {
    dir: PathBuf,
    known: Option<Known>,
    mark: Option<Seq>,
}

/// The result of comparing a journal with the records beside it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recognised {
    /// The same journal.
    Same,
    /// Another journal, or an older state of it: a new epoch begins.
    Another(EpochReason),
}

impl Beside {
    /// Reads the two files. A file that cannot be read counts as missing.
    pub fn read(dir: &Path) -> Self {
        let text = read_regular(&dir.join(ID), LONGEST_NOTE).ok();
        let known = text.and_then(|text| serde_json::from_slice(&text).ok());
        let mark = read_regular(&dir.join(MARK), LONGEST_NOTE)
            .ok()
            .and_then(|text| str::from_utf8(&text).ok()?.trim().parse().ok())
            .map(Seq);
        Self { dir: dir.to_owned(), known, mark }
    }

    /// Whether the directory had a journal before.
    pub fn was_here(&self) -> bool {
        self.known.is_some()
    }

    /// Number of the last event that was committed here; `None` if none was.
    pub fn last(&self) -> Option<Seq> {
        self.mark.filter(|mark| mark.0 > 0)
    }

    /// Compares the journal, with this number and the last event `last`, with the records.
    pub fn recognise(&self, instance: Instance, is_first_version: bool, last: Seq) -> Recognised {
        let another = |reason| Recognised::Another(reason);
        let Some(known) = &self.known else {
            return match instance {
                // Daemons of the first version kept no records beside the journal.
                0 if is_first_version => Recognised::Same,
                0 => another(EpochReason::Restored),
                _ => another(EpochReason::Copied),
            };
        };
        if let Some(reason) = known.begins.filter(|_| known.instance == instance) {
            return another(reason);
        }
        if !known.is(instance) {
            return another(if instance == 0 { EpochReason::Restored } else { EpochReason::Copied });
        }
        if known.is_elsewhere(&self.dir) {
            return another(EpochReason::Copied);
        }
        if self.mark.is_some_and(|mark| mark > last) {
            return another(EpochReason::WentBack);
        }
        Recognised::Same
    }

    /// Moves a write-ahead log aside if it belongs to another journal than the file beside it: SQLite would mix the
    /// two. Returns its new path.
    ///
    /// # Errors
    /// If it cannot be moved.
    pub fn set_strange_log_aside(&self) -> io::Result<Option<PathBuf>> {
        let log = self.dir.join(format!("{FILE}-wal"));
        let (Some(known), true) = (&self.known, log.metadata().is_ok_and(|file| file.len() > 0)) else {
            return Ok(None);
        };
        // Each start writes its number into the file itself. A file in which it cannot be read is left to SQLite.
        match instance_without_log(&self.dir.join(FILE)) {
            Some(instance) if !known.is(instance) => {}
            _ => return Ok(None),
        }
        let to = free_name(&self.dir, &format!("{FILE}-wal.of-another"));
        fs::rename(&log, &to)?;
        match fs::remove_file(self.dir.join(format!("{FILE}-shm"))) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Some(to))
    }

    /// Records that the journal with the number `now` is about to get the number `next`.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn expect(&mut self, now: Instance, next: Instance) -> io::Result<()> {
        self.note(now, Some(next), None)
    }

    /// Records the same, and that an epoch begins with the new number.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn expect_epoch(&mut self, now: Instance, next: Instance, reason: EpochReason) -> io::Result<()> {
        self.note(now, Some(next), Some(reason))
    }

    /// Records that the journal has this number.
    ///
    /// # Errors
    /// If the record cannot be written.
    pub fn keep(&mut self, instance: Instance) -> io::Result<()> {
        self.note(instance, None, None)
    }

    fn note(&mut self, instance: Instance, next: Option<Instance>, begins: Option<EpochReason>) -> io::Result<()> {
        let file = self.dir.join(FILE).metadata()?;
        let path = self.dir.canonicalize()?;
        let known = Known { instance, next, begins, device: file.dev(), inode: file.ino(), boot: boot(), path };
        let text = serde_json::to_vec(&known)?;
        let fresh = self.dir.join(format!("{ID}.new"));
        let mut file = open_own(&fresh, Writing::Anew, false)?;
        file.write_all(&text)?;
        file.sync_all()?;
        fs::rename(&fresh, self.dir.join(ID))?;
        File::open(&self.dir)?.sync_all()?;
        self.known = Some(known);
        Ok(())
    }

    /// Opens the file with the number of the last event. `last` is the present one.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub fn mark(&self, last: Seq) -> io::Result<Mark> {
        let path = self.dir.join(MARK);
        let file = open_own(&path, Writing::Keep, false)?;
        let mark = Mark { file };
        mark.set(last)?;
        Ok(mark)
    }
}

impl Known {
    fn is(&self, instance: Instance) -> bool {
        instance == self.instance || self.next == Some(instance)
    }

    /// Whether the journal of `dir` is another file than recorded, or in another place.
    fn is_elsewhere(&self, dir: &Path) -> bool {
        let Ok(file) = dir.join(FILE).metadata() else { return true };
        // Device numbers are valid only until the next boot.
        let other_device = file.dev() != self.device && self.boot == boot();
        file.ino() != self.inode || other_device || dir.canonicalize().is_ok_and(|path| path != self.path)
    }
}

/// The number of the last committed event, in a file beside the journal. The file is not synced: after a power loss it
/// may be too low, or too high by events that were not synced either.
#[derive(Debug)]
pub struct Mark {
    file: File,
}

impl Mark {
    /// Moves the mark to the event `seq`.
    ///
    /// # Errors
    /// If the file cannot be written; its number may be too low then.
    pub fn set(&self, seq: Seq) -> io::Result<()> {
        self.file.write_all_at(format!("{:020}\n", seq.0).as_bytes(), 0)
    }
}

/// The instance number in the file itself, without the write-ahead log. `None` if it cannot be read.
fn instance_without_log(path: &Path) -> Option<Instance> {
    let db = open_without_log(path)?;
    match db.query_row("SELECT instance FROM daemon", [], |row| row.get::<_, i64>(0)) {
        Ok(instance) => Some(instance.cast_unsigned()),
        // A journal of the first version has no instance number.
        Err(_) => db.query_row("SELECT 0 FROM daemon", [], |row| row.get::<_, i64>(0)).ok().map(i64::cast_unsigned),
    }
}

/// Opens the file itself for reading, without the write-ahead log.
pub(super) fn open_without_log(path: &Path) -> Option<Connection> {
    let mut uri = String::from("file:");
    for byte in path.to_str()?.bytes() {
        match byte {
            b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => uri.push(char::from(byte)),
            other => uri.push_str(&format!("%{other:02x}")),
        }
    }
    uri.push_str("?immutable=1");
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    Connection::open_with_flags(uri, flags).ok()
}

/// Identifies the present boot of the system; empty if that cannot be read.
fn boot() -> String {
    let mut text = String::new();
    let read = File::open("/proc/sys/kernel/random/boot_id").and_then(|mut file| file.read_to_string(&mut text));
    read.map_or_else(|_| String::new(), |_| text.trim().to_owned())
}

/// A free name in `dir`: `name`, or `name.2`, and so on.
pub(super) fn free_name(dir: &Path, name: &str) -> PathBuf {
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    let first = dir.join(name);
    if is_free(&first) {
        return first;
    }
    (2u64..).map(|count| dir.join(format!("{name}.{count}"))).find(is_free).unwrap_or(first)
}
