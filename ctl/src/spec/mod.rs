//! Builds a run specification from arguments: prompt, script, environment, limits.
//!
//! It reads files and standard input only if the arguments name them. It must not send anything.

pub(crate) mod batch;
pub(crate) mod env;
pub(crate) mod script;
pub(crate) mod stdin;

use std::fs::OpenOptions;
use std::io::{self, IsTerminal};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use harness_protocol::folder::FolderId;
use harness_protocol::limit::CallLimits;
use harness_protocol::spec::{Limits, OnInteraction, RunSpec, SpecChanges};

use crate::cli::submit::{ChangesArgs, SubmitArgs};
use crate::cli::values::Deadline;
use crate::error::Failure;

/// The specification from the options, with its prompt, and its working directory.
pub(crate) fn run(args: &SubmitArgs) -> Result<(RunSpec, OwnedFd), Failure> {
    let (mut spec, workdir) = with_workdir(args)?;
    spec.prompt = prompt(args.prompt.as_deref(), spec.script.is_some())?;
    Ok((spec, workdir))
}

/// The specification from the options, without a prompt.
pub(crate) fn defaults(args: &SubmitArgs) -> Result<RunSpec, Failure> {
    with_workdir(args).map(|(spec, _)| spec)
}

fn with_workdir(args: &SubmitArgs) -> Result<(RunSpec, OwnedFd), Failure> {
    one_reader_of_stdin(args)?;
    let workdir = workdir(args.workdir.as_deref().unwrap_or(Path::new(".")))?;
    let script = args.script.as_deref().map(script::read).transpose()?;
    let settings = &args.settings;
    let spec = RunSpec {
        name: settings.name.as_deref().map(Arc::from),
        labels: args.labels.iter().cloned().collect(),
        share: settings.share.as_deref().map(Arc::from),
        priority: settings.priority.map(Into::into).unwrap_or_default(),
        provider: settings.provider.as_deref().map(Arc::from),
        model: settings.model.as_deref().map(Arc::from),
        script: script.map(Arc::new),
        workdir: Some(workdir.path),
        workdir_id: Some(workdir.id),
        env: env::collect(&settings.env, &settings.env_file, &env::here)?,
        limits: limits(settings),
        on_interaction: settings.on_interaction.map_or_else(on_interaction, Into::into),
        ..RunSpec::default()
    };
    Ok((spec, workdir.folder))
}

/// The limits from the options.
fn limits(settings: &ChangesArgs) -> Limits {
    let (deadline_seconds, deadline_at) = match settings.deadline {
        None => (None, None),
        Some(Deadline::In(span)) => (Some(span), None),
        Some(Deadline::At(at)) => (None, Some(at)),
    };
    let mut of_calls = CallLimits::default();
    for &(limit, value) in &settings.limits {
        *limit.of_mut(&mut of_calls) = Some(value);
    }
    let mut limits = Limits {
        max_steps: settings.max_steps,
        max_tokens: settings.max_tokens,
        max_cost_usd: settings.max_cost,
        max_time_seconds: settings.max_time,
        deadline_seconds,
        deadline_at,
        ..Limits::default()
    };
    limits.set_of_calls(of_calls);
    limits
}

/// The changes of a retry from the options.
pub(crate) fn changes(settings: &ChangesArgs, labels: &[(String, String)]) -> Result<SpecChanges, Failure> {
    let name = |text: &Option<String>| text.as_deref().map(Arc::from);
    Ok(SpecChanges {
        name: name(&settings.name),
        labels: labels.iter().cloned().collect(),
        share: name(&settings.share),
        priority: settings.priority.map(Into::into),
        provider: name(&settings.provider),
        model: name(&settings.model),
        // The environment of the first run, such as its PATH, stays.
        env: env::named(&settings.env, &settings.env_file, &env::here)?,
        limits: limits(settings),
        on_interaction: settings.on_interaction.map(Into::into),
    })
}

/// Refuses two uses of standard input.
fn one_reader_of_stdin(args: &SubmitArgs) -> Result<(), Failure> {
    let dash = Some(Path::new("-"));
    let readers = [
        ("the prompt", args.prompt.as_deref() == Some("-")),
        ("--script", args.script.as_deref() == dash),
        ("--batch", args.batch.as_deref() == dash),
    ];
    let readers: Vec<&str> = readers.into_iter().filter(|(_, reads)| *reads).map(|(name, _)| name).collect();
    match readers.as_slice() {
        [one, other, ..] => Err(Failure::usage(format!("{one} and {other} cannot both come from standard input"))),
        _ => Ok(()),
    }
}

