//! Bounds the size of one answer, so that a stream without end cannot exhaust the memory. A larger answer is an error.

use super::json_text::Text;
use crate::prompt::{ErrorClass, InferenceError};

/// Bytes of text, reasoning and arguments of one answer.
const MOST: usize = 32 * 1024 * 1024;
/// What a call or a block weighs beside its text.
pub(in crate::inference) const ITEM: usize = 256;

/// The room that is left.
#[derive(Debug)]
pub(in crate::inference) struct Room(usize);

impl Default for Room {
    fn default() -> Self {
        Self(MOST)
    }
}

impl Room {
    /// Takes room for a piece.
    pub(in crate::inference) fn take(&mut self, piece: &Text<'_>) -> Result<(), InferenceError> {
        self.take_bytes(piece.len())
    }

    /// Bytes that were taken so far.
    pub(in crate::inference) const fn taken(&self) -> usize {
        MOST - self.0
    }

    pub(in crate::inference) fn take_bytes(&mut self, bytes: usize) -> Result<(), InferenceError> {
        self.0 = self.0.checked_sub(bytes).ok_or_else(|| {
            InferenceError::new(ErrorClass::Never, format!("the model's answer has more than {} MiB", MOST >> 20))
        })?;
        Ok(())
    }
}
