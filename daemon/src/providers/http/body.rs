//! The body of a response, chunk by chunk, within its time limits.

use std::time::Duration;

use reqwest::Response;
use tokio::time::timeout;

use super::client::told;
use crate::providers::dialect::Ended;

/// Bytes of what is no answer that are read.
const MOST_OF_AN_ERROR: usize = 64 * 1024;

/// A body.
pub(super) struct Body {
    response: Response,
    first: Option<Vec<u8>>,
    idle: Duration,
    /// Why it ended, once it has, where that was not as it should be.
    why: Option<String>,
}

/// What comes next of a body.
#[derive(Debug)]
pub(super) enum Next {
    Bytes(Vec<u8>),
    End(Ended),
}

impl Body {
    /// The body of `response`, of which `first` came already.
    pub(super) fn new(response: Response, first: Option<Vec<u8>>, idle: Duration) -> Self {
        Self { response, first, idle, why: None }
    }

    /// What comes next, waited for as long as is configured, or `at_most`.
    pub(super) async fn next(&mut self, at_most: Duration) -> Next {
        if let Some(first) = self.first.take() {
            return Next::Bytes(first);
        }
        match timeout(self.idle.min(at_most), self.response.chunk()).await {
            Ok(Ok(Some(bytes))) => Next::Bytes(bytes.into()),
            Ok(Ok(None)) => Next::End(Ended::Clean),
            Ok(Err(error)) => {
                self.why = Some(told(&error));
                Next::End(Ended::Broken)
            }
            Err(_) => Next::End(Ended::Stalled),
        }
    }

    /// Why the connection broke.
    pub(super) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// All of it, and how it ended; `None` where there is more than `most` bytes.
    pub(super) async fn whole(&mut self, most: usize) -> Option<(Vec<u8>, Ended)> {
        let mut whole = Vec::new();
        loop {
            match self.next(Duration::MAX).await {
                Next::Bytes(bytes) => whole.extend_from_slice(&bytes),
                Next::End(ended) => return Some((whole, ended)),
            }
            if whole.len() > most {
                return None;
            }
        }
    }

    /// As much of its beginning as is worth telling.
    pub(super) async fn beginning(&mut self) -> String {
        let mut text = Vec::new();
        while text.len() < MOST_OF_AN_ERROR
            && let Next::Bytes(bytes) = self.next(Duration::MAX).await
        {
            text.extend_from_slice(&bytes);
        }
        text.truncate(MOST_OF_AN_ERROR);
        String::from_utf8_lossy(&text).into_owned()
    }
}
