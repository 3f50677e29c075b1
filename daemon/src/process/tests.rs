#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
//! Tests real processes: their ends, their output, and their leftovers.

use std::ffi::OsString;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use harness_protocol::envelope::Kept;
use harness_protocol::id::CallId;
use harness_protocol::limit::CallLimits;
use harness_protocol::rpc::OutputStream;
use tokio::sync::mpsc;

use super::timing::GRACE;
use super::*;

pub(super) mod forkers;
mod owners;
mod starts;

const RUN: RunId = RunId::from_u64(1);
const CALL: CallId = CallId::from_u64(2);
/// Set for the test below when it is to be a keeper.
const BE_KEEPER: &str = "HARNESS_TEST_BE_KEEPER";

/// Keepers for tests: this very program, started as one.
pub(crate) fn keepers() -> Arc<Keepers> {
    let args = ["process::tests::a_keeper_when_it_is_started_as_one", "--exact"].map(str::to_owned).to_vec();
    let env = vec![(BE_KEEPER.to_owned(), "1".to_owned())];
    Arc::new(Keepers::new(
        KeeperProgram { program: Sealed::at("/proc/self/exe"), args, env, lock: None },
        Standing::read(),
    ))
}

#[test]
fn a_keeper_when_it_is_started_as_one() {
    if std::env::var_os(BE_KEEPER).is_some() {
        let code = supervisor::main(std::iter::empty());
        std::process::exit(i32::from(code != std::process::ExitCode::SUCCESS));
    }
}

/// A place for commands.
struct Bench {
    dir: tempfile::TempDir,
    keepers: Arc<Keepers>,
    outputs: Outputs,
    env: Vec<(OsString, OsString)>,
    timeout: Duration,
    keep: usize,
    quota: u64,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let outputs = Outputs::new(dir.path());
        let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into());
        Self {
            dir,
            keepers: keepers(),
            outputs,
            env: vec![("PATH".into(), path)],
            timeout: Duration::from_secs(60),
            keep: 32 * 1024,
            quota: 1 << 30,
        }
    }

    /// A shell's command in the directory of the place.
    fn launch<'a>(&'a self, command: &'a str) -> Launch<'a> {
        Launch {
            owner: Owner::Run,
            program: Program::Shell(command),
            workdir: self.dir.path(),
            folder: None,
            directory: Path::new(""),
            env: &self.env,
            tty: false,
            input: None,
            limits: CallLimits::default(),
        }
    }

    fn bounds(&self) -> Bounds {
        Bounds { timeout: self.timeout, keep: self.keep }
    }

    async fn start(
        &self,
        command: &str,
        cwd: &Path,
        cancel: Cancel,
        on_piece: OnPiece<'_>,
    ) -> Result<Finished, SpawnError> {
        let mut cancel = cancel;
        self.execute(Program::Shell(command), cwd, &mut cancel, on_piece).await
    }

    async fn execute(
        &self,
        program: Program<'_>,
        workdir: &Path,
        cancel: &mut Cancel,
        on_piece: OnPiece<'_>,
    ) -> Result<Finished, SpawnError> {
        let launch = Launch { program, workdir, ..self.launch("") };
        let bounds = self.bounds();
        let outputs = self.outputs.of_call(RUN, CALL, self.quota);
        run(launch, bounds, RUN, &self.keepers, &outputs, cancel, on_piece).await
    }

    async fn run(&self, command: &str) -> Finished {
        let (_canceller, cancel) = canceller();
        self.start(command, self.dir.path(), cancel, &mut |_, _, _| {}).await.unwrap()
    }

    /// Runs `command`, and calls `then` with its first output; the result of `then` is dropped at the end.
    async fn run_and_when_it_speaks(
        &self,
        command: &str,
        then: impl FnOnce(&str, Canceller) -> Option<Canceller>,
    ) -> Finished {
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let (canceller, cancel) = canceller();
        let mut on_piece = |_: OutputStream, _: u64, bytes: &[u8]| {
            let _ = sender.send(String::from_utf8_lossy(bytes).into_owned());
        };
        let (finished, _kept) = tokio::join!(self.start(command, self.dir.path(), cancel, &mut on_piece), async {
            let first = receiver.recv().await.unwrap();
            then(&first, canceller)
        });
        finished.unwrap()
    }
}

fn text(kept: &Kept) -> String {
    assert_eq!(kept.omitted, 0);
    String::from_utf8([kept.head.as_slice(), kept.tail.as_slice()].concat()).unwrap()
}

