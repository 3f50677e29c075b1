//! Makes backups of the journal, and puts a backup in the place of the journal.
//!
//! The only place with the format of a backup: a complete journal with the instance number 0, by which a start
//! recognises it. A restore moves the old journal aside, and must not delete it. A backup gets its name once it is
//! complete, and must not replace a file. Runs may be able to write to the directory of a backup. So a backup that is
//! put in place is read once, must belong to this user or to root, and is checked in a copy that only this user can
//! reach.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use harness_files::{Anew, Dir, Trusted, open_trusted};
use rusqlite::{Connection, OpenFlags, params};

use super::content::Hold;
use super::identity::free_name;
use super::schema::{self, OpenError};
use super::{FILE, content, disk, epochs};

/// Bytes that a check leaves free, so that it does not cause a hold of the daemon that serves meanwhile.
const SPARE: u64 = 16 << 20;

/// Why a backup was not put in place. The journal that was in place is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum PutBackError {
    /// It is no journal, or a damaged one.
    #[error(transparent)]
    Backup(#[from] OpenError),
    /// It is the very journal that it is to replace.
    #[error("{} is the journal that is in place; name a backup", .0.display())]
    InPlace(PathBuf),
    /// A file lies beside it that SQLite would take for a part of it.
    #[error(
        "{} lies beside {}, and a backup has none: it may be a part of that journal, or another user has put it there. \
         Nothing was changed. To go on from that journal with what lies beside it, make a backup of it, which also \
         looks whose it is: harnessd salvage {} NEW, and restore NEW",
        beside.display(), path.display(), path.display()
    )]
    Beside {
        /// The backup, as it was named.
        path: PathBuf,
        /// The file beside it.
        beside: PathBuf,
    },
    /// Other users may write to the directory into which the backup would be copied.
    #[error("{} belongs to another user, or others may write to it; restore as its owner", path.display())]
    OfOthers {
        /// The state directory.
        path: PathBuf,
    },
    /// It cannot be read, or may belong to another user.
    #[error("{}: {source}", path.display())]
    Named {
        /// The backup, or the outputs beside it.
        path: PathBuf,
        /// Why it is refused.
        source: io::Error,
    },
    /// It would fill the file system of the state directory.
    #[error("{} has no room for it: {needed} bytes are needed, and {free} are free", path.display())]
    NoRoom {
        /// The state directory.
        path: PathBuf,
        /// Bytes that the copy takes, and those to be left for a daemon that serves.
        needed: u64,
        /// Free bytes of the file system.
        free: u64,
    },
    /// A file cannot be moved or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file that was to be moved or written.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
}

impl PutBackError {
    /// Whether the user named a file that cannot be put in place.
    pub const fn is_usage(&self) -> bool {
        !matches!(self, Self::Io { .. } | Self::NoRoom { .. })
    }
}

/// The result of putting a backup in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutBack {
    /// Directory with the journal that was in place before; `None` if there was none.
    pub before: Option<PathBuf>,
}

/// Copies the journal `db` of a state directory into the new file `to`, as a backup. All texts are in that file: it
/// needs no other one. The caller holds their files, which are read after the journal; `between` is called between.
///
/// # Errors
/// If the copy is not complete.
pub(super) fn copy_as_backup(
    db: &Connection,
    to: &Path,
    state_dir: &Path,
    _: &Hold,
    between: impl FnOnce(),
) -> Result<(), rusqlite::Error> {
    db.execute("VACUUM INTO ?1", params![to.to_string_lossy()])?;
    between();
    let mut copy = Connection::open(to)?;
    let transaction = copy.transaction()?;
    content::take_in(&transaction, &state_dir.join(FILE))?;
    number_as_backup(&transaction)?;
    transaction.commit()
}

fn number_as_backup(db: &Connection) -> Result<(), rusqlite::Error> {
    // A journal of the first version has no number.
    if db.prepare("SELECT instance FROM daemon").is_ok() {
        epochs::rename(db, 0)?;
    }
    Ok(())
}

/// A backup that has no name yet. It is removed when this is dropped.
pub(super) struct Unnamed {
    place: Anew,
    to: PathBuf,
}

/// The place in which the copy of a journal is made.
pub(super) struct Draft {
    /// Path of an empty file.
    pub(super) path: PathBuf,
    between: Option<Anew>,
}

/// Name of a backup in its hidden directory, until it is complete.
const JOURNAL: &str = "journal";
const OUTPUTS: &str = "outputs";

impl Unnamed {
    /// Begins a backup at `to`, and at `to.outputs` if outputs are copied as well. Fails if either path exists.
    pub(super) fn new(to: &Path, with_outputs: bool) -> io::Result<Self> {
        let outputs = with_outputs.then(|| outputs_of(to));
        if [Some(to), outputs.as_deref()].into_iter().flatten().any(|path| path.symlink_metadata().is_ok()) {
            return Err(rustix::io::Errno::EXIST.into());
        }
        Ok(Self { place: Anew::beside(to)?, to: to.to_owned() })
    }

