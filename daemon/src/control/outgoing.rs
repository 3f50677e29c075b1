//! What is to be written to a connection: replies, which always fit, and notifications, which wait for room.
//!
//! Replies are bounded by the places of their requests; notifications by the bytes that wait. So a peer that does not read
//! costs a bounded amount of memory, and nobody else anything. A reply is encoded by the one that writes it, when it is written:
//! whoever answers, the driver above all, does not.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use harness_protocol::MAX_FRAME_BYTES;
use harness_protocol::framing;
use harness_protocol::rpc::{ErrorKind, Response, RpcError};
use serde::Serialize;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

use super::request::Place;

/// Bytes that may wait before the connection is given up.
const MOST_UNREAD: usize = 64 * 1024 * 1024;
/// Bytes that may wait before notifications have to.
pub(super) const ROOM: usize = 256 * 1024;

/// The queue of one connection.
#[derive(Debug, Default)]
pub struct Outgoing {
    queue: Mutex<Queue>,
    /// Something is to be written, or it is closed.
    filled: Notify,
    /// Something was written, or it is closed.
    emptied: Notify,
    /// Places for what is large, shared with other connections.
    large: Option<Arc<Semaphore>>,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<(Frame, Holds)>,
    /// Of what is encoded.
    bytes: usize,
    /// Frames that were put in and are not written.
    unwritten: usize,
    closed: bool,
}

/// What is let go of once a frame is written.
#[derive(Debug, Default)]
struct Holds {
    _place: Option<Place>,
    /// Of a large notification.
    _large: Option<OwnedSemaphorePermit>,
}

/// Something to write.
enum Frame {
    Encoded(Vec<u8>),
    /// To be encoded where it is written.
    Answer(Box<dyn FnOnce() -> Vec<u8> + Send>),
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Encoded(_) => "Encoded",
            Self::Answer(_) => "Answer",
        })
    }
}

/// What is written in one piece.
#[derive(Debug)]
pub struct Piece {
    /// The bytes that are written next.
    pub bytes: Vec<u8>,
    /// What it frees once it is written.
    places: Vec<Holds>,
    frames: usize,
}

impl Outgoing {
    /// A queue that shares the places for large notifications with others.
    pub fn new(large: Arc<Semaphore>) -> Self {
        Self { large: Some(large), ..Self::default() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a reply in. It always fits.
    pub fn reply<T: Serialize + Send + 'static>(&self, response: Response<T>, place: Option<Place>) {
        self.push(Frame::Answer(Box::new(move || encoded(response))), Holds { _place: place, _large: None });
    }

    fn push(&self, frame: Frame, place: Holds) {
        let mut queue = self.queue();
        if queue.bytes > MOST_UNREAD {
            // Whoever asks for this much and reads none of it does not want it.
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

    /// Puts a notification in, when there is room. Says whether the connection still lives.
    pub async fn notify(&self, frame: Vec<u8>) -> bool {
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
                    break;
                }
            }
            emptied.await;
        }
        let large = match &self.large {
            // A semaphore that is never closed gives its permit.
            Some(large) if frame.len() > ROOM => Arc::clone(large).acquire_owned().await.ok(),
            _ => None,
        };
        self.push(Frame::Encoded(frame), Holds { _place: None, _large: large });
        true
    }

    /// What is to be written now, in one piece; `None` when closed. Small frames go together; a large one goes alone.
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
                Some((frame, place)) => {
                    let bytes = match frame {
                        Frame::Encoded(bytes) => bytes,
                        Frame::Answer(encode) => {
                            let bytes = encode();
                            self.queue().bytes += bytes.len();
                            bytes
                        }
                    };
                    if piece.frames == 0 {
                        piece.bytes = bytes;
                    } else {
                        piece.bytes.extend_from_slice(&bytes);
                    }
                    piece.frames += 1;
                    piece.places.push(place);
                    if piece.bytes.len() >= ROOM {
                        return Some(piece);
                    }
                }
                None if piece.frames > 0 => return Some(piece),
                None => self.filled.notified().await,
            }
        }
    }

    /// This piece was written.
    pub fn written(&self, piece: Piece) {
        let mut queue = self.queue();
        queue.bytes = queue.bytes.saturating_sub(piece.bytes.len());
        queue.unwritten = queue.unwritten.saturating_sub(piece.frames);
        drop(queue);
        drop(piece.places);
        self.emptied.notify_waiters();
    }

    /// Whether everything that was put in has been written.
    pub fn is_drained(&self) -> bool {
        self.queue().unwritten == 0
    }

    /// Waits until everything that was put in has been written.
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

    /// Nothing is written any more.
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

/// A response as a frame, or in its place one that says that it does not fit into one.
fn encoded<T: Serialize>(response: Response<T>) -> Vec<u8> {
    let mut frame = Vec::new();
    if framing::encode(&response, &mut frame).is_ok() && frame.len() <= MAX_FRAME_BYTES + 1 {
        return frame;
    }
    let message = format!("the answer does not fit into a frame of {MAX_FRAME_BYTES} bytes; ask for less of it");
    let error = RpcError::new(ErrorKind::Internal, message);
    frame = Vec::new();
    match framing::encode(&Response::<()>::new(response.id, Err(error)), &mut frame) {
        Ok(()) => frame,
        Err(_) => Vec::new(),
    }
}
