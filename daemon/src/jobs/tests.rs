#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]
//! Tests jobs with real processes and with doubles of tools.

use std::collections::BTreeMap;
use std::path::Path;

use harness_protocol::id::CallId;
use harness_protocol::interaction::{CallAsk, InteractionKind, Resolution};
use harness_protocol::run::{CallResult, Entry};
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;
use harness_protocol::time::Span;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc};

use super::*;
use crate::config::{self, Config};
use crate::inbox::Report;
use crate::inference::http::{Environment, Providers};
use crate::process::Outputs;
use crate::prompt::{Completion, ErrorClass, InferenceError, Prompt};
use crate::tools;
use crate::world::api::{Ask, Asked, CallTask, InferenceTask, Settlement};

const RUN: RunId = RunId::from_u64(1);

/// Calls of the shell as in a daemon, and those of doubles, which are functions.
struct Doubles {
    plans: PlanExecutor,
    by_name: BTreeMap<&'static str, Double>,
}

type Double = Box<dyn for<'a> Fn(&'a str, Context) -> Execution<'a> + Send + Sync>;

impl ExecuteCall for Doubles {
    fn call<'a>(&'a self, task: &'a CallTask, context: Context) -> Execution<'a> {
        match self.by_name.get(&*task.tool) {
            Some(double) => double(&task.args, context),
            None => self.plans.call(task, context),
        }
    }
}

fn double(
    name: &'static str,
    of: impl for<'a> Fn(&'a str, Context) -> Execution<'a> + Send + Sync + 'static,
) -> (&'static str, Double) {
    (name, Box::new(of))
}

fn said(context: &Context, text: &str) -> CallResult {
    CallResult::plain(context.call, "double".into(), text, false)
}

