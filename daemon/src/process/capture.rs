//! What a process writes: bounded in memory, whole in a file up to a quota, live to whoever follows.
//!
//! Costs nothing for a silent stream: no buffer, no file, no task. Reads when the kernel says that something is there, never on
//! a timer. A file that cannot be written is given up; it never stops the process.

use std::cell::Cell;
use std::io::ErrorKind;
use std::path::PathBuf;

use harness_protocol::envelope::{Bounded, Kept};
use harness_protocol::rpc::OutputStream;
use tokio::net::unix::pipe;

use super::outputs::{CallOutputs, OutputFile};

/// As much as a pipe holds.
const PIECE: usize = 64 * 1024;
/// Reads of one stream before the other one, the time limit and a cancel get their turn.
const READS: usize = 16;

thread_local! {
    /// One buffer for each thread: nobody holds it across an await.
    static BUFFER: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Gets every piece of output as it comes: which stream, where in it, what.
pub type OnPiece<'a> = &'a mut (dyn FnMut(OutputStream, u64, &[u8]) + Send);

/// One stream, as it was captured.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Captured {
    /// Head and tail, and how much there was.
    pub kept: Kept,
    /// The file that has it, from its start up to the quota.
    pub file: Option<PathBuf>,
}

/// Both streams of a process.
pub(super) struct Pipes<'a> {
    out: Pipe<'a>,
    err: Pipe<'a>,
    on_piece: OnPiece<'a>,
}

struct Pipe<'a> {
    /// `None` once its end was seen.
    open: Option<pipe::Receiver>,
    stream: OutputStream,
    kept: Bounded,
    file: Sink,
    outputs: &'a CallOutputs<'a>,
}

enum Sink {
    /// Nothing came yet.
    Untouched,
    Open(OutputFile),
    /// Could not be made or written.
    Broken,
}

impl<'a> Pipes<'a> {
    /// Captures two pipes, and keeps `keep` bytes of each in memory.
    pub(super) fn new(
        stdout: pipe::Receiver,
        stderr: pipe::Receiver,
        keep: usize,
        outputs: &'a CallOutputs<'a>,
        on_piece: OnPiece<'a>,
    ) -> Self {
        let pipe =
            |open, stream| Pipe { open: Some(open), stream, kept: Bounded::new(keep), file: Sink::Untouched, outputs };
        Self { out: pipe(stdout, OutputStream::Stdout), err: pipe(stderr, OutputStream::Stderr), on_piece }
    }

    /// Whether somebody can still write.
    pub(super) fn are_open(&self) -> bool {
        self.out.open.is_some() || self.err.open.is_some()
    }

    /// Takes what comes next. For ever, when both are closed. Loses nothing when dropped.
    pub(super) async fn next(&mut self) {
        let Self { out, err, on_piece } = self;
        tokio::select! {
            () = out.readable() => out.take(*on_piece),
            () = err.readable() => err.take(*on_piece),
        }
    }

    /// Takes what comes until both are closed.
    pub(super) async fn drain(&mut self) {
        while self.are_open() {
            self.next().await;
        }
    }

    /// Takes what comes while `other` goes on.
    pub(super) async fn while_waiting_for<F: Future>(&mut self, other: F) -> F::Output {
        let mut other = std::pin::pin!(other);
        loop {
            tokio::select! {
                biased;
                output = &mut other => return output,
                () = self.next() => {}
            }
        }
    }

    /// What was captured. Takes what is in the pipes, and waits for nothing more.
    pub(super) fn finish(mut self) -> (Captured, Captured) {
        self.out.take(self.on_piece);
        self.err.take(self.on_piece);
        (self.out.finish(), self.err.finish())
    }
}

impl Pipe<'_> {
    async fn readable(&self) {
        match &self.open {
            // An error here means that the runtime is going down: nothing will ever come.
            Some(pipe) if pipe.readable().await.is_ok() => {}
            _ => std::future::pending().await,
        }
    }

    fn take(&mut self, on_piece: OnPiece<'_>) {
        let mut buffer = BUFFER.take();
        buffer.resize(PIECE, 0);
        for _ in 0..READS {
            let Some(pipe) = &self.open else { break };
            match pipe.try_read(&mut buffer) {
                Ok(0) => self.open = None,
                Ok(length) => self.push(&buffer[..length], on_piece),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::warn!(%error, "a pipe could not be read");
                    self.open = None;
                }
            }
        }
        BUFFER.set(buffer);
    }

    fn push(&mut self, bytes: &[u8], on_piece: OnPiece<'_>) {
        let offset = self.kept.total();
        self.kept.push(bytes);
        if matches!(self.file, Sink::Untouched) {
            self.file = self.outputs.create(self.stream).map_or_else(
                |error| {
                    tracing::warn!(%error, "an output file could not be made");
                    Sink::Broken
                },
                Sink::Open,
            );
        }
        // At most 64 KiB into the page cache, about as long as it takes to hand that to another thread.
        if let Sink::Open(file) = &mut self.file
            && let Err(error) = file.write_all(bytes)
        {
            tracing::warn!(%error, path = %file.path().display(), "an output file could not be written");
            self.file = Sink::Broken;
        }
        on_piece(self.stream, offset, bytes);
    }

    fn finish(self) -> Captured {
        let file = match self.file {
            Sink::Open(file) => Some(file.into_path()),
            Sink::Untouched | Sink::Broken => None,
        };
        Captured { kept: self.kept.finish(), file }
    }
}