fn is_alive(pid: i32) -> bool {
    tree::proc_stat::stat(pid).is_some_and(|stat| !stat.dead)
}

fn pid(text: &str) -> i32 {
    text.trim().parse().unwrap()
}

#[tokio::test]
async fn exit_codes_are_the_processes_own_and_those_of_the_shell() {
    let bench = Bench::new();
    std::fs::write(bench.dir.path().join("plain"), "not a program").unwrap();
    for (command, code) in
        [("true", 0), ("exit 3", 3), ("exit 255", 255), ("no-such-command-here", 127), ("./plain", 126)]
    {
        let end = bench.run(command).await.end.unwrap();
        assert_eq!((end.code, end.signal), (code, None), "{command}");
    }
}

#[tokio::test]
async fn a_signal_is_128_and_its_number() {
    let bench = Bench::new();
    for (command, code, signal) in [("kill -9 $$", 137, 9), ("kill -15 $$", 143, 15), ("kill -11 $$", 139, 11)] {
        let end = bench.run(command).await.end.unwrap();
        assert_eq!((end.code, end.signal), (code, Some(signal)), "{command}");
    }
}

#[tokio::test]
async fn both_streams_come_whole_and_apart_and_into_their_files() {
    let bench = Bench::new();
    let finished = bench.run("printf out; printf err >&2; printf more").await;
    assert_eq!(text(&finished.stdout.kept), "outmore");
    assert_eq!(text(&finished.stderr.kept), "err");
    assert_eq!(std::fs::read_to_string(finished.stdout.file.unwrap()).unwrap(), "outmore");
    assert_eq!(std::fs::read_to_string(finished.stderr.file.unwrap()).unwrap(), "err");
}

#[tokio::test]
async fn a_silent_command_makes_no_file_and_no_directory() {
    let bench = Bench::new();
    let finished = bench.run("true").await;
    assert_eq!((finished.stdout, finished.stderr), (Captured::default(), Captured::default()));
    assert!(!bench.dir.path().join("outputs").exists());
}

#[tokio::test]
async fn an_output_file_that_cannot_be_made_does_not_fail_the_command() {
    let bench = Bench::new();
    std::fs::write(bench.dir.path().join("outputs"), "in the way").unwrap();
    let finished = bench.run("echo hi").await;
    assert_eq!(text(&finished.stdout.kept), "hi\n");
    assert_eq!(finished.stdout.file, None);
    assert_eq!(finished.end.unwrap().code, 0);
}

#[tokio::test]
async fn the_time_limit_ends_also_what_ignores_sigterm() {
    let mut bench = Bench::new();
    bench.timeout = Duration::from_millis(200);
    let finished = bench.run("trap '' TERM; sleep 100 & echo $!; wait; sleep 100").await;
    assert!(finished.timed_out && !finished.cancelled);
    assert_eq!(finished.end.unwrap().signal, Some(9));
    assert!(!is_alive(pid(&text(&finished.stdout.kept))));
}

#[tokio::test]
async fn a_process_that_ends_by_sigterm_is_not_kept_waiting() {
    let mut bench = Bench::new();
    bench.timeout = Duration::from_millis(50);
    let begun = Instant::now();
    let finished = bench.run("sleep 100; true").await;
    assert_eq!(finished.end.unwrap().signal, Some(15));
    assert!(begun.elapsed() < GRACE);
}

#[tokio::test]
async fn a_cancel_ends_grandchildren_too() {
    let bench = Bench::new();
    let mut grandchild = 0;
    let finished = bench
        .run_and_when_it_speaks("(sleep 100 & echo $!; wait); true", |first, canceller| {
            grandchild = pid(first);
            assert!(is_alive(grandchild));
            canceller.stop(false);
            Some(canceller)
        })
        .await;
    assert!(finished.cancelled && !finished.timed_out);
    assert_eq!(finished.end.unwrap().code, 143);
    assert!(!is_alive(grandchild));
}

#[tokio::test]
async fn a_forced_cancel_kills_at_once_also_after_a_gentle_one() {
    let bench = Bench::new();
    for gently_first in [false, true] {
        let begun = Instant::now();
        let finished = bench
            .run_and_when_it_speaks("trap '' TERM; echo ready; sleep 100; sleep 100", |_, canceller| {
                if gently_first {
                    canceller.stop(false);
                }
                canceller.stop(true);
                Some(canceller)
            })
            .await;
        assert_eq!(finished.end.unwrap().code, 137);
        assert!(begun.elapsed() < GRACE);
    }
}

