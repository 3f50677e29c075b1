//! What is to be written to a connection: replies, which always fit, and notifications, which wait for room.
//!
//! Replies are bounded by the places of their requests; notifications by the bytes that wait. So a peer that does not read
//! costs a bounded amount of memory, and nobody else anything.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use harness_protocol::MAX_FRAME_BYTES;
use harness_protocol::framing;
use harness_protocol::rpc::{ErrorKind, Response, RpcError};
use serde::Serialize;
use tokio::sync::Notify;

use super::request::Place;

/// Bytes that may wait before the connection is given up.
const MOST_UNREAD: usize = 64 * 1024 * 1024;
/// Bytes that may wait before notifications have to.
const ROOM: usize = 256 * 1024;

/// The queue of one connection.
#[derive(Debug, Default)]
pub struct Outgoing {
    queue: Mutex<Queue>,
    /// Something is to be written, or it is closed.
    filled: Notify,
    /// Something was written, or it is closed.
    emptied: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<(Vec<u8>, Option<Place>)>,
    bytes: usize,
    closed: bool,
}

impl Outgoing {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a reply in. It always fits.
    pub fn reply<T: Serialize>(&self, response: &Response<T>, place: Option<Place>) {
        let mut frame = Vec::new();
        let encoded = framing::encode(response, &mut frame);
        if encoded.is_err() || frame.len() > MAX_FRAME_BYTES + 1 {
            let message =
                format!("the answer does not fit into a frame of {MAX_FRAME_BYTES} bytes; ask for less of it");
            frame.clear();
            let error = RpcError::new(ErrorKind::Internal, message);
            if framing::encode(&Response::<()>::new(response.id.clone(), Err(error)), &mut frame).is_err() {
                return;
            }
        }
        self.push(frame, place);
    }

    fn push(&self, frame: Vec<u8>, place: Option<Place>) {
        let mut queue = self.queue();
        if queue.bytes > MOST_UNREAD {
            // Whoever asks for this much and reads none of it does not want it.
            drop(queue);
            self.close();
            return;
        }
        if !queue.closed {
            queue.bytes += frame.len();
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
        self.push(frame, None);
        true
    }

    /// Everything that is to be written now, in one piece, with the places that it frees once it is; `None` when closed.
    pub async fn next(&self) -> Option<(Vec<u8>, Vec<Place>)> {
        loop {
            {
                let mut queue = self.queue();
                if queue.closed {
                    return None;
                }
                if let Some((mut bytes, place)) = queue.frames.pop_front() {
                    let mut places: Vec<Place> = place.into_iter().collect();
                    // Small frames go together; a large one goes alone.
                    while bytes.len() < ROOM
                        && let Some((frame, place)) = queue.frames.pop_front()
                    {
                        bytes.extend_from_slice(&frame);
                        places.extend(place);
                    }
                    return Some((bytes, places));
                }
            }
            self.filled.notified().await;
        }
    }

    /// These bytes were written.
    pub fn written(&self, bytes: usize) {
        let mut queue = self.queue();
        queue.bytes = queue.bytes.saturating_sub(bytes);
        drop(queue);
        self.emptied.notify_waiters();
    }

    /// Whether everything that was put in has been written.
    pub fn is_drained(&self) -> bool {
        self.queue().bytes == 0
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
            queue.bytes = 0;
            std::mem::take(&mut queue.frames)
        };
        drop(frames);
        self.filled.notify_one();
        self.emptied.notify_waiters();
    }
}