    /// The file into which SQLite copies the journal. SQLite opens files by name; where another user could redirect
    /// that name, the file is in the state directory.
    pub(super) fn draft(&self, state_dir: &Path) -> io::Result<Draft> {
        let between = (!self.place.is_ours()).then(|| Anew::beside(&state_dir.join("backup"))).transpose()?;
        let place = between.as_ref().unwrap_or(&self.place);
        drop(place.dir().create(JOURNAL, 0o600)?);
        Ok(Draft { path: place.path().join(JOURNAL), between })
    }

    /// Moves the finished copy from `draft` into the backup. Returns its size in bytes.
    pub(super) fn take(&self, draft: &Draft) -> io::Result<u64> {
        let place = draft.between.as_ref().unwrap_or(&self.place);
        let mut made = place.dir().file(JOURNAL)?.ok_or(ErrorKind::NotFound)?;
        match draft.between {
            Some(_) => io::copy(&mut made, &mut self.place.dir().create(JOURNAL, 0o600)?),
            None => Ok(made.metadata()?.len()),
        }
    }

    /// Copies the directory of outputs into the backup. Returns the bytes copied.
    pub(super) fn outputs(&self, from: &Path) -> io::Result<u64> {
        self.place.dir().make(OUTPUTS)?.copy_from(&Dir::open(from)?)
    }

    /// Gives the backup its name. The outputs are named first: where the journal is, its outputs are there as well.
    pub(super) fn name(self, has_outputs: bool) -> io::Result<()> {
        if has_outputs {
            self.place.place(OUTPUTS, outputs_of(&self.to).file_name().unwrap_or_default())?;
        }
        self.place.place(JOURNAL, self.to.file_name().unwrap_or_default())
    }
}

/// A backup that was read once. From then on only its copy, in a directory of ours, is used. The copy is removed when
/// this is dropped.
struct Copied {
    place: Anew,
    db: Connection,
}

impl Copied {
    /// Copies the backup `file` into a hidden directory in `dir`, and checks the copy. Refuses a file that another user
    /// may have written, and a copy that would leave fewer than `spare` bytes free.
    fn of(file: &Path, dir: &Path, spare: u64) -> Result<Self, PutBackError> {
        let io = |source| PutBackError::Named { path: file.to_owned(), source };
        let mut found = open_trusted(file).map_err(io)?;
        let identity = |found: &fs::Metadata| (found.dev(), found.ino());
        let in_place = fs::metadata(dir.join(FILE)).ok().map(|found| identity(&found));
        if in_place.is_some() && in_place == found.file.metadata().ok().map(|found| identity(&found)) {
            return Err(PutBackError::InPlace(file.to_owned()));
        }
        let written = |found: &Trusted| found.file.metadata().map(|found| (found.len(), found.modified().ok()));
        let before = written(&found).map_err(io)?;
        is_alone(file, &found)?;
        let here = |source| PutBackError::Io { path: dir.to_owned(), source };
        let needed = before.0.saturating_add(spare);
        if let Some(free) = disk::free(dir).filter(|free| *free < needed) {
            return Err(PutBackError::NoRoom { path: dir.to_owned(), needed, free });
        }
        let owner = dir.metadata().map_err(here)?.uid();
        let place = Anew::beside(&dir.join("restore")).map_err(here)?;
        // SQLite opens files by name, and another user could redirect this name.
        if !place.is_ours() && owner != nix::unistd::geteuid().as_raw() {
            return Err(PutBackError::OfOthers { path: dir.to_owned() });
        }
        let mut copy = place.dir().create(JOURNAL, 0o600).map_err(here)?;
        io::copy(&mut found.file, &mut copy).map_err(here)?;
        // Another program may have emptied the write-ahead log into the journal meanwhile: the copy would mix two
        // moments.
        is_alone(file, &found)?;
        if written(&found).map_err(io)? != before {
            return Err(io(io::Error::other("it was written to while it was read")));
        }
        let db = opened(&place.path().join(JOURNAL)).map_err(|error| error.at(file))?;
        Ok(Self { place, db })
    }

    /// Closes the copy as a backup that needs no other file. It is left in the mode with a write-ahead log: a start
    /// that had to change the mode would write to the file without such a log, and could be killed meanwhile.
    fn finish(self) -> Result<Anew, rusqlite::Error> {
        number_as_backup(&self.db)?;
        for mode in ["DELETE", "WAL"] {
            self.db.query_row(&format!("PRAGMA journal_mode = {mode}"), [], |_| Ok(()))?;
        }
        self.db.close().map_err(|(_, error)| error)?;
        Ok(self.place)
    }
}

