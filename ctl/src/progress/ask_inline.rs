//! Shows the questions of followed runs on the terminal, and sends the answers that the user types.
//!
//! The only place that reads answers to questions of runs from a terminal: it decides which question the prompt shows,
//! and when the prompt is removed. Input that was typed before the prompt appeared is not an answer, and neither is an
//! empty line. The answer is sent by the same request as that of `reply`. If another answer was first, the daemon
//! refuses this one.

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, BufRead, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};

use harness_protocol::id::{InteractionId, RunId};
use harness_protocol::interaction::{InteractionKind, Resolution};
use harness_protocol::rpc::{AnswerParams, InteractionListParams, method};
use harness_protocol::run::{OpenQuestion, RunView};
use rustix::termios::{QueueSelector, tcflush};

use crate::context::Ctx;
use crate::error::Failure;
use crate::output::{note, notes_look};
use crate::render::colour::Paint;
use crate::render::quote::{behind, block};
use crate::render::run::short;
use crate::render::text::clean;
use crate::select::confirm::is_attended;

/// A question, and the followed run that it belongs to.
#[derive(Debug, Clone)]
struct Asked {
    question: OpenQuestion,
    of: RunId,
}

/// Asks the open questions, one after the other.
#[derive(Debug)]
pub(crate) struct Asker {
    is_on: bool,
    /// Whether standard output is a terminal, on which the question of a followed run is shown already.
    is_shown: bool,
    paint: Paint,
    stdin: io::Stdin,
    waiting: VecDeque<Asked>,
    current: Option<Asked>,
    /// Whether the prompt is on the last line.
    stands: bool,
    /// The beginning of an answer that is being typed.
    typed: Vec<u8>,
    /// Questions that were asked, or left open: they are not asked again.
    done: BTreeSet<InteractionId>,
}

impl Asker {
    /// Makes an asker. It is active if it is `wanted` and there is a terminal.
    pub(crate) fn new(wanted: bool, is_shown: bool, paint: Paint) -> Self {
        Self {
            is_on: wanted && is_attended(),
            is_shown,
            paint,
            stdin: io::stdin(),
            waiting: VecDeque::new(),
            current: None,
            stands: false,
            typed: Vec::new(),
            done: BTreeSet::new(),
        }
    }

