//! Queues the frames to one connection: replies, which always fit, and notifications, which wait for room.
//!
//! Replies are bounded by the places of their requests, notifications by their bytes in the queue; with more than 64
//! MiB unread the connection is closed. So a peer that does not read costs a bounded amount of memory, and delays no
//! other peer. The writer encodes a reply just before it writes it, so that the driver never does. A large reply is
//! encoded when it has one of the places for large replies, or when a frame behind it on this connection holds one:
//! that place is free again only after both are written.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use harness_protocol::MAX_FRAME_BYTES;
use harness_protocol::rpc::{ErrorKind, Reason, Response, RpcError};
use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::control::limits::request_permits::Place;

/// Bytes that may wait unread; beyond that the connection is closed.
const MOST_UNREAD: usize = 64 * 1024 * 1024;
/// Bytes of most frames, at most.
const OF_A_FRAME: usize = 512;
/// Bytes that may wait unread before notifications wait.
pub(in crate::control) const ROOM: usize = 64 * 1024;

/// The queue of frames to one connection.
#[derive(Debug, Default)]
pub struct Outgoing {
    queue: Mutex<Queue>,
    /// A frame is to be written, or the queue is closed.
    filled: Notify,
    /// A frame was written, or the queue is closed.
    emptied: Notify,
    /// Places for large frames, shared with other connections.
    large: Option<Arc<Semaphore>>,
    /// The runtime on which large frames are encoded; `None`: on that of the writer.
    background: Option<Handle>,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<(Frame, Holds)>,
    /// Bytes of the encoded frames.
    bytes: usize,
    /// Number of frames that were put in and are not written.
    unwritten: usize,
    closed: bool,
}

/// The places that a frame frees once it is written.
#[derive(Debug, Default)]
struct Holds {
    place: Option<Place>,
    /// The place of a large frame that has no place of its own.
    large: Option<OwnedSemaphorePermit>,
}

impl Holds {
    fn has_room_for_large(&self) -> bool {
        self.large.is_some() || self.place.as_ref().is_some_and(|place| place.answer.is_some())
    }
}

/// A frame to write.
enum Frame {
    Encoded(Vec<u8>),
    /// An answer that the writer encodes.
    Answer(Box<dyn Encode>),
}

/// An answer that is not encoded yet.
trait Encode: Send {
    /// Encodes the answer, unless that takes more than `most` bytes.
    fn encoded(&self, most: usize) -> Option<Vec<u8>>;
    /// The error in place of an answer that does not fit into a frame.
    fn too_large(&self) -> Vec<u8>;
}

impl<T: Serialize + Send> Encode for Response<T> {
    fn encoded(&self, most: usize) -> Option<Vec<u8>> {
        encoded(self, most)
    }

    fn too_large(&self) -> Vec<u8> {
        let message = format!("the answer does not fit into a frame of {MAX_FRAME_BYTES} bytes; ask for less of it");
        let error = RpcError::new(ErrorKind::Internal, message).because(Reason::AnswerTooLarge, None);
        Response::<()>::new(self.id.clone(), Err(error)).encoded(MAX_FRAME_BYTES).unwrap_or_default()
    }
}

/// Encodes a value as a frame; `None` where that takes more than `most` bytes, or where it has no JSON form.
pub(in crate::control) fn encoded(value: &impl Serialize, most: usize) -> Option<Vec<u8>> {
    let mut frame = Bounded { bytes: Vec::with_capacity(OF_A_FRAME.min(most)), most };
    serde_json::to_writer(&mut frame, value).ok()?;
    frame.bytes.push(b'\n');
    Some(frame.bytes)
}

/// A buffer with a bound. A write beyond it fails.
struct Bounded {
    bytes: Vec<u8>,
    most: usize,
}

impl io::Write for Bounded {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.most {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    #[inline]
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.write(bytes).map(drop)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Encoded(_) => "Encoded",
            Self::Answer(_) => "Answer",
        })
    }
}

/// The bytes of one write.
#[derive(Debug)]
pub struct Piece {
    /// The bytes that are written next.
    pub bytes: Vec<u8>,
    /// The places that are freed once it is written.
    places: Vec<Holds>,
    frames: usize,
}

impl Piece {
    /// Number of frames in it.
    pub(super) const fn frames(&self) -> usize {
        self.frames
    }
}

