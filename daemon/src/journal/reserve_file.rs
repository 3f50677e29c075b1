//! Keeps the reserve file ("ballast"), which occupies disk space that the daemon gives up when the disk is full. It
//! must not decide when: the driver does.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use harness_files::{Writing, open_own};
use nix::errno::Errno;
use nix::fcntl::posix_fallocate;

/// Size of the file, in bytes.
const BYTES: u32 = 16 * 1024 * 1024;

/// The reserve file of a state directory: its path and its size.
#[derive(Debug, Clone)]
pub struct Ballast {
    path: PathBuf,
    bytes: u32,
}

impl Ballast {
    /// The reserve file of a state directory. Touches no file.
    pub fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join("ballast"), bytes: BYTES }
    }

    /// Makes the file, if it is not there already.
    ///
    /// # Errors
    /// If the disk has no room for it; no space is taken then.
    pub fn take(&self) -> io::Result<()> {
        if self.path.symlink_metadata().is_ok_and(|file| file.is_file() && file.len() == u64::from(self.bytes)) {
            return Ok(());
        }
        self.fill().inspect_err(|_| {
            // A file that is partly filled would take space that is needed elsewhere.
            let _ = fs::remove_file(&self.path);
        })
    }

    fn fill(&self) -> io::Result<()> {
        let mut file = open_own(&self.path, Writing::Anew, false)?;
        match posix_fallocate(&file, 0, i64::from(self.bytes)) {
            Ok(()) => return file.sync_all(),
            Err(Errno::EOPNOTSUPP | Errno::EINVAL) => {}
            Err(error) => return Err(error.into()),
        }
        // The file system cannot reserve space, so the file is filled. Zeros could be stored as a hole.
        let block: Vec<u8> = (0..64 * 1024u32).map(|at| (at % 251) as u8).collect();
        for _ in 0..self.bytes as usize / block.len() {
            file.write_all(&block)?;
        }
        file.sync_all()
    }

    /// Removes the file, so that its space becomes free. Returns whether there was a file.
    pub fn give_up(&self) -> bool {
        fs::remove_file(&self.path).is_ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A link that a run puts in the file's place is not written through, and the reserve is made all the same.
    #[test]
    fn no_link_in_its_place_is_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let (path, precious) = (dir.path().join("ballast"), dir.path().join("precious"));
        let ballast = Ballast { bytes: 128 * 1024, ..Ballast::new(dir.path()) };
        let ways: [&dyn Fn(); 2] =
            [&|| std::os::unix::fs::symlink(&precious, &path).unwrap(), &|| fs::hard_link(&precious, &path).unwrap()];
        for link in ways {
            fs::write(&precious, "precious").unwrap();
            link();
            ballast.take().unwrap();
            assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
            assert_eq!(fs::symlink_metadata(&path).unwrap().len(), 128 * 1024);
            assert!(ballast.give_up());
        }
    }

    #[test]
    fn it_is_taken_once_and_given_up_once() {
        let dir = tempfile::tempdir().unwrap();
        let ballast = Ballast { bytes: 128 * 1024, ..Ballast::new(dir.path()) };
        ballast.take().unwrap();
        ballast.take().unwrap();
        assert_eq!(fs::metadata(dir.path().join("ballast")).unwrap().len(), 128 * 1024);
        assert!(ballast.give_up());
        assert!(!ballast.give_up());
    }
}