struct Bench {
    executor: Executor,
    reports: mpsc::UnboundedReceiver<Report>,
    deltas: DeltaSender,
    dir: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let keepers = process::tests::keepers();
        let shell = config::Shell { envelope_bytes: 4096, output_bytes: 1 << 20, ..Config::default().shell };
        let (outputs, folders) = (Outputs::new(dir.path()), crate::folders::Folders::new(None));
        let around = (std::env::vars_os(), Path::new("/s"));
        let plans = PlanExecutor::new(tools::catalogue(), &shell, around, outputs, Arc::clone(&keepers), folders);
        let by_name = BTreeMap::from([
            double("panics", |args, _| Box::pin(async move { panic!("on purpose: {args}") })),
            double("panics early", |_, _| panic!("early")),
            double("waits", |_, mut context| {
                Box::pin(async move {
                    let waited = context.lane_handle.off_lane(std::future::ready(7)).await;
                    said(&context, &format!("{waited:?}"))
                })
            }),
            double("waits for ever", |_, mut context| {
                Box::pin(async move {
                    let waited = context.lane_handle.off_lane(std::future::pending::<()>()).await;
                    said(&context, &format!("{waited:?}"))
                })
            }),
            double("panics off lane", |_, mut context| {
                Box::pin(async move {
                    let _ = context.lane_handle.off_lane(async { panic!("away") }).await;
                    said(&context, "not reached")
                })
            }),
            double("drops its wait", |_, mut context| {
                Box::pin(async move {
                    let dropped = tokio::select! {
                        biased;
                        _ = context.lane_handle.off_lane(std::future::pending::<()>()) => false,
                        () = std::future::ready(()) => true,
                    };
                    let again = context.lane_handle.off_lane(std::future::ready(())).await;
                    said(&context, &format!("{dropped} {again:?}"))
                })
            }),
            double("asks twice", |_, mut context| {
                Box::pin(async move {
                    let asked = |question: &str| Asked {
                        kind: InteractionKind::Form,
                        question: question.into(),
                        subject: None,
                        within: None,
                    };
                    let dropped = tokio::select! {
                        biased;
                        _ = context.lane_handle.ask(asked("first")) => false,
                        () = std::future::ready(()) => true,
                    };
                    let said_to_it = context.lane_handle.ask(asked("second")).await;
                    said(&context, &format!("{dropped} {:?}", said_to_it.map(|settlement| settlement.text)))
                })
            }),
            double("is deaf", |_, _| Box::pin(std::future::pending())),
        ]);
        let calls = Arc::new(Doubles { plans, by_name });
        let providers = Arc::new(Providers::new(&Config::default(), Environment::default()).unwrap());
        let (sender, reports) = mpsc::unbounded_channel();
        let (deltas, _) = broadcast::channel(1024);
        let report: ReportTo = Arc::new(move |report| drop(sender.send(report)));
        let executor = Executor::new(
            ExecutorConfig { calls, providers, scripts: Arc::new(Scripts::new(Handle::current())), keepers },
            report,
            deltas.clone(),
        );
        Self { executor, reports, deltas, dir }
    }

    fn call(&self, tool: &str, args: &str) -> JobId {
        self.start(tool, args, None)
    }

    fn call_that_asks(&self, command: &str, ask: CallAsk) -> JobId {
        self.start("shell", &serde_json::json!({ "command": command }).to_string(), Some(Arc::new(ask)))
    }

    fn start(&self, tool: &str, args: &str, ask: Option<Arc<CallAsk>>) -> JobId {
        let id = job(9);
        let workdir = Some(self.dir.path().to_str().unwrap().into());
        let spec = Arc::new(RunSpec { workdir, ..RunSpec::default() });
        let task = Task::Call(CallTask { tool: tool.into(), args: args.into(), ask, spec });
        self.executor.start(vec![Job { id, task }]);
        id
    }

    fn shell(&self, command: &str) -> JobId {
        self.call("shell", &serde_json::json!({ "command": command }).to_string())
    }

    fn infer(&self, script: Option<&str>, attempt: u32) -> JobId {
        let id = JobId { run: RUN, work: Work::Inference { step: 1, attempt } };
        let script = script.map(|text| Arc::new(toml::from_str::<Script>(text).unwrap()));
        let prompt = Prompt::from_transcript(&[Entry::User { text: "go".into() }]);
        let task = InferenceTask {
            provider: "scripted".into(),
            model: None,
            script,
            prompt,
            tools: [].into(),
            max_output_tokens: None,
            is_budgeted: false,
            is_summary: false,
        };
        self.executor.start(vec![Job { id, task: Task::Inference(task) }]);
        id
    }

    async fn next(&mut self) -> Report {
        self.reports.recv().await.unwrap()
    }

    async fn outcome(&mut self) -> Outcome {
        match self.next().await {
            Report::Outcome(_, outcome) => outcome,
            Report::Ask(_, ask) => panic!("{ask:?}"),
        }
    }

    async fn envelope(&mut self) -> String {
        match self.outcome().await {
            Outcome::Call(result) => result.envelope.to_string(),
            other => panic!("{other:?}"),
        }
    }

    async fn inferred(&mut self) -> Result<Completion, InferenceError> {
        match self.outcome().await {
            Outcome::Inference(result) => result,
            other => panic!("{other:?}"),
        }
    }

    /// Nothing more is reported, also when everything has ended.
    async fn nothing_more(mut self) {
        self.executor.shut_down().await;
        drop(self.executor);
        assert_eq!(self.reports.recv().await, None);
    }
}

fn job(call: u64) -> JobId {
    JobId { run: RUN, work: Work::Call(CallId::from_u64(call)) }
}

#[tokio::test]
async fn a_call_ends_in_its_result_and_nothing_else() {
    let mut bench = Bench::new();
    bench.shell("echo hi; echo $HARNESS_RUN_ID $HARNESS_SOCKET");
    assert_eq!(bench.envelope().await, format!("Exit code: 0\nhi\n{RUN} /s\n"));
    bench.nothing_more().await;
}

