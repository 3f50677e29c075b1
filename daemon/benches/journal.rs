//! Measures the journal: the whole path from a submit to its answer, against raw SQLite that writes the same batches;
//! the bytes of an event on disk; the time of a start. Both sides execute in one process, and both include the
//! machine's disk.
//!
//! `cargo bench -p harnessd --bench journal`
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, clippy::disallowed_methods)]

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use harness_protocol::event::EventBody;
use harness_protocol::id::Seq;
use harness_protocol::run::CallResult;
use harness_protocol::script::{Script, ScriptedCall, Turn};
use harness_protocol::spec::RunSpec;
use harnessd::blocking::Blocking;
use harnessd::config::{Config, ReloadError};
use harnessd::control::request::{ConnectionId, Request, Wanted};
use harnessd::driver::{Clock, Driver, Order, Orders, Parts, Reload, Service};
use harnessd::fair_queue::Party;
use harnessd::feed::{Feed, Tail};
use harnessd::inbox::Inbox;
use harnessd::inference::http::{Environment, Providers};
use harnessd::jobs::{Context, ExecuteCall, Execution, Executor, ExecutorConfig, Scripts};
use harnessd::journal::history::History;
use harnessd::journal::schema::{self, Fresh};
use harnessd::journal::{Commit, CommitClass, CommitError, FILE, Journal, Store, Writer};
use harnessd::process::{KeeperProgram, Keepers, Sealed, Standing};
use harnessd::startup::rebuild::restore;
use harnessd::tools;
use harnessd::world::Engine;
use harnessd::world::api::{CallTask, Caller, Command, Now, Sent};
use rusqlite::params;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

type Batches = Arc<Mutex<Vec<(CommitClass, Arc<Commit>)>>>;

/// The store, and a note of what it was given.
struct Noting {
    store: Store,
    batches: Batches,
}

impl Journal for Noting {
    fn commit(
        &mut self,
        commit: &Arc<Commit>,
        class: CommitClass,
    ) -> impl Future<Output = Result<(), CommitError>> + Send + 'static {
        self.batches.lock().unwrap().push((class, Arc::clone(commit)));
        self.store.commit(commit, class)
    }

    fn tidy(&mut self) -> impl Future<Output = Result<bool, CommitError>> + Send + 'static {
        self.store.tidy()
    }
}

/// Calls that cost nothing: what is measured is what is around them.
struct Nothing;

impl ExecuteCall for Nothing {
    fn call<'a>(&'a self, task: &'a CallTask, context: Context) -> Execution<'a> {
        let result = CallResult::plain(context.call, task.tool.clone(), "Exit code: 0\n4.0K\t.\n", false);
        Box::pin(async move { result })
    }
}

fn main() {
    let measured = std::env::args().any(|arg| arg == "--bench");
    let (runs, live, events) = if measured { (10_000, 10_000, 1_000_000) } else { (200, 20, 2_000) };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut ratios = Vec::new();
    for _ in 0..if measured { 5 } else { 1 } {
        ratios.push(runtime.block_on(path(runs)));
    }
    ratios.sort_by(f64::total_cmp);
    println!("whole path beside raw SQLite, median ratio: {:.2}", ratios[ratios.len() / 2]);
    start(live, events);
}

fn open(path: &Path) -> rusqlite::Connection {
    schema::open(path, false, || Ok(Fresh { id_key: 7 })).unwrap().db
}

