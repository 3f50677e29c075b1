//! Holds the place of a request: the memory and the slot that it occupies until its answer is written.

use tokio::sync::OwnedSemaphorePermit;

/// Everything that a request holds until its answer is written. These places bound the memory of a connection.
#[derive(Debug)]
pub struct Place {
    /// Its place among the requests of the connection.
    pub request: OwnedSemaphorePermit,
    /// Its place among the large answers, or among the waits, of the connection.
    pub special: Option<OwnedSemaphorePermit>,
    /// Its place among the large answers of all connections.
    pub answer: Option<OwnedSemaphorePermit>,
    /// Its memory, where it is a large request. Freed when it is answered, since the request is dropped then.
    pub memory: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// A place among the requests of the connection, and nothing else.
    pub const fn small(request: OwnedSemaphorePermit) -> Self {
        Self { request, special: None, answer: None, memory: None }
    }
}
