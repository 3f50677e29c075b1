//! `logs --call`: prints the output of one call by stream: from its start, its last lines, or as it grows.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use harness_protocol::envelope::incomplete_suffix;
use harness_protocol::id::{CallId, ID_CHARS};
use harness_protocol::rpc::{OutputParams, OutputReply, OutputStream, SubscribeParams, method};
use harness_protocol::run::{CallResult, Entry, exit};

use crate::cli::runs::LogsArgs;
use crate::commands::run::transcript_pages::pages;
use crate::context::Ctx;
use crate::error::Failure;
use crate::output::{Out, note};
use crate::render::text::clean;
use crate::render::transcript;
use crate::session::long_poll::of_runs;

/// Bytes of one request.
const CHUNK: u32 = 1024 * 1024;
/// Time between two reads without a delta. Deltas may be dropped, and nothing else reports growth.
const LOOK_ANYWAY: Duration = Duration::from_secs(2);

pub(in crate::commands) fn run(ctx: &mut Ctx, args: &LogsArgs, run: &str, call: &str) -> Result<u8, Failure> {
    let found = find(ctx, run, call)?;
    if ctx.json {
        return match &found.result {
            Some(result) => {
                ctx.json(&**result)?;
                ctx.done()
            }
            None => Err(Failure::nothing_applied(format!("call {} has no result yet", found.call))),
        };
    }
    let streams = match args.stream {
        Some(stream) => vec![stream.into()],
        None if args.raw => vec![OutputStream::Stdout],
        None => vec![OutputStream::Stdout, OutputStream::Stderr],
    };
    if let Some(result) = found.result.as_ref().filter(|result| result.stdout.is_none() && args.stream.is_none()) {
        // A call without a process has no streams: there is only its text for the model.
        let look = ctx.look();
        transcript::block(&mut ctx.out, look, &result.envelope)?;
        return ctx.done();
    }
    let mut readers: Vec<Reader> = Vec::new();
    for stream in streams {
        let offset = match args.tail {
            Some(lines) => tail_start(ctx, &found, stream, lines)?,
            None => 0,
        };
        readers.push(Reader {
            stream,
            offset,
            carry: Vec::new(),
            plain: !args.raw && ctx.out.look.terminal,
            live: true,
            kept: 0,
        });
    }
    let result = if args.follow {
        grow(ctx, &found, &mut readers)?;
        find(ctx, &found.run, &found.call.to_string())?.result
    } else {
        once(ctx, &found, &mut readers)?;
        found.result
    };
    ctx.done()?;
    let mut whole = true;
    for reader in &readers {
        if let Some(line) = result.as_ref().and_then(|result| what_is_missing(reader, result, args.tail.is_some())) {
            note(format_args!("harnessctl: {line}"));
            whole = false;
        }
    }
    // `--tail` means the last lines of the stream, not the last ones that were kept of it.
    Ok(if whole || args.tail.is_none() { exit::SUCCEEDED } else { exit::FAILED })
}

/// The remark about a stream of which not everything was kept.
fn what_is_missing(reader: &Reader, result: &CallResult, tail: bool) -> Option<String> {
    let (name, info) = match reader.stream {
        OutputStream::Stdout => ("stdout", &result.stdout),
        OutputStream::Stderr => ("stderr", &result.stderr),
    };
    let (kept, written) = (reader.kept, info.as_ref()?.bytes);
    match (kept, tail) {
        _ if kept >= written => None,
        (0, _) => Some(format!("none of the {written} bytes of {name} were kept")),
        (_, true) => Some(format!("this is not the end of {name}: only the first {kept} of {written} bytes were kept")),
        (_, false) => Some(format!("only the first {kept} of {written} bytes of {name} were kept")),
    }
}

/// A call, and its result if it has one.
struct Found {
    run: String,
    call: CallId,
    result: Option<Arc<CallResult>>,
}