    /// Whether questions are asked here.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on
    }

    /// The input to wait for while there is a prompt.
    pub(crate) fn input(&self) -> Option<BorrowedFd<'_>> {
        self.current.as_ref().map(|_| self.stdin.as_fd())
    }

    /// Updates the open questions of a run and of the runs below it.
    pub(crate) fn see(&mut self, run: &RunView) {
        if !self.is_on {
            return;
        }
        let is_open = |asked: &Asked| asked.of != run.id || run.questions.iter().any(|one| one.id == asked.question.id);
        self.keep(is_open);
        for question in &run.questions {
            if self.done.insert(question.id) {
                self.waiting.push_back(Asked { question: question.clone(), of: run.id });
            }
        }
    }

    /// A followed run has ended, so its questions and those below it are closed.
    pub(crate) fn over(&mut self, run: RunId) {
        self.keep(|asked| asked.of != run);
    }

    /// Drops the other questions, and removes the prompt if it is for one of them.
    fn keep(&mut self, is_open: impl Fn(&Asked) -> bool) {
        self.waiting.retain(&is_open);
        if let Some(gone) = self.current.take_if(|asked| !is_open(asked)) {
            self.interrupt();
            self.forget_typed();
            note(
                self.paint.dim(format_args!("[{} {} needs no answer any more]", gone.question.kind, gone.question.id)),
            );
        }
    }

    /// Prepares for other output: that output begins on its own line, and the prompt is shown again after it.
    pub(crate) fn interrupt(&mut self) {
        if std::mem::take(&mut self.stands) {
            let _told = writeln!(io::stderr().lock());
        }
    }

    /// Shows the prompt for the next open question, if there is none yet.
    pub(crate) fn prompt(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        if self.current.is_none() {
            let Some(asked) = self.waiting.pop_front() else { return Ok(()) };
            if !(self.is_shown && asked.of == asked.question.run) {
                // It is settled already, or could not be shown whole.
                let Some((text, subject)) = whole(ctx, &asked.question)? else { return self.prompt(ctx) };
                let look = notes_look(self.paint);
                let beginning = format!("? run {} asks: ", short(asked.question.run));
                let shown = behind(look, &beginning, &asked.question.kind.asks(&text));
                note(shown.replacen('?', &self.paint.yellow("?"), 1));
                if let Some(subject) = subject {
                    note("  it is to execute:");
                    block(look, &subject).lines().for_each(note);
                }
            }
            self.forget_typed();
            self.current = Some(asked);
        }
        if let (false, Some(asked)) = (self.stands, &self.current) {
            let run = short(asked.question.run);
            let wants = if asked.question.kind.comes_first() {
                format!("y or n for run {run}")
            } else {
                format!("answer run {run}")
            };
            let prompt = format!("{wants} (Ctrl-D: later): ");
            let mut err = io::stderr().lock();
            // If the prompt cannot be written, the question is not answered below.
            let _asked = write!(err, "{}", self.paint.bold(prompt)).and_then(|()| err.flush());
            self.stands = true;
        }
        Ok(())
    }

    /// Reads the typed line, and answers with it.
    pub(crate) fn read(&mut self, ctx: &mut Ctx) -> Result<(), Failure> {
        let Some(asked) = self.current.clone() else { return Ok(()) };
        let mut stdin = self.stdin.lock();
        // One read: a terminal gives a line, or the beginning of a line that was sent without its end.
        let read = stdin.fill_buf().map(<[u8]>::to_vec);
        let typed = read.as_ref().map_or(&[][..], Vec::as_slice);
        stdin.consume(typed.len());
        drop(stdin);
        self.typed.extend_from_slice(typed);
        let end = self.typed.iter().position(|&byte| byte == b'\n');
        if typed.is_empty() {
            self.leave();
            // A closed terminal is not read again.
            self.is_on &= read.is_ok() && self.stdin.is_terminal();
            return Ok(());
        }
        let Some(end) = end else { return Ok(()) };
        // The line break that the user typed has ended the prompt's line.
        self.stands = false;
        let line = std::mem::take(&mut self.typed)[..end].to_vec();
        let text = String::from_utf8(line);
        let answer = match text.as_deref().map(str::trim_end) {
            Err(_) => {
                note("harnessctl: that is not UTF-8");
                return Ok(());
            }
            Ok("") => {
                let id = asked.question.id;
                note(self.paint.dim(format_args!("[an empty answer is given with: harnessctl reply {id} '']")));
                return Ok(());
            }
            Ok(answer) => answer,
        };
        let Some((resolution, answer)) = decision(asked.question.kind, answer) else {
            note(self.paint.dim("[y allows it, n denies it]"));
            return Ok(());
        };
        let params =
            AnswerParams { interaction: asked.question.id.to_string(), answer: answer.into(), resolution, scope: None };
        match ctx.session.client()?.call::<method::InteractionAnswer>(&params).map_err(Failure::from) {
            Ok(_) => self.current = None,
            // Another client has answered it, or its run has ended; the refusal says which.
            Err(Failure::Refused(error)) => {
                note(format_args!("harnessctl: {}", clean(&error.message)));
                self.current = None;
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    /// Leaves the current question open, and prints the command that answers it.
    pub(crate) fn leave(&mut self) {
        self.interrupt();
        for asked in self.current.take().into_iter().chain(std::mem::take(&mut self.waiting)) {
            let OpenQuestion { id, kind, .. } = asked.question;
            note(format_args!("{kind} {id} stays open; answer it: {}", kind.how_to_settle(id)));
        }
    }

    fn forget_typed(&mut self) {
        self.typed.clear();
        // If this fails, earlier input is taken for an answer, as in a shell.
        let _forgotten = tcflush(&self.stdin, QueueSelector::IFlush);
    }
}

/// What the typed line says to an interaction of this kind; `None` where it says nothing.
fn decision(kind: InteractionKind, line: &str) -> Option<(Resolution, &str)> {
    match line.to_ascii_lowercase().as_str() {
        _ if !kind.comes_first() => Some((Resolution::Answered, line)),
        "y" | "yes" => Some((Resolution::Allowed, "")),
        "n" | "no" => Some((Resolution::Denied, "")),
        _ => None,
    }
}

/// The whole text of a question that a view may have shortened, and what a person has to allow; `None` where it is not
/// known what that is.
fn whole(ctx: &mut Ctx, question: &OpenQuestion) -> Result<Option<(String, Option<String>)>, Failure> {
    let mut params = InteractionListParams::default();
    loop {
        let page = ctx.session.client()?.call::<method::InteractionList>(&params)?;
        if let Some(found) = page.interactions.into_iter().find(|one| one.id == question.id) {
            return Ok(Some((found.question.to_string(), found.to_be_allowed().map(str::to_owned))));
        }
        params.cursor = page.cursor;
        if params.cursor.is_none() {
            return Ok((!question.kind.comes_first()).then(|| (question.question.clone(), None)));
        }
    }
}
