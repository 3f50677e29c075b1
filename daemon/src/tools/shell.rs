//! Plans the tool `shell`, which executes a command through `sh -c`, or a program with its arguments.

use harness_protocol::time::Span;
use schemars::JsonSchema;
use serde::Deserialize;

use super::plan::arguments;
use super::{Command, Facts, Plan, Process, Refused, Tool, ToolKind, schema};

/// Executes a command.
pub(super) struct Shell;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Args {
    /// The command line, for sh -c.
    command: Option<String>,
    /// The program and its arguments, in place of command.
    argv: Option<Vec<String>>,
    /// Seconds after which the command is ended.
    #[schemars(with = "Option<f64>")]
    timeout: Option<Span>,
    /// Directory to start in; relative to the working directory.
    cwd: Option<String>,
    /// Whether the command gets a terminal.
    #[serde(default)]
    tty: bool,
}

impl Tool for Shell {
    fn name(&self) -> &'static str {
        "shell"
    }

    fn description(&self) -> &'static str {
        "Executes a command on this machine and returns its exit code, its standard output and its standard error. \
         Give either `command`, a line for `sh -c`, or `argv`, a program with its arguments and no shell in between. \
         Standard input is empty. Long output is shortened in the middle."
    }

    fn parameters(&self) -> String {
        schema::of::<Args>()
    }

    fn usage(&self) -> &'static str {
        r#"{"command": "…"} or {"argv": ["…", …]}, and if need be "timeout": seconds, "cwd": "…", "tty": true"#
    }

    fn kind(&self) -> ToolKind {
        ToolKind::Job { parallel_safe: false }
    }

    fn plan(&self, args: &str, facts: &Facts<'_>) -> Result<Plan, Refused> {
        let args: Args = arguments(self, args)?;
        let bad = |why: &str| Err(Refused::arguments(self, why));
        let command = match (args.command, args.argv) {
            (Some(_), Some(_)) => return bad("it has both command and argv"),
            (None, None) => return bad("it has neither command nor argv"),
            (None, Some(argv)) if argv.first().is_none_or(String::is_empty) => {
                return bad("argv does not begin with a program");
            }
            (Some(line), None) => Command::Line(line),
            (None, Some(argv)) => Command::Argv(argv),
        };
        if command.texts().iter().any(|text| text.contains('\0')) {
            return bad("the command has a NUL byte");
        }
        if args.cwd.as_ref().is_some_and(|cwd| cwd.contains('\0')) {
            return bad("the directory has a NUL byte");
        }
        if args.timeout == Some(Span::ZERO) {
            return bad("the timeout must be more than 0 seconds");
        }
        let usual = Process::new(command, facts);
        Ok(Plan::Process(Process {
            directory: args.cwd.unwrap_or_default(),
            tty: args.tty,
            timeout: args.timeout.unwrap_or(usual.timeout),
            ..usual
        }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use harness_protocol::limit::CallLimits;
    use harness_protocol::spec::{Limits, RunSpec};

    use super::*;
    use crate::config::Config;

    fn plan(args: &str, spec: &RunSpec) -> Result<Process, String> {
        let config = Config::default();
        match Shell.plan(args, &Facts { spec, shell: &config.shell }) {
            Ok(Plan::Process(process)) => Ok(process),
            Ok(other) => panic!("{other:?}"),
            Err(refused) => Err(refused.to_string()),
        }
    }

    #[test]
    fn a_command_is_a_process_with_what_the_run_and_the_call_say_of_it() {
        let limits = Limits { cpu_seconds: Some(7), ..Limits::default() };
        let spec = RunSpec { limits, ..RunSpec::default() };
        let process = plan(r#"{"command": "a b"}"#, &spec).unwrap();
        assert_eq!((&process.command, process.subject.as_str()), (&Command::Line("a b".to_owned()), "a b"));
        assert_eq!(process.limits, CallLimits { cpu_seconds: Some(7), ..CallLimits::default() });
        assert_eq!((process.timeout, process.tty), (Config::default().shell.timeout, false));
        let all = r#"{"argv": ["a", "b"], "timeout": 0.5, "cwd": "sub", "tty": true}"#;
        let process = plan(all, &spec).unwrap();
        assert_eq!(process.command, Command::Argv(vec!["a".to_owned(), "b".to_owned()]));
        assert_eq!((process.timeout, process.tty), (Span::from_micros(500_000), true));
        assert_eq!((process.directory.as_str(), process.subject.as_str()), ("sub", "a b"));
    }

    #[test]
    fn bad_arguments_are_refused_with_what_is_wrong_and_what_it_takes() {
        for (args, why) in [
            ("", "EOF"),
            ("[]", "invalid"),
            ("{}", "neither command nor argv"),
            (r#"{"argv": []}"#, "does not begin with a program"),
            (r#"{"argv": ["true"], "command": "true"}"#, "both command and argv"),
            (r#"{"argv": ["true", "a\u0000b"]}"#, "NUL"),
            (r#"{"command": "\ud800"}"#, "hex escape"),
            (r#"{"command": "true", "__proto__": {}}"#, "unknown field"),
            (r#"{"command": "true", "timeout": 0}"#, "more than 0"),
            (r#"{"command": "true", "timeout": -1}"#, "not negative"),
            (r#"{"command": "true", "timeout": "soon"}"#, "invalid type"),
            (r#"{"command": "true", "shell": "zsh"}"#, "unknown field `shell`"),
            (r#"{"command": "a\u0000b"}"#, "NUL"),
            (r#"{"command": "true", "cwd": "a\u0000b"}"#, "NUL"),
        ] {
            let refusal = plan(args, &RunSpec::default()).unwrap_err();
            assert!(refusal.starts_with("bad arguments of shell: ") && refusal.contains(why), "{args}: {refusal}");
            assert!(refusal.ends_with(r#""tty": true"#), "{refusal}");
        }
        let long = plan(&format!(r#"{{"{}": 1}}"#, "x".repeat(100_000)), &RunSpec::default()).unwrap_err();
        assert!(long.len() < 3_000, "{}", long.len());
    }
}
