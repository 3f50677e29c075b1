//! Tests reloads: a configuration is put in force whole, in one turn, or not at all, whatever the daemon does
//! meanwhile.

use std::sync::mpsc;

use harness_protocol::rpc::DrainParams;

use super::*;
use crate::config::{ConfigError, LoadError, Problem};

/// What a preparation finds.
type Found = Result<Config, ReloadError>;

/// A daemon whose preparations end when the test says so, with what it says.
struct Reloadable {
    bench: Bench,
    find: mpsc::Sender<Found>,
    /// Counts the configurations that were put in force outside of the world.
    put: Arc<AtomicUsize>,
}

impl Reloadable {
    async fn start() -> Self {
        let (find, found) = mpsc::channel::<Found>();
        let (found, put) = (Mutex::new(found), Arc::new(AtomicUsize::new(0)));
        let puts = Arc::clone(&put);
        let prepare: Prepare = Arc::new(move || {
            let config = found.lock().unwrap().recv().unwrap()?;
            let puts = Arc::clone(&puts);
            let put_in_force = Box::new(move || {
                puts.fetch_add(1, Ordering::SeqCst);
            });
            Ok(Prepared { config, files: vec!["/c.toml".into()], warnings: Vec::new(), put_in_force })
        });
        let bench = Bench::with(Config::default(), prepare);
        bench.status().await;
        Self { bench, find, put }
    }

    fn finds(&self, found: Found) {
        self.find.send(found).unwrap();
    }

    fn reload(&self, connection: u64) -> Answer {
        self.bench.ask(connection, Wanted::Reload)
    }

    /// The width of the tool lane, and how often something was put in force outside of the world.
    async fn in_force(&self) -> (u64, usize) {
        let lanes = self.bench.ask(98, |responder| Wanted::Read(Read::Lanes, responder)).get().await.unwrap();
        let lane = lanes["lanes"].as_array().unwrap().iter().find(|lane| lane["name"] == "tool").unwrap().clone();
        (lane["width"].as_u64().unwrap(), self.put.load(Ordering::SeqCst))
    }

    /// Waits until no reload is under way, and gives why the last one failed.
    async fn over(&self, begun: u64) -> Option<String> {
        let mut counts = self.bench.orders.reloads();
        let over = counts.wait_for(|counts| counts.begun >= begun && counts.are_over()).await.unwrap();
        over.failed.clone()
    }
}

fn of_width(width: u32) -> Found {
    Ok(Config { tool_width: width, ..Config::default() })
}

fn mistake() -> Found {
    let problems = vec![Problem { file: "/c.toml".into(), line: 3, what: "a mistake".to_owned() }];
    Err(ReloadError::Load(LoadError::Wrong(ConfigError { problems })))
}

#[tokio::test]
async fn a_reply_comes_when_every_part_has_the_new_configuration_and_not_before() {
    let daemon = Reloadable::start().await;
    let answer = daemon.reload(1);
    // What the same connection asks next waits; what others ask does not.
    let behind = daemon.bench.ask(1, |responder| Wanted::Read(Read::Status, responder));
    assert_eq!(daemon.in_force().await, (8, 0));
    assert!(!answer.is_there() && !behind.is_there() && !daemon.bench.orders.reloads().borrow().are_over());
    daemon.bench.journal.set(Mood::Slow);
    let before = daemon.bench.tries();
    daemon.finds(of_width(3));
    daemon.bench.tried(before).await;
    assert!(!answer.is_there() && !daemon.bench.orders.reloads().borrow().are_over(), "it is not committed");
    daemon.bench.journal.set(Mood::Willing);
    let reply = answer.get().await.unwrap();
    assert_eq!((&reply["files"][0], &reply["changes"][0]), (&"/c.toml".into(), &"lane tool: width 3".into()));
    assert_eq!((daemon.in_force().await, daemon.over(1).await), ((3, 1), None));
    let status = behind.get().await.unwrap();
    assert_eq!(status["config"]["files"][0], "/c.toml");
    daemon.bench.stop().await;
}

