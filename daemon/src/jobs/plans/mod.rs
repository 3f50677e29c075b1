//! Executes the plans of tools that are a process. (Plans that are a transition are the world's: `world/tools.rs`.)
//!
//! It provides what the processes of all calls share: their environment, the folder in which they start, and the place
//! of their output. A call that asks a person first does it here, off its lane. Must not know what a tool is for.

mod environment;
mod folder;

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use harness_protocol::id::{CallId, RunId};
use harness_protocol::interaction::{CallAsk, Resolution};
use harness_protocol::json_size::cut;
use harness_protocol::run::CallResult;

use self::environment::Environment;
use super::deltas::Deltas;
use super::off_lane::LaneHandle;
use crate::config;
use crate::folders::Folders;
use crate::process::{self, Bounds, Cancel, Keepers, Launch, Outputs};
use crate::tools::{self, Catalogue, Confinement, Facts, Finished, Plan, Process, Stdin, Tool};
use crate::world::api::{Asked, CallTask, Settlement};

/// A call that executes.
pub type Execution<'a> = Pin<Box<dyn Future<Output = CallResult> + Send + 'a>>;

/// Executes calls. Outside of tests the [executor of plans](PlanExecutor) is the only one.
pub trait ExecuteCall: Send + Sync {
    /// Executes a call. What fails is a result, too; what panics is an outcome, too.
    fn call<'a>(&'a self, task: &'a CallTask, context: Context) -> Execution<'a>;
}

/// What a call gets beside its task.
pub struct Context {
    /// The run that made the call.
    pub run: RunId,
    /// The id of the call within its run.
    pub call: CallId,
    /// Tells it to end.
    pub cancel: Cancel,
    /// Takes its output as it comes.
    pub deltas: Deltas,
    /// Its place in the lane.
    pub lane_handle: LaneHandle,
}

/// Carries out what tools plan.
#[derive(Debug)]
pub struct PlanExecutor {
    tools: Catalogue,
    shell: config::Shell,
    environment: Environment,
    outputs: Outputs,
    keepers: Arc<Keepers>,
    folders: Folders,
}

impl PlanExecutor {
    /// The executor as configured. `own` is the daemon's environment, `socket` the one that calls find the daemon by.
    pub fn new(
        tools: Catalogue,
        shell: &config::Shell,
        (own, socket): (impl IntoIterator<Item = (OsString, OsString)>, &Path),
        outputs: Outputs,
        keepers: Arc<Keepers>,
        folders: Folders,
    ) -> Self {
        let environment = Environment::new(own, socket);
        Self { tools, shell: shell.clone(), environment, outputs, keepers, folders }
    }

    async fn execute(&self, task: &CallTask, context: Context) -> CallResult {
        let plain = |text: String| CallResult::plain(context.call, Arc::clone(&task.tool), text, true);
        let Some(tool) = self.tools.get(&task.tool) else {
            let names: Vec<&str> = self.tools.names().collect();
            return plain(format!("there is no tool {:?} to execute; there is: {}", task.tool, names.join(", ")));
        };
        match tool.plan(&task.args, &Facts { spec: &task.spec, shell: &self.shell }) {
            Err(refused) => plain(refused.to_string()),
            Ok(Plan::Process(plan)) => self.process(tool, &plan, task, context).await,
            Ok(Plan::World(_)) => {
                tracing::error!(tool = %task.tool, "a transition of the world was started as a job");
                plain("internal error (bug): this is no call to execute".to_owned())
            }
        }
    }

    async fn process(&self, tool: &dyn Tool, plan: &Process, task: &CallTask, context: Context) -> CallResult {
        let Context { run, call, mut cancel, mut deltas, mut lane_handle } = context;
        let plain = |text: String| CallResult::plain(call, Arc::clone(&task.tool), text, true);
        if cancel.is_wanted() {
            return CallResult { cancelled: true, ..plain("cancelled before it began".to_owned()) };
        }
        // A keeper has the rights of the daemon's user, and so has what it starts.
        let Confinement::Full = plan.confinement;
        let answer = match &task.ask {
            None => None,
            Some(ask) => match lane_handle.ask(asked(ask, plan)).await {
                Ok(Settlement { resolution: Resolution::Answered, text, .. }) => Some(text),
                Ok(refused) => return plain(refused.refusal()),
                Err(error) => return CallResult { cancelled: true, ..plain(error.to_string()) },
            },
        };
        let input = match (&answer, &plan.stdin) {
            (Some(text), _) => process::input(text.as_bytes()).map(Some),
            (None, Stdin::Empty) => Ok(None),
            (None, Stdin::Text(text)) => process::input(text.as_bytes()).map(Some),
        };
        let input = match input {
            Ok(input) => input,
            Err(error) => return plain(format!("its standard input cannot be made: {error}")),
        };
        let directory = Path::new(&plan.directory);
        let folder = match folder::of_call(&self.folders, run, (&task.spec, directory), &mut cancel, &lane_handle).await
        {
            Ok(folder) => folder,
            Err(why) => return CallResult { cancelled: cancel.is_wanted(), ..plain(why) },
        };
        let env = self.environment.of_call(&task.spec.env, run, call);
        let launch = Launch {
            owner: process::Owner::Run,
            program: plan.command.program(),
            workdir: Path::new(folder::path(&task.spec)),
            folder,
            directory,
            env: &env,
            tty: plan.tty,
            input: input.as_ref().map(AsFd::as_fd),
            limits: plan.limits,
        };
        let keep = usize::try_from(self.shell.envelope_bytes).unwrap_or(usize::MAX);
        let bounds = Bounds { timeout: plan.timeout.to_std(), keep };
        let outputs = self.outputs.of_call(run, call, self.shell.output_bytes);
        let mut on_piece = |stream, offset, bytes: &[u8]| deltas.piece(stream, offset, bytes);
        let result = match process::run(launch, bounds, run, &self.keepers, &outputs, &mut cancel, &mut on_piece).await
        {
            Ok(process) => tool.result(&Finished { run, call, tool: &task.tool, plan, process: &process }),
            Err(error) => tools::not_started(call, Arc::clone(&task.tool), error.exit_code(), &error.to_string()),
        };
        deltas.finish();
        result
    }
}

/// Bytes of a command within a question. The subject beside it has the whole.
const MOST_NAMED: usize = 200;

/// What a call asks a person before its process starts, which reads the answer.
fn asked(ask: &CallAsk, plan: &Process) -> Asked {
    let question =
        ask.text.clone().unwrap_or_else(|| format!("what is to be read by {}", cut(&plan.subject, MOST_NAMED)).into());
    Asked { kind: ask.kind, question, subject: Some(plan.subject.as_str().into()), within: ask.expires_seconds }
}

impl ExecuteCall for PlanExecutor {
    fn call<'a>(&'a self, task: &'a CallTask, context: Context) -> Execution<'a> {
        Box::pin(self.execute(task, context))
    }
}

#[cfg(test)]
mod tests;
