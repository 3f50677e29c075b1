//! Stores the output of calls in files: `<state>/outputs/<run>/<call>.stdout` and `.stderr`.
//!
//! The only place with this layout. The names are made of our own ids, so no text of a model is part of a path.

use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use harness_files::{Dir, Opening, Writing, open_own, open_regular};
use harness_protocol::id::{CallId, RunId};
use harness_protocol::rpc::OutputStream;

/// Name of the directory for files of runs that the journal does not know.
const ASIDE: &str = ".lost";

/// The output files of all calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outputs {
    root: Arc<Path>,
}

/// A read range of a stream.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Range {
    /// Offset of the range in the stream, in bytes.
    pub offset: u64,
    /// The bytes of the range, as they were written.
    pub bytes: Vec<u8>,
    /// Length of the stream so far in bytes, as far as it is kept on disk.
    pub total: u64,
}

impl Outputs {
    /// The output files below `state_dir`. Touches no file.
    pub fn new(state_dir: &Path) -> Self {
        Self { root: state_dir.join("outputs").into() }
    }

    /// Path of a stream of a call, if the call wrote to it.
    pub fn path(&self, run: RunId, call: CallId, stream: OutputStream) -> PathBuf {
        let extension = match stream {
            OutputStream::Stdout => "stdout",
            OutputStream::Stderr => "stderr",
        };
        self.root.join(format!("{run}/{call}.{extension}"))
    }

    /// The output files of one call. At most `quota` bytes of each are kept.
    pub fn of_call(&self, run: RunId, call: CallId, quota: u64) -> CallOutputs {
        CallOutputs { outputs: self.clone(), run, call, quota }
    }

