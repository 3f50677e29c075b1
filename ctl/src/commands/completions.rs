//! `completions`: prints a completion script for a shell.

use std::io::Write;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::commands::Cli;
use crate::context::Ctx;
use crate::error::Failure;

pub(super) fn run(ctx: &mut Ctx, shell: Shell) -> Result<u8, Failure> {
    // The generator panics where it cannot write, so it writes into memory.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "harnessctl", &mut script);
    ctx.out.write_all(&script)?;
    ctx.done()
}
