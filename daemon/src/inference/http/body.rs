//! Reads the body of a response chunk by chunk, within its time limits.

use std::time::Duration;

use reqwest::Response;
use tokio::time::timeout;

use super::client::told;
use crate::inference::dialects::Ended;

/// Bytes of what is no answer that are read.
const MOST_OF_AN_ERROR: usize = 64 * 1024;

/// Blanks ahead of a body that are looked through for what it is.
const MOST_BLANKS: usize = 64 * 1024;

/// A response body that is being read.
pub(super) struct Body {
    response: Response,
    first: Option<Vec<u8>>,
    /// How it ended, where that was seen before it was asked for.
    ended: Option<Ended>,
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
        Self { response, first, ended: None, idle, why: None }
    }

    /// What comes next, waited for as long as is configured, or `at_most`.
    pub(super) async fn next(&mut self, at_most: Duration) -> Next {
        if let Some(first) = self.first.take() {
            return Next::Bytes(first);
        }
        if let Some(ended) = self.ended {
            return Next::End(ended);
        }
        self.more(at_most).await
    }

    /// The first byte that is no blank: what the body is can be seen by it. Servers send line breaks ahead while they
    /// think. Nothing is lost.
    pub(super) async fn sign(&mut self) -> Option<u8> {
        // With those of a byte order mark.
        let is_blank = |byte: u8| byte.is_ascii_whitespace() || [0xEF, 0xBB, 0xBF].contains(&byte);
        let (mut begun, mut seen) = (self.first.take().unwrap_or_default(), 0);
        let sign = loop {
            if let Some(sign) = begun.iter().skip(seen).copied().find(|&byte| !is_blank(byte)) {
                break Some(sign);
            }
            seen = begun.len();
            if seen > MOST_BLANKS {
                break None;
            }
            match self.more(Duration::MAX).await {
                Next::Bytes(bytes) => begun.extend_from_slice(&bytes),
                Next::End(ended) => {
                    self.ended = Some(ended);
                    break None;
                }
            }
        };
        self.first = Some(begun).filter(|begun| !begun.is_empty());
        sign
    }

    async fn more(&mut self, at_most: Duration) -> Next {
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
