//! `export`: writes everything about one run into a directory.
//!
//! The directory is hidden until it is whole; then it gets its name. Every write is relative to that open directory,
//! because a run may be able to write to the directory around it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use harness_files::{Anew, Dir};
use harness_protocol::event::EventBody;
use harness_protocol::id::CallId;
use harness_protocol::rpc::{ExportParams, OutputParams, OutputStream, ShowParams, method};
use harness_protocol::run::{CallResult, RunView, exit};
use serde::Serialize;

use crate::cli::runs::ExportArgs;
use crate::commands::run::export_script::Exported;
use crate::context::Ctx;
use crate::error::Failure;
use crate::exit_code::worst;
use crate::output::{Progress, note};
use crate::render::units::{bytes, count};
use crate::select::{choose, only_name};

/// Bytes of one request for output.
const CHUNK: u32 = 4 * 1024 * 1024;

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &ExportArgs) -> Result<u8, Failure> {
    let dir = std::path::absolute(&args.dir).map_err(|source| failed(&args.dir, source))?;
    if let Some(run) = only_name(&args.select) {
        return one(ctx, run, &dir);
    }
    let runs = choose(ctx, &args.select)?.runs;
    DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|source| failed(&dir, source))?;
    let mut codes = Vec::new();
    for run in &runs {
        codes.push(one(ctx, &run.id.to_string(), &dir.join(run.id.to_string()))?);
    }
    Ok(worst(codes))
}

/// Writes one run into a directory of its own.
fn one(ctx: &mut Ctx, run: &str, dir: &Path) -> Result<u8, Failure> {
    check(dir)?;
    let anew = Anew::beside(dir).map_err(|source| failed(dir, source))?;
    // If it is dropped before it has its name, it is removed.
    let told = write_all(ctx, run, &Place { dir: anew.dir(), path: dir })?;
    anew.place_whole().map_err(|source| failed(dir, source))?;
    if ctx.json {
        ctx.json(&told)?;
    }
    ctx.done()?;
    for missing in &told.missing {
        note(format_args!("harnessctl: {missing}"));
    }
    let (events, outputs) = (count(told.events, "event"), count(told.outputs, "output"));
    let what = format!("{}: {events}, {outputs} ({})", dir.display(), bytes(told.output_bytes));
    note(ctx.notes.dim(what));
    Ok(if told.missing.is_empty() { exit::SUCCEEDED } else { exit::FAILED })
}

/// Refuses an existing path, unless it is an empty directory.
fn check(dir: &Path) -> Result<(), Failure> {
    if dir.file_name().is_none() {
        return Err(Failure::usage(format!("{} is no name for a new directory", dir.display())));
    }
    match fs::read_dir(dir).map(Iterator::count) {
        Ok(0) => Ok(()),
        Ok(_) => {
            let message = format!("{} is not empty", dir.display());
            Err(Failure::usage_hint(message, "name a new directory, or an empty one"))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(source) => Err(failed(dir, source)),
    }
}

/// The directory of the export, and the path under which it is shown.
#[derive(Clone, Copy)]
struct Place<'a> {
    dir: &'a Dir,
    path: &'a Path,
}

impl Place<'_> {
    /// Creates a file, which must not exist.
    fn create(self, name: &str) -> Result<(PathBuf, File), Failure> {
        let path = self.path.join(name);
        let file = self.dir.create(name, 0o666).map_err(|source| failed(&path, source))?;
        Ok((path, file))
    }
}

/// What the export wrote.
#[derive(Debug, Default, Serialize)]
struct Told {
    run: String,
    events: usize,
    entries: usize,
    turns: usize,
    outputs: usize,
    output_bytes: u64,
    /// The parts that could not be exported.
    missing: Vec<String>,
}

fn write_all(ctx: &mut Ctx, name: &str, place: &Place<'_>) -> Result<Told, Failure> {
    let mut told = Told::default();
    let mut progress = Progress::new();
    let mut script = Exported::default();
    let mut streams = Vec::new();
    let run = events(ctx, name, place, &mut told, &mut |body| {
        if let EventBody::CallFinished { result } = body {
            streams.extend(streams_of(result));
        }
        script.take(body);
    })?;
    told.run = run.id.to_string();
    transcript(ctx, &told.run.clone(), place, &mut told)?;
    told.turns = script.turns();
    match script.text(&run) {
        Ok(text) => {
            let (path, mut file) = place.create("script.toml")?;
            file.write_all(text.as_bytes()).map_err(|source| failed(&path, source))?;
        }
        Err(why) => told.missing.push(format!("there is no script.toml: {why}")),
    }
    let mut json = Lines::create(place, "run.json")?;
    json.line(&run)?;
    json.finish()?;
    if !streams.is_empty() {
        let path = place.path.join("outputs");
        let dir = place.dir.make("outputs").map_err(|source| failed(&path, source))?;
        let outputs = Place { dir: &dir, path: &path };
        for (call, stream, written) in streams {
            progress.show(format_args!("{} of outputs", bytes(told.output_bytes)));
            output(ctx, &outputs, (call, stream, written), &mut told)?;
        }
    }
    Ok(told)
}

