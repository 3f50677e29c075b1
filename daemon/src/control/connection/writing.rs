//! Writes the queued frames of a connection to its peer. Must not encode or order them: `outgoing` does.

use std::time::Duration;

use tokio::task::yield_now;
use tokio::time::timeout;

use super::background::Effort;
use crate::control::outgoing::{Outgoing, Piece};
use crate::control::socket::stream::Stream;

/// How long a peer may read nothing of its answers while others wait for the room that they take.
const UNREAD: Duration = Duration::from_secs(3);

/// Writes the queue until it is closed or the peer is gone, or the peer reads nothing while others need its room.
pub(super) async fn write_all(
    stream: &Stream,
    outgoing: &Outgoing,
    effort: &Effort,
    is_in_the_way: &(dyn Fn(&Piece) -> bool + Sync),
) {
    while let Some(piece) = outgoing.next().await {
        effort.spend(piece.frames(), piece.bytes.len());
        let mut written = 0;
        while let Some(rest) = piece.bytes.get(written..).filter(|rest| !rest.is_empty()) {
            match timeout(UNREAD, stream.write(rest)).await {
                Ok(Ok(count @ 1..)) => written += count,
                Ok(_) => return,
                Err(_) if is_in_the_way(&piece) => {
                    tracing::warn!(
                        "a connection that does not read what it asked for is closed: others wait for the room"
                    );
                    return;
                }
                Err(_) => {}
            }
        }
        outgoing.written(piece);
        if effort.is_much() {
            yield_now().await;
        }
    }
}
