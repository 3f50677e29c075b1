//! A file system that its process serves itself (FUSE), and waits in: SIGKILL does not end that wait, since the kernel
//! waits uninterruptibly for the answer of a server whose thread it is itself.
//!
//! The device is standard input, and one file is mounted, whose every use is a question to us.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

/// The least that the kernel wants to have room for.
const ROOM: usize = 1 << 17;
/// Numbers of questions, as the kernel's `fuse.h` has them.
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const INIT: u32 = 26;
const STATX: u32 = 52;

/// Waits in the file in this way, as `waiting` says, with the number of this process.
pub(crate) fn wait(way: &str, file: &str) {
    let device = super::standard_input();
    let own = serve_beside(device.try_clone().unwrap());
    match way {
        "waits" => _ = fs::metadata(file),
        // The close of the file waits, with the device open behind it.
        "exits" => {
            let _open = File::open(file).unwrap();
            let _behind = device.try_clone().unwrap();
            fs::write("waiting", own).unwrap();
            std::process::exit(0);
        }
        other => panic!("no such way: {other:?}"),
    }
}

/// Serves for others, and answers nothing.
pub(crate) fn serve_others() {
    serve(File::from(super::standard_input()), "");
}

/// Serves on another thread. Gives the number of this process, as the outermost `/proc` has it.
fn serve_beside(device: OwnedFd) -> String {
    let own = fs::read_link("/proc/self").unwrap().display().to_string();
    let told = own.clone();
    std::thread::spawn(move || serve(File::from(device), &told));
    own
}

/// Answers that the file system is there and that its file is open, and nothing else.
fn serve(mut device: File, own: &str) {
    let mut question = vec![0; ROOM];
    while let Ok(length) = device.read(&mut question) {
        let number = |at: usize| u32::from_le_bytes(question[at..at + 4].try_into().unwrap());
        assert!(length >= 40, "half a question");
        match number(4) {
            INIT => {
                // Version 7.31, no flags, and as much as fits into a write.
                let version = [7_u32, 31, 0, 0, 0, 4_096].map(u32::to_le_bytes).concat();
                answer(&mut device, &question, &[version, vec![0; 40]].concat());
            }
            OPEN => answer(&mut device, &question, &[0; 16]),
            GETATTR | STATX => fs::write("waiting", own).unwrap(),
            _ => {}
        }
    }
}

fn answer(device: &mut File, question: &[u8], with: &[u8]) {
    let length = u32::try_from(16 + with.len()).unwrap();
    let head = [&length.to_le_bytes()[..], &[0; 4], &question[8..16]].concat();
    device.write_all(&[&head, with].concat()).unwrap();
}