/// Submits runs from many sides at once, and waits for the last of them to end.
async fn path(runs: usize) -> f64 {
    let dir = tempfile::tempdir_in(std::env::var_os("HARNESS_BENCH_DIR").unwrap_or_else(|| "/var/tmp".into())).unwrap();
    let file = dir.path().join(FILE);
    let batches = Batches::default();
    let store = Store::start(open(&file), &file, None, &History::new(&file)).unwrap();
    let journal = Noting { store, batches: Arc::clone(&batches) };
    let mut config = Config::default();
    config.limits.live_runs = 1_000_000;
    config.tool_width = 64;
    config.providers.values_mut().for_each(|provider| provider.width = 1_000);
    let (inbox, feed) = (Inbox::<Request>::new(4_096), Feed::new(1_000_000, usize::MAX, Seq(0)));
    let program = KeeperProgram { program: Sealed::at("/bin/true"), args: Vec::new(), env: Vec::new(), lock: None };
    let executor_config = ExecutorConfig {
        calls: Arc::new(Nothing),
        providers: Arc::new(Providers::new(&config, Environment::default()).unwrap()),
        scripts: Arc::new(Scripts::new(Handle::current())),
        keepers: Arc::new(Keepers::new(program, Standing::read())),
    };
    let reports = inbox.clone();
    let executor = Executor::new(executor_config, Arc::new(move |report| reports.report(report)), feed.deltas());
    let clock = Clock::start();
    let orders = Orders::default();
    let reload = Reload { started_with: config.clone(), prepare: Arc::new(|| Err(ReloadError::Fault)) };
    let parts = Parts {
        engine: Engine::new(config, tools::catalogue(), 7),
        journal,
        history: History::new(&file),
        ballast: None,
        damage: Default::default(),
        executor,
        feed: feed.clone(),
        inbox: inbox.clone(),
        clock,
        service: Service {
            started_at: clock.now().wall,
            socket: String::new(),
            state_dir: String::new(),
            socket_activated: false,
            connections: Box::new(|| 0),
            processes: Arc::new(|_| Vec::new()),
            uid: 0,
            held: None,
            stuck: false,
            silent: false,
            disk: Arc::new(Default::default),
            left_processes: Arc::new(Vec::new),
            journal: Arc::default(),
            epochs: Arc::new([]),
            config: Default::default(),
        },
        blocking: Blocking::new(4),
        most_waiting: 100,
        erase: Box::new(drop),
    };
    let driver = tokio::spawn(Driver::new(parts, reload, orders.clone()).run());
    let call = || ScriptedCall::new("shell", serde_json::json!({"command": "du -sh ."}));
    let looks = || Turn { text: "Let me see.".to_owned(), calls: vec![call()], ..Turn::default() };
    let says = "It holds some four kilobytes, most of them in the one large file.".to_owned();
    let turns = vec![looks(), looks(), looks(), Turn { text: says, ..Turn::default() }];
    let spec = Arc::new(RunSpec {
        prompt: Some("Look what takes the most room here, and say so in one sentence.".into()),
        script: Some(Arc::new(Script { turns, ..Script::default() })),
        workdir: Some("/srv/project".into()),
        ..RunSpec::default()
    });
    let begun = Instant::now();
    let mut clients = tokio::task::JoinSet::new();
    for client in 0..256 {
        let (inbox, spec) = (inbox.clone(), Arc::clone(&spec));
        let share = runs / 256 + usize::from(client < runs % 256);
        clients.spawn(async move {
            for _ in 0..share {
                let (tell, told) = oneshot::channel();
                let command = Command::Submit {
                    spec: Arc::clone(&spec),
                    idempotency_key: None,
                    known: None,
                    sent: Sent::default(),
                };
                let caller = Caller { uid: 0, run: None };
                let (connection, party) = (ConnectionId(client as u64 + 1), Party::Connection(client as u64 + 1));
                inbox.put(Request::new(connection, caller, party, Wanted::Own(command, tell))).await;
                told.await.unwrap().unwrap();
            }
        });
    }
    let (mut ended, mut cursor, mut watch) = (0, Seq(0), feed.watch());
    while ended < runs {
        match feed.after(cursor) {
            Tail::Events(events) => {
                ended += events.iter().filter(|event| matches!(event.body, EventBody::RunFinished { .. })).count();
                cursor = events.last().unwrap().seq;
            }
            _ => watch.changed().await.unwrap(),
        }
    }
    let ours = begun.elapsed();
    orders.give(Order::Stop);
    driver.await.unwrap().unwrap();
    let batches = std::mem::take(&mut *batches.lock().unwrap());
    let events: usize = batches.iter().map(|(_, commit)| commit.events.len()).sum();
    let synced = batches.iter().filter(|(class, _)| *class == CommitClass::Synced).count();
    let raw = raw(&dir.path().join("raw.db"), &batches);
    let bytes = file.metadata().unwrap().len();
    let rate = |took: Duration| events as f64 / took.as_secs_f64();
    println!(
        "{events} events in {} commits ({:.0} each, {synced} synced): {:.0}/s, raw SQLite {:.0}/s, ratio {:.2}; \
         {:.0} bytes an event on disk",
        batches.len(),
        events as f64 / batches.len() as f64,
        rate(ours),
        rate(raw),
        raw.as_secs_f64() / ours.as_secs_f64(),
        bytes as f64 / events as f64,
    );
    raw.as_secs_f64() / ours.as_secs_f64()
}