/// Finds a call by its number in the run, its id or the start of it.
fn find(ctx: &mut Ctx, run: &str, word: &str) -> Result<Found, Failure> {
    let mut calls: Vec<CallId> = Vec::new();
    let mut results: Vec<Arc<CallResult>> = Vec::new();
    let mut live: Vec<CallId> = Vec::new();
    let mut id = run.to_owned();
    pages(ctx, run, |_, run, page| {
        id = run.id.to_string();
        for entry in page {
            match entry {
                Entry::Assistant { calls: requests, .. } => calls.extend(requests.iter().map(|request| request.call)),
                Entry::Result { result } => results.push(result),
                Entry::User { .. } | Entry::Summary { .. } => {}
            }
        }
        live = run.calls.iter().map(|call| call.call).collect();
        Ok(ControlFlow::Continue(()))
    })?;
    // The calls of the current step may be missing in the transcript.
    live.retain(|call| !calls.contains(call));
    calls.extend(live);
    let call = pick(&calls, word).ok_or_else(|| {
        Failure::nothing_applied(format!("run {id} has no call {word:?}; it has {} so far", calls.len()))
    })?;
    let result = results.into_iter().find(|result| result.call == call);
    Ok(Found { run: id, call, result })
}

fn pick(calls: &[CallId], word: &str) -> Option<CallId> {
    if word.len() < ID_CHARS
        && let Ok(number) = word.parse::<usize>()
    {
        return calls.get(number.checked_sub(1)?).copied();
    }
    if let Ok(call) = word.parse::<CallId>() {
        return calls.contains(&call).then_some(call);
    }
    let lower = word.to_ascii_lowercase();
    let mut matching = calls.iter().filter(|call| call.to_string().starts_with(&lower));
    match (matching.next(), matching.next()) {
        (Some(call), None) if !word.is_empty() => Some(*call),
        _ => None,
    }
}

/// One stream that is being read.
struct Reader {
    stream: OutputStream,
    offset: u64,
    /// Bytes of an unfinished character.
    carry: Vec<u8>,
    /// The output is for a terminal: decoded, without control characters.
    plain: bool,
    live: bool,
    /// Bytes of the stream that are kept.
    kept: u64,
}

impl Reader {
    /// Writes the bytes that came since the last read; gives whether there were any.
    fn catch_up(&mut self, ctx: &mut Ctx, found: &Found) -> Result<bool, Failure> {
        let mut any = false;
        loop {
            let reply = read(ctx, found, self.stream, self.offset, CHUNK)?;
            (self.live, self.kept) = (reply.live, reply.total);
            if reply.bytes.is_empty() {
                break;
            }
            any = true;
            self.offset = reply.offset + reply.bytes.len() as u64;
            self.write(&mut ctx.out, &reply.bytes)?;
            ctx.out.flush()?;
            if self.offset >= reply.total {
                break;
            }
        }
        if !self.live {
            let rest = std::mem::take(&mut self.carry);
            ctx.out.write_all(String::from_utf8_lossy(&rest).as_bytes())?;
        }
        Ok(any)
    }

    fn write(&mut self, out: &mut Out, bytes: &[u8]) -> io::Result<()> {
        if !self.plain {
            return out.write_all(bytes);
        }
        let mut whole = std::mem::take(&mut self.carry);
        whole.extend_from_slice(bytes);
        self.carry = whole.split_off(whole.len() - incomplete_suffix(&whole));
        out.write_all(clean(&String::from_utf8_lossy(&whole)).as_bytes())
    }
}

fn once(ctx: &mut Ctx, found: &Found, readers: &mut [Reader]) -> Result<(), Failure> {
    for (index, reader) in readers.iter_mut().enumerate() {
        if index > 0 && read(ctx, found, reader.stream, reader.offset, 1)?.total > 0 {
            // Standard output has what the call wrote, and nothing that this could be taken for.
            ctx.out.flush()?;
            note("--- stderr ---");
        }
        reader.catch_up(ctx, found)?;
    }
    Ok(())
}

/// Reads until the call has ended. A delta only triggers the next read; the bytes always come from the stored output.
fn grow(ctx: &mut Ctx, found: &Found, readers: &mut [Reader]) -> Result<(), Failure> {
    ctx.session.heed_interrupts()?;
    loop {
        match grow_on(ctx, found, readers) {
            Ok(()) => return Ok(()),
            Err(failure) if failure.is_loss() => ctx.session.recover(&failure),
            Err(failure) => Err(failure),
        }
        .map_err(|failure| of_runs(failure, &ctx.session, || vec![found.run.clone()]))?;
    }
}