impl Outgoing {
    /// A queue that shares the places for large frames with others. Large frames are encoded on `background`.
    pub fn new(large: Arc<Semaphore>, background: Handle) -> Self {
        Self { large: Some(large), background: Some(background), ..Self::default() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a reply. It always fits.
    pub fn reply<T: Serialize + Send + 'static>(&self, response: Response<T>, place: Option<Place>) {
        self.push(Frame::Answer(Box::new(response)), Holds { place, large: None });
    }

    /// Waits for a place among the large frames of all connections. Gives `None` at once where they are not counted.
    pub(in crate::control) async fn place_for_large(&self) -> Option<OwnedSemaphorePermit> {
        // A semaphore that is never closed gives its permit.
        Arc::clone(self.large.as_ref()?).acquire_owned().await.ok()
    }

    /// The same without a wait.
    ///
    /// # Errors
    /// If there is no place now.
    pub(in crate::control) fn try_place_for_large(&self) -> Result<Option<OwnedSemaphorePermit>, TryAcquireError> {
        self.large.as_ref().map(|large| Arc::clone(large).try_acquire_owned()).transpose()
    }

    /// The place for the next frame to write; `None` where the frame needs none.
    ///
    /// A place that a frame further back holds would never become free. So a connection has one large frame without a
    /// place at most, and only while it holds another one: all of them together are not more than twice the places.
    async fn place_for_next(&self) -> Option<OwnedSemaphorePermit> {
        let mut place = pin!(self.place_for_large());
        loop {
            {
                let queue = self.queue();
                if queue.closed || queue.frames.iter().any(|(_, holds)| holds.has_room_for_large()) {
                    return None;
                }
            }
            tokio::select! {
                place = &mut place => return place,
                // A place that the connection takes meanwhile ends up in the queue with its frame.
                () = self.filled.notified() => {}
            }
        }
    }

    fn push(&self, frame: Frame, place: Holds) {
        let mut queue = self.queue();
        if queue.bytes > MOST_UNREAD {
            // A client that asks for this much and reads none of it does not want it.
            drop(queue);
            self.close();
            return;
        }
        if !queue.closed {
            if let Frame::Encoded(bytes) = &frame {
                queue.bytes += bytes.len();
            }
            queue.unwritten += 1;
            queue.frames.push_back((frame, place));
            drop(queue);
            self.filled.notify_one();
        }
    }

    /// Waits until there is room for a notification. Gives whether the connection still lives.
    pub(in crate::control) async fn room(&self) -> bool {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            {
                let queue = self.queue();
                if queue.closed {
                    return false;
                }
                if queue.bytes < ROOM {
                    return true;
                }
            }
            emptied.await;
        }
    }

    /// Whether there is room for a notification now.
    pub(in crate::control) fn has_room(&self) -> bool {
        self.queue().bytes < ROOM
    }

    /// Adds a notification, for which there was room. A large one brings its place. Gives whether the connection still
    /// lives.
    pub(in crate::control) fn notify(&self, frame: Vec<u8>, large: Option<OwnedSemaphorePermit>) -> bool {
        self.push(Frame::Encoded(frame), Holds { place: None, large });
        !self.queue().closed
    }

    /// Encodes an answer off this task.
    async fn encode_large(&self, answer: Box<dyn Encode>) -> Vec<u8> {
        let encode = move || answer.encoded(MAX_FRAME_BYTES).unwrap_or_else(|| answer.too_large());
        match &self.background {
            // It is lost where the daemon ends, or by an internal error: the peer must not wait for it.
            Some(background) => background.spawn_blocking(encode).await.unwrap_or_else(|_| {
                self.close();
                Vec::new()
            }),
            None => encode(),
        }
    }

    /// The bytes to write now; `None` when closed. Small frames are joined; a large one is alone.
    pub async fn next(&self) -> Option<Piece> {
        let mut piece = Piece { bytes: Vec::new(), places: Vec::new(), frames: 0 };
        loop {
            let next = {
                let mut queue = self.queue();
                if queue.closed {
                    return None;
                }
                queue.frames.pop_front()
            };
            match next {
                Some((frame, mut holds)) => {
                    let bytes = match frame {
                        Frame::Encoded(bytes) => bytes,
                        Frame::Answer(answer) => {
                            let small = if holds.has_room_for_large() { None } else { answer.encoded(ROOM) };
                            let bytes = match small {
                                Some(bytes) => bytes,
                                None if piece.frames > 0 && !holds.has_room_for_large() => {
                                    self.queue().frames.push_front((Frame::Answer(answer), holds));
                                    return Some(piece);
                                }
                                None => {
                                    if !holds.has_room_for_large() {
                                        holds.large = self.place_for_next().await;
                                    }
                                    self.encode_large(answer).await
                                }
                            };
                            self.queue().bytes += bytes.len();
                            bytes
                        }
                    };
                    if piece.frames == 0 {
                        piece.bytes = bytes;
                    } else {
                        if piece.frames == 1 {
                            piece.bytes.reserve(ROOM.min(self.queue().bytes));
                        }
                        piece.bytes.extend_from_slice(&bytes);
                    }
                    piece.frames += 1;
                    piece.places.push(holds);
                    if piece.bytes.len() >= ROOM {
                        return Some(piece);
                    }
                }
                None if piece.frames > 0 => return Some(piece),
                None => self.filled.notified().await,
            }
        }
    }

    /// Frees the places of a written piece.
    pub fn written(&self, piece: Piece) {
        let mut queue = self.queue();
        queue.bytes = queue.bytes.saturating_sub(piece.bytes.len());
        queue.unwritten = queue.unwritten.saturating_sub(piece.frames);
        drop(queue);
        drop(piece.places);
        self.emptied.notify_waiters();
    }

