//! Encodes and decodes the frames between the daemon and a keeper, on a stream socket, each with its length in front.
//!
//! ```text
//!   frame = length (4 bytes) · kind (1 byte) · fields          field = tag (1 byte) · length (4 bytes) · value
//!
//!   daemon ── hello (version) · start · end … ──▶ keeper   keeper ── runs · failed · ended · empty · stuck … ─▶ daemon
//! ```
//!
//! Pure. The only place with this encoding. Descriptors travel beside a frame, with its first byte.
//!
//! The first frame has the version of the protocol, and a keeper of another version closes the connection. A field that
//! the reader does not know is skipped, unless its tag is *binding* (see [`BINDING`]): the keeper must refuse a start
//! with a binding field that it does not know, so that no command starts with less care than the daemon asked for. An
//! end that reads nonsense must treat the other end as gone.

use std::ffi::{CStr, OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::Duration;

/// Version of this protocol. A change that adds fields keeps it; a change of meaning raises it.
pub(in crate::process) const VERSION: u32 = 1;
/// Longest frame. The kernel takes about 2 MiB of arguments and environment together.
pub(in crate::process) const LONGEST: usize = 4 * 1024 * 1024;
/// Bytes of the length in front of a frame or of a value.
const LENGTH: usize = 4;

/// Kinds of frames from the daemon.
const HELLO: u8 = 0;
const START: u8 = 1;
const END: u8 = 2;
/// Kinds of frames from a keeper.
const RUNS: u8 = 0;
const FAILED: u8 = 1;
const ENDED: u8 = 2;
const EMPTY: u8 = 3;
const STUCK: u8 = 4;

/// Tags with this bit are binding: a keeper that does not know such a field must not start the command.
const BINDING: u8 = 0x80;

/// Tags of fields, each with one meaning in all frames.
mod tag {
    use super::BINDING;

    pub(super) const VERSION: u8 = 1;
    pub(super) const SEQ: u8 = 2;
    pub(super) const GROUP: u8 = 3;
    pub(super) const LAUNCHER: u8 = 4;
    pub(super) const PROGRAM: u8 = 5;
    pub(super) const ARG: u8 = 6;
    pub(super) const VARIABLE: u8 = 7;
    pub(super) const WORKDIR: u8 = 8;
    pub(super) const DIRECTORY: u8 = 9;
    pub(super) const FOLDER: u8 = 10 | BINDING;
    pub(super) const INPUT: u8 = 11 | BINDING;
    pub(super) const TIME_LIMIT: u8 = 12;
    pub(super) const FORCE: u8 = 13;
    pub(super) const PID: u8 = 14;
    pub(super) const STATUS: u8 = 15;
    pub(super) const CPU: u8 = 16;
    pub(super) const MAX_RSS: u8 = 17;
    pub(super) const ALONE: u8 = 18;
    pub(super) const EXPIRED: u8 = 19;
    pub(super) const FAILURE: u8 = 20;
    pub(super) const ERRNO: u8 = 21;
    pub(super) const UNKNOWN: u8 = 22;
    pub(super) const OWNER: u8 = 23;
}

/// Whose processes a keeper has, for all its life. A keeper has no rights by it, and gives none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owner {
    /// Calls of a run.
    Run,
    /// A server that calls of a run talk to.
    Server,
    /// A check of the harness on what a run has done.
    Check,
    /// A hook of the operator: it belongs to no run.
    Hook,
}

impl Owner {
    /// The owners, each at the place that is its number in a frame.
    const ALL: [Self; 4] = [Self::Run, Self::Server, Self::Check, Self::Hook];

    /// What the keeper calls itself in lists of processes.
    pub(in crate::process) const fn name(self) -> &'static CStr {
        match self {
            Self::Run => c"keeper-run",
            Self::Server => c"keeper-server",
            Self::Check => c"keeper-check",
            Self::Hook => c"keeper-hook",
        }
    }

    /// Whether its processes have the rights of the run that they are started for.
    pub(in crate::process) const fn is_of_run(self) -> bool {
        !matches!(self, Self::Hook)
    }
}

/// A request to a keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::process) enum Request {
    /// The first frame: the version that the daemon speaks, and whose processes the keeper is for. `None` where a
    /// daemon of another version has not said it, or has named an owner that this keeper does not know.
    Hello { version: u32, owner: Option<Owner> },
    /// Start a process.
    Start(Box<Start>),
    /// End all its descendants; without a grace period where `force`.
    End { force: bool },
}

