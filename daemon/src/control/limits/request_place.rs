//! The place of a request: the memory and the slot that it holds until its answer is written.

use tokio::sync::OwnedSemaphorePermit;

/// What a request holds until its answer is written: memory of a connection is bounded by these.
#[derive(Debug)]
pub struct Place {
    /// Its place among the requests.
    pub request: OwnedSemaphorePermit,
    /// Its place among those with a large answer, or among those that wait.
    pub special: Option<OwnedSemaphorePermit>,
    /// Its place among the large answers of all connections.
    pub answer: Option<OwnedSemaphorePermit>,
    /// What it takes of the memory for large requests. Given back when it is answered: it is there no more.
    pub memory: Option<OwnedSemaphorePermit>,
}

impl Place {
    /// A place among the requests, and nothing else.
    pub const fn small(request: OwnedSemaphorePermit) -> Self {
        Self { request, special: None, answer: None, memory: None }
    }
}