#[tokio::test]
async fn a_grandchild_that_ignores_sigterm_is_killed_when_its_parent_has_ended() {
    let bench = Bench::new();
    let mut grandchild = 0;
    let command = "trap 'exit 7' TERM; sh -c 'trap \"\" TERM; echo $$; while :; do sleep 100; done' & wait";
    let finished = bench
        .run_and_when_it_speaks(command, |first, canceller| {
            grandchild = pid(first);
            canceller.stop(false);
            Some(canceller)
        })
        .await;
    assert_eq!(finished.end.unwrap().code, 7);
    assert!(!is_alive(grandchild));
}

#[tokio::test]
async fn a_background_child_that_holds_an_output_open_lives_on_and_does_not_hold_the_call() {
    for command in ["sleep 100 & printf $!", "sleep 100 >/dev/null & printf $!"] {
        let bench = Bench::new();
        let begun = Instant::now();
        let finished = bench.run(command).await;
        assert!(!finished.children_ended);
        assert!(begun.elapsed() >= DRAIN && begun.elapsed() < DRAIN + Duration::from_millis(500));
        assert_eq!(finished.end.unwrap().code, 0);
        let child = pid(&text(&finished.stdout.kept));
        assert!(is_alive(child));
        release(RUN, &bench.keepers, false).await;
        assert!(!is_alive(child));
    }
}

#[tokio::test]
async fn a_process_that_lives_on_may_write_and_is_read() {
    let bench = Bench::new();
    let command = "sh -c 'while :; do echo tick; sleep 0.01; done' & echo $!";
    let finished = bench.run(command).await;
    let path = finished.stdout.file.unwrap();
    let length = || path.metadata().unwrap().len();
    let before = length();
    let begun = Instant::now();
    while length() < before + 50 {
        assert!(begun.elapsed() < Duration::from_secs(20));
        bench.run("true").await;
    }
    let first = text(&finished.stdout.kept).lines().find_map(|line| line.parse().ok()).unwrap();
    assert!(is_alive(first));
    release(RUN, &bench.keepers, false).await;
    assert!(!is_alive(first));
}

#[tokio::test]
async fn early_output_of_a_background_child_is_captured() {
    let finished = Bench::new().run("(sleep 0.2; echo late) & echo early").await;
    assert_eq!(text(&finished.stdout.kept), "early\nlate\n");
    assert!(!finished.children_ended);
}

#[tokio::test]
async fn a_silent_background_child_lives_on_with_its_run_and_ends_with_it() {
    let bench = Bench::new();
    let finished = bench.run("sleep 100 >/dev/null 2>&1 & echo $!").await;
    let child = pid(&text(&finished.stdout.kept));
    assert!(!finished.children_ended && is_alive(child));
    assert!(has_background(RUN, &bench.keepers));
    assert_eq!(bench.keepers.run_of(child), Some(RUN));
    release(RUN, &bench.keepers, false).await;
    assert!(!is_alive(child));
    assert!(!has_background(RUN, &bench.keepers));
}

#[tokio::test]
async fn fifty_megabytes_are_counted_exactly_in_bounded_memory() {
    let mut bench = Bench::new();
    bench.quota = 1_000_000;
    let finished = bench.run("yes | head -c 50000000").await;
    let kept = &finished.stdout.kept;
    assert_eq!(kept.total(), 50_000_000);
    assert_eq!(kept.head.len() + kept.tail.len(), bench.keep);
    assert_eq!(kept.omitted_lines * 2, kept.omitted);
    assert_eq!(finished.stdout.file.unwrap().metadata().unwrap().len(), 1_000_000);
}

/// Two workers, so that the end is noticed before the runtime has polled the pipes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_was_written_before_the_end_is_lost() {
    let bench = Bench::new();
    for _ in 0..20 {
        for (command, bytes) in [("seq 30000", 168_894), ("sleep 0.01; seq 10000", 48_894)] {
            let finished = bench.run(command).await;
            assert_eq!(finished.stdout.kept.total(), bytes, "{command}");
        }
    }
}

