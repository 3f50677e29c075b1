//! Captures the output of processes: bounded in memory, whole in a file up to a quota, and live for subscribers.
//!
//! It reads when the kernel reports data, and not by a timer. A silent stream costs no buffer and no file, and no task
//! before its call has ended. If a file cannot be written, it is given up, and the process goes on. What processes
//! write that live on after their call goes into the same files.

pub(super) mod files;
pub(super) mod pipe;
pub(super) mod pty;

use std::cell::Cell;
use std::future::pending;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

use harness_protocol::envelope::{Bounded, Kept};
use harness_protocol::rpc::OutputStream;
use tokio::runtime::{Handle, RuntimeFlavor};

use super::output::files::{CallOutputs, OutputFile};
use super::output::pipe::{Read, Source};

/// Bytes of one read: the capacity of a pipe.
const PIECE: usize = 64 * 1024;
/// Reads of one stream before the other stream, the time limit and a cancel have their turn.
const READS: usize = 4;

thread_local! {
    /// One buffer for each thread: it is never held across an await.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Receives every piece of output: its stream, its offset, and its bytes.
pub type OnPiece<'a> = &'a mut (dyn FnMut(OutputStream, u64, &[u8]) + Send);

/// A captured stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// Its head and tail, and its length.
    pub kept: Kept,
    /// Path of the file with the stream, from its start up to the quota.
    pub file: Option<PathBuf>,
}

/// The streams of a process; a terminal has only the first.
#[derive(Debug)]
pub(super) struct Streams {
    out: Stream,
    err: Option<Stream>,
}

#[derive(Debug)]
struct Stream {
    source: Source,
    kept: Bounded,
    sink: Sink,
}

/// The file of a stream.
#[derive(Debug)]
struct Sink {
    stream: OutputStream,
    state: SinkState,
}

#[derive(Debug)]
enum SinkState {
    /// No byte came yet.
    Untouched(CallOutputs),
    Open(OutputFile),
    /// The file could not be made or written.
    Broken,
}

impl Streams {
    /// Captures two pipes, and keeps `keep` bytes of each in memory. Also gives the descriptors to write to.
    pub(super) fn piped(keep: usize, outputs: &CallOutputs) -> std::io::Result<(Self, [OwnedFd; 2])> {
        let (out, to_out) = Source::pipe()?;
        let (err, to_err) = Source::pipe()?;
        let out = Stream::new(out, OutputStream::Stdout, keep, outputs);
        let err = Stream::new(err, OutputStream::Stderr, keep, outputs);
        Ok((Self { out, err: Some(err) }, [to_out, to_err]))
    }

    /// Captures a terminal, which has one stream.
    pub(super) fn of_terminal(ours: OwnedFd, keep: usize, outputs: &CallOutputs) -> std::io::Result<Self> {
        Ok(Self { out: Stream::new(Source::new(ours)?, OutputStream::Stdout, keep, outputs), err: None })
    }

    /// Whether a process can still write.
    pub(super) fn are_open(&self) -> bool {
        self.out.source.is_open() || self.err.as_ref().is_some_and(|err| err.source.is_open())
    }

    /// Reads the next piece. Waits for ever when both are closed. Loses nothing when dropped.
    pub(super) async fn next(&mut self, on_piece: OnPiece<'_>) {
        let Self { out, err } = self;
        tokio::select! {
            () = out.source.readable() => out.take(on_piece),
            stream = readable(err) => stream.take(on_piece),
        }
    }

    /// Reads the available bytes, without a wait.
    pub(super) fn take(&mut self, on_piece: OnPiece<'_>) {
        self.out.take(on_piece);
        if let Some(err) = &mut self.err {
            err.take(on_piece);
        }
    }

    /// Reads until both are closed.
    pub(super) async fn drain(&mut self, on_piece: OnPiece<'_>) {
        while self.are_open() {
            self.next(on_piece).await;
        }
    }