#[tokio::test]
async fn a_mistake_changes_nothing_and_is_told_to_client_status_and_systemd() {
    let daemon = Reloadable::start().await;
    daemon.finds(mistake());
    let error = daemon.reload(1).get().await.unwrap_err();
    assert_eq!((error.kind(), error.data.exit_code), (ErrorKind::Invalid, 2));
    let problem = &error.data.problems[0];
    assert_eq!((problem.file.as_str(), problem.line, problem.reason.as_str()), ("/c.toml", Some(3), "a mistake"));
    daemon.finds(mistake());
    daemon.bench.orders.give(Order::Reload);
    assert!(daemon.over(2).await.unwrap().contains("/c.toml:3: a mistake"));
    assert_eq!(daemon.in_force().await, (8, 0));
    assert_eq!(daemon.bench.status().await["config"]["failed"]["problems"][0]["line"], 3);
    // One that goes well ends that.
    daemon.finds(of_width(2));
    daemon.reload(1).get().await.unwrap();
    assert_eq!(daemon.bench.status().await["config"]["failed"], Value::Null);
    daemon.bench.stop().await;
}

#[tokio::test]
async fn of_two_reloads_at_once_each_is_answered_and_the_later_one_counts() {
    let daemon = Reloadable::start().await;
    let answers = [daemon.reload(1), daemon.reload(2)];
    daemon.bench.orders.give(Order::Reload);
    for found in [of_width(2), mistake(), of_width(5)] {
        daemon.finds(found);
    }
    let mut failed = 0;
    for answer in answers {
        failed += usize::from(answer.get().await.is_err());
    }
    let failed_at_last = daemon.over(3).await.is_some();
    assert_eq!(failed + usize::from(failed_at_last), 1, "each has its own outcome");
    assert_eq!(daemon.in_force().await, (5, 2));
    daemon.bench.stop().await;
}

#[tokio::test]
async fn a_reload_during_a_drain_is_a_reload() {
    let daemon = Reloadable::start().await;
    daemon.bench.ask(2, |responder| Wanted::Drain(DrainParams::default(), responder)).get().await.unwrap();
    daemon.finds(of_width(4));
    daemon.reload(1).get().await.unwrap();
    assert_eq!((daemon.in_force().await, daemon.bench.status().await["health"].as_str()), ((4, 1), Some("draining")));
    daemon.bench.stop().await;
}

/// Nothing can be recorded: a client is told so, and what it asked for never takes effect. A signal has no answer, so
/// it takes effect when the journal commits again.
#[tokio::test]
async fn while_held_a_client_is_refused_and_a_signal_waits() {
    let daemon = Reloadable::start().await;
    let under_way = daemon.reload(1);
    daemon.bench.journal.set(Mood::Failing);
    let caught = daemon.bench.submit(2);
    let before = daemon.bench.tries();
    daemon.bench.tried(before + 1).await;
    assert_eq!(daemon.reload(3).get().await.unwrap_err().kind(), ErrorKind::Held);
    daemon.finds(of_width(3));
    assert_eq!(under_way.get().await.unwrap_err().kind(), ErrorKind::Held);
    daemon.bench.orders.give(Order::Reload);
    assert_eq!(daemon.in_force().await, (8, 0));
    assert!(!daemon.bench.orders.reloads().borrow().are_over());
    daemon.bench.journal.set(Mood::Willing);
    caught.get().await.unwrap();
    daemon.finds(of_width(6));
    assert_eq!(daemon.over(2).await, None);
    assert_eq!(daemon.in_force().await, (6, 1));
    daemon.bench.stop().await;
}

#[tokio::test]
async fn a_preparation_that_panics_is_an_error_and_not_the_end() {
    let daemon = Reloadable::start().await;
    let answer = daemon.reload(1);
    let Reloadable { bench, find, .. } = daemon;
    drop(find);
    assert_eq!(answer.get().await.unwrap_err().kind(), ErrorKind::Internal);
    assert!(bench.orders.reloads().borrow().are_over());
    bench.stop().await;
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_preparation() {
    let daemon = Reloadable::start().await;
    let answer = daemon.reload(1);
    let Reloadable { bench, find, .. } = daemon;
    bench.stop().await;
    drop(find);
    answer.get().await.unwrap_err();
}