#[tokio::test]
#[ignore = "needs python3"]
async fn nothing_that_is_in_a_larger_pipe_at_the_end_is_lost() {
    let bench = Bench::new();
    // 1031 is F_SETPIPE_SZ: all of it is in the pipe when the process ends.
    let large = "import fcntl; fcntl.fcntl(1, 1031, 1 << 20); print('x' * (1 << 20), end='')";
    for _ in 0..20 {
        let finished = bench.run(&format!("exec python3 -c \"{large}\"")).await;
        assert_eq!(finished.stdout.kept.total(), 1 << 20);
    }
}

#[tokio::test]
async fn pieces_follow_each_other_without_gap_or_overlap() {
    let bench = Bench::new();
    let mut seen = Vec::new();
    let mut on_piece = |stream: OutputStream, offset: u64, bytes: &[u8]| {
        assert_eq!((stream, offset), (OutputStream::Stdout, seen.len() as u64));
        seen.extend_from_slice(bytes);
    };
    let (_canceller, cancel) = canceller();
    bench.start("seq 1 100000", bench.dir.path(), cancel, &mut on_piece).await.unwrap();
    assert!(seen.ends_with(b"\n100000\n"));
    assert_eq!(seen.iter().filter(|&&byte| byte == b'\n').count(), 100_000);
}

#[tokio::test]
async fn a_command_that_is_dropped_is_killed_with_its_group() {
    let bench = Bench::new();
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let (_canceller, cancel) = canceller();
    let mut on_piece = |_: OutputStream, _: u64, bytes: &[u8]| {
        let _ = sender.send(String::from_utf8_lossy(bytes).into_owned());
    };
    let first = tokio::select! {
        _ = bench.start("sleep 100 & echo $!; wait", bench.dir.path(), cancel, &mut on_piece) => panic!("it waits"),
        first = receiver.recv() => first.unwrap(),
    };
    let pid = pid(&first);
    if let Ok(end) = pool::connection::end_of(pid) {
        let _ = end.readable().await.unwrap();
    }
    assert!(!is_alive(pid));
}

#[tokio::test]
async fn resources_are_measured() {
    let end = Bench::new().run("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done").await.end.unwrap();
    assert!(end.cpu > Duration::from_millis(1), "{end:?}");
    assert!(end.max_rss_bytes > 100_000, "{end:?}");
}

#[tokio::test]
async fn descendants_belong_to_the_run_and_strangers_do_not() {
    let bench = Bench::new();
    let own = i32::try_from(std::process::id()).unwrap();
    let mut seen = Vec::new();
    // The second shell leads a session of its own, and is known by its parent.
    let command = "setsid -w sh -c 'echo $$; sleep 100; true'; true";
    bench
        .run_and_when_it_speaks(command, |first, canceller| {
            seen.extend([pid(first), own, 1].map(|pid| bench.keepers.run_of(pid)));
            kill(pid(first));
            Some(canceller)
        })
        .await;
    assert_eq!(seen, [Some(RUN), None, None]);
}

#[tokio::test]
async fn a_process_that_left_its_group_session_and_parents_belongs_to_the_run_and_ends_with_it() {
    let bench = Bench::new();
    let command = "env -i setsid sh -c '(setsid sh -c \"echo \\$\\$; exec sleep 100 >/dev/null 2>&1\" &) ; exit 0'";
    let finished = bench.run(command).await;
    let pid = pid(&text(&finished.stdout.kept));
    assert!(is_alive(pid));
    assert_eq!(bench.keepers.run_of(pid), Some(RUN));
    let processes = bench.keepers.processes_of(RUN, 100);
    assert_eq!(processes, [Process { pid, command: "sleep 100".to_owned() }]);
    release(RUN, &bench.keepers, false).await;
    assert!(!is_alive(pid));
    assert_eq!(bench.keepers.processes_of(RUN, 100), []);
}

/// A run may have many processes, each with megabytes of arguments.
#[tokio::test]
async fn of_a_runs_processes_no_more_is_read_than_is_shown() {
    let bench = Bench::new();
    let fat = "a=$(printf %0100000d 7); for i in 1 2 3 4 5; do sh -c 'sleep 100; :' $a $a $a >/dev/null 2>&1 & done";
    bench.run(fat).await;
    let processes = bench.keepers.processes_of(RUN, 3);
    assert_eq!(processes.len(), 3);
    for Process { command, .. } in bench.keepers.processes_of(RUN, 100) {
        assert!(command.len() <= 4096, "{}", command.len());
    }
    release(RUN, &bench.keepers, false).await;
}

