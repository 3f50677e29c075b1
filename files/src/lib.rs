//! Opens, makes and checks files for `harnessd` and `harnessctl` in directories to which other users may write.
//!
//! A run may be able to write to the directory that an operator names for a backup, an export or an answer. So a new
//! file is made relative to a directory that is held open, and gets its name when it is complete. A link that another
//! user made is refused. A file that is read or locked must be a regular file. A file that decides what is done, such
//! as a backup, is opened once, and must belong to this user or to root. The holder of a lock is asked of the kernel,
//! because any user may have written to the lock file.
//!
//! Both programs take these rules from here. This crate must not know what a file means: a journal and an export are
//! the same to it.
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