/// A process to start. Its descriptors come beside the frame: standard output and error, or a terminal for all three;
/// then standard input, where it has one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::process) struct Start {
    /// Number of the call at this keeper.
    pub(in crate::process) seq: u32,
    /// Whether it leads a process group; false if it is to lead a session.
    pub(in crate::process) group: bool,
    /// A descriptor for its standard input comes last beside the frame; otherwise it reads `/dev/null`.
    pub(in crate::process) input: bool,
    /// Time after which the keeper ends the process by itself.
    pub(in crate::process) time_limit: Option<Duration>,
    /// The instructions for a launcher in between; empty where none is needed.
    pub(in crate::process) launcher: OsString,
    pub(in crate::process) program: OsString,
    /// Its arguments, from its name on.
    pub(in crate::process) args: Vec<OsString>,
    pub(in crate::process) env: Vec<(OsString, OsString)>,
    pub(in crate::process) place: Place<OsString>,
    /// The tag of a binding field that this keeper does not know: it refuses the start.
    pub(in crate::process) unknown: Option<u8>,
}

/// A process to start, as the daemon has it: from borrowed strings, which are copied once.
#[derive(Debug, Clone, Copy)]
pub(in crate::process) struct StartFrame<'a> {
    pub(in crate::process) seq: u32,
    pub(in crate::process) group: bool,
    pub(in crate::process) input: bool,
    pub(in crate::process) time_limit: Option<Duration>,
    pub(in crate::process) launcher: &'a OsStr,
    pub(in crate::process) program: &'a OsStr,
    pub(in crate::process) place: Place<&'a OsStr>,
    pub(in crate::process) env: &'a [(OsString, OsString)],
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
    /// The process ended. `alone`: it has left no other process running. `expired`: the keeper has ended it, because
    /// its time limit was over.
    Ended { used: Used, alone: bool, expired: bool },
    /// The keeper has no child.
    Empty,
    /// The keeper has killed everything below it, and the kernel does not end what is left: the keeper is of no use any
    /// more.
    Stuck,
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
    /// The request has a binding field with this tag, which the keeper does not know.
    Unknown { tag: u8 },
}

/// How a process ended, and the use of resources by it and by children that it waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::process) struct Used {
    /// Its status, as `wait4` gives it.
    pub(in crate::process) status: i32,
    pub(in crate::process) cpu: Duration,
    pub(in crate::process) max_rss_bytes: u64,
}

impl Request {
    /// The first frame of a connection.
    pub(in crate::process) fn hello(owner: Owner) -> Vec<u8> {
        framed(HELLO, |frame| {
            frame.put(tag::VERSION, VERSION.to_le_bytes());
            frame.put(tag::OWNER, [owner as u8]);
        })
    }

    /// The frame of a request to end.
    pub(in crate::process) fn end(force: bool) -> Vec<u8> {
        framed(END, |frame| frame.put(tag::FORCE, [u8::from(force)]))
    }

    /// Reads a frame; `None` where it is nonsense.
    pub(in crate::process) fn decode(frame: &[u8]) -> Option<Self> {
        let (&kind, fields) = frame.split_first()?;
        match kind {
            HELLO => {
                let (mut version, mut owner) = (None, None);
                each_field(fields, |tag, value| {
                    match tag {
                        tag::VERSION => version = Some(u32::from_le_bytes(array(value)?)),
                        tag::OWNER => owner = Owner::ALL.get(usize::from(array::<1>(value)?[0])).copied(),
                        _ => {}
                    }
                    Some(())
                })?;
                Some(Self::Hello { version: version?, owner })
            }
            START => Start::decode(fields).map(|start| Self::Start(Box::new(start))),
            END => {
                let mut force = false;
                each_field(fields, |tag, value| {
                    if tag == tag::FORCE {
                        force = is_set(value);
                    }
                    Some(())
                })?;
                Some(Self::End { force })
            }
            _ => None,
        }
    }
}

impl StartFrame<'_> {
    /// The frame, with these arguments, from the program's name on.
    pub(in crate::process) fn encode<'a>(self, args: impl Iterator<Item = &'a OsStr>) -> Vec<u8> {
        framed(START, |frame| {
            frame.put(tag::SEQ, self.seq.to_le_bytes());
            if self.group {
                frame.put(tag::GROUP, [1]);
            }
            if self.input {
                frame.put(tag::INPUT, [1]);
            }
            if let Some(limit) = self.time_limit {
                frame.put(tag::TIME_LIMIT, micros(limit).to_le_bytes());
            }
            if !self.launcher.is_empty() {
                frame.put(tag::LAUNCHER, self.launcher.as_bytes());
            }
            frame.put(tag::PROGRAM, self.program.as_bytes());
            frame.put(tag::WORKDIR, self.place.workdir.as_bytes());
            if !self.place.directory.is_empty() {
                frame.put(tag::DIRECTORY, self.place.directory.as_bytes());
            }
            if let Some(folder) = self.place.folder {
                frame.put(tag::FOLDER, pair(folder));
            }
            args.for_each(|arg| frame.put(tag::ARG, arg.as_bytes()));
            self.env.iter().for_each(|(name, value)| frame.put_variable(name, value));
        })
    }
}

