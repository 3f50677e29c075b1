//! How `harnessd` and `harnessctl` write where other users may write too, and which files they trust there.
//!
//! A run may be able to write to the directory that an operator names for a backup, an export or an answer. So a new
//! file is made relative to a directory that is held open, and gets its name when it is complete. No link that another
//! user made is followed. A file that is read or locked is a regular file, or is refused. A file that decides what is
//! done, such as a backup, is opened once, and must belong to no other user. The holder of a lock is asked of the
//! kernel: any user may have written to the lock file. Owns these rules; must never know journals or runs.
#![forbid(unsafe_code)]

mod atomic_create;
mod dir;
pub mod locks;
mod overwrite;
mod private_group;
mod regular;
mod remove;
mod trusted;

pub use atomic_create::{Anew, remove_left};
pub use dir::{Dir, Refusal};
pub use overwrite::open_to_write;
pub use regular::{NotRegular, Opening, Writing, open_own, open_regular, read_regular};
pub use trusted::{Trusted, is_ours, open_trusted};

#[cfg(test)]
mod tests;