/// Refuses a backup with a file beside it that SQLite would take for a part of it. An empty write-ahead log of ours,
/// and the index of one, are accepted: the daemon leaves both, and they add nothing.
fn is_alone(path: &Path, found: &Trusted) -> Result<(), PutBackError> {
    for end in schema::BESIDE {
        let mut name = found.name.clone();
        name.push(end);
        if !found.dir.has(&name).map_err(|source| PutBackError::Named { path: path.to_owned(), source })? {
            continue;
        }
        let adds_nothing = found.dir.trusted_file(&name).is_ok_and(|file| match end {
            "-wal" => file.metadata().is_ok_and(|found| found.len() == 0),
            _ => end == "-shm",
        });
        if !adds_nothing {
            return Err(PutBackError::Beside { path: path.to_owned(), beside: path.with_file_name(name) });
        }
    }
    Ok(())
}

fn opened(copy: &Path) -> Result<Connection, OpenError> {
    schema::version_of(copy)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(copy, flags).map_err(|error| OpenError::of(copy, &error))?;
    schema::look_through(&db, copy)?;
    Ok(db)
}

/// Replaces the journal of `state_dir`, which must be locked, by the backup `file`. The old journal is moved into a
/// directory of its own. Outputs beside the backup replace the present outputs.
///
/// # Errors
/// If the backup cannot be used; nothing was changed then. Or if a file cannot be moved.
pub fn put_back(state_dir: &Path, file: &Path) -> Result<PutBack, PutBackError> {
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| PutBackError::Io { path, source }
    };
    let place = Copied::of(file, state_dir, 0)?.finish().map_err(|error| OpenError::of(file, &error))?;
    place.dir().file(JOURNAL).and_then(|file| file.map_or(Ok(()), |file| file.sync_all())).map_err(io(state_dir))?;
    let has_outputs = copy_outputs(&place, &outputs_of(file))
        .map_err(|source| PutBackError::Named { path: outputs_of(file), source })?;
    // From here on the backup cannot turn out to be wrong.
    let before = free_name(state_dir, "replaced");
    // The journal goes first: if this is interrupted, no file that is left belongs to a present journal.
    let mut moved = vec![FILE.to_owned()];
    moved.extend(schema::BESIDE.map(|end| format!("{FILE}{end}")));
    if has_outputs {
        moved.push(OUTPUTS.to_owned());
    }
    let mut is_there = false;
    for name in &moved {
        let from = state_dir.join(name);
        if from.symlink_metadata().is_ok() {
            DirBuilder::new().recursive(true).mode(0o700).create(&before).map_err(io(&before))?;
            fs::rename(&from, before.join(name)).map_err(io(&from))?;
            is_there = true;
        }
    }
    if has_outputs {
        place.place(OUTPUTS, OUTPUTS).map_err(io(state_dir))?;
    }
    place.place(JOURNAL, FILE).map_err(io(state_dir))?;
    File::open(state_dir).and_then(|dir| dir.sync_all()).map_err(io(state_dir))?;
    Ok(PutBack { before: is_there.then_some(before) })
}

/// Copies the outputs beside a backup. Returns whether there are any.
fn copy_outputs(place: &Anew, outputs: &Path) -> io::Result<bool> {
    let Some(found) = found_outputs(outputs)? else { return Ok(false) };
    place.dir().make(OUTPUTS)?.copy_trusted_from(&found, outputs.file_name().unwrap_or_default())?;
    Ok(true)
}

fn found_outputs(outputs: &Path) -> io::Result<Option<Dir>> {
    match Dir::open(outputs) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        found => found.map(Some),
    }
}

/// Checks that `file` is a backup that can be put in the place of the journal of `state_dir`. Changes nothing and takes
/// no lock.
///
/// # Errors
/// If the file is no backup, is damaged, has an unknown version or is the journal itself; or if it, or an output beside
/// it, may belong to another user.
pub fn check(state_dir: &Path, file: &Path) -> Result<(), PutBackError> {
    let outputs = outputs_of(file);
    let believed = || match found_outputs(&outputs)? {
        Some(found) => found.believe_all(outputs.file_name().unwrap_or_default()),
        None => Ok(0),
    };
    let bytes = believed().map_err(|source| PutBackError::Named { path: outputs.clone(), source })?;
    let no_state = std::env::temp_dir();
    let dir = if state_dir.is_dir() { state_dir } else { &no_state };
    Copied::of(file, dir, bytes.saturating_add(SPARE)).map(drop)
}

/// Path of the outputs that belong to a backup.
pub fn outputs_of(backup: &Path) -> PathBuf {
    let mut name = backup.file_name().unwrap_or_default().to_owned();
    name.push(".outputs");
    backup.with_file_name(name)
}