impl Start {
    fn decode(fields: &[u8]) -> Option<Self> {
        let mut start = Self::default();
        each_field(fields, |tag, value| {
            match tag {
                tag::SEQ => start.seq = u32::from_le_bytes(array(value)?),
                tag::GROUP => start.group = is_set(value),
                tag::INPUT => start.input = is_set(value),
                tag::TIME_LIMIT => start.time_limit = Some(Duration::from_micros(u64::from_le_bytes(array(value)?))),
                tag::LAUNCHER => start.launcher = text(value),
                tag::PROGRAM => start.program = text(value),
                tag::WORKDIR => start.place.workdir = text(value),
                tag::DIRECTORY => start.place.directory = text(value),
                tag::FOLDER => start.place.folder = Some(pair_of(value)?),
                tag::ARG => start.args.push(text(value)),
                tag::VARIABLE => {
                    let (length, rest) = value.split_first_chunk::<LENGTH>()?;
                    let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
                    let (name, value) = rest.split_at_checked(length)?;
                    start.env.push((text(name), text(value)));
                }
                tag if tag & BINDING != 0 => start.unknown = Some(tag),
                _ => {}
            }
            Some(())
        })?;
        Some(start)
    }
}

impl Answer {
    pub(in crate::process) fn encode(self) -> Vec<u8> {
        let kind = match self.what {
            What::Runs { .. } => RUNS,
            What::Failed(_) => FAILED,
            What::Ended { .. } => ENDED,
            What::Empty => EMPTY,
            What::Stuck => STUCK,
        };
        framed(kind, |frame| {
            frame.put(tag::SEQ, self.seq.to_le_bytes());
            match self.what {
                What::Runs { pid } => frame.put(tag::PID, pid.to_le_bytes()),
                What::Failed(failure) => failure.put(frame),
                What::Ended { used, alone, expired } => {
                    frame.put(tag::STATUS, used.status.to_le_bytes());
                    frame.put(tag::CPU, micros(used.cpu).to_le_bytes());
                    frame.put(tag::MAX_RSS, used.max_rss_bytes.to_le_bytes());
                    frame.put(tag::ALONE, [u8::from(alone)]);
                    if expired {
                        frame.put(tag::EXPIRED, [1]);
                    }
                }
                What::Empty | What::Stuck => {}
            }
        })
    }

    /// Reads a frame; `None` where it is nonsense.
    pub(in crate::process) fn decode(frame: &[u8]) -> Option<Self> {
        let (&kind, fields) = frame.split_first()?;
        let (mut seq, mut pid, mut status, mut failure) = (None, None, None, FailureFields::default());
        let (mut used, mut alone, mut expired) = (Used::default(), false, false);
        each_field(fields, |tag, value| {
            match tag {
                tag::SEQ => seq = Some(u32::from_le_bytes(array(value)?)),
                tag::PID => pid = Some(i32::from_le_bytes(array(value)?)),
                tag::STATUS => status = Some(i32::from_le_bytes(array(value)?)),
                tag::CPU => used.cpu = Duration::from_micros(u64::from_le_bytes(array(value)?)),
                tag::MAX_RSS => used.max_rss_bytes = u64::from_le_bytes(array(value)?),
                tag::ALONE => alone = is_set(value),
                tag::EXPIRED => expired = is_set(value),
                tag => failure.read(tag, value)?,
            }
            Some(())
        })?;
        let what = match kind {
            RUNS => What::Runs { pid: pid? },
            FAILED => What::Failed(failure.known()?),
            ENDED => What::Ended { used: Used { status: status?, ..used }, alone, expired },
            EMPTY => What::Empty,
            STUCK => What::Stuck,
            _ => return None,
        };
        Some(Self { seq: seq?, what })
    }
}

impl Failure {
    fn put(self, frame: &mut Frame<'_>) {
        let (kind, errno) = match self {
            Self::Start { errno } => (0, errno),
            Self::Workdir { errno } => (1, errno),
            Self::Directory { errno } => (2, errno),
            Self::OtherFolder { device, inode } => {
                frame.put(tag::FAILURE, [3]);
                return frame.put(tag::FOLDER, pair((device, inode)));
            }
            Self::Unknown { tag } => {
                frame.put(tag::FAILURE, [4]);
                return frame.put(tag::UNKNOWN, [tag]);
            }
        };
        frame.put(tag::FAILURE, [kind]);
        frame.put(tag::ERRNO, errno.to_le_bytes());
    }
}