/// Without a terminal no person can answer, so a run that asks must not wait for ever.
fn on_interaction() -> OnInteraction {
    if io::stdin().is_terminal() || io::stderr().is_terminal() { OnInteraction::Wait } else { OnInteraction::Fail }
}

fn prompt(typed: Option<&str>, has_script: bool) -> Result<Option<Arc<str>>, Failure> {
    let hint = "harnessctl submit \"PROMPT\", or `-` to read it from standard input, or --script FILE";
    let text = match typed {
        None if has_script => return Ok(None),
        None => return Err(Failure::usage_hint("there is no prompt", hint)),
        Some("-") => stdin::read("the prompt")?,
        Some(text) => text.to_owned(),
    };
    if text.trim().is_empty() {
        return Err(Failure::usage_hint("the prompt is empty", hint));
    }
    Ok(Some(text.into()))
}

/// A text argument, or standard input for `-`.
pub(crate) fn text(typed: &str, what: &str) -> Result<Arc<str>, Failure> {
    let text = if typed == "-" { stdin::read(what)? } else { typed.to_owned() };
    if text.trim().is_empty() { Err(Failure::usage(format!("{what} is empty"))) } else { Ok(text.into()) }
}

/// A working directory: its path, its identity, and the open folder.
#[derive(Debug)]
pub(crate) struct Workdir {
    pub(crate) path: Arc<str>,
    pub(crate) id: FolderId,
    pub(crate) folder: OwnedFd,
}

/// A directory as an absolute path, with its identity: the daemon has another working directory, and may see another
/// file system. A path that is not a directory is reported at once.
pub(crate) fn workdir(dir: &Path) -> Result<Workdir, Failure> {
    let failed = |source| Failure::Read { path: dir.to_owned(), source };
    let path = std::path::absolute(dir).map_err(failed)?;
    // `.` and `..` would mean another place for a later reader.
    let path = path.canonicalize().map_err(failed)?;
    if !path.is_dir() {
        return Err(Failure::usage(format!("{} is not a directory, and no call could start there", path.display())));
    }
    // The descriptor only identifies the folder, so the folder need not be readable.
    let flags = nix::libc::O_PATH | nix::libc::O_DIRECTORY;
    let folder = OpenOptions::new().read(true).custom_flags(flags).open(&path).map_err(failed)?;
    let stat = folder.metadata().map_err(failed)?;
    let id = FolderId { device: stat.dev(), inode: stat.ino(), boot: None };
    let path = path
        .into_os_string()
        .into_string()
        .map_err(|path| Failure::usage(format!("the directory {} is not UTF-8", path.to_string_lossy())))?;
    Ok(Workdir { path: path.into(), id, folder: folder.into() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn without_prompt_and_script_there_is_nothing_to_do() {
        let error = prompt(None, false).unwrap_err();
        assert_eq!((error.code(), error.to_string()), (2, "there is no prompt".to_owned()));
        assert!(error.hint().unwrap().contains("--script"));
        assert_eq!(prompt(None, true).unwrap(), None);
        assert_eq!(prompt(Some(" \n"), true).unwrap_err().code(), 2);
        assert_eq!(prompt(Some("hi"), false).unwrap().as_deref(), Some("hi"));
    }

    #[test]
    fn a_directory_is_made_absolute_and_refused_where_it_is_none() {
        assert!(Path::new(&*workdir(Path::new(".")).unwrap().path).is_absolute());
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "").unwrap();
        std::os::unix::fs::symlink("nowhere", dir.path().join("dangling")).unwrap();
        std::os::unix::fs::symlink("round", dir.path().join("round")).unwrap();
        for wrong in ["no/such", "file", "file/below", "dangling", "round", ""] {
            let path = if wrong.is_empty() { Path::new("").to_owned() } else { dir.path().join(wrong) };
            assert_eq!(workdir(&path).unwrap_err().code(), 2, "{wrong:?}");
        }
        let inside = dir.path().join("./inside/..");
        std::fs::create_dir(dir.path().join("inside")).unwrap();
        let inside = workdir(&inside).unwrap();
        assert_eq!(&*inside.path, dir.path().canonicalize().unwrap().to_str().unwrap());
        let stat = dir.path().metadata().unwrap();
        assert_eq!(inside.id, FolderId { device: stat.dev(), inode: stat.ino(), boot: None });
    }
}
