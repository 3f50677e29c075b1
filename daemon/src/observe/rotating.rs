//! Writes a log file, and rotates it before it grows over its bound.
//!
//! The bound covers the current file and one older file together. A rotation must not split a line, and drops only what
//! the older file had. If the file cannot be rotated, writing goes on in it, over the bound.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use harness_files::{Writing, open_own};

/// Size of the file in bytes at which it is rotated. The log takes at most twice as much.
pub(super) const ROTATE_BYTES: u64 = 10 * 1024 * 1024;

/// The log file, open at its end.
#[derive(Debug)]
pub(super) struct Rotating {
    path: PathBuf,
    file: File,
    bytes: u64,
    most: u64,
}

impl Rotating {
    /// Opens the file, or makes it. A file over its bound is rotated first.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        Self::with_bound(path, ROTATE_BYTES)
    }

    fn with_bound(path: &Path, most: u64) -> io::Result<Self> {
        let mut file = append_to(path)?;
        let mut bytes = file.metadata()?.len();
        if bytes > most {
            put_aside(path)?;
            (file, bytes) = (append_to(path)?, 0);
        }
        Ok(Self { path: path.to_owned(), file, bytes, most })
    }

    /// Begins a new file, unless the present one has room for `bytes` more bytes. If the rotation fails, writing goes
    /// on in the present file.
    fn make_room_for(&mut self, bytes: u64) -> io::Result<()> {
        // Another process may have truncated the file.
        let is_full = self.file.metadata().map_or(true, |found| found.len() + bytes > self.most);
        if is_full {
            put_aside(&self.path)?;
            self.file = append_to(&self.path)?;
        }
        self.bytes = self.file.metadata()?.len();
        Ok(())
    }
}

impl Write for Rotating {
    /// Writes a whole line, or as much of it as fits on the disk.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let bytes = line.len() as u64;
        if self.bytes > 0 && self.bytes + bytes > self.most && self.make_room_for(bytes).is_err() {
            // The rotation is tried again once as many bytes were written again.
            self.bytes = 0;
        }
        let written = self.file.write(line)?;
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn append_to(path: &Path) -> io::Result<File> {
    // A run may put a link there.
    open_own(path, Writing::Append, false)
}

/// The rotated file replaces the older one.
fn put_aside(path: &Path) -> io::Result<()> {
    match fs::rename(path, path.with_extension("log.1")) {
        // Another process has rotated the file already.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn lines_of(path: &Path) -> Vec<String> {
        fs::read_to_string(path).unwrap_or_default().lines().map(ToOwned::to_owned).collect()
    }

    /// B12: whatever the lines are, the log is bounded. The two files together have the newest lines, whole and in
    /// order.
    #[test]
    fn a_log_is_put_aside_while_it_is_written_and_no_line_is_lost_or_cut() {
        for (most, length, lines) in
            [(100, 1, 40), (100, 9, 60), (100, 49, 30), (100, 98, 9), (100, 250, 5), (1000, 33, 55), (1, 3, 7)]
        {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("harnessd.log");
            let mut log = Rotating::with_bound(&path, most).unwrap();
            let line = |number: usize| format!("{number:0>length$}\n");
            for number in 0..lines {
                // In the same way as the thread that writes lines.
                log.write_all(line(number).as_bytes()).unwrap();
                let longest = most.max(length as u64 + 4);
                let sizes = [&path, &path.with_extension("log.1")]
                    .map(|path| fs::metadata(path).map_or(0, |found| found.len()));
                assert!(sizes.iter().all(|&size| size <= longest), "{most} {length}: {sizes:?}");
            }
            let kept = [lines_of(&path.with_extension("log.1")), lines_of(&path)].concat();
            let expected: Vec<String> = (lines - kept.len()..lines).map(|n| line(n).trim_end().to_owned()).collect();
            assert_eq!(kept, expected, "{most} {length}");
            assert!(
                lines_of(&path.with_extension("log.1")).len() + 1
                    >= usize::try_from(most).unwrap() / (length + 4).max(1)
            );
        }
    }

    #[test]
    fn the_file_is_appended_to_and_put_aside_once_it_has_grown() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("harnessd.log");
        Rotating::open(&path).unwrap().write_all(b"one\n").unwrap();
        Rotating::open(&path).unwrap().write_all(b"two\n").unwrap();
        assert_eq!(lines_of(&path), ["one", "two"]);
        append_to(&path).unwrap().set_len(ROTATE_BYTES + 1).unwrap();
        Rotating::open(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().len(), 0);
        assert_eq!(fs::metadata(path.with_extension("log.1")).unwrap().len(), ROTATE_BYTES + 1);
    }

    /// B12: changes to the file by other processes lose no later line.
    #[test]
    fn a_file_that_was_emptied_moved_or_cannot_be_put_aside_is_written_on() {
        let write = |log: &mut Rotating, from: u32, to: u32| {
            (from..to).for_each(|number| log.write_all(format!("{number:03}\n").as_bytes()).unwrap());
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("harnessd.log");
        let aside = path.with_extension("log.1");
        let mut log = Rotating::with_bound(&path, 40).unwrap();
        write(&mut log, 0, 10);
        append_to(&path).unwrap().set_len(0).unwrap();
        write(&mut log, 10, 15);
        assert_eq!((lines_of(&path).len(), aside.exists()), (5, false), "it was emptied, and has room");
        fs::rename(&path, dir.path().join("elsewhere")).unwrap();
        write(&mut log, 15, 25);
        assert_eq!([lines_of(&dir.path().join("elsewhere")), lines_of(&path)].concat().len(), 15);
        // A non-empty directory blocks the name.
        fs::create_dir_all(aside.join("in-the-way")).unwrap();
        write(&mut log, 25, 60);
        let there = [lines_of(&dir.path().join("elsewhere")), lines_of(&path)].concat();
        assert!(there.ends_with(&["059".to_owned()]) && there.len() == 50, "{there:?}");
        fs::remove_dir_all(&aside).unwrap();
        write(&mut log, 60, 85);
        assert!(aside.exists() && lines_of(&path).last().unwrap() == "084");
    }
}
