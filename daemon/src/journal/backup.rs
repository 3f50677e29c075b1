//! Backups of the journal: making one, and putting one in the journal's place.
//!
//! Owns what a backup is: a journal that is whole by itself, with the number 0, so that a start knows it for one. What was in the place
//! is moved aside, never deleted. A backup gets its name once it is whole, and nothing is replaced: runs may be able to write where it goes.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use harness_files::{Anew, Dir};
use rusqlite::{Connection, OpenFlags, params};

use super::identity::free_name;
use super::schema::{self, OpenError};
use super::{FILE, epochs};

/// Why a backup was not put in place. What was there is still there.
#[derive(Debug, thiserror::Error)]
pub enum PutBackError {
    /// It is no journal, or a damaged one.
    #[error(transparent)]
    Backup(#[from] OpenError),
    /// It is the very journal whose place it is to take.
    #[error("{} is the journal that is in place; name a backup", .0.display())]
    InPlace(PathBuf),
    /// A file cannot be moved or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file that was to be moved or written.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

impl PutBackError {
    /// Whether a file was named that cannot be put in place.
    pub const fn is_usage(&self) -> bool {
        matches!(self, Self::Backup(_) | Self::InPlace(_))
    }
}

/// What was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PutBack {
    /// Where that is what was in the place.
    pub before: Option<PathBuf>,
}

/// Copies the journal `db` into the new file `to`, as a backup.
///
/// # Errors
/// Where the copy is not whole.
pub(super) fn copy_as_backup(db: &Connection, to: &Path) -> Result<(), rusqlite::Error> {
    db.execute("VACUUM INTO ?1", params![to.to_string_lossy()])?;
    let copy = Connection::open(to)?;
    // A journal of the first version has no number.
    if copy.prepare("SELECT instance FROM daemon").is_ok() {
        epochs::rename(&copy, 0)?;
    }
    Ok(())
}

/// A backup that has no name yet. Dropped, it goes.
pub(super) struct Unnamed {
    place: Anew,
    to: PathBuf,
}

/// Where the copy of a journal is made.
pub(super) struct Draft {
    /// An empty file.
    pub(super) path: PathBuf,
    between: Option<Anew>,
}

/// What a backup is called until it is whole, in a directory of its own.
const JOURNAL: &str = "journal";
const OUTPUTS: &str = "outputs";

impl Unnamed {
    /// Begins a backup that will be `to`, and `to.outputs` where outputs are copied as well. Neither may be there.
    pub(super) fn new(to: &Path, with_outputs: bool) -> io::Result<Self> {
        let outputs = with_outputs.then(|| outputs_of(to));
        if [Some(to), outputs.as_deref()].into_iter().flatten().any(|path| path.symlink_metadata().is_ok()) {
            return Err(rustix::io::Errno::EXIST.into());
        }
        Ok(Self { place: Anew::beside(to)?, to: to.to_owned() })
    }

    /// Where SQLite is to copy the journal to. It opens by name: where somebody else could turn that, this is in the state directory.
    pub(super) fn draft(&self, state_dir: &Path) -> io::Result<Draft> {
        let between = (!self.place.is_ours()).then(|| Anew::beside(&state_dir.join("backup"))).transpose()?;
        let place = between.as_ref().unwrap_or(&self.place);
        drop(place.dir().create(JOURNAL, 0o600)?);
        Ok(Draft { path: place.path().join(JOURNAL), between })
    }

    /// Takes what was copied there, and gives its bytes.
    pub(super) fn take(&self, draft: &Draft) -> io::Result<u64> {
        let place = draft.between.as_ref().unwrap_or(&self.place);
        let mut made = place.dir().file(JOURNAL)?.ok_or(ErrorKind::NotFound)?;
        match draft.between {
            Some(_) => io::copy(&mut made, &mut self.place.dir().create(JOURNAL, 0o600)?),
            None => Ok(made.metadata()?.len()),
        }
    }

    /// Copies outputs.
    pub(super) fn outputs(&self, from: &Path) -> io::Result<u64> {
        self.place.dir().make(OUTPUTS)?.copy_from(&Dir::open(from)?)
    }

    /// Gives it its name: the outputs first, so that where the journal is they are there.
    pub(super) fn name(self, has_outputs: bool) -> io::Result<()> {
        if has_outputs {
            self.place.place(OUTPUTS, outputs_of(&self.to).file_name().unwrap_or_default())?;
        }
        self.place.place(JOURNAL, self.to.file_name().unwrap_or_default())
    }
}

/// Puts the backup `file` in the place of the journal of `state_dir`, which must be locked. What was there is moved into a directory
/// of its own. Outputs that are beside the backup take the place of those that were there.
///
/// # Errors
/// Where the backup cannot be used, and nothing was changed; or where a file cannot be moved.
pub fn put_back(state_dir: &Path, file: &Path) -> Result<PutBack, PutBackError> {
    let failed = |error: rusqlite::Error| OpenError::of(file, &error);
    let db = checked(state_dir, file)?;
    let io = |path: &Path| {
        let path = path.to_owned();
        move |source| PutBackError::Io { path, source }
    };
    let fresh = state_dir.join(format!("{FILE}.new"));
    match fs::remove_file(&fresh) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(io(&fresh)(error)),
        _ => {}
    }
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&fresh).map_err(io(&fresh))?;
    copy_as_backup(&db, &fresh).map_err(failed)?;
    File::open(&fresh).and_then(|file| file.sync_all()).map_err(io(&fresh))?;
    let outputs = outputs_of(file);
    let kept = match Dir::open(&outputs) {
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        kept => Some(kept.map_err(io(&outputs))?),
    };
    let before = free_name(state_dir, "replaced");
    let mut moved = ["", "-wal", "-shm"].map(|end| format!("{FILE}{end}")).to_vec();
    if kept.is_some() {
        moved.push("outputs".to_owned());
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
    if let Some(kept) = kept {
        let made = Dir::open(state_dir).and_then(|dir| dir.make("outputs"));
        made.and_then(|made| made.copy_from(&kept)).map_err(io(&outputs))?;
    }
    fs::rename(&fresh, state_dir.join(FILE)).map_err(io(&fresh))?;
    File::open(state_dir).and_then(|dir| dir.sync_all()).map_err(io(state_dir))?;
    Ok(PutBack { before: is_there.then_some(before) })
}

/// Whether `file` is a backup that can be put in the place of the journal of `state_dir`. Changes nothing, and locks nothing.
///
/// # Errors
/// Where it is none, is damaged, of a version that is not known, or that very journal.
pub fn check(state_dir: &Path, file: &Path) -> Result<(), PutBackError> {
    checked(state_dir, file).map(drop)
}

fn checked(state_dir: &Path, file: &Path) -> Result<Connection, PutBackError> {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    if identity(file).is_some_and(|named| identity(&state_dir.join(FILE)) == Some(named)) {
        return Err(PutBackError::InPlace(file.to_owned()));
    }
    schema::version_of(file)?;
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(file, flags).map_err(|error| OpenError::of(file, &error))?;
    schema::look_through(&db, file)?;
    Ok(db)
}

/// Where the outputs are that belong to a backup.
pub fn outputs_of(backup: &Path) -> PathBuf {
    let mut name = backup.file_name().unwrap_or_default().to_owned();
    name.push(".outputs");
    backup.with_file_name(name)
}
