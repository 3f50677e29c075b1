//! Sends file descriptors to the daemon together with a request.

use std::fs::{File, OpenOptions};
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::libc;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};

use crate::Client;

/// The most that Linux passes at once.
pub const MOST_PASSED: usize = 253;

/// A folder, only to be passed.
pub fn folder(path: &Path) -> File {
    let flags = libc::O_PATH | libc::O_DIRECTORY;
    OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap()
}

impl Client {
    /// Writes bytes, with descriptors beside the first of them.
    pub fn write_passing(&mut self, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_PASSED))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(beside.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        let sent = sendmsg(self.stream(), &[IoSlice::new(bytes)], &mut beside, SendFlags::NOSIGNAL).unwrap();
        self.write(&bytes[sent..]);
    }

    /// Submits, and passes a descriptor as the working directory.
    ///
    /// # Errors
    /// What the daemon says.
    #[track_caller]
    pub fn submit_passing(&mut self, spec: &Value, folder: impl AsFd) -> Result<Value, Value> {
        let id = self.next_id();
        let params = json!({"spec": spec, "passes_workdir": true});
        let line = json!({"jsonrpc": "2.0", "id": id, "method": "run.submit", "params": params});
        self.write_passing(format!("{line}\n").as_bytes(), &[folder.as_fd()]);
        let mut reply = self.reply(id);
        match reply.get("error") {
            Some(error) => Err(error.clone()),
            None => Ok(reply["result"].take()),
        }
    }
}