/// The fields of a failure, in any order.
#[derive(Default)]
struct FailureFields {
    kind: Option<u8>,
    errno: Option<i32>,
    folder: Option<(u64, u64)>,
    unknown: Option<u8>,
}

impl FailureFields {
    fn read(&mut self, tag: u8, value: &[u8]) -> Option<()> {
        match tag {
            tag::FAILURE => self.kind = Some(array::<1>(value)?[0]),
            tag::ERRNO => self.errno = Some(i32::from_le_bytes(array(value)?)),
            tag::FOLDER => self.folder = Some(pair_of(value)?),
            tag::UNKNOWN => self.unknown = Some(array::<1>(value)?[0]),
            _ => {}
        }
        Some(())
    }

    fn known(self) -> Option<Failure> {
        Some(match self.kind? {
            0 => Failure::Start { errno: self.errno? },
            1 => Failure::Workdir { errno: self.errno? },
            2 => Failure::Directory { errno: self.errno? },
            3 => self.folder.map(|(device, inode)| Failure::OtherFolder { device, inode })?,
            4 => Failure::Unknown { tag: self.unknown? },
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

/// A frame that is being written.
struct Frame<'a>(&'a mut Vec<u8>);

impl Frame<'_> {
    fn put(&mut self, tag: u8, value: impl AsRef<[u8]>) {
        self.0.push(tag);
        self.put_length(value.as_ref().len());
        self.0.extend_from_slice(value.as_ref());
    }

    fn put_variable(&mut self, name: &OsStr, value: &OsStr) {
        self.0.push(tag::VARIABLE);
        self.put_length(LENGTH + name.len() + value.len());
        self.put_length(name.len());
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(value.as_bytes());
    }

    fn put_length(&mut self, length: usize) {
        self.0.extend(u32::try_from(length).unwrap_or(u32::MAX).to_le_bytes());
    }
}

fn framed(kind: u8, fill: impl FnOnce(&mut Frame<'_>)) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(2048);
    bytes.extend([0; LENGTH]);
    bytes.push(kind);
    fill(&mut Frame(&mut bytes));
    let length = u32::try_from(bytes.len() - LENGTH).unwrap_or(u32::MAX);
    bytes[..LENGTH].copy_from_slice(&length.to_le_bytes());
    bytes
}

/// Reads all fields in their order; `None` where one is cut, or `read` finds nonsense.
fn each_field(mut fields: &[u8], mut read: impl FnMut(u8, &[u8]) -> Option<()>) -> Option<()> {
    while let Some((&tag, rest)) = fields.split_first() {
        let (length, rest) = rest.split_first_chunk::<LENGTH>()?;
        let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        read(tag, value)?;
        fields = rest;
    }
    Some(())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

fn pair((first, second): (u64, u64)) -> [u8; 16] {
    ((u128::from(second) << 64) | u128::from(first)).to_le_bytes()
}

fn pair_of(value: &[u8]) -> Option<(u64, u64)> {
    let (first, second) = value.split_first_chunk()?;
    Some((u64::from_le_bytes(*first), u64::from_le_bytes(array(second)?)))
}

fn array<const N: usize>(value: &[u8]) -> Option<[u8; N]> {
    value.try_into().ok()
}

fn is_set(value: &[u8]) -> bool {
    value.first().is_some_and(|&byte| byte != 0)
}

fn text(value: &[u8]) -> OsString {
    OsString::from_vec(value.to_vec())
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

    /// The frame with one more field at its end, as a later version may send it.
    fn with_field(bytes: &[u8], tag: u8, value: &[u8]) -> Vec<u8> {
        let mut frame = frame(bytes).to_vec();
        Frame(&mut frame).put(tag, value);
        frame
    }

    fn a_start() -> (Vec<u8>, Start) {
        let env = [(OsString::from("A"), OsString::from_vec(vec![0xff, b'='])), ("B".into(), OsString::new())];
        let args = [OsStr::new("sh"), OsStr::new(""), OsStr::new("x y")];
        let (workdir, directory) = (OsStr::new("/tmp"), OsStr::new("below/it"));
        let place = Place { workdir, folder: Some((7, u64::MAX)), directory };
        let (launcher, program) = (OsStr::new("cpu=1"), OsStr::new("/bin/sh"));
        let time_limit = Some(Duration::from_micros(1_500_001));
        let sent = StartFrame { seq: 7, group: true, input: true, time_limit, launcher, program, place, env: &env };
        let expected = Start {
            seq: 7,
            group: true,
            input: true,
            time_limit,
            launcher: launcher.into(),
            program: program.into(),
            args: args.map(OsStr::to_owned).to_vec(),
            env: env.to_vec(),
            place: Place { workdir: workdir.into(), folder: place.folder, directory: directory.into() },
            unknown: None,
        };
        (sent.encode(args.into_iter()), expected)
    }

    fn answers() -> Vec<Answer> {
        let used = Used { status: 0x8b, cpu: Duration::from_micros(12), max_rss_bytes: 1 << 40 };
        [
            What::Runs { pid: 12 },
            What::Failed(Failure::Start { errno: 2 }),
            What::Failed(Failure::Workdir { errno: i32::MAX }),
            What::Failed(Failure::Directory { errno: -1 }),
            What::Failed(Failure::OtherFolder { device: u64::MAX, inode: 1 << 63 }),
            What::Failed(Failure::Unknown { tag: 0xff }),
            What::Ended { used, alone: true, expired: false },
            What::Ended { used, alone: false, expired: true },
            What::Empty,
            What::Stuck,
        ]
        .map(|what| Answer { seq: 9, what })
        .to_vec()
    }

    #[test]
    fn each_end_understands_the_other() {
        let (bytes, expected) = a_start();
        assert_eq!(Request::decode(frame(&bytes)), Some(Request::Start(Box::new(expected))));
        for owner in Owner::ALL {
            let hello = Request::decode(frame(&Request::hello(owner)));
            assert_eq!(hello, Some(Request::Hello { version: VERSION, owner: Some(owner) }));
        }
        assert_eq!(Request::decode(frame(&Request::end(true))), Some(Request::End { force: true }));
        assert_eq!(Request::decode(frame(&Request::end(false))), Some(Request::End { force: false }));
        for answer in answers() {
            assert_eq!(Answer::decode(frame(&answer.encode())), Some(answer));
        }
    }

    #[test]
    fn a_field_of_a_later_version_changes_nothing() {
        for (tag, value) in [(100, &b""[..]), (100, b"x"), (127, &[0; 300]), (0, b"later")] {
            let (bytes, expected) = a_start();
            let start = Request::decode(&with_field(&bytes, tag, value));
            assert_eq!(start, Some(Request::Start(Box::new(expected))));
            let hello = Request::decode(&with_field(&Request::hello(Owner::Hook), tag, value));
            assert_eq!(hello, Some(Request::Hello { version: VERSION, owner: Some(Owner::Hook) }));
            for answer in answers() {
                assert_eq!(Answer::decode(&with_field(&answer.encode(), tag, value)), Some(answer));
            }
        }
    }

    /// A daemon of the version before names no owner, one of a later version perhaps one that is new.
    #[test]
    fn a_hello_without_a_known_owner_is_a_hello() {
        let before = framed(HELLO, |frame| frame.put(tag::VERSION, VERSION.to_le_bytes()));
        let later = with_field(&before, tag::OWNER, &[200]);
        for hello in [frame(&before), &later] {
            assert_eq!(Request::decode(hello), Some(Request::Hello { version: VERSION, owner: None }));
        }
    }

    #[test]
    fn a_start_with_an_unknown_binding_field_says_which() {
        for tag in [BINDING, BINDING | 60, 0xff] {
            let (bytes, expected) = a_start();
            let start = Request::decode(&with_field(&bytes, tag, b"a plan"));
            assert_eq!(start, Some(Request::Start(Box::new(Start { unknown: Some(tag), ..expected }))));
        }
    }

    #[test]
    fn half_a_frame_is_waited_for_and_an_endless_one_is_nonsense() {
        let bytes = Request::end(false);
        assert_eq!(first_frame(&bytes[..5]), Ok(None));
        assert_eq!(first_frame(&bytes[..2]), Ok(None));
        assert_eq!(first_frame(&[0xff; 8]), Err(Nonsense));
    }

    #[test]
    fn a_frame_that_is_cut_inside_a_field_is_nonsense() {
        let (bytes, _) = a_start();
        let frame = frame(&bytes);
        let whole: Vec<usize> = (1..frame.len()).filter(|&end| Request::decode(&frame[..end]).is_some()).collect();
        // It is whole only where a field ends: 14 fields, and the kind alone.
        assert_eq!(whole.len(), 14, "{whole:?}");
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_strange(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = (Request::decode(&bytes), Answer::decode(&bytes), first_frame(&bytes));
        }
    }
}
