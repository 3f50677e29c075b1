//! The protocol between the daemon and a keeper: frames on a stream socket, each with its length in front.
//!
//! Pure. Owns the encoding, and no other module knows it. Descriptors travel beside a frame, with its first byte. Both
//! ends are the same binary, so there are no versions; an end that reads nonsense treats the other end as gone.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// Longest frame. The kernel takes about 2 MiB of arguments and environment together.
pub(in crate::process) const LONGEST: usize = 4 * 1024 * 1024;
/// Bytes of the length in front of a frame.
const LENGTH: usize = 4;

/// A request to a keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::process) enum Request {
    /// Start a process.
    Start(Start),
    /// End all its descendants; without a grace period where `force`.
    End { force: bool },
}

/// A process to start. Its descriptors come beside the frame: standard output and error, or a terminal for all three.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::process) struct Start {
    /// Number of the call at this keeper.
    pub(in crate::process) seq: u32,
    /// Whether it leads a process group; false if it is to lead a session.
    pub(in crate::process) group: bool,
    /// The instructions for a launcher in between; empty where none is needed.
    pub(in crate::process) launcher: OsString,
    pub(in crate::process) program: OsString,
    /// Its arguments, from its name on.
    pub(in crate::process) args: Vec<OsString>,
    pub(in crate::process) env: Vec<(OsString, OsString)>,
    pub(in crate::process) place: Place<OsString>,
}

/// The directory in which a process starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::process) struct Place<S> {
    /// The working directory of its run.
    pub(in crate::process) workdir: S,
    /// Device and inode that this directory must have.
    pub(in crate::process) folder: Option<(u64, u64)>,
    /// The directory of the call, relative to it; empty for that directory itself.
    pub(in crate::process) directory: S,
}

/// A message of a keeper about the call with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::process) struct Answer {
    pub(in crate::process) seq: u32,
    pub(in crate::process) what: What,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::process) enum What {
    /// It has run for a while already, as process `pid`. Quick processes have no such message.
    Runs { pid: i32 },
    /// The process did not start.
    Failed(Failure),
    /// The process ended. `alone`: it has left no other process running.
    Ended { used: Used, alone: bool },
    /// The keeper has no child.
    Empty,
}

/// Why a process did not start, with error numbers of the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::process) enum Failure {
    /// The program could not be started, or any other step failed.
    Start { errno: i32 },
    /// The working directory cannot be opened, or not be entered.
    Workdir { errno: i32 },
    /// The working directory is another folder than the expected one.
    OtherFolder { device: u64, inode: u64 },
    /// The directory of the call, relative to the working directory, cannot be entered.
    Directory { errno: i32 },
}

/// How a process ended, and the use of resources by it and by children that it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::process) struct Used {
    /// Its status, as `wait4` gives it.
    pub(in crate::process) status: i32,
    pub(in crate::process) cpu: Duration,
    pub(in crate::process) max_rss_bytes: u64,
}

impl Request {
    /// The frame of a request to end; [`start`] makes the other one.
    pub(in crate::process) fn end(force: bool) -> Vec<u8> {
        framed(|bytes| bytes.extend([1, u8::from(force)]))
    }

    pub(in crate::process) fn decode(frame: &[u8]) -> Option<Self> {
        let mut reader = Reader(frame);
        Some(match reader.byte()? {
            0 => {
                let seq = reader.u32()?;
                let group = reader.byte()? != 0;
                let launcher = reader.text()?;
                let program = reader.text()?;
                let (workdir, directory) = (reader.text()?, reader.text()?);
                let folder = match reader.byte()? {
                    0 => None,
                    _ => Some((reader.u64()?, reader.u64()?)),
                };
                let place = Place { workdir, folder, directory };
                let args = reader.many(Reader::text)?;
                let env = reader.many(|reader| Some((reader.text()?, reader.text()?)))?;
                Self::Start(Start { seq, group, launcher, program, args, env, place })
            }
            1 => Self::End { force: reader.byte()? != 0 },
            _ => return None,
        })
    }
}

/// The frame of a request to start, from borrowed strings: the fast path copies them once.
pub(in crate::process) fn start<'a>(
    seq: u32,
    group: bool,
    launcher: &OsStr,
    program: &OsStr,
    place: Place<&OsStr>,
    args: impl ExactSizeIterator<Item = &'a OsStr>,
    env: &[(OsString, OsString)],
) -> Vec<u8> {
    framed(|bytes| {
        bytes.push(0);
        bytes.extend(seq.to_le_bytes());
        bytes.push(u8::from(group));
        put(bytes, launcher);
        put(bytes, program);
        put(bytes, place.workdir);
        put(bytes, place.directory);
        match place.folder {
            None => bytes.push(0),
            Some((device, inode)) => {
                bytes.push(1);
                bytes.extend(device.to_le_bytes());
                bytes.extend(inode.to_le_bytes());
            }
        }
        put_number(bytes, args.len());
        args.for_each(|arg| put(bytes, arg));
        put_number(bytes, env.len());
        for (name, value) in env {
            put(bytes, name);
            put(bytes, value);
        }
    })
}

impl Answer {
    pub(in crate::process) fn encode(self) -> Vec<u8> {
        framed(|bytes| {
            bytes.extend(self.seq.to_le_bytes());
            match self.what {
                What::Runs { pid } => {
                    bytes.push(0);
                    bytes.extend(pid.to_le_bytes());
                }
                What::Failed(failure) => {
                    bytes.push(1);
                    failure.put(bytes);
                }
                What::Ended { used, alone } => {
                    bytes.push(2);
                    bytes.extend(used.status.to_le_bytes());
                    bytes.extend(u64::try_from(used.cpu.as_micros()).unwrap_or(u64::MAX).to_le_bytes());
                    bytes.extend(used.max_rss_bytes.to_le_bytes());
                    bytes.push(u8::from(alone));
                }
                What::Empty => bytes.push(3),
            }
        })
    }

