//! Tests the driver with a journal that delays and fails: nothing is done or shown before it is committed, and while
//! commits fail, reads are answered and new work is refused.
#![cfg(test)]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use harness_protocol::id::Seq;
use harness_protocol::rpc::{DiskUsage, ErrorKind, ListParams, RequestId, RpcError, Selector, ShowParams, WaitParams};
use harness_protocol::run::CallResult;
use harness_protocol::script::{Script, ScriptedCall, Turn};
use harness_protocol::spec::RunSpec;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use super::*;
use crate::config::{Config, ReloadError};
use crate::control::limits::request_permits::Place;
use crate::control::request::{Outgoing, Read, Wanted};
use crate::fair_queue::Party;
use crate::inference::http::{Environment, Providers};
use crate::jobs::{Context, ExecuteCall, Execution, ExecutorConfig};
use crate::journal::CommitClass;
use crate::journal::memory::{Memory, Mood, Script as Journalist};
use crate::world::api::{CallTask, Settlement};

mod reloads;

/// A tool that only counts how often it was called.
struct Counter(Arc<AtomicUsize>);

impl ExecuteCall for Counter {
    fn call<'a>(&'a self, task: &'a CallTask, context: Context) -> Execution<'a> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let result = CallResult::plain(context.call, task.tool.clone(), "counted", false);
        Box::pin(async move { result })
    }
}

struct Bench {
    inbox: Inbox<Request>,
    feed: Feed,
    journal: Journalist,
    calls: Arc<AtomicUsize>,
    orders: Orders,
    driver: JoinHandle<Result<(), CommitError>>,
}

impl Bench {
    fn start() -> Self {
        Self::configured(Config::default())
    }

    fn configured(config: Config) -> Self {
        Self::with(config, Arc::new(|| Err(ReloadError::Fault)))
    }

    fn with(config: Config, prepare: Prepare) -> Self {
        let (journal, journalist) = Memory::scripted();
        let (inbox, feed) = (Inbox::new(100), Feed::new(1_000, 10_000_000, Seq(0)));
        let calls = Arc::new(AtomicUsize::new(0));
        let executor_config = ExecutorConfig {
            calls: Arc::new(Counter(Arc::clone(&calls))),
            providers: Arc::new(Providers::new(&config, Environment::default()).unwrap()),
            scripts: Arc::new(crate::jobs::Scripts::new(tokio::runtime::Handle::current())),
            keepers: crate::process::tests::keepers(),
        };
        let reports = inbox.clone();
        let report = Arc::new(move |report| reports.report(report));
        let clock = Clock::start();
        let orders = Orders::default();
        let reload = Reload { started_with: config.clone(), prepare };
        let parts = Parts {
            engine: Engine::new(config, crate::tools::catalogue(), 7),
            journal,
            executor: Executor::new(executor_config, report, feed.deltas()),
            feed: feed.clone(),
            inbox: inbox.clone(),
            clock,
            service: Service {
                started_at: clock.now().wall,
                socket: "/test".to_owned(),
                state_dir: "/test".to_owned(),
                socket_activated: false,
                connections: Box::new(|| 1),
                processes: Arc::new(|_| Vec::new()),
                uid: 1000,
                held: None,
                stuck: false,
                silent: false,
                disk: Arc::new(DiskUsage::default),
                left_processes: Arc::new(Vec::new),
                journal: Arc::default(),
                epochs: Arc::new([]),
                config: Default::default(),
            },
            blocking: Blocking::new(2),
            most_waiting: 100,
            erase: Box::new(drop),
            history: History::none(),
            ballast: None,
            damage: Default::default(),
        };
        let driver = tokio::spawn(Driver::new(parts, reload, orders.clone()).run());
        Self { inbox, feed, journal: journalist, calls, orders, driver }
    }

    /// Sends a request through connection `connection`.
    fn ask(&self, connection: u64, wanted: impl FnOnce(Responder) -> Wanted) -> Answer {
        self.try_ask(connection, wanted).unwrap()
    }