fn grow_on(ctx: &mut Ctx, found: &Found, readers: &mut [Reader]) -> Result<(), Failure> {
    let params = SubscribeParams { run: Some(found.run.clone()), deltas: true, ..SubscribeParams::default() };
    ctx.session.client()?.call::<method::EventSubscribe>(&params)?;
    loop {
        for reader in readers.iter_mut() {
            reader.catch_up(ctx, found)?;
        }
        if !readers.iter().any(|reader| reader.live) {
            return Ok(());
        }
        let client = ctx.session.client()?;
        client.note(Some(LOOK_ANYWAY))?;
        while client.note_at_hand().is_some() {}
    }
}

fn read(ctx: &mut Ctx, found: &Found, stream: OutputStream, offset: u64, limit: u32) -> Result<OutputReply, Failure> {
    let offset = i64::try_from(offset).unwrap_or(i64::MAX);
    let params = OutputParams { run: found.run.clone(), call: found.call, stream, offset, limit: Some(limit) };
    ctx.session.call::<method::RunOutput>(&params)
}

/// Where the last lines begin. Reads the stream from its end, as far as is needed.
fn tail_start(ctx: &mut Ctx, found: &Found, stream: OutputStream, lines: usize) -> Result<u64, Failure> {
    let total = read(ctx, found, stream, 0, 1)?.total;
    let mut end = total;
    let mut wanted = lines;
    while end > 0 {
        let start = end.saturating_sub(u64::from(CHUNK));
        let size = u32::try_from(end - start).unwrap_or(CHUNK);
        let bytes = read(ctx, found, stream, start, size)?.bytes;
        match last_lines(&bytes, wanted, end == total) {
            Ok(at) => return Ok(start + at as u64),
            Err(left) => wanted = left,
        }
        end = start;
    }
    Ok(0)
}

/// Where the last `wanted` lines begin in these bytes, or how many line breaks are still wanted before them.
fn last_lines(bytes: &[u8], mut wanted: usize, at_end: bool) -> Result<usize, usize> {
    if wanted == 0 && at_end {
        return Ok(bytes.len());
    }
    // The line break at the very end ends the last line, and begins none.
    let body = if at_end { bytes.strip_suffix(b"\n").unwrap_or(bytes) } else { bytes };
    for (at, _) in body.iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n') {
        wanted -= 1;
        if wanted == 0 {
            return Ok(at + 1);
        }
    }
    Err(wanted)
}

#[cfg(test)]
mod tests {
    use super::*;
    use harness_protocol::run::StreamInfo;

    #[test]
    fn what_was_not_kept_is_told() {
        let mut result = CallResult::plain(CallId::from_u64(1), "shell".into(), "", false);
        result.stdout = Some(StreamInfo { bytes: 10, omitted: 0, path: None });
        let told = |kept, tail| {
            let reader =
                Reader { stream: OutputStream::Stdout, offset: 0, carry: Vec::new(), plain: false, live: false, kept };
            what_is_missing(&reader, &result, tail)
        };
        assert_eq!(told(10, false), None);
        assert_eq!(told(4, false).as_deref(), Some("only the first 4 of 10 bytes of stdout were kept"));
        let tail = "this is not the end of stdout: only the first 4 of 10 bytes were kept";
        assert_eq!(told(4, true).as_deref(), Some(tail));
        assert_eq!(told(0, true).as_deref(), Some("none of the 10 bytes of stdout were kept"));
    }

    #[test]
    fn a_call_is_named_by_number_id_or_the_start_of_it() {
        let calls = [CallId::from_u64(u64::MAX), CallId::from_u64(1)];
        assert_eq!(pick(&calls, "1"), Some(calls[0]));
        assert_eq!(pick(&calls, "2"), Some(calls[1]));
        assert_eq!(pick(&calls, "3"), None);
        assert_eq!(pick(&calls, "0"), None);
        assert_eq!(pick(&calls, "fzz"), Some(calls[0]));
        assert_eq!(pick(&calls, "0000000000001"), Some(calls[1]));
        assert_eq!(pick(&calls, ""), None);
    }

    #[test]
    fn the_last_lines_are_found_from_the_end() {
        assert_eq!(last_lines(b"a\nb\nc\n", 2, true), Ok(2));
        assert_eq!(last_lines(b"a\nb\nc", 2, true), Ok(2));
        assert_eq!(last_lines(b"a\nb\nc\n", 0, true), Ok(6));
        assert_eq!(last_lines(b"c\n", 3, true), Err(3));
        assert_eq!(last_lines(b"a\nb\n", 3, false), Err(1), "two of the line breaks are here");
        assert_eq!(last_lines(b"a\nb\nx", 1, false), Ok(4));
    }
}