/// Resources that other processes of the user have used up are no fault of a command. The test runs in a process of its
/// own, since the limit is one of the process.
#[test]
fn a_call_that_finds_used_up_what_it_needs_waits_for_it() {
    if std::env::var_os("HARNESS_TEST_CHILD").is_none() {
        let name = "process::tests::a_call_that_finds_used_up_what_it_needs_waits_for_it";
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env("HARNESS_TEST_CHILD", "1")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success() && output.contains("1 passed"), "{output}");
        return;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let bench = Bench::new();
        bench.run("true").await;
        let limit = nix::sys::resource::Resource::RLIMIT_NOFILE;
        let (_, hard) = nix::sys::resource::getrlimit(limit).unwrap();
        nix::sys::resource::setrlimit(limit, 128, hard).unwrap();
        let mut hoard = Vec::new();
        while let Ok(file) = std::fs::File::open("/dev/null") {
            hoard.push(file);
        }
        let frees = async {
            // By then the command has met the limit; otherwise its task is only easier.
            sleep(Duration::from_millis(50)).await;
            drop(hoard);
        };
        let (finished, ()) = tokio::join!(bench.run("echo here"), frees);
        assert_eq!(text(&finished.stdout.kept), "here\n");
    });
}

#[tokio::test]
async fn a_server_outlives_the_time_limit_of_a_later_call() {
    let mut bench = Bench::new();
    let server = pid(&text(&bench.run("sleep 100 >/dev/null 2>&1 & echo $!").await.stdout.kept));
    bench.timeout = Duration::from_millis(100);
    let finished = bench.run("setsid sleep 100 >/dev/null 2>&1 & echo $!; sleep 100").await;
    assert!(finished.timed_out && is_alive(server));
    assert!(!is_alive(pid(&text(&finished.stdout.kept))));
    release(RUN, &bench.keepers, false).await;
    assert!(!is_alive(server));
}

#[tokio::test]
async fn a_process_that_forks_without_end_is_ended() {
    let mut bench = Bench::new();
    bench.timeout = Duration::from_millis(500);
    let command = "for c in 1 2 3; do (trap '' TERM; while :; do (sleep 0.01 &); done)& done; sleep 60";
    let finished = bench.run(command).await;
    assert!(finished.timed_out && finished.end.is_some());
    assert_eq!(bench.keepers.processes_of(RUN, 100), []);
}

#[tokio::test]
async fn a_keeper_is_not_moved_by_signals_of_its_processes() {
    let bench = Bench::new();
    for signal in ["TERM", "INT", "HUP", "QUIT", "USR1", "ALRM", "ABRT", "TSTP"] {
        let finished = bench.run(&format!("kill -{signal} $PPID; echo $PPID")).await;
        assert_eq!(finished.end.unwrap().code, 0, "{signal}");
    }
    let before = text(&bench.run("echo $PPID").await.stdout.kept);
    assert_eq!(text(&bench.run("echo $PPID").await.stdout.kept), before);
    assert_eq!(bench.run("kill 0").await.end.unwrap().signal, Some(15));
}

#[tokio::test]
async fn a_keeper_that_is_stopped_is_woken() {
    let mut bench = Bench::new();
    let begun = Instant::now();
    assert_eq!(bench.run("kill -STOP $PPID").await.end.unwrap().code, 0);
    assert_eq!(bench.run("sleep 0.3; kill -STOP $PPID; exit 3").await.end.unwrap().code, 3);
    bench.timeout = Duration::from_millis(300);
    let finished = bench.run("sleep 0.1; kill -STOP $PPID; sleep 100").await;
    assert!(finished.timed_out && finished.end.unwrap().signal == Some(15));
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn a_killed_keeper_costs_its_own_call_alone() {
    let bench = Bench::new();
    let finished = bench.run("echo before; kill -9 $PPID; sleep 2").await;
    assert!(finished.keeper_lost && finished.end.is_none());
    assert_eq!(text(&finished.stdout.kept), "before\n");
    assert_eq!(bench.run("true").await.end.unwrap().code, 0);
}

#[tokio::test]
async fn many_at_once_and_one_after_the_other_need_few_keepers() {
    let bench = Bench::new();
    for _ in 0..50 {
        assert_eq!(bench.run("true").await.end.unwrap().code, 0);
    }
    bench.keepers.shut_down().await;
    assert_eq!(bench.keepers.run_of(1), None);
}

fn kill(pid: i32) {
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL).unwrap();
}
