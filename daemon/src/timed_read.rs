//! Executes reads that may never end, within a time limit.
//!
//! A file may lie on a mount whose server is gone, and a database of users may be asked over a network. Such a read may
//! never end and cannot be cancelled. So a thread of its own reads, and is abandoned when it takes too long; at most
//! four threads read one thing at once. The caller waits, so it must not be a worker of a runtime. Must not know the
//! meaning of what is read.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;

use harness_files::{Opening, open_regular};

/// How long a read may take.
pub const PATIENCE: Duration = Duration::from_secs(3);
/// Reads of one thing at once, with those that were abandoned.
const MOST_AT_ONCE: u32 = 4;

/// How many threads read each thing now.
static READING: Mutex<BTreeMap<PathBuf, u32>> = Mutex::new(BTreeMap::new());

/// Reads a regular file, and at most `most` bytes of it.
///
/// # Errors
/// If it cannot be read, or not in time.
pub fn read(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let at = path.to_owned();
    within(path, PATIENCE, move || {
        let mut bytes = Vec::new();
        open_regular(&at, Opening::Read)?.take(most).read_to_end(&mut bytes)?;
        Ok(bytes)
    })?
}

/// Does `read`, and gives its result if that is there within `limit`. `path` names what is read, or stands for it.
///
/// # Errors
/// `TimedOut` if it takes longer, or if as many threads as are allowed wait for the same thing already. An error of the
/// system if there is no thread for it.
pub fn within<T: Send + 'static>(
    path: &Path,
    limit: Duration,
    read: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let silent = || io::Error::new(io::ErrorKind::TimedOut, format!("it gave no answer within {} s", limit.as_secs()));
    let place = Place::take(path).ok_or_else(silent)?;
    let (say, heard) = mpsc::sync_channel(1);
    thread::Builder::new().name("timed-read".to_owned()).spawn(move || {
        let done = read();
        drop(place);
        // The receiver may be gone.
        _ = say.send(done);
    })?;
    heard.recv_timeout(limit).map_err(|_| silent())
}

/// A thread that reads. Dropped, it has ended.
struct Place(PathBuf);

impl Place {
    /// `None` if as many as are allowed have not come back.
    fn take(path: &Path) -> Option<Self> {
        let mut reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
        let count = reading.entry(path.to_owned()).or_default();
        if *count >= MOST_AT_ONCE {
            return None;
        }
        *count += 1;
        Some(Self(path.to_owned()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut reading = READING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = reading.get_mut(&self.0) {
            *count -= 1;
            if *count == 0 {
                reading.remove(&self.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_file_that_does_not_answer_is_told_and_holds_so_many_threads_at_most() {
        let path = Path::new("/a/file/of/this/test");
        let (go, waits) = mpsc::channel::<()>();
        let waits = std::sync::Arc::new(Mutex::new(waits));
        for _ in 0..MOST_AT_ONCE {
            let waits = std::sync::Arc::clone(&waits);
            let error = within(path, Duration::ZERO, move || {
                _ = waits.lock().unwrap().recv();
            });
            assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
        }
        // It is not even tried.
        let error = within(path, Duration::from_secs(3_600), || unreachable!() as ()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        drop(go);
        // They have come back.
        while READING.lock().unwrap().contains_key(path) {
            thread::yield_now();
        }
        assert_eq!(within(path, Duration::from_secs(60), || "x").unwrap(), "x");
        assert!(read(Path::new("/nowhere/at/all"), 10).unwrap_err().to_string().contains("No such file"));
    }
}
