//! Defines the plan of a call as data. The world or the executor of `jobs` carries it out.

use std::borrow::Cow;
use std::sync::Arc;

use harness_protocol::id::{CallId, RunId};
use harness_protocol::json_size::cut;
use harness_protocol::limit::CallLimits;
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;
use harness_protocol::time::Span;
use serde::de::DeserializeOwned;

use super::Tool;
use crate::config;
use crate::process::{Finished as Ended, Program};

/// Bytes of what is told of arguments that cannot be read: a parser may repeat all that it was given.
const MOST_TOLD: usize = 2_048;

/// What a tool knows when it plans.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// What the run was asked to be.
    pub spec: &'a RunSpec,
    /// What is configured of processes.
    pub shell: &'a config::Shell,
}

/// What a call is to do.
///
/// A request to a server (`Server { name, request }`) becomes a third variant with the first tool that makes one: until
/// then there is nothing that could carry it out.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    /// A transition of the world.
    World(Transition),
    /// A process, from its start to its end.
    Process(Process),
}

/// What changes in the world.
#[derive(Debug, Clone, PartialEq)]
pub enum Transition {
    /// A person is asked this.
    Ask(Arc<str>),
    /// A run is started below the one that calls.
    Spawn(Spawn),
    /// Runs of the same tree are waited for.
    Wait(Wait),
}

/// The run that is to be started. All else it has from the run that calls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Spawn {
    /// The task of the child.
    pub prompt: Option<Arc<str>>,
    /// The name of the child.
    pub name: Option<Arc<str>>,
    /// The script that it plays.
    pub script: Option<Arc<Script>>,
    /// The labels of the child.
    pub labels: std::collections::BTreeMap<String, String>,
}

/// The runs that are to be waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// Their ids or names; empty are all that the run has started.
    pub agents: Vec<String>,
    /// The end of one of them is enough.
    pub any: bool,
}

/// A process to execute in the directory of the run.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// What to start.
    pub command: Command,
    /// Where, relative to the directory of the run; empty is that directory.
    pub directory: String,
    /// What it reads as standard input.
    pub stdin: Stdin,
    /// Whether it gets a terminal.
    pub tty: bool,
    /// After how long it is ended.
    pub timeout: Span,
    /// What each of its processes may use.
    pub limits: CallLimits,
    /// What it may reach.
    pub confinement: Confinement,
    /// What is done, in words for a person who is to allow it.
    pub subject: String,
}

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// A line for `sh -c`.
    Line(String),
    /// A program, by path or by name, with its arguments.
    Argv(Vec<String>),
}

/// Standard input of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stdin {
    /// Nothing, at its end from the start; on a terminal, the terminal.
    Empty,
    /// This text, and then its end.
    Text(String),
}

/// What a process may reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Confinement {
    /// What the daemon's user may.
    Full,
}

/// Why a call is not carried out. The model reads it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Its arguments cannot be read.
    #[error("bad arguments of {tool}: {why}; it takes {usage}")]
    Arguments {
        /// The tool whose arguments they are.
        tool: String,
        /// What is wrong.
        why: String,
        /// Arguments by example.
        usage: String,
    },
    /// They can be read, and what they ask for is not there.
    #[error("{0}")]
    Missing(String),
}

/// A process that has ended.
#[derive(Debug, Clone, Copy)]
pub struct Finished<'a> {
    /// The run that made the call.
    pub run: RunId,
    /// The call that the process was started for.
    pub call: CallId,
    /// The tool, by the name that it was called by.
    pub tool: &'a Arc<str>,
    /// What was planned.
    pub plan: &'a Process,
    /// How it ended.
    pub process: &'a Ended,
}

impl Process {
    /// A process with the defaults of this run.
    pub fn new(command: Command, facts: &Facts<'_>) -> Self {
        let subject = command.to_string();
        Self {
            command,
            directory: String::new(),
            stdin: Stdin::Empty,
            tty: false,
            timeout: facts.shell.timeout,
            limits: CallLimits::from(&facts.spec.limits).or(facts.shell.limits),
            confinement: Confinement::Full,
            subject,
        }
    }
}

impl Command {
    /// As it is started.
    pub fn program(&self) -> Program<'_> {
        match self {
            Self::Line(line) => Program::Shell(line),
            Self::Argv(argv) => Program::Argv(argv),
        }
    }

    /// The texts of which it consists.
    pub fn texts(&self) -> &[String] {
        match self {
            Self::Line(line) => std::slice::from_ref(line),
            Self::Argv(argv) => argv,
        }
    }
}

impl std::fmt::Display for Command {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.texts().join(" "))
    }
}

impl Refused {
    /// The arguments of this tool cannot be read.
    pub(super) fn arguments(tool: &dyn Tool, why: &str) -> Self {
        let why: Cow<'_, str> = cut(why, MOST_TOLD);
        Self::Arguments { tool: tool.name().to_owned(), why: why.into_owned(), usage: tool.usage().to_owned() }
    }
}

/// Reads the arguments of a call.
pub(super) fn arguments<A: DeserializeOwned>(tool: &dyn Tool, args: &str) -> Result<A, Refused> {
    serde_json::from_str(args).map_err(|error| Refused::arguments(tool, &error.to_string()))
}
