//! Writes log lines to a stream on a thread of its own, from a bounded queue.
//!
//! If the stream is closed, full or stuck, lines are dropped and counted. It must not delay the code that logs.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use tracing_subscriber::fmt::MakeWriter;

/// Most lines in the queue.
const WAITING: usize = 1024;
/// Most bytes of a line; the rest is cut.
const LONGEST_LINE: usize = 8 * 1024;
/// How long a shutdown waits for lines that are not written yet.
const LAST_WAIT: Duration = Duration::from_secs(1);

enum Item {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

/// The sending end: a write here never blocks and never fails.
#[derive(Clone)]
pub(super) struct Lines {
    queue: SyncSender<Item>,
    lost: Arc<AtomicU64>,
}

impl Lines {
    /// Starts the thread that writes to `stream`.
    pub(super) fn to(stream: impl Write + Send + 'static) -> io::Result<Self> {
        let (queue, items) = sync_channel(WAITING);
        let lost = Arc::new(AtomicU64::new(0));
        let lines = Self { queue, lost: Arc::clone(&lost) };
        thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&items, &lost, stream))?;
        Ok(lines)
    }

    /// Waits until the lines so far are written, for at most a moment.
    pub(super) fn flush(&self) {
        let (done, written) = sync_channel(1);
        if self.queue.try_send(Item::Flush(done)).is_ok() {
            _ = written.recv_timeout(LAST_WAIT);
        }
    }
}

/// Writes lines until the last sender is gone. A failed write loses one line; later ones are tried all the same.
fn write_all(items: &Receiver<Item>, lost: &AtomicU64, mut stream: impl Write) {
    for item in items {
        match item {
            Item::Line(line) => {
                let gone = lost.swap(0, Ordering::Relaxed);
                if gone > 0 {
                    _ = writeln!(stream, "({gone} lines of log were lost here)");
                }
                _ = stream.write_all(&line);
            }
            Item::Flush(done) => {
                _ = stream.flush();
                _ = done.try_send(());
            }
        }
    }
}

impl Write for &Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let line = match bytes.get(..LONGEST_LINE) {
            Some(start) => [start, b"...\n"].concat(),
            None => bytes.to_vec(),
        };
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) = self.queue.try_send(Item::Line(line)) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = &'a Self;

    fn make_writer(&'a self) -> Self::Writer {
        self
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::io::Read;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn log(lines: &Lines, text: &str) {
        let mut writer = lines.make_writer();
        writer.write_all(text.as_bytes()).unwrap();
    }

    #[test]
    fn lines_arrive_in_order_and_long_ones_are_cut() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let lines = Lines::to(near).unwrap();
        log(&lines, "one\n");
        log(&lines, &"x".repeat(LONGEST_LINE + 5));
        log(&lines, "three\n");
        lines.flush();
        drop(lines);
        let mut text = String::new();
        far.read_to_string(&mut text).unwrap();
        let found: Vec<_> = text.lines().collect();
        assert_eq!((found[0], found[1].len(), found[2]), ("one", LONGEST_LINE + 3, "three"));
    }

    #[test]
    fn a_stream_that_is_stuck_loses_lines_and_says_how_many() {
        let (near, mut far) = UnixStream::pair().unwrap();
        let lines = Lines::to(near).unwrap();
        let line = format!("{}\n", "x".repeat(4000));
        for _ in 0..WAITING * 2 {
            log(&lines, &line);
        }
        let lost = lines.lost.load(Ordering::Relaxed);
        assert!(lost > 0);
        let reader = thread::spawn(move || {
            let mut text = String::new();
            far.read_to_string(&mut text).unwrap();
            text
        });
        // The count is written before the next line that finds room.
        while lines.lost.load(Ordering::Relaxed) > 0 {
            thread::yield_now();
        }
        drop(lines);
        assert!(reader.join().unwrap().contains("lines of log were lost here"));
    }

    #[test]
    fn a_stream_that_is_closed_is_no_trouble() {
        let (near, far) = UnixStream::pair().unwrap();
        drop(far);
        let lines = Lines::to(near).unwrap();
        log(&lines, "nobody reads this\n");
        lines.flush();
        log(&lines, "nor this\n");
    }
}
