//! Limits the size of a run's view: each text has a bound, counted in bytes of JSON, and a mark where it is cut.
//!
//! The only place with these bounds. They guarantee that one run never makes a reply too large for a frame, and never
//! keeps the other runs off its page. A listing that an older daemon stored may have longer texts: it is cut when it is
//! read.

use std::sync::Arc;

use harness_protocol::MAX_FRAME_BYTES;
use harness_protocol::json_size::{cut, is_longer, text_bytes};
use harness_protocol::run::{CallRequest, CallResult, CutField, Entry, InferenceView, RunLine, RunView, WaitingFor};

/// Bytes of an answer. It is the largest size that an answer may have, so that a client that waits for a run gets the
/// answer whole.
pub(in crate::world) const MOST_ANSWER: usize = 4 * 1024 * 1024;
/// Bytes of an answer in a list.
const LISTED_ANSWER: usize = 256 * 1024;
/// Bytes of an error of a provider, of a script or of the daemon.
pub(in crate::world) const MOST_ERROR: usize = 64 * 1024;
/// Denials that are shown.
const MOST_DENIALS: usize = 100;
/// Bytes of one of them.
const MOST_DENIAL: usize = 4 * 1024;
/// Bytes of a working directory: twice the longest path.
const MOST_WORKDIR: usize = 8 * 1024;
/// Bytes of the name of a model.
const MOST_MODEL: usize = 1024;
/// Bytes of an answer that is left where something else has to fit beside it.
const LEAST_ANSWER: usize = 1024;
/// Bytes of a view that has no texts.
const FIXED: usize = 1_500;
/// Bytes of a line that has no texts.
const FIXED_LINE: usize = 600;
/// Bytes of one entry of a transcript beside which the view of its run still fits into a frame.
const MOST_ENTRY: usize = 7 * 1024 * 1024 + 64 * 1024;
/// Bytes of a frame that a reply may use: the rest is for what is around its result.
pub const REPLY_BYTES: usize = MAX_FRAME_BYTES - 16 * 1024;

/// Cuts a view to what a reply holds.
pub fn fit(view: &mut RunView) {
    shorten(&mut view.answer, MOST_ANSWER, CutField::Answer, &mut view.cut);
    shorten(&mut view.error, MOST_ERROR, CutField::Error, &mut view.cut);
    shorten(&mut view.model, MOST_MODEL, CutField::Model, &mut view.cut);
    if is_longer(&view.workdir, MOST_WORKDIR) {
        view.workdir = cut(&view.workdir, MOST_WORKDIR).into();
        note(&mut view.cut, CutField::Workdir);
    }
    // What a provider said last: the run's error, once it has one, has more of it.
    fit_wait(view.waiting_for.as_mut(), view.inference.as_mut());
    if view.denials.len() > MOST_DENIALS + 1 || view.denials.iter().any(|denial| is_longer(denial, MOST_DENIAL)) {
        let denials: Vec<Arc<str>> = std::mem::take(&mut view.denials).into_iter().map(Arc::from).collect();
        take_denials(view, &denials);
    }
}

/// Cuts a line to what a list holds.
pub(in crate::world) fn fit_line(line: &mut RunLine) {
    if line.model.as_ref().is_some_and(|model| is_longer(model, MOST_MODEL)) {
        line.model = line.model.take().map(|model| fit_text(&model, MOST_MODEL));
    }
    fit_wait(line.waiting_for.as_mut(), line.inference.as_mut());
}

fn fit_wait(waits: Option<&mut WaitingFor>, inference: Option<&mut InferenceView>) {
    let fit_error = |inference: &mut InferenceView| inference.error = fit_text(&inference.error, MOST_DENIAL);
    if let Some(waits) = waits {
        waits.error = waits.error.take().map(|error| fit_text(&error, MOST_DENIAL));
        if let Some(held) = &mut waits.because {
            held.waiting_for.error = held.waiting_for.error.take().map(|error| fit_text(&error, MOST_DENIAL));
            held.inference.as_mut().map(fit_error);
        }
    }
    inference.map(fit_error);
}

