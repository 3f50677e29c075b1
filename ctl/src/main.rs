//! `harnessctl`: submits agent runs, follows them, answers their questions, and shows the lanes.
//!
//! Blocking, and quick to start: nothing is read or looked up before it is needed. Data goes to standard output,
//! everything else to standard error. Only `launch/` knows more of the daemon than `harness-protocol` defines: its
//! lock, and what it says when it starts.
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "beside the driver, ctl is the one that reads the clock")]

mod cli;
mod client;
mod commands;
mod context;
mod error;
mod exit_code;
mod launch;
mod output;
mod progress;
mod render;
mod select;
mod session;
mod spec;

use std::borrow::Cow;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::Parser;
use harness_protocol::terminal_safe::clean;

use crate::commands::Cli;

/// Bytes of the stack of the main thread, independent of the shell's limit (`ulimit -s`).
const STACK: usize = 8 << 20;

fn main() -> ExitCode {
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(on_own_stack);
    match thread.map(std::thread::JoinHandle::join) {
        Ok(Ok(code)) => code,
        Ok(Err(_panicked)) => ExitCode::from(harness_protocol::run::exit::INTERNAL),
        // If there is no memory for a thread, this one may have enough.
        Err(_) => on_own_stack(),
    }
}

fn on_own_stack() -> ExitCode {
    // No other process shall take our connections, and their rights, by a debugger or by `pidfd_getfd`. Where the
    // kernel refuses, nothing else is lost.
    let _refused = nix::sys::prctl::set_dumpable(false);
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(mut error) => {
            cli::suggest::improve(&mut error);
            tell(&error);
            return ExitCode::from(usage_code(&error));
        }
    };
    ExitCode::from(match commands::run(cli) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    })
}

/// Prints help, or the usage error. The arguments in it may have characters that control a terminal.
fn tell(error: &clap::Error) {
    let plain = error.to_string();
    // If the output is closed, nothing can be done.
    let _shown = match clean(&plain) {
        Cow::Borrowed(_) => error.print(),
        Cow::Owned(cleaned) => io::stderr().write_all(cleaned.as_bytes()),
    };
}

/// Help is a success. A monitoring check with wrong arguments must not look critical.
fn usage_code(error: &clap::Error) -> u8 {
    let wrong = error.use_stderr();
    let check = std::env::args_os().any(|arg| arg.as_encoded_bytes().starts_with(b"--check"));
    match (wrong, check) {
        (false, _) => 0,
        (true, false) => harness_protocol::run::exit::USAGE,
        (true, true) => commands::lane::check::UNKNOWN,
    }
}