    /// Reads while `other` runs.
    pub(super) async fn while_waiting_for<F: Future>(&mut self, on_piece: OnPiece<'_>, other: F) -> F::Output {
        let mut other = std::pin::pin!(other);
        loop {
            tokio::select! {
                biased;
                output = &mut other => return output,
                () = self.next(on_piece) => {}
            }
        }
    }

    /// What was captured. Where a process can still write, the rest is returned: it goes on into the files.
    pub(super) fn finish(self) -> (Captured, Captured, Option<Rest>) {
        let open = self.are_open();
        let Self { out, err } = self;
        let (captured_out, out) = out.finish();
        let (captured_err, err) = err.map(Stream::finish).unzip();
        (captured_out, captured_err.unwrap_or_default(), open.then_some(Rest { out, err }))
    }
}

async fn readable(stream: &mut Option<Stream>) -> &mut Stream {
    match stream {
        Some(stream) => {
            stream.source.readable().await;
            stream
        }
        None => pending().await,
    }
}

impl Stream {
    fn new(source: Source, stream: OutputStream, keep: usize, outputs: &CallOutputs) -> Self {
        let sink = Sink { stream, state: SinkState::Untouched(outputs.clone()) };
        Self { source, kept: Bounded::new(keep), sink }
    }

    fn take(&mut self, on_piece: OnPiece<'_>) {
        let Self { source, kept, sink } = self;
        read(source, |bytes| {
            let offset = kept.total();
            kept.push(bytes);
            sink.push(bytes);
            on_piece(sink.stream, offset, bytes);
        });
    }

    fn finish(self) -> (Captured, (Source, Sink)) {
        let file = match &self.sink.state {
            SinkState::Open(file) => Some(file.path().to_owned()),
            SinkState::Untouched(_) | SinkState::Broken => None,
        };
        (Captured { kept: self.kept.finish(), file }, (self.source, self.sink))
    }
}

/// Reads the available bytes, within a bound.
fn read(source: &mut Source, mut push: impl FnMut(&[u8])) {
    if !source.is_open() {
        return;
    }
    let mut buffer = BUFFER.take();
    buffer.resize(PIECE, 0);
    for _ in 0..READS {
        match source.try_read(&mut buffer) {
            Read::Bytes(count) => push(&buffer[..count]),
            Read::Nothing | Read::End => break,
        }
    }
    BUFFER.set(buffer);
}

/// Writes, while the other tasks of this thread continue elsewhere: a disk that does not answer blocks only its own
/// calls.
fn beside_others<T>(write: impl FnOnce() -> T) -> T {
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(write),
        _ => write(),
    }
}

impl Sink {
    fn push(&mut self, bytes: &[u8]) {
        if !matches!(self.state, SinkState::Broken) {
            beside_others(|| self.write(bytes));
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        if let SinkState::Untouched(outputs) = &self.state {
            self.state = outputs.create(self.stream).map_or_else(
                |error| {
                    tracing::warn!(%error, "an output file could not be made");
                    SinkState::Broken
                },
                SinkState::Open,
            );
        }
        // At most 64 KiB, into the page cache.
        if let SinkState::Open(file) = &mut self.state
            && let Err(error) = file.write_all(bytes)
        {
            tracing::warn!(%error, path = %file.path().display(), "an output file could not be written");
            self.state = SinkState::Broken;
        }
    }
}

/// The streams that processes still write to after their call.
#[derive(Debug)]
pub(super) struct Rest {
    out: (Source, Sink),
    err: Option<(Source, Sink)>,
}

impl Rest {
    /// Reads until no process can write any more. Without a reader, a server that writes a line would be killed.
    pub(super) async fn drain(self) {
        let one = |(mut source, mut sink): (Source, Sink)| async move {
            while source.is_open() {
                source.readable().await;
                read(&mut source, |bytes| sink.push(bytes));
            }
        };
        let err = async {
            if let Some(err) = self.err {
                one(err).await;
            }
        };
        tokio::join!(one(self.out), err);
    }
}