/// Writes the events, and gives the run as it was after the last of them.
fn events(
    ctx: &mut Ctx,
    name: &str,
    place: &Place<'_>,
    told: &mut Told,
    each: &mut dyn FnMut(&EventBody),
) -> Result<RunView, Failure> {
    let mut file = Lines::create(place, "events.jsonl")?;
    let mut params = ExportParams { run: name.to_owned(), limit: None, cursor: None };
    loop {
        let page = ctx.session.call::<method::RunExport>(&params)?;
        for seq in &page.left_out {
            told.missing.push(format!("event {seq} cannot be read, or is of a kind that only a later daemon knows"));
        }
        for event in &page.events {
            file.line(&**event)?;
            told.events += 1;
            each(&event.body);
        }
        if page.cursor.is_none() {
            file.finish()?;
            return Ok(page.run);
        }
        // A name may mean another run by the time of the next page; the id does not.
        params = ExportParams { run: page.run.id.to_string(), limit: None, cursor: page.cursor };
    }
}

fn transcript(ctx: &mut Ctx, run: &str, place: &Place<'_>, told: &mut Told) -> Result<(), Failure> {
    let mut file = Lines::create(place, "transcript.jsonl")?;
    let mut params = ShowParams { run: run.to_owned(), transcript: true, limit: None, cursor: None };
    loop {
        let page = ctx.session.call::<method::RunShow>(&params)?;
        for entry in &page.transcript {
            file.line(entry)?;
            told.entries += 1;
        }
        match page.cursor {
            Some(cursor) => params.cursor = Some(cursor),
            None => return file.finish(),
        }
    }
}

/// The streams of a call that have bytes, and how many were written.
fn streams_of(result: &CallResult) -> impl Iterator<Item = (CallId, OutputStream, u64)> + use<> {
    let call = result.call;
    let of = |info: &Option<harness_protocol::run::StreamInfo>| info.as_ref().map_or(0, |info| info.bytes);
    [(OutputStream::Stdout, of(&result.stdout)), (OutputStream::Stderr, of(&result.stderr))]
        .into_iter()
        .filter(|(_, written)| *written > 0)
        .map(move |(stream, written)| (call, stream, written))
}

/// Writes the kept part of one stream of a call.
fn output(
    ctx: &mut Ctx,
    place: &Place<'_>,
    (call, stream, written): (CallId, OutputStream, u64),
    told: &mut Told,
) -> Result<(), Failure> {
    let word = match stream {
        OutputStream::Stdout => "stdout",
        OutputStream::Stderr => "stderr",
    };
    let (path, mut file) = place.create(&format!("{call}.{word}"))?;
    let mut offset = 0;
    loop {
        let at = i64::try_from(offset).unwrap_or(i64::MAX);
        let params = OutputParams { run: told.run.clone(), call, stream, offset: at, limit: Some(CHUNK) };
        let reply = ctx.session.call::<method::RunOutput>(&params)?;
        file.write_all(&reply.bytes).map_err(|source| failed(&path, source))?;
        offset += reply.bytes.len() as u64;
        if reply.bytes.is_empty() || offset >= reply.total {
            break;
        }
    }
    told.outputs += 1;
    told.output_bytes += offset;
    if offset < written {
        told.missing.push(format!("of {word} of call {call} there are {offset} of {written} bytes"));
    }
    Ok(())
}

/// A file of JSON lines.
struct Lines {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Lines {
    fn create(place: &Place<'_>, name: &str) -> Result<Self, Failure> {
        let (path, file) = place.create(name)?;
        Ok(Self { path, file: BufWriter::new(file) })
    }

    fn line<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Failure> {
        serde_json::to_writer(&mut self.file, value)
            .map_err(io::Error::from)
            .and_then(|()| self.file.write_all(b"\n"))
            .map_err(|source| failed(&self.path, source))
    }

    fn finish(mut self) -> Result<(), Failure> {
        self.file.flush().map_err(|source| failed(&self.path, source))
    }
}

fn failed(path: &Path, source: io::Error) -> Failure {
    Failure::Write { path: path.to_owned(), source, hint: None }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_directory_with_something_in_it_is_refused_and_an_empty_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check(&dir.path().join("new")).is_ok());
        fs::create_dir(dir.path().join("empty")).unwrap();
        assert!(check(&dir.path().join("empty")).is_ok());
        assert_eq!(check(dir.path()).unwrap_err().code(), 2);
        assert_eq!(check(Path::new("/")).unwrap_err().code(), 2);
    }
}