#[tokio::test]
async fn jobs_that_start_together_each_end_in_their_own_outcome_also_when_cancelled_at_once() {
    let mut bench = Bench::new();
    let task = || Task::Call(CallTask { tool: "waits".into(), args: "{}".into(), ask: None, spec: Arc::default() });
    let jobs = |numbers: std::ops::Range<u64>| numbers.map(|call| Job { id: job(call), task: task() }).collect();
    bench.executor.start(jobs(0..40));
    // The runtime has had no turn yet: their tasks are not there.
    bench.executor.cancel(job(7), true);
    bench.executor.start(jobs(7..8));
    let mut ended = Vec::new();
    while ended.len() < 40 {
        match bench.next().await {
            Report::Outcome(job, Outcome::Call(_)) => ended.push(job),
            Report::Ask(job, _) => bench.executor.go_on(job),
            other => panic!("{other:?}"),
        }
    }
    ended.sort_unstable();
    assert_eq!(ended, (0..40).map(job).collect::<Vec<_>>());
    bench.nothing_more().await;
}

#[tokio::test]
async fn a_tool_that_is_not_there_is_a_plain_error_and_a_transition_of_the_world_is_no_job() {
    let mut bench = Bench::new();
    bench.call("tell_user", "{}");
    assert!(bench.envelope().await.starts_with("there is no tool \"tell_user\" to execute"));
    bench.call("ask_user", r#"{"question": "?"}"#);
    assert!(bench.envelope().await.starts_with("internal error (bug)"));
}

#[tokio::test]
async fn a_panic_is_an_outcome_with_its_words() {
    let mut bench = Bench::new();
    bench.call("panics", "abc");
    assert_eq!(bench.outcome().await, Outcome::Panicked("on purpose: abc".into()));
    bench.call("panics early", "");
    assert_eq!(bench.outcome().await, Outcome::Panicked("early".into()));
    bench.nothing_more().await;
}

#[tokio::test]
async fn a_task_that_is_not_what_its_id_says_is_lost() {
    let mut bench = Bench::new();
    let task = CallTask { tool: "shell".into(), args: "{}".into(), ask: None, spec: Arc::default() };
    let id = JobId { run: RUN, work: Work::Inference { step: 1, attempt: 1 } };
    bench.executor.start(vec![Job { id, task: Task::Call(task) }]);
    assert_eq!(bench.outcome().await, Outcome::Lost);
}

#[tokio::test]
async fn a_cancel_ends_a_call_and_one_for_nobody_has_no_effect() {
    let mut bench = Bench::new();
    let mut follow = bench.deltas.subscribe();
    bench.executor.cancel(job(9), true);
    bench.executor.go_on(job(9));
    let id = bench.shell("echo ready; sleep 100");
    assert_eq!(follow.recv().await.unwrap().text, "ready\n");
    bench.executor.cancel(id, false);
    assert_eq!(bench.envelope().await, "Exit code: 143\nready\n[cancelled]\n");
    bench.executor.cancel(id, true);
    bench.nothing_more().await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_before_its_process_starts_never_starts_it() {
    let mut bench = Bench::new();
    // On this runtime of one thread the task cannot run before we wait for something.
    let id = bench.shell("touch made");
    bench.executor.cancel(id, false);
    assert_eq!(bench.envelope().await, "cancelled before it began");
    assert!(!bench.dir.path().join("made").exists());
}

#[tokio::test]
async fn a_wait_off_the_lane_is_balanced_and_goes_on_when_the_world_says() {
    let mut bench = Bench::new();
    let id = bench.call("waits", "");
    assert_eq!(bench.next().await, Report::Ask(id, Ask::OffLane));
    assert_eq!(bench.next().await, Report::Ask(id, Ask::Return));
    tokio::task::yield_now().await;
    assert!(bench.reports.try_recv().is_err());
    bench.executor.go_on(id);
    assert_eq!(bench.envelope().await, "Ok(7)");
    bench.nothing_more().await;
}

#[tokio::test]
async fn a_cancel_ends_a_wait_off_the_lane_and_a_wait_for_the_way_back() {
    for tool in ["waits", "waits for ever"] {
        let mut bench = Bench::new();
        let id = bench.call(tool, "");
        assert_eq!(bench.next().await, Report::Ask(id, Ask::OffLane));
        if tool == "waits" {
            assert_eq!(bench.next().await, Report::Ask(id, Ask::Return));
            bench.executor.cancel(id, false);
        } else {
            bench.executor.cancel(id, false);
            assert_eq!(bench.next().await, Report::Ask(id, Ask::Return));
        }
        assert_eq!(bench.envelope().await, "Err(Cancelled)");
        bench.nothing_more().await;
    }
}

#[tokio::test]
async fn a_wait_that_panics_or_is_dropped_is_balanced_too() {
    let mut bench = Bench::new();
    let id = bench.call("panics off lane", "");
    assert_eq!(bench.next().await, Report::Ask(id, Ask::OffLane));
    assert_eq!(bench.next().await, Report::Ask(id, Ask::Return));
    assert_eq!(bench.outcome().await, Outcome::Panicked("away".into()));

    let id = bench.call("drops its wait", "");
    for _ in 0..2 {
        assert_eq!(bench.next().await, Report::Ask(id, Ask::OffLane));
        assert_eq!(bench.next().await, Report::Ask(id, Ask::Return));
        bench.executor.go_on(id);
    }
    assert_eq!(bench.envelope().await, "true Ok(())");
    bench.nothing_more().await;
}

fn asked(report: Report) -> String {
    match report {
        Report::Ask(_, Ask::Open(asked)) => asked.question.to_string(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_job_that_asks_gets_what_is_said_to_its_question_and_goes_on_with_its_permit() {
    let mut bench = Bench::new();
    let id = bench.call("asks twice", "");
    assert_eq!(asked(bench.next().await), "first");
    assert_eq!(bench.next().await, Report::Ask(id, Ask::Return));
    // The answer to what it gave up to ask comes late.
    bench.executor.answer(id, Settlement::answer("too late"));
    bench.executor.go_on(id);
    assert_eq!(asked(bench.next().await), "second");
    tokio::task::yield_now().await;
    assert!(bench.reports.try_recv().is_err(), "it waits");
    bench.executor.answer(id, Settlement::answer("this"));
    assert_eq!(bench.next().await, Report::Ask(id, Ask::Return));
    tokio::task::yield_now().await;
    assert!(bench.reports.try_recv().is_err(), "it has no permit");
    bench.executor.go_on(id);
    assert_eq!(bench.envelope().await, r#"true Ok("this")"#);
    bench.executor.answer(id, Settlement::answer("no job asks this"));
    bench.nothing_more().await;
}

#[tokio::test]
async fn a_cancel_ends_a_job_that_asks_and_nothing_is_started() {
    let mut bench = Bench::new();
    let ask = CallAsk { kind: InteractionKind::Question, text: Some("what?".into()), expires_seconds: None };
    let id = bench.call_that_asks("touch made", ask);
    assert_eq!(asked(bench.next().await), "what?");
    bench.executor.cancel(id, false);
    assert_eq!(bench.next().await, Report::Ask(id, Ask::Return));
    match bench.outcome().await {
        Outcome::Call(result) => assert!(result.cancelled && result.is_error, "{result:?}"),
        other => panic!("{other:?}"),
    }
    assert!(!bench.dir.path().join("made").exists());
    bench.nothing_more().await;
}

#[tokio::test]
async fn a_process_reads_the_answer_that_its_call_asked_for_and_does_not_start_without_one() {
    let ways = [
        (Settlement::answer("blue"), "Exit code: 0\nblue"),
        (Settlement::denied("no"), "Denied: no"),
        (Settlement::of(Resolution::Expired), "Not run: no person settled this in time."),
    ];
    for (settlement, told) in ways {
        let mut bench = Bench::new();
        let kind = InteractionKind::Form;
        let id = bench.call_that_asks("tee made", CallAsk { kind, text: None, expires_seconds: None });
        assert_eq!(asked(bench.next().await), "what is to be read by tee made");
        let is_answered = settlement.resolution == Resolution::Answered;
        bench.executor.answer(id, settlement);
        assert_eq!(bench.next().await, Report::Ask(id, Ask::Return));
        bench.executor.go_on(id);
        assert_eq!(bench.envelope().await.trim_end(), told);
        assert_eq!(bench.dir.path().join("made").exists(), is_answered);
        bench.nothing_more().await;
    }
}

#[tokio::test]
async fn a_second_wait_begins_only_with_the_permit_that_the_first_one_asked_for() {
    let mut bench = Bench::new();
    let id = bench.call("drops its wait", "");
    bench.next().await;
    bench.next().await;
    tokio::task::yield_now().await;
    assert!(bench.reports.try_recv().is_err());
    bench.executor.cancel(id, false);
    assert_eq!(bench.envelope().await, "true Err(Cancelled)");
}

#[tokio::test]
async fn what_a_run_leaves_behind_ends_when_it_is_released() {
    let mut bench = Bench::new();
    bench.shell("sleep 100 >/dev/null 2>&1 & echo $!");
    let envelope = bench.envelope().await;
    let pid = envelope.lines().last().unwrap().parse().unwrap();
    assert_eq!(bench.executor.inner.config.keepers.run_of(pid), Some(RUN));
    bench.executor.release(RUN);
    bench.executor.shut_down().await;
    assert_eq!(bench.executor.inner.config.keepers.run_of(pid), None);
}

#[tokio::test]
async fn a_shutdown_ends_jobs_that_listen_and_jobs_that_do_not() {
    let mut bench = Bench::new();
    bench.call("is deaf", "");
    bench.infer(Some("[[turn]]\nfault = 'stall'"), 1);
    let begun = std::time::Instant::now();
    bench.executor.shut_down().await;
    assert!(begun.elapsed() < Duration::from_secs(5));
    let mut outcomes = [bench.outcome().await, bench.outcome().await];
    outcomes.sort_by_key(|outcome| matches!(outcome, Outcome::Lost));
    assert!(matches!(outcomes, [Outcome::Inference(Err(_)), Outcome::Lost]));
    bench.shell("true");
    assert_eq!(bench.outcome().await, Outcome::Lost);
    bench.nothing_more().await;
}

#[test]
fn a_runtime_that_goes_down_loses_its_jobs_and_says_so() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut bench = runtime.block_on(async {
        let bench = Bench::new();
        bench.call("is deaf", "");
        bench
    });
    drop(runtime);
    assert_eq!(bench.reports.try_recv().unwrap(), Report::Outcome(job(9), Outcome::Lost));
    assert!(bench.reports.try_recv().is_err());
}

#[tokio::test]
async fn a_scripted_turn_is_an_answer_and_a_delta() {
    let mut bench = Bench::new();
    let mut follow = bench.deltas.subscribe();
    bench.infer(Some("[[turn]]\ntext = 'hi'\ndelay = 0.01"), 1);
    assert_eq!(bench.inferred().await.unwrap().text, "hi");
    assert_eq!(follow.try_recv().unwrap().text, "hi");
    bench.infer(None, 1);
    let error = bench.inferred().await.unwrap_err();
    assert_eq!(error.class, ErrorClass::Never);
    assert!(error.message.contains("--script"), "{error}");
}

#[tokio::test]
async fn faults_come_in_place_of_the_first_attempt_only() {
    let mut bench = Bench::new();
    for (fault, class) in [
        ("rate-limit", ErrorClass::RateLimit(Some(Span::from_secs(1)))),
        ("overloaded", ErrorClass::Retry),
        ("cut", ErrorClass::Retry),
    ] {
        let script = format!("[[turn]]\ntext = 'hi'\nfault = '{fault}'");
        bench.infer(Some(&script), 1);
        assert_eq!(bench.inferred().await.unwrap_err().class, class, "{fault}");
        bench.infer(Some(&script), 2);
        assert_eq!(bench.inferred().await.unwrap().text, "hi");
    }
}

#[tokio::test]
async fn a_cancel_ends_a_delay_and_a_stall() {
    let mut bench = Bench::new();
    for script in ["[[turn]]\ndelay = 1000", "[[turn]]\nfault = 'stall'"] {
        let id = bench.infer(Some(script), 1);
        tokio::task::yield_now().await;
        bench.executor.cancel(id, false);
        let error = bench.inferred().await.unwrap_err();
        assert_eq!((error.class, error.message.as_str()), (ErrorClass::Never, "cancelled"));
    }
}