    /// Reads at most `limit` bytes from `offset`, which counts from the end where it is negative. A stream without a
    /// file is empty. An offset beyond an end is taken as that end.
    ///
    /// # Errors
    /// If the file exists and cannot be read.
    pub fn read(&self, run: RunId, call: CallId, stream: OutputStream, offset: i64, limit: u32) -> io::Result<Range> {
        // A run may put a pipe or a link there.
        let mut file = match open_regular(&self.path(run, call, stream), Opening::ReadInPlace) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Range::default()),
            Err(error) => return Err(error),
        };
        let total = file.metadata()?.len();
        let offset = match u64::try_from(offset) {
            Ok(from_start) => from_start.min(total),
            Err(_) => total.saturating_sub(offset.unsigned_abs()),
        };
        file.seek(SeekFrom::Start(offset))?;
        // The file may grow meanwhile: the new bytes are left for the next read.
        let length = u64::from(limit).min(total - offset);
        let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or_default());
        file.take(length).read_to_end(&mut bytes)?;
        Ok(Range { offset, bytes, total })
    }

    /// Runs that have files.
    pub fn runs(&self) -> Vec<RunId> {
        let Ok(dirs) = fs::read_dir(&self.root) else { return Vec::new() };
        dirs.filter_map(|dir| dir.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    /// Number of bytes of all files, as far as they can be read.
    pub fn bytes(&self) -> u64 {
        let files = self.runs().into_iter().filter_map(|run| fs::read_dir(self.root.join(run.to_string())).ok());
        files.flatten().filter_map(|file| Some(file.ok()?.metadata().ok()?.len())).sum()
    }

    /// Moves the files of a run aside, and gives their new directory.
    ///
    /// # Errors
    /// If there are files that cannot be moved.
    pub fn set_aside(&self, run: RunId) -> io::Result<PathBuf> {
        let aside = self.root.join(ASIDE);
        DirBuilder::new().recursive(true).mode(0o700).create(&aside)?;
        let mut to = aside.join(run.to_string());
        let mut count = 1u32;
        // Files that were set aside before are kept.
        while to.symlink_metadata().is_ok() {
            count += 1;
            to = aside.join(format!("{run}.{count}"));
        }
        match fs::rename(self.root.join(run.to_string()), to) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => Ok(aside),
        }
    }

    /// Runs whose files were moved aside.
    pub fn aside(&self) -> Vec<RunId> {
        let Ok(dirs) = fs::read_dir(self.root.join(ASIDE)) else { return Vec::new() };
        dirs.filter_map(|dir| dir.ok()?.file_name().to_str()?.parse().ok()).collect()
    }

    /// Moves the set-aside files of a run back, if it has no others. Gives whether it did.
    ///
    /// # Errors
    /// If there are files that cannot be moved.
    pub fn take_back(&self, run: RunId) -> io::Result<bool> {
        let to = self.root.join(run.to_string());
        if to.symlink_metadata().is_ok() {
            return Ok(false);
        }
        fs::rename(self.root.join(ASIDE).join(run.to_string()), to).map(|()| true)
    }

    /// Removes the files of a run.
    ///
    /// # Errors
    /// If there are files that cannot be removed.
    pub fn remove(&self, run: RunId) -> io::Result<()> {
        match Dir::open(&self.root) {
            Ok(root) => root.remove_all(run.to_string()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// The output files of one call.
#[derive(Debug, Clone)]
pub struct CallOutputs {
    outputs: Outputs,
    run: RunId,
    call: CallId,
    quota: u64,
}

impl CallOutputs {
    /// Makes the file of a stream.
    pub(in crate::process) fn create(&self, stream: OutputStream) -> io::Result<OutputFile> {
        let path = self.outputs.path(self.run, self.call, stream);
        // A run may put links there, also in the place of its own directory.
        let open = || open_own(&path, Writing::Anew, true);
        let file = match open() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let dir = path.parent().unwrap_or(&self.outputs.root);
                DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
                open()?
            }
            opened => opened?,
        };
        Ok(OutputFile { file, path, room: self.quota })
    }
}

/// A file that takes a stream up to its quota, and ignores further bytes.
#[derive(Debug)]
pub(in crate::process) struct OutputFile {
    file: File,
    path: PathBuf,
    room: u64,
}

impl OutputFile {
    pub(in crate::process) fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        let fits = usize::try_from(self.room).unwrap_or(usize::MAX).min(bytes.len());
        self.file.write_all(&bytes[..fits])?;
        self.room -= fits as u64;
        Ok(())
    }

    pub(in crate::process) fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const RUN: RunId = RunId::from_u64(7);
    const CALL: CallId = CallId::from_u64(9);

    fn written(quota: u64, text: &[u8]) -> (tempfile::TempDir, Outputs) {
        let dir = tempfile::tempdir().unwrap();
        let outputs = Outputs::new(dir.path());
        outputs.of_call(RUN, CALL, quota).create(OutputStream::Stdout).unwrap().write_all(text).unwrap();
        (dir, outputs)
    }

    fn read(outputs: &Outputs, offset: i64, limit: u32) -> (u64, String, u64) {
        let range = outputs.read(RUN, CALL, OutputStream::Stdout, offset, limit).unwrap();
        (range.offset, String::from_utf8(range.bytes).unwrap(), range.total)
    }

    #[test]
    fn a_range_counts_from_the_start_or_from_the_end() {
        let (_dir, outputs) = written(100, b"0123456789");
        assert_eq!(read(&outputs, 0, 4), (0, "0123".to_owned(), 10));
        assert_eq!(read(&outputs, 8, 4), (8, "89".to_owned(), 10));
        assert_eq!(read(&outputs, -3, 100), (7, "789".to_owned(), 10));
        assert_eq!(read(&outputs, -30, 2), (0, "01".to_owned(), 10));
        assert_eq!(read(&outputs, 30, 2), (10, String::new(), 10));
        assert_eq!(read(&outputs, i64::MIN, 1), (0, "0".to_owned(), 10));
    }

    #[test]
    fn bytes_over_the_quota_are_not_written() {
        let (_dir, outputs) = written(4, b"0123456789");
        assert_eq!(read(&outputs, 0, 100), (0, "0123".to_owned(), 4));
    }

    #[test]
    fn a_stream_without_a_file_is_empty_and_a_run_is_removed_whole() {
        let (dir, outputs) = written(100, b"x");
        assert_eq!(outputs.read(RUN, CALL, OutputStream::Stderr, 0, 9).unwrap(), Range::default());
        outputs.remove(RUN).unwrap();
        outputs.remove(RUN).unwrap();
        assert_eq!(fs::read_dir(dir.path().join("outputs")).unwrap().count(), 0);
    }

    #[test]
    fn an_entry_of_a_run_in_the_place_of_a_stream_is_refused_at_once() {
        use rustix::fs::{CWD, FileType, Mode, mknodat};
        let (dir, outputs) = written(100, b"x");
        let path = outputs.path(RUN, CALL, OutputStream::Stdout);
        let precious = dir.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        let fifo = || mknodat(CWD, &path, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let socket = || drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let link = |to: &Path| std::os::unix::fs::symlink(to, &path).unwrap();
        let cases: [(&str, &dyn Fn()); 5] = [
            ("a pipe", &fifo),
            ("a socket", &socket),
            ("a link", &|| link(&precious)),
            ("a device", &|| link(Path::new("/dev/zero"))),
            ("a directory", &|| fs::create_dir(&path).unwrap()),
        ];
        for (what, put) in cases {
            let root = Dir::open(path.parent().unwrap()).unwrap();
            root.remove_all(path.file_name().unwrap()).unwrap();
            put();
            assert!(outputs.read(RUN, CALL, OutputStream::Stdout, 0, 9).is_err(), "{what}");
        }
    }

    #[test]
    fn only_the_owner_may_read_them() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, outputs) = written(100, b"x");
        let path = outputs.path(RUN, CALL, OutputStream::Stdout);
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().permissions().mode() & 0o777, 0o700);
    }
}