/// Takes over what was refused, as much of it as fits.
pub(in crate::world) fn take_denials(view: &mut RunView, denials: &[Arc<str>]) {
    let shown = denials.iter().take(MOST_DENIALS);
    view.denials = shown.clone().map(|denial| cut(denial, MOST_DENIAL).into_owned()).collect();
    let more = denials.len() - view.denials.len();
    if more > 0 {
        view.denials.push(format!("… [{more} more]"));
    }
    if more > 0 || shown.zip(&view.denials).any(|(whole, shown)| **whole != **shown) {
        note(&mut view.cut, CutField::Denials);
    }
}

/// Cuts a view to what a list holds: its answer is not all that the list is about.
pub(in crate::world) fn fit_list(view: &mut RunView) {
    fit(view);
    view.env.clear();
    shorten(&mut view.answer, LISTED_ANSWER, CutField::Answer, &mut view.cut);
}

/// Cuts the answer of a view so that the view takes at most `room` bytes, as far as it can: something else has to fit
/// beside it, and a transcript has the answer as well.
pub fn leave_room(view: &mut RunView, room: usize) {
    let bytes = view_bytes(view);
    if bytes > room {
        let answer = view.answer.as_ref().map_or(0, |answer| text_bytes(answer));
        let most = room.saturating_sub(bytes - answer).max(LEAST_ANSWER);
        shorten(&mut view.answer, most, CutField::Answer, &mut view.cut);
    }
}

/// About how many bytes a run takes on the wire, and no fewer.
pub(in crate::world) fn view_bytes(view: &RunView) -> usize {
    let optional = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text_bytes(text));
    let texts = optional(&view.answer) + optional(&view.error) + optional(&view.model) + optional(&view.name);
    let labels: usize = view.labels.iter().map(|(key, value)| text_bytes(key) + text_bytes(value) + 6).sum();
    let denials: usize = view.denials.iter().map(|denial| text_bytes(denial) + 3).sum();
    let calls: usize = view.calls.iter().map(|call| text_bytes(&call.tool) + text_bytes(&call.summary) + 160).sum();
    let names =
        text_bytes(&view.title) + text_bytes(&view.workdir) + text_bytes(&view.share) + text_bytes(&view.provider);
    let waits = view.waiting_for.as_ref().map_or(0, wait_bytes);
    let inference = view.inference.as_ref().map_or(0, |inference| text_bytes(&inference.error) + 250);
    let questions: usize = view.questions.iter().map(|question| text_bytes(&question.question) + 80).sum();
    let env: usize = view.env.iter().map(|name| text_bytes(name) + 3).sum();
    env + texts + labels + denials + calls + names + waits + inference + questions + FIXED
}

/// About how many bytes the line of a run takes on the wire, and no fewer.
pub(in crate::world) fn line_bytes(line: &RunLine) -> usize {
    let optional = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text_bytes(text));
    let labels: usize = line.labels.iter().map(|(key, value)| text_bytes(key) + text_bytes(value) + 6).sum();
    let texts = text_bytes(&line.title) + text_bytes(&line.share) + text_bytes(&line.provider);
    let waits = line.waiting_for.as_ref().map_or(0, wait_bytes);
    let inference = line.inference.as_ref().map_or(0, |inference| text_bytes(&inference.error) + 250);
    labels + texts + waits + inference + optional(&line.name) + optional(&line.model) + FIXED_LINE
}

fn wait_bytes(waits: &WaitingFor) -> usize {
    let optional = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text_bytes(text));
    let held = waits.because.as_ref().map_or(0, |held| {
        let said = held.inference.as_ref().map_or(0, |inference| text_bytes(&inference.error) + 250);
        text_bytes(&held.share) + optional(&held.waiting_for.error) + said + 400
    });
    optional(&waits.error) + 200 + held
}

