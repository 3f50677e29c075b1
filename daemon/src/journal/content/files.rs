//! The texts that are too long for a row: files of the state directory, each named by the hash of its content.
//!
//! Owns their directories. A file gets its name when it is whole and on disk, and is never changed; what has the name
//! of a text and another content counts as missing.

use std::ffi::OsString;
use std::fs;
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use harness_files::{Anew, Dir, remove_left};
use harness_protocol::blob::BlobHash;

use crate::blob;

const DIR: &str = "blobs";
/// Here are texts that a journal does not know which was put in the place of another one.
const ASIDE: &str = "blobs.aside";
/// Bytes of a file that are read: no text has as many.
const MOST: u64 = 64 * 1024 * 1024;

/// The directories of texts beside a journal.
#[derive(Debug, Clone)]
pub(in crate::journal) struct Files {
    state: PathBuf,
}

impl Files {
    /// The directories beside a journal. There is none before there is a file.
    pub(in crate::journal) fn beside(journal: &Path) -> Self {
        Self { state: journal.parent().unwrap_or(Path::new("/")).to_owned() }
    }

    fn in_place(&self) -> PathBuf {
        self.state.join(DIR)
    }

    /// Writes a text, unless it is there. It is on disk when this returns.
    pub(super) fn put(&self, hash: BlobHash, text: &str) -> io::Result<()> {
        let dir = directory(&self.state, DIR)?;
        if read_from(&self.in_place(), hash).is_err() {
            self.write(hash, text)?;
        }
        // Also where it was there: what gave it its name may have failed or died before this.
        Ok(rustix::fs::fsync(&dir)?)
    }

    fn write(&self, hash: BlobHash, text: &str) -> io::Result<()> {
        let path = self.in_place().join(hash.to_string());
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let place = Anew::beside(&path)?;
        let name = hash.to_string();
        let mut file = place.dir().create(&name, 0o600)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        place.place(&name, &name)
    }

    /// Reads a text.
    ///
    /// # Errors
    /// Also where another content has its name.
    pub(super) fn get(&self, hash: BlobHash) -> io::Result<String> {
        read_from(&self.in_place(), hash).or_else(|error| read_from(&self.state.join(ASIDE), hash).map_err(|_| error))
    }

    /// Removes a text, if it is there.
    pub(super) fn remove(&self, hash: BlobHash) -> io::Result<()> {
        match fs::remove_file(self.in_place().join(hash.to_string())) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The directory of texts, and that of those aside.
    pub(super) fn places(&self) -> (PathBuf, PathBuf) {
        (self.in_place(), self.state.join(ASIDE))
    }

    /// Moves texts to where none is removed. They are there on disk when this returns.
    pub(super) fn set_aside(&self, hashes: &[BlobHash]) -> io::Result<()> {
        let aside = directory(&self.state, ASIDE)?;
        let (from, to) = self.places();
        for name in hashes.iter().map(BlobHash::to_string) {
            fs::rename(from.join(&name), to.join(&name))?;
        }
        rustix::fs::fsync(&aside)?;
        Ok(rustix::fs::fsync(&Dir::open(&from)?)?)
    }

    /// The names of all texts in place. What a process that is gone has left unfinished is removed.
    pub(super) fn names(&self) -> io::Result<Vec<BlobHash>> {
        let dir = match Dir::open(&self.in_place()) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            dir => dir?,
        };
        remove_left(&self.in_place())?;
        let hash = |(name, is_dir): (OsString, bool)| name.to_str().filter(|_| !is_dir)?.parse().ok();
        Ok(dir.names()?.into_iter().filter_map(hash).collect())
    }
}

/// The directory of this name in the state directory; it is made where it is missing.
fn directory(state: &Path, name: &str) -> io::Result<Dir> {
    let state = Dir::open(state)?;
    match state.below(name) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let made = state.make(name)?;
            rustix::fs::fsync(&state)?;
            Ok(made)
        }
        found => found,
    }
}

fn read_from(dir: &Path, hash: BlobHash) -> io::Result<String> {
    let wrong = |why: &str| io::Error::new(ErrorKind::InvalidData, why.to_owned());
    let file = Dir::open(dir)?.file(hash.to_string())?.ok_or_else(|| wrong("it is no file"))?;
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text)?;
    if blob::hash(&text) == hash { Ok(text) } else { Err(wrong("its content is another one")) }
}
