//! Writes the lines of followed runs to standard output, or to the file that the user named. It must not decide which
//! lines there are.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use harness_files::open_to_write;
use serde::Serialize;

use crate::error::Failure;
use crate::output::Out;

/// The destination of lines.
#[derive(Debug)]
pub(crate) struct Sink {
    file: Option<(PathBuf, BufWriter<File>)>,
}

impl Sink {
    /// The named file, which is emptied; or standard output.
    pub(crate) fn new(path: Option<&Path>) -> Result<Self, Failure> {
        let file = match path {
            Some(path) => Some((path.to_owned(), BufWriter::new(open_to_write(path).map_err(|e| failed(path, e))?))),
            None => None,
        };
        Ok(Self { file })
    }

    /// Writes a line.
    pub(crate) fn line(&mut self, out: &mut Out, line: &str) -> Result<(), Failure> {
        match &mut self.file {
            Some((path, file)) => writeln!(file, "{line}").map_err(|e| failed(path, e)),
            None => Ok(writeln!(out, "{line}")?),
        }
    }

    /// Writes an object as a line.
    pub(crate) fn json<T: Serialize>(&mut self, out: &mut Out, value: &T) -> Result<(), Failure> {
        let line = serde_json::to_string(value).map_err(io::Error::from)?;
        if self.file.is_none() { Ok(out.json_text(&line)?) } else { self.line(out, &line) }
    }

    /// Flushes the written lines.
    pub(crate) fn flush(&mut self, out: &mut Out) -> Result<(), Failure> {
        match &mut self.file {
            Some((path, file)) => file.flush().map_err(|e| failed(path, e)),
            None => Ok(out.flush()?),
        }
    }
}

fn failed(path: &Path, source: io::Error) -> Failure {
    Failure::Write { path: path.to_owned(), source, hint: None }
}