    pub(in crate::process) fn decode(frame: &[u8]) -> Option<Self> {
        let mut reader = Reader(frame);
        let seq = reader.u32()?;
        let what = match reader.byte()? {
            0 => What::Runs { pid: reader.i32()? },
            1 => What::Failed(Failure::read(&mut reader)?),
            2 => {
                let status = reader.i32()?;
                let cpu = Duration::from_micros(reader.u64()?);
                let used = Used { status, cpu, max_rss_bytes: reader.u64()? };
                What::Ended { used, alone: reader.byte()? != 0 }
            }
            3 => What::Empty,
            _ => return None,
        };
        Some(Self { seq, what })
    }
}

impl Failure {
    fn put(self, bytes: &mut Vec<u8>) {
        let (kind, errno) = match self {
            Self::Start { errno } => (0, errno),
            Self::Workdir { errno } => (1, errno),
            Self::Directory { errno } => (2, errno),
            Self::OtherFolder { device, inode } => {
                bytes.push(3);
                bytes.extend(device.to_le_bytes());
                return bytes.extend(inode.to_le_bytes());
            }
        };
        bytes.push(kind);
        bytes.extend(errno.to_le_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        Some(match reader.byte()? {
            0 => Self::Start { errno: reader.i32()? },
            1 => Self::Workdir { errno: reader.i32()? },
            2 => Self::Directory { errno: reader.i32()? },
            3 => Self::OtherFolder { device: reader.u64()?, inode: reader.u64()? },
            _ => return None,
        })
    }
}

/// The first whole frame of the read bytes: its length in all, and its content.
///
/// # Errors
/// A length that neither end ever sends.
pub(in crate::process) fn first_frame(bytes: &[u8]) -> Result<Option<(usize, &[u8])>, Nonsense> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH>() else { return Ok(None) };
    let length = usize::try_from(u32::from_le_bytes(*length)).map_err(|_| Nonsense)?;
    if length > LONGEST {
        return Err(Nonsense);
    }
    Ok(rest.get(..length).map(|frame| (LENGTH + length, frame)))
}

/// Bytes that the other end would never send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::process) struct Nonsense;

fn framed(fill: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2048);
    bytes.extend([0; LENGTH]);
    fill(&mut bytes);
    let length = u32::try_from(bytes.len() - LENGTH).unwrap_or(u32::MAX);
    bytes[..LENGTH].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn put_number(bytes: &mut Vec<u8>, number: usize) {
    bytes.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
}

fn put(bytes: &mut Vec<u8>, text: &OsStr) {
    put_number(bytes, text.len());
    bytes.extend_from_slice(text.as_bytes());
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn i32(&mut self) -> Option<i32> {
        self.array().map(i32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self) -> Option<OsString> {
        let length = usize::try_from(self.u32()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(OsString::from_vec(text.to_vec()))
    }

    fn many<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        // Grows step by step: a large number alone must not take memory.
        (0..self.u32()?).map(|_| one(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn frame(bytes: &[u8]) -> &[u8] {
        let (length, frame) = first_frame(bytes).unwrap().unwrap();
        assert_eq!(length, bytes.len());
        frame
    }

    #[test]
    fn what_is_said_is_understood() {
        let env = [(OsString::from("A"), OsString::from_vec(vec![0xff, b'=']))];
        let args = [OsStr::new("sh"), OsStr::new(""), OsStr::new("x y")];
        let place =
            Place { workdir: OsStr::new("/tmp"), folder: Some((7, u64::MAX)), directory: OsStr::new("below/it") };
        let bytes = start(7, true, OsStr::new("cpu=1"), OsStr::new("/bin/sh"), place, args.into_iter(), &env);
        let expected = Start {
            seq: 7,
            group: true,
            launcher: "cpu=1".into(),
            program: "/bin/sh".into(),
            args: args.map(OsStr::to_owned).to_vec(),
            env: env.to_vec(),
            place: Place { workdir: "/tmp".into(), folder: Some((7, u64::MAX)), directory: "below/it".into() },
        };
        assert_eq!(Request::decode(frame(&bytes)), Some(Request::Start(expected)));
        assert_eq!(Request::decode(frame(&Request::end(true))), Some(Request::End { force: true }));
        let used = Used { status: 0x8b, cpu: Duration::from_micros(12), max_rss_bytes: 1 << 40 };
        for what in [
            What::Runs { pid: 12 },
            What::Failed(Failure::Start { errno: 2 }),
            What::Failed(Failure::Workdir { errno: i32::MAX }),
            What::Failed(Failure::Directory { errno: -1 }),
            What::Failed(Failure::OtherFolder { device: u64::MAX, inode: 1 << 63 }),
            What::Ended { used, alone: true },
            What::Ended { used, alone: false },
            What::Empty,
        ] {
            let answer = Answer { seq: 9, what };
            assert_eq!(Answer::decode(frame(&answer.encode())), Some(answer));
        }
    }

    #[test]
    fn half_a_frame_is_waited_for_and_an_endless_one_is_nonsense() {
        let bytes = Request::end(false);
        assert_eq!(first_frame(&bytes[..5]), Ok(None));
        assert_eq!(first_frame(&bytes[..2]), Ok(None));
        assert_eq!(first_frame(&[0xff; 8]), Err(Nonsense));
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (Request::decode(&bytes), Answer::decode(&bytes), first_frame(&bytes));
        }
    }
}
