//! How `harnessd` and `harnessctl` write where others may write too, and what they believe of what they find there.
//!
//! A run may be able to write to the directory that an operator names for a backup, an export or an answer. So what is
//! made is made anew, relative to a directory that is held open, and gets its name when it is whole; and no link is
//! followed that another user made. What is read or locked is a regular file, or is refused. What is acted on, as a
//! backup, is opened once, and must be no other user's. Who holds a lock is asked of the kernel: what stands in a lock
//! file may be anybody's. Owns these rules; knows nothing of journals or runs.
#![forbid(unsafe_code)]

mod anew;
mod dir;
mod existing;
pub mod locks;
mod private_group;
mod regular;
mod trusted;

pub use anew::{Anew, remove_left};
pub use dir::{Dir, Refusal};
pub use existing::open_to_write;
pub use regular::{NotRegular, Opening, open_regular};
pub use trusted::{Trusted, is_ours, open_trusted};

#[cfg(test)]
mod tests;