/// About how many bytes an entry of a transcript takes on the wire.
pub(in crate::world) fn entry_bytes(entry: &Entry) -> usize {
    match entry {
        Entry::User { text } | Entry::Summary { text, .. } => text_bytes(text) + 100,
        Entry::Assistant { text, calls, carried, .. } => {
            let carried = carried.as_ref().map_or(0, |carried| text_bytes(&carried.parts) + 200);
            text_bytes(text) + calls.iter().map(call_bytes).sum::<usize>() + carried + 100
        }
        Entry::Result { result } => text_bytes(&result.envelope) + text_bytes(&result.tool) + 800,
    }
}

fn call_bytes(call: &CallRequest) -> usize {
    let unusable = call.unusable.as_ref().map_or(0, |text| text_bytes(text));
    let given = call.given.as_ref().map_or(0, |given| text_bytes(&given.id) + text_bytes(&given.provider) + 40);
    let ask = call.ask.as_ref().map_or(0, |ask| ask.text.as_ref().map_or(0, |text| text_bytes(text)) + 100);
    text_bytes(&call.args) + text_bytes(&call.tool) + unusable + given + ask + 100
}

/// An entry as it is shown: whole, unless it is larger than a frame, as those of older daemons may be.
pub(in crate::world) fn fit_entry(entry: &Entry) -> Entry {
    if entry_bytes(entry) <= MOST_ENTRY {
        return entry.clone();
    }
    match entry {
        Entry::User { text } => Entry::User { text: fit_text(text, MOST_ENTRY / 2) },
        Entry::Summary { text, entries, kept } => {
            Entry::Summary { text: fit_text(text, MOST_ENTRY / 2), entries: *entries, kept: kept.clone() }
        }
        Entry::Assistant { text, calls, carried: _, cut } => {
            let most = MOST_ENTRY / 4 / calls.len().max(1);
            let fit_call = |call: &CallRequest| CallRequest {
                tool: fit_text(&call.tool, MOST_MODEL),
                // Half of a JSON text is none: a text says that it is missing.
                args: match call_bytes(call) {
                    bytes if bytes > most => format!("\"[{bytes} bytes, not shown]\"").into(),
                    _ => Arc::clone(&call.args),
                },
                unusable: call.unusable.as_ref().map(|text| fit_text(text, most / 2)),
                given: None,
                ..call.clone()
            };
            let calls = calls.iter().map(fit_call).collect();
            Entry::Assistant { text: fit_text(text, MOST_ENTRY / 4), calls, carried: None, cut: *cut }
        }
        Entry::Result { result } => {
            let envelope = fit_text(&result.envelope, MOST_ENTRY / 2);
            let tool = fit_text(&result.tool, MOST_MODEL);
            Entry::Result { result: Arc::new(CallResult { envelope, tool, ..CallResult::clone(result) }) }
        }
    }
}

/// A text, cut where it is too large.
pub(in crate::world) fn fit_text(text: &Arc<str>, most: usize) -> Arc<str> {
    if is_longer(text, most) { cut(text, most).into() } else { Arc::clone(text) }
}

fn shorten(text: &mut Option<Arc<str>>, most: usize, field: CutField, fields: &mut Vec<CutField>) {
    if let Some(whole) = text
        && is_longer(whole, most)
    {
        *text = Some(cut(whole, most).into());
        note(fields, field);
    }
}

