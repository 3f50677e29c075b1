//! Looks at processes by `/proc`: whether they live, and what they are.

use std::fs;
use std::path::PathBuf;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::eventually;

/// A process, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Process(pub u32);

impl Process {
    /// The living processes whose command line has this word.
    pub fn with_word(word: &str) -> Vec<Self> {
        let has = |process: &Self| {
            let line = fs::read(process.file("cmdline")).unwrap_or_default();
            line.split(|&byte| byte == 0).any(|found| found == word.as_bytes())
        };
        Self::all().filter(has).filter(|process| process.is_alive()).collect()
    }

    /// The living processes in whose command line this stands, words separated by blanks.
    pub fn marked(mark: &str) -> Vec<Self> {
        Self::all().filter(|process| process.command_line().contains(mark) && process.is_alive()).collect()
    }

    fn all() -> impl Iterator<Item = Self> {
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).map(Self)
    }

    /// Its command line, words separated by blanks; nothing where it has ended.
    pub fn command_line(self) -> String {
        String::from_utf8_lossy(&fs::read(self.file("cmdline")).unwrap_or_default()).replace('\0', " ")
    }

    /// Its children, with those that wait to be reaped.
    pub fn children(self) -> Vec<Self> {
        let tasks = fs::read_dir(self.file("task")).into_iter().flatten().flatten();
        let lists = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
        let pids = |list: String| list.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>();
        lists.flat_map(pids).map(Self).collect()
    }

    fn file(self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.0))
    }

    /// The fields of `/proc/PID/stat` behind the name; the first is the state.
    fn stat(self) -> Option<Vec<String>> {
        let text = fs::read_to_string(self.file("stat")).ok()?;
        let (_, fields) = text.rsplit_once(')')?;
        Some(fields.split_whitespace().map(str::to_owned).collect())
    }

    /// Whether it is there, and not only waits to be reaped.
    pub fn is_alive(self) -> bool {
        self.stat().is_some_and(|fields| !matches!(fields[0].as_str(), "Z" | "X"))
    }

    /// Whether it executes a program of this name.
    pub fn is_called(self, name: &str) -> bool {
        fs::read_to_string(self.file("comm")).is_ok_and(|comm| comm.trim_end() == name)
    }

    /// Whether it stands still.
    pub fn is_stopped(self) -> bool {
        self.stat().is_some_and(|fields| fields[0] == "T")
    }

    /// Whether all its threads stand still.
    pub fn all_stopped(self) -> bool {
        let tasks = fs::read_dir(self.file("task")).unwrap().map(|task| task.unwrap().path().join("stat"));
        let mut states = tasks.map(|stat| fs::read_to_string(stat).unwrap_or_default());
        states.all(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T')))
    }

    /// Whether it has a handler for a signal.
    pub fn catches(self, signal: Signal) -> bool {
        let status = fs::read_to_string(self.file("status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        mask.is_some_and(|mask| mask & (1 << (signal as i32 - 1)) != 0)
    }

    /// Its threads, each with its name and how nice it is: the nicer, the lower its priority.
    pub fn threads(self) -> Vec<(String, i32)> {
        let tasks = fs::read_dir(self.file("task")).unwrap();
        // A thread may end meanwhile.
        let stats = tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("stat")).ok());
        let of = |stat: String| {
            let (name, rest) = stat.split_once('(').unwrap().1.rsplit_once(')').unwrap();
            (name.to_owned(), rest.split_whitespace().nth(16).unwrap().parse().unwrap())
        };
        stats.map(of).collect()
    }

    /// CPU time that it has used, in clock ticks.
    pub fn cpu_ticks(self) -> u64 {
        let fields = self.stat().unwrap();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Memory that it holds, in bytes.
    pub fn resident_bytes(self) -> u64 {
        let status = fs::read_to_string(self.file("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Sends it a signal.
    pub fn signal(self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    /// Sends it a signal, if it is there.
    pub fn try_signal(self, signal: Signal) {
        _ = kill(self.pid(), signal);
    }

    fn pid(self) -> Pid {
        Pid::from_raw(self.0.cast_signed())
    }

    /// Tells it to stop and sees that it does. For one that is not our child.
    pub fn end(self) {
        self.try_signal(Signal::SIGCONT);
        self.try_signal(Signal::SIGTERM);
        let end = crate::now() + std::time::Duration::from_secs(5);
        while self.is_alive() && crate::now() < end {
            std::thread::sleep(crate::LOOK_AGAIN);
        }
        self.try_signal(Signal::SIGKILL);
    }

    /// Waits until it is gone.
    #[track_caller]
    pub fn is_gone_soon(self) {
        eventually(&format!("process {} is gone", self.0), || !self.is_alive());
    }
}