    /// The same; `None` where there is no room for it.
    fn try_ask(&self, connection: u64, wanted: impl FnOnce(Responder) -> Wanted) -> Option<Answer> {
        self.try_ask_as(None, connection, wanted)
    }

    /// The same, from a process of a run.
    fn try_ask_as(
        &self,
        run: Option<RunId>,
        connection: u64,
        wanted: impl FnOnce(Responder) -> Wanted,
    ) -> Option<Answer> {
        let outgoing = Arc::new(Outgoing::default());
        let places = Arc::new(Semaphore::new(1));
        let place = Place::small(Arc::clone(&places).try_acquire_owned().unwrap());
        let responder = Responder::new(RequestId::Number(1), Arc::clone(&outgoing), place);
        let caller = Caller { uid: 1000, run };
        let party = Party::Connection(connection);
        let request = Request::new(ConnectionId(connection), caller, party, wanted(responder));
        self.inbox.request(request).ok()?;
        Some(Answer(outgoing))
    }

    fn submit(&self, connection: u64) -> Answer {
        let call = ScriptedCall::new("shell", serde_json::json!({}));
        let turns =
            vec![Turn { calls: vec![call], ..Turn::default() }, Turn { text: "done".to_owned(), ..Turn::default() }];
        let script = Some(Arc::new(Script { turns, ..Script::default() }));
        let spec = Arc::new(RunSpec { script, ..RunSpec::default() });
        self.ask(connection, |responder| {
            Wanted::Command(
                Command::Submit { spec, idempotency_key: None, known: None, sent: Default::default() },
                responder,
            )
        })
    }

    async fn status(&self) -> Value {
        self.ask(99, |responder| Wanted::Read(Read::Status, responder)).get().await.unwrap()
    }

    /// Waits until one more commit has been tried.
    async fn tried(&self, before: u64) {
        self.journal.tried().wait_for(|count| *count > before).await.unwrap();
    }

    fn tries(&self) -> u64 {
        *self.journal.tried().borrow()
    }

    async fn stop(self) {
        self.orders.give(Order::Stop);
        self.driver.await.unwrap().unwrap();
    }
}

/// An answer that is still to come.
struct Answer(Arc<Outgoing>);

impl Answer {
    async fn get(&self) -> Result<Value, RpcError> {
        let bytes = tokio::time::timeout(Duration::from_secs(20), self.0.next()).await.unwrap().unwrap().bytes;
        let mut response: Value = serde_json::from_slice(&bytes).unwrap();
        match response.get_mut("result") {
            Some(result) => Ok(result.take()),
            None => Err(serde_json::from_value(response["error"].take()).unwrap()),
        }
    }

    fn is_there(&self) -> bool {
        !self.0.is_drained()
    }
}