fn note(fields: &mut Vec<CutField>, field: CutField) {
    if !fields.contains(&field) {
        fields.push(field);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::BTreeMap;

    use harness_protocol::id::{CallId, RunId};
    use harness_protocol::json_size::value_bytes;
    use harness_protocol::run::{CallState, LiveCall, RUN_SCHEMA, RunState, Timing, Usage};
    use harness_protocol::time::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn view() -> RunView {
        let id = RunId::from_u64(u64::MAX);
        RunView {
            schema: RUN_SCHEMA.to_owned(),
            id,
            name: None,
            root: id,
            parent: Some(id),
            retry_of: Some(id),
            continues: Some(id),
            labels: BTreeMap::new(),
            share: "default".into(),
            priority: Default::default(),
            owner: u32::MAX,
            state: RunState::Succeeded,
            waiting_for: None,
            workdir: "/".into(),
            env: vec!["PATH".to_owned()],
            provider: "p".into(),
            model: None,
            title: String::new(),
            steps: 1,
            limits: Default::default(),
            on_interaction: Default::default(),
            submitted_at: Timestamp::default(),
            started_at: Some(Timestamp::default()),
            ended_at: Some(Timestamp::default()),
            stop_requested_at: Some(Timestamp::default()),
            answer: None,
            error: None,
            exit_code: Some(1),
            usage: Usage::default(),
            usage_tree: Usage::default(),
            timing: Timing::default(),
            denials: Vec::new(),
            inference: None,
            stand_in: None,
            calls: Vec::new(),
            questions: Vec::new(),
            cut: Vec::new(),
        }
    }

    /// Texts whose JSON is as long as they are, and such whose JSON is up to six times as long.
    fn text(most: usize) -> impl Strategy<Value = String> {
        let unit =
            prop::sample::select(vec!["a", "\u{1}", "\"", "\\", "\u{FFFD}", "\u{1F600}", "\n", "\u{7f}", "\u{202e}"]);
        (unit, 0..most).prop_map(|(unit, times)| unit.repeat(times))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]

        /// A6: whatever a run says, its view fits into a reply, and its size is not taken for less than it is.
        #[test]
        fn a_view_fits_into_a_reply_whatever_its_texts_are(
            answer in text(1_200_000),
            error in text(100_000),
            denials in prop::collection::vec(text(3_000), 0..130),
            label in text(255),
            (workdir, model, tool) in (text(9_000), text(3_000), text(256)),
        ) {
            let mut run = view();
            run.answer = Some(answer.as_str().into());
            run.error = Some(error.into());
            run.labels = (0..64).map(|n| (format!("{n:063}"), label.clone())).collect();
            run.workdir = workdir.into();
            run.model = Some(model.into());
            let call = |n| LiveCall {
                call: CallId::from_u64(n),
                tool: tool.as_str().into(),
                summary: label.clone(),
                state: CallState::Executing,
                since: Timestamp::default(),
            };
            run.calls = (0..100).map(call).collect();
            let denials: Vec<Arc<str>> = denials.into_iter().map(Into::into).collect();
            take_denials(&mut run, &denials);
            fit(&mut run);
            let size = value_bytes(&run);
            prop_assert!(size <= view_bytes(&run) && size < REPLY_BYTES, "{size}");
            prop_assert_eq!(run.cut.contains(&CutField::Answer), run.answer.as_deref() != Some(answer.as_str()));
            prop_assert_eq!(run.cut.contains(&CutField::Denials), !denials.iter().map(|d| &**d).eq(run.denials.iter()));
            fit_list(&mut run);
            prop_assert!(value_bytes(&run) < 2 * 1024 * 1024);
            leave_room(&mut run, 0);
            prop_assert!(value_bytes(&run) < 1024 * 1024);
        }

        /// A6: a transcript's entry of an older daemon is cut to what a frame holds.
        #[test]
        fn an_entry_fits_into_a_reply_beside_its_run(
            body in text(1_600_000),
            name in text(200_000),
            calls in 0u64..10,
        ) {
            let result = CallResult::plain(CallId::from_u64(1), name.as_str().into(), body.as_str(), false);
            let call = |n| CallRequest::new(CallId::from_u64(n), name.as_str(), "x".repeat(1 << 20));
            for entry in [
                Entry::User { text: body.as_str().into() },
                Entry::Summary { text: body.as_str().into(), entries: 3, kept: vec![1] },
                Entry::Result { result: Arc::new(result) },
                Entry::assistant(body.as_str(), (0..calls).map(call).collect()),
            ] {
                let fit = fit_entry(&entry);
                prop_assert!(value_bytes(&fit) <= MOST_ENTRY.max(entry_bytes(&fit)));
                prop_assert!(value_bytes(&fit) <= MOST_ENTRY);
                prop_assert_eq!(fit == entry, entry_bytes(&entry) <= MOST_ENTRY);
            }
        }
    }
}