/// The same rows in the same transactions, as fast as SQLite takes them: nothing else is done with them.
fn raw(file: &Path, batches: &[(CommitClass, Arc<Commit>)]) -> Duration {
    let rows: Vec<(CommitClass, Vec<_>)> = batches
        .iter()
        .map(|(class, commit)| {
            let row = |event: &Arc<harness_protocol::event::Event>| {
                let body = serde_json::to_string(&event.body).unwrap();
                (event.seq.0, event.at.as_micros(), event.body.kind(), event.run.map(|run| run.to_string()), body)
            };
            (*class, commit.events.iter().map(row).collect())
        })
        .collect();
    let mut db = open(file);
    let mut now = None;
    let begun = Instant::now();
    for (class, rows) in &rows {
        if now != Some(*class) {
            let level = if *class == CommitClass::Synced { "FULL" } else { "NORMAL" };
            db.execute_batch(&format!("PRAGMA synchronous = {level}")).unwrap();
            now = Some(*class);
        }
        let transaction = db.transaction().unwrap();
        {
            let sql = "INSERT INTO event (seq, at, kind, version, run, via, uid, by_run, body) \
                       VALUES (?1, ?2, ?3, 1, ?4, 'harness', NULL, NULL, ?5)";
            let mut insert = transaction.prepare_cached(sql).unwrap();
            for (seq, at, kind, run, body) in rows {
                insert.execute(params![seq.cast_signed(), at.cast_signed(), kind, run, body]).unwrap();
            }
        }
        transaction.commit().unwrap();
    }
    begun.elapsed()
}

/// Makes a journal of live runs, and starts from it.
fn start(runs: usize, events: usize) {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let file = dir.path().join(FILE);
    let mut config = Config::default();
    config.limits.live_runs = 1_000_000;
    config.run.max_steps = u32::MAX;
    config.providers.values_mut().for_each(|provider| provider.width = 1_000_000);
    let mut engine = Engine::new(config.clone(), tools::catalogue(), 7);
    let mut writer = Writer::new(open(&file), &file, History::new(&file).holds());
    let mut micros = 1_800_000_000_000_000;
    let mut now = move || {
        micros += 1;
        let span = harness_protocol::time::Span::from_micros(micros - 1_800_000_000_000_000);
        Now { wall: harness_protocol::time::Timestamp::from_micros(micros), mono: span }
    };
    let mut written = 0;
    let mut record = |step: &harnessd::world::Step| {
        written += step.events.len();
        let commit = Commit { events: step.events.clone(), archived: step.archived.clone() };
        writer.commit(&commit, CommitClass::Written).unwrap();
        written
    };
    let spec = Arc::new(RunSpec {
        prompt: Some("a task of a few words, as people type them".into()),
        script: Some(Arc::new(Script::default())),
        workdir: Some("/srv/project".into()),
        ..RunSpec::default()
    });
    let submit = |reply| harnessd::world::api::Input::Command {
        reply: harnessd::world::api::ReplyId(reply),
        caller: Caller { uid: 0, run: None },
        command: Command::Submit { spec: Arc::clone(&spec), idempotency_key: None, known: None, sent: Sent::default() },
    };
    let mut jobs = common::started(&{
        let step = engine.step(now(), (0..runs as u64).map(submit).collect());
        record(&step);
        step
    });
    // Each run goes step by step: an inference, a call of the shell, its result.
    loop {
        let outcomes = jobs.into_iter().map(common::goes_on).collect();
        let step = engine.step(now(), outcomes);
        let count = record(&step);
        jobs = common::started(&step);
        if count >= events {
            break;
        }
    }
    let live = engine.counts().values().sum::<u32>();
    drop(writer);
    let bytes = file.metadata().unwrap().len();
    for _ in 0..3 {
        let begun = Instant::now();
        let restored = restore(dir.path(), &config, false).unwrap();
        let took = begun.elapsed();
        assert_eq!(restored.engine.counts().values().sum::<u32>(), live);
        // A start that cannot tell whether it goes on from the latest history begins another epoch, further on.
        assert!(restored.engine.last_seq() >= engine.last_seq());
        println!(
            "start from {} events of {live} live runs: {took:.2?}, {:.2} µs an event; {} bytes an event on disk",
            engine.last_seq(),
            took.as_secs_f64() * 1e6 / engine.last_seq().0 as f64,
            bytes / engine.last_seq().0
        );
    }
}

mod common;