    /// Whether every frame has been written.
    pub fn is_drained(&self) -> bool {
        self.queue().unwritten == 0
    }

    /// Waits until every frame has been written.
    pub async fn drained(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if self.is_drained() {
                return;
            }
            emptied.await;
        }
    }

    /// Closes the queue: nothing more is written.
    pub fn close(&self) {
        let frames = {
            let mut queue = self.queue();
            queue.closed = true;
            (queue.bytes, queue.unwritten) = (0, 0);
            std::mem::take(&mut queue.frames)
        };
        drop(frames);
        self.filled.notify_one();
        self.emptied.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::pin::Pin;
    use std::task::{Context, Poll, Waker};

    use harness_protocol::rpc::RequestId;
    use tokio::task::yield_now;

    use super::*;

    fn answer(text: String) -> Response<String> {
        Response::new(Some(RequestId::Number(1)), Ok(text))
    }

    /// A7: whatever it was that was asked, what is large in bytes waits for its place as a value; what is small waits
    /// for nothing.
    #[tokio::test]
    async fn a_large_answer_is_encoded_when_it_has_a_place_and_small_ones_ahead_of_it_are_written() {
        let places = Arc::new(Semaphore::new(1));
        let taken = Arc::clone(&places).acquire_owned().await.unwrap();
        let outgoing = Arc::new(Outgoing::new(places, Handle::current()));
        outgoing.reply(answer("small".to_owned()), None);
        outgoing.reply(answer("x".repeat(3 * ROOM)), None);
        let first = outgoing.next().await.unwrap();
        assert!(first.bytes.ends_with(b"\"small\"}\n"), "{}", String::from_utf8_lossy(&first.bytes));
        outgoing.written(first);
        let second = tokio::spawn({
            let outgoing = Arc::clone(&outgoing);
            async move { outgoing.next().await.unwrap() }
        });
        for _ in 0..10 {
            yield_now().await;
        }
        assert!(!second.is_finished());
        assert_eq!(outgoing.queue().bytes, 0, "it is not encoded yet");
        drop(taken);
        let second = second.await.unwrap();
        assert!(second.bytes.len() > 3 * ROOM);
        outgoing.written(second);
        assert!(outgoing.is_drained());
        assert_eq!(outgoing.large.as_ref().unwrap().available_permits(), 1);
    }

    /// One that encodes where it writes.
    fn encoding_here(places: &Arc<Semaphore>) -> Outgoing {
        Outgoing { large: Some(Arc::clone(places)), ..Outgoing::default() }
    }

    /// What comes of it without waiting.
    fn now<T>(future: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    /// A place of a request that holds one among the large answers.
    async fn with_room(places: &Arc<Semaphore>) -> Place {
        let request = Arc::new(Semaphore::new(1)).acquire_owned().await.unwrap();
        let answer = Some(Arc::clone(places).acquire_owned().await.unwrap());
        Place { answer, ..Place::small(request) }
    }

    /// A7: a place that only the frames of this connection can give back is not waited for.
    #[tokio::test]
    async fn a_large_answer_does_not_wait_for_the_place_of_one_behind_it() {
        let places = Arc::new(Semaphore::new(1));
        let outgoing = encoding_here(&places);
        outgoing.reply(answer("x".repeat(3 * ROOM)), None);
        outgoing.reply(answer("y".repeat(3 * ROOM)), Some(with_room(&places).await));
        for text in ["x", "y"] {
            let piece = now(pin!(outgoing.next())).flatten().unwrap();
            assert!(piece.bytes.ends_with(format!("{text}\"}}\n").as_bytes()));
            assert_eq!(places.available_permits(), 0);
            outgoing.written(piece);
        }
        assert!(outgoing.is_drained());
        assert_eq!(places.available_permits(), 1);
    }

    /// A7: also where its connection gets that place while it waits for one, and is ahead of it.
    #[tokio::test]
    async fn a_large_answer_goes_on_when_one_behind_it_gets_the_place_that_it_waits_for() {
        let places = Arc::new(Semaphore::new(1));
        let taken = Arc::clone(&places).acquire_owned().await.unwrap();
        let outgoing = encoding_here(&places);
        outgoing.reply(answer("x".repeat(3 * ROOM)), None);
        let mut behind = pin!(with_room(&places));
        assert!(now(behind.as_mut()).is_none());
        let mut head = pin!(outgoing.next());
        assert!(now(head.as_mut()).is_none());
        drop(taken);
        let behind = behind.await;
        assert!(now(head.as_mut()).is_none(), "another one may have it");
        outgoing.reply(answer("y".repeat(3 * ROOM)), Some(behind));
        assert!(now(head).flatten().is_some());
    }

    #[tokio::test]
    async fn what_does_not_fit_into_a_frame_is_told_in_its_place() {
        let outgoing = Outgoing::default();
        outgoing.reply(answer("x".repeat(MAX_FRAME_BYTES)), None);
        let piece = outgoing.next().await.unwrap();
        assert!(String::from_utf8_lossy(&piece.bytes).contains("answer-too-large"));
    }
}