fn id(submitted: &Value) -> String {
    submitted["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn nothing_is_shown_answered_or_started_before_it_is_committed() {
    let bench = Bench::start();
    bench.status().await;
    bench.journal.set(Mood::Slow);
    let (before, shown) = (bench.tries(), bench.feed.last());
    let answer = bench.submit(1);
    bench.tried(before).await;
    assert!(!answer.is_there() && bench.feed.last() == shown && bench.calls.load(Ordering::SeqCst) == 0);
    bench.journal.set(Mood::Willing);
    let run = id(&answer.get().await.unwrap());
    bench.ask(1, |responder| Wanted::Wait(waits(&run), responder)).get().await.unwrap();
    assert_eq!(bench.calls.load(Ordering::SeqCst), 1);
    bench.stop().await;
}

fn waits(run: &str) -> WaitParams {
    WaitParams { run: run.to_owned(), ..Default::default() }
}

#[tokio::test]
/// A11: a call's start is synced unless the setting says otherwise; other events are only where a client is promised
/// one.
async fn a_submit_and_the_start_of_a_call_are_synced_and_what_follows_from_them_is_written() {
    for sync_calls in [true, false] {
        let mut config = Config::default();
        config.journal.sync_calls = sync_calls;
        let bench = Bench::configured(config);
        let runs: Vec<String> = {
            let mut runs = Vec::new();
            for connection in 1..6 {
                runs.push(id(&bench.submit(connection).get().await.unwrap()));
            }
            runs
        };
        for run in &runs {
            bench.ask(1, |responder| Wanted::Wait(waits(run), responder)).get().await.unwrap();
        }
        let mut starts = 0;
        for (class, events) in bench.journal.commits() {
            let has = |kind: &str| events.iter().any(|event| event.body.kind() == kind);
            starts += usize::from(has("call-started"));
            let promised = has("run-submitted") || (sync_calls && has("call-started"));
            assert_eq!(class == CommitClass::Synced, promised, "{events:?}");
        }
        assert!(starts > 0, "calls were started");
        bench.stop().await;
    }
}

#[tokio::test]
async fn while_held_reads_are_answered_new_work_is_refused_and_everything_goes_on_by_itself() {
    let bench = Bench::start();
    bench.status().await;
    bench.journal.set(Mood::Failing);
    let before = bench.tries();
    let caught = bench.submit(1);
    bench.tried(before).await;
    // The failure is reported between two attempts; the first is over once a second one has begun.
    bench.tried(before + 1).await;
    assert_eq!(bench.status().await["health"], "held");
    let refused = bench.submit(2).get().await.unwrap_err();
    assert_eq!((refused.kind(), refused.data.exit_code), (ErrorKind::Held, 75));
    assert!(refused.data.retry_after_seconds.is_some());
    let select = Selector { all: true, ..Selector::default() };
    let cancel = bench.ask(3, |responder| Wanted::Command(Command::Cancel { select, force: false }, responder));
    assert_eq!(cancel.get().await.unwrap_err().kind(), ErrorKind::Held);
    let behind = bench.ask(1, |responder| Wanted::Read(Read::List(ListParams::default()), responder));
    bench.status().await;
    assert!(!behind.is_there() && !caught.is_there());
    assert_eq!(bench.calls.load(Ordering::SeqCst), 0);
    bench.journal.set(Mood::Willing);
    let run = id(&caught.get().await.unwrap());
    behind.get().await.unwrap();
    bench.ask(1, |responder| Wanted::Wait(waits(&run), responder)).get().await.unwrap();
    assert_eq!(bench.status().await["health"], "serving");
    bench.stop().await;
}

#[tokio::test]
async fn a_read_that_came_together_with_a_change_is_answered_while_held() {
    let bench = Bench::start();
    bench.status().await;
    bench.journal.set(Mood::Failing);
    let caught = bench.submit(1);
    assert_eq!(bench.status().await["health"], "held");
    assert!(!caught.is_there());
    bench.stop().await;
}

#[tokio::test]
async fn whoever_waits_for_a_run_is_told_when_their_time_is_up_while_held() {
    let bench = Bench::start();
    let run = id(&bench.submit(1).get().await.unwrap());
    bench.journal.set(Mood::Failing);
    let _caught = bench.submit(2);
    assert_eq!(bench.status().await["health"], "held");
    let brief = WaitParams { timeout_seconds: Some(Span::from_micros(50_000)), ..waits(&run) };
    let told = bench.ask(3, |responder| Wanted::Wait(brief, responder)).get().await;
    match told {
        Ok(told) => assert_eq!(told["reached"], false),
        // The run has ended, but that may not be in the journal.
        Err(held) => assert_eq!(held.kind(), ErrorKind::Held),
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_stop_while_held_is_a_stop_and_nobody_is_told_what_was_not_committed() {
    let bench = Bench::start();
    bench.status().await;
    bench.journal.set(Mood::Failing);
    let before = bench.tries();
    let caught = bench.submit(1);
    bench.tried(before).await;
    let stopped = bench.ask(2, Wanted::Stop);
    stopped.get().await.unwrap();
    bench.driver.await.unwrap().unwrap();
    assert_eq!(caught.get().await.unwrap_err().kind(), ErrorKind::Busy);
    assert!(bench.journal.commits().iter().all(|(_, events)| events.iter().all(|e| e.body.kind() != "run-submitted")));
}

#[tokio::test]
async fn what_one_connection_asks_takes_effect_in_order() {
    let bench = Bench::start();
    let count = |page: &Value| page["runs"].as_array().unwrap().len();
    let list = |bench: &Bench| bench.ask(1, |responder| Wanted::Read(Read::List(ListParams::default()), responder));
    let mut answers = Vec::new();
    for _ in 0..5 {
        bench.submit(1);
        answers.push(list(&bench));
    }
    for (index, answer) in answers.iter().enumerate() {
        assert_eq!(count(&answer.get().await.unwrap()), index + 1);
    }
    bench.stop().await;
}

#[tokio::test]
async fn a_signal_stops_a_daemon_that_is_held() {
    let bench = Bench::start();
    bench.status().await;
    bench.journal.set(Mood::Failing);
    let before = bench.tries();
    let _caught = bench.submit(1);
    bench.tried(before).await;
    bench.stop().await;
}

/// A15. A disk that does not answer holds the daemon within seconds: changes are refused with the reason, reads are
/// answered, and a stop works.
#[tokio::test]
async fn a_disk_that_does_not_answer_holds_the_daemon_and_it_still_answers() {
    let bench = Bench::start();
    let run = id(&bench.submit(1).get().await.unwrap());
    bench.ask(1, |responder| Wanted::Wait(waits(&run), responder)).get().await.unwrap();
    bench.journal.set(Mood::Slow);
    let before = bench.tries();
    let caught = bench.submit(1);
    bench.tried(before).await;
    let status = bench.status().await;
    assert_eq!((&status["health"], &status["stuck"]), (&"held".into(), &true.into()));
    assert!(status["held"].as_str().unwrap().contains("has not answered"), "{status}");
    assert_eq!(caught.get().await.unwrap_err().kind(), ErrorKind::Held);
    let all = || Selector { all: true, ..Selector::default() };
    let changes: Vec<Command> = vec![
        Command::Cancel { select: all(), force: true },
        Command::Pause(all()),
        Command::Resume(all()),
        Command::Message { run: run.clone(), text: "more".into(), left: None, sent: Default::default() },
        Command::Retry {
            run: run.clone(),
            changes: Box::default(),
            takes_child: true,
            left: None,
            sent: Default::default(),
        },
        Command::Answer { interaction: run.clone(), settlement: Settlement::answer("yes") },
        Command::Lane { lane: None, change: crate::world::api::LaneChange::Pause },
        Command::Drain(false),
    ];
    for (number, command) in (10..).zip(changes) {
        let what = format!("{command:?}");
        let told = bench.ask(number, |responder| Wanted::Command(command, responder)).get().await;
        assert_eq!(told.unwrap_err().kind(), ErrorKind::Held, "{what}");
    }
    let show = ShowParams { run: run.clone(), ..ShowParams::default() };
    let reads: Vec<Read> = vec![
        Read::Lanes,
        Read::List(ListParams::default()),
        Read::Show(show),
        Read::Interactions(Default::default()),
        Read::Status,
    ];
    for (number, read) in (30..).zip(reads) {
        let what = format!("{read:?}");
        let told = bench.ask(number, |responder| Wanted::Read(read, responder)).get().await;
        assert!(told.is_ok(), "{what}: {told:?}");
    }
    let beats = bench.orders.beats();
    bench.inbox.wake();
    bench.status().await;
    assert!(bench.orders.beats() > beats, "it moves");
    bench.journal.set(Mood::Willing);
    // It goes on by itself, with the same steps.
    let count = |page: &Value| page["runs"].as_array().unwrap().len();
    let list = || bench.ask(50, |responder| Wanted::Read(Read::List(ListParams::default()), responder));
    while bench.status().await["health"] != "serving" {}
    assert_eq!(count(&list().get().await.unwrap()), 2);
    bench.stop().await;
}

/// A15. However many reloads came before, and whatever the disk does.
#[tokio::test]
async fn a_stop_behind_reloads_is_a_stop_whatever_the_journal_does() {
    for (mood, reloads) in [(Mood::Willing, 0), (Mood::Willing, 30), (Mood::Failing, 11), (Mood::Failing, 200)] {
        let bench = Bench::start();
        bench.status().await;
        bench.journal.set(mood);
        let _caught = bench.submit(1);
        (0..reloads).for_each(|_| bench.orders.give(Order::Reload));
        bench.stop().await;
    }
}

/// A4. However much other clients ask, a client that asks now and then is answered in its turn.
#[tokio::test]
async fn whoever_asks_now_and_then_waits_behind_few_of_those_who_always_ask() {
    let bench = Bench::start();
    let list = |responder| Wanted::Read(Read::List(ListParams::default()), responder);
    let status = |responder| Wanted::Read(Read::Status, responder);
    let lanes = |responder| Wanted::Read(Read::Lanes, responder);
    let drain = |responder| Wanted::Command(Command::Drain(false), responder);
    let pause = |responder| Wanted::Command(Command::Pause(Selector { all: true, ..Selector::default() }), responder);
    let floods: [fn(Responder) -> Wanted; 5] = [list, status, lanes, drain, pause];
    let mut asked: Vec<Answer> = Vec::new();
    for round in 0..20 {
        for connection in 1..=20 {
            for flood in floods {
                asked.extend(bench.try_ask(connection, flood));
            }
        }
        let probe = bench.ask(99, |responder| Wanted::Read(Read::Status, responder)).get().await.unwrap();
        let behind = probe["waited_behind"].as_u64().unwrap();
        assert!(behind <= 64, "round {round}: behind {behind}");
    }
    for answer in asked {
        answer.get().await.unwrap();
    }
    bench.stop().await;
}

fn waiting() -> Arc<RunSpec> {
    let call = ScriptedCall::new("ask_user", serde_json::json!({"question": "q"}));
    let turns = vec![Turn { calls: vec![call], ..Turn::default() }];
    let script = Some(Arc::new(Script { turns, ..Script::default() }));
    Arc::new(RunSpec { script, on_interaction: harness_protocol::spec::OnInteraction::Wait, ..RunSpec::default() })
}

/// A9. A tree of many runs is ended in pieces, each with a commit of its own, and no run is left.
#[tokio::test]
async fn a_tree_of_many_is_cancelled_in_pieces_and_nothing_of_it_is_left() {
    let bench = Bench::start();
    let submit = |spec| {
        move |responder| {
            Wanted::Command(
                Command::Submit { spec, idempotency_key: None, known: None, sent: Default::default() },
                responder,
            )
        }
    };
    let top = id(&bench.ask(1, submit(waiting())).get().await.unwrap());
    let parent: RunId = top.parse().unwrap();
    let mut below = vec![top.clone()];
    for _ in 0..500 {
        let child = bench.try_ask_as(Some(parent), 2, submit(waiting())).unwrap();
        below.push(id(&child.get().await.unwrap()));
    }
    let committed = bench.journal.commits().len();
    let select = Selector { runs: vec![top], ..Selector::default() };
    let cancel = bench.ask(1, |responder| Wanted::Command(Command::Cancel { select, force: false }, responder));
    let mut changed: Vec<String> = serde_json::from_value(cancel.get().await.unwrap()["runs"].take()).unwrap();
    changed.sort();
    below.sort();
    assert_eq!(changed, below);
    let stops: Vec<usize> = bench.journal.commits()[committed..]
        .iter()
        .map(|(_, events)| events.iter().filter(|event| event.body.kind() == "run-stopping").count())
        .filter(|count| *count > 0)
        .collect();
    assert!(stops.len() >= 3 && stops.iter().all(|count| *count <= 200), "{stops:?}");
    bench.stop().await;
}
