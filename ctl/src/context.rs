//! Defines the context that every command gets: the session with the daemon, standard output, and the style of output.

use std::io::{self, IsTerminal, Write};

use serde::Serialize;

use crate::cli::Global;
use crate::error::Failure;
use crate::output::Out;
use crate::render::colour::Paint;
use crate::render::style::Look;
use crate::session::Session;

/// The context that a command works with.
#[derive(Debug)]
pub(crate) struct Ctx {
    /// The session with the daemon.
    pub(crate) session: Session,
    /// Standard output, buffered.
    pub(crate) out: Out,
    /// Colours of standard error.
    pub(crate) notes: Paint,
    /// The output is JSON.
    pub(crate) json: bool,
}

impl Ctx {
    /// Applies the options of every command.
    ///
    /// # Errors
    /// If a variable that names the socket or the state directory cannot be read.
    pub(crate) fn new(global: &Global) -> Result<Self, Failure> {
        Ok(Self {
            session: Session::new(global.socket.clone(), !global.no_start)?,
            out: Out::new(global.color),
            notes: Paint::new(global.color, io::stderr().is_terminal()),
            json: global.json,
        })
    }

    /// How text is shown.
    pub(crate) fn look(&self) -> Look {
        self.out.look
    }

    /// Writes one object as a line.
    pub(crate) fn json<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        write_json(&mut self.out, value)
    }

    /// Flushes the output, and ends with success.
    pub(crate) fn done(&mut self) -> Result<u8, Failure> {
        self.out.flush()?;
        Ok(harness_protocol::run::exit::SUCCEEDED)
    }
}

/// Writes one object as a line.
pub(crate) fn write_json<T: Serialize + ?Sized>(out: &mut Out, value: &T) -> Result<(), Failure> {
    let json = serde_json::to_string(value).map_err(io::Error::from)?;
    Ok(out.json_text(&json)?)
}
