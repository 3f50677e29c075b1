//! Tests that the fast path gives the same result as the parser for any input: the same deltas, and the same answer or
//! error.

use proptest::prelude::*;
use proptest::sample::{Index, select};

use super::super::dialects::{Ended, HttpDialect, Piece, Quirks};
use super::fixtures::fixtures;
use super::{Read, events, told};

/// Events in which any value may stand for each `§`, and what may come between them.
const OPENAI: &[&str] = &[
    r#"{"choices":[{"delta":{"content":§,"reasoning_content":§}}],"x_groq":§}"#,
    r#"{"choices":[{"index":§,"delta":{"content":§},"usage":§}]}"#,
    r#"{"choices":[{"delta":{"reasoning_content":§,"reasoning":§,"content":[{"type":"thinking","thinking":§}]}}]}"#,
    r#"{"id":§,"object":"chat.completion.chunk","created":§,"choices":[{"index":0,"delta":{"content":§}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":§},"logprobs":{"a":[§,{"b":§}]},"finish_reason":null}],"usage":null}"#,
    r#"{"choices":[{"delta":{"content":§,"reasoning_content":§,"reasoning":null}}],"object":"chat.completion.chunk"}"#,
    r#"{"choices":[{"delta":{"reasoning":§,"content":null}}],"obfuscation":§}"#,
    r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":§}}]}}],"obfuscation":§}"#,
    r#"{"choices":[{"delta":{"content":§,"tool_calls":[{"index":1,"type":"function","function":{"arguments":§}}]}}]}"#,
    r#"{"choices":[{"delta":{"tool_calls":[{"index":§,"id":§,"function":{"name":§,"arguments":§}}]}}]}"#,
    r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"extra_content":§,"function":{"arguments":§}}]}}]}"#,
    r#"{"choices":[{"delta":{"tool_calls":[{"index":0,"function":{"arguments":§},"extra_content":{"a":§}}]}}]}"#,
    r#"{"choices":[{"delta":{"content":"","reasoning":§,"reasoning_details":[{"type":"t","text":§}]}}]}"#,
    r#"{"choices":[{"delta":{"reasoning_details":null,"content":§,"reasoning_details":§}}]}"#,
    r#"{"choices":[{"delta":{"content":§},"finish_reason":§}],"error":§,"detail":null}"#,
    r#"{"choices":[{"delta":{"content":§,"cont\u0065nt":§}}]}"#,
    r#"{"choices":[{"delta":{"content":§,"content":§}}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":§},"index":0}]}"#,
    r#"{"choices":[{"index":0,"delta":{"content":§}}],"choices":[],"n":§}"#,
    r#"{"choices":§,"object":§,"usage":§}"#,
    r#"{"choices":[],"usage":{"prompt_tokens":§,"completion_tokens":2}}"#,
    r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#,
    "[DONE]",
];

const ANTHROPIC: &[&str] = &[
    r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":§}}"#,
    r#"{"type":"content_block_start","index":1,"content_block":{"type":"thinking","thinking":§}}"#,
    r#"{"type":"content_block_start","index":2,"content_block":{"type":§,"id":§,"name":"n","input":§}}"#,
    r#"{"type":"content_block_stop","index":§}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":§}}"#,
    r#"{"type":"content_block_delta","index":§,"delta":{"type":"text_delta","text":§},"padding":§}"#,
    r#"{"delta":{"thinking":§,"type":"thinking_delta"},"index":1,"type":"content_block_delta"}"#,
    r#"{"type":"content_block_delta","index":2,"delta":{"type":"input_json_delta","partial_json":§}}"#,
    r#"{"type":"content_block_delta","index":1,"delta":{"type":"signature_delta","signature":§}}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","partial_json":§,"text":§},"usage":null}"#,
    r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","te\u0078t":§}}"#,
    r#"{"type":"content_block_delta","index":0,"index":§,"delta":{"type":"text_delta","text":§}}"#,
    r#"{"type":§,"index":0,"delta":{"type":§,"text":§},"error":§}"#,
    r#"{"type":"content_block_start","index":§,"content_block":{"type":"tool_use","id":"t","name":§,"input":{}}}"#,
    r#"{"type":"message_delta","delta":{"stop_reason":§},"usage":{"output_tokens":§}}"#,
    r#"{"type":"message_stop"}"#,
];

const RESPONSES: &[&str] = &[
    concat!(
        r#"{"type":"response.output_item.added","output_index":§,"item":{"type":"function_call","id":§,"call_id":§,"#,
        r#""name":"n"}}"#,
    ),
    r#"{"type":"response.output_item.done","output_index":0,"item":{"type":§,"id":§,"content":§,"arguments":§}}"#,
    concat!(
        r#"{"type":"response.output_text.delta","sequence_number":§,"item_id":"m","output_index":0,"delta":§,"#,
        r#""logprobs":[]}"#,
    ),
    r#"{"type":"response.output_text.delta","item_id":§,"delta":§,"obfuscation":§}"#,
    r#"{"type":"response.function_call_arguments.delta","item_id":"f","output_index":§,"delta":§,"item":null}"#,
    r#"{"type":"response.reasoning_text.delta","item_id":"r","sequence_number":§,"delta":§}"#,
    r#"{"type":"response.reasoning_summary_text.delta","item_id":§,"delta":§,"summary_index":§}"#,
    r#"{"type":"response.refusal.delta","item_id":"m","delta":§}"#,
    r#"{"type":"response.output_text.delta","item_id":"m","delta":§,"delta":§}"#,
    r#"{"type":"response.output_text.delta","item_\u0069d":§,"delta":§}"#,
    r#"{"type":§,"item_id":"m","delta":§,"arguments":§}"#,
    r#"{"type":"response.output_item.added","output_index":§,"item":{"id":"f","type":"function_call","name":"a"}}"#,
    r#"{"type":"response.completed","response":{"status":"completed","output":[],"usage":{"input_tokens":§}}}"#,
];

/// Values of all kinds, some of which are no JSON.
const VALUES: &[&str] = &[
    r#""""#,
    r#""\n\"\\""#,
    r#""\ud83d""#,
    r#""\ude00 é""#,
    r#""\u00e9\/""#,
    r#""\x""#,
    r#""\u12g4""#,
    "\"\t\"",
    "\"\u{1F600}\"",
    r#""open"#,
    "null",
    "true",
    "nul",
    "0",
    "1",
    "-1",
    "01",
    "1.5e-3",
    "1.",
    "1e",
    "18446744073709551616",
    "[]",
    "[1,[2,\"]\"]]",
    "[1}",
    "{}",
    r#"{"a":{"b":"}"}}"#,
    r#"{"a":1,}"#,
    r#"{a:1}"#,
    " \"a\" ",
    r#"[{"type":"text","text":"part"}]"#,
    "",
];

/// What takes the place of one character.
const CHANGES: &[&str] =
    &["", "\"", "\\", "{", "}", "[", "]", ",", ":", " ", "\n", "\u{b}", "0", "n", "é", "\u{0}", "null"];

fn event(forms: &'static [&'static str]) -> impl Strategy<Value = String> {
    let plain = select(&["\"a\"", "\" b\"", "\"{\"", "7", "12"][..]);
    let value = prop_oneof![8 => plain, 1 => select(VALUES)];
    let change = proptest::option::weighted(0.1, (any::<Index>(), select(CHANGES)));
    (select(forms), prop::collection::vec(value, 6), change).prop_map(|(form, values, change)| {
        let mut values = values.iter();
        let parts = form.split('§').map(|part| part.to_owned());
        let event = parts.reduce(|event, part| event + values.next().copied().unwrap_or("null") + &part).unwrap();
        changed(event, change)
    })
}

fn changed(mut event: String, change: Option<(Index, &str)>) -> String {
    if let Some((at, by)) = change.filter(|_| !event.is_empty()) {
        let places: Vec<_> = event.char_indices().collect();
        let (at, character) = places[at.index(places.len())];
        event.replace_range(at..at + character.len_utf8(), by);
    }
    event
}

/// The few forms of a stream, each again and again, as servers send them.
fn stream(forms: &'static [&'static str]) -> impl Strategy<Value = Vec<(String, String)>> {
    let again = |event: String| prop::collection::vec((Just(event), proptest::option::weighted(0.2, change())), 1..4);
    let events = prop::collection::vec(event(forms).prop_flat_map(again), 1..8);
    let named = |event| ("message".to_owned(), event);
    events.prop_map(move |events| events.into_iter().flatten().map(|(event, at)| named(changed(event, at))).collect())
}

fn change() -> impl Strategy<Value = (Index, &'static str)> {
    (any::<Index>(), select(CHANGES))
}

/// All that is shown piece by piece, all errors, and what became of the stream.
fn read(dialect: HttpDialect, events: &[(String, String)], ahead: bool) -> (Vec<String>, Vec<String>, String) {
    let mut reader = dialect.reader(Quirks { return_reasoning: true, ..Quirks::default() });
    let (mut shown, mut errors) = (Vec::new(), Vec::new());
    for (name, data) in events {
        let mut show = |piece: Piece<'_>| shown.push(format!("{piece:?}"));
        let taken = match ahead {
            true => reader.event(name, data, &mut show),
            false => reader.event_by_the_parser(name, data, &mut show),
        };
        // A caller ends at the first. Here what comes after it is looked at, too.
        errors.extend(taken.err().map(|error| format!("{error:?}")));
    }
    let read = Read { text: String::new(), reasoning: String::new(), end: reader.finish(Ended::Clean) };
    (shown, errors, told(&read))
}

fn check(dialect: HttpDialect, events: &[(String, String)]) {
    assert_eq!(read(dialect, events, true), read(dialect, events, false), "{events:#?}");
}

#[test]
fn it_does_for_every_recording() {
    for (_, dialect, stream) in fixtures() {
        check(dialect, &events(&stream));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn it_does_for_whatever_a_server_of_chat_completions_may_send(events in stream(OPENAI)) {
        check(HttpDialect::OpenAi, &events);
    }

    #[test]
    fn it_does_for_whatever_a_server_of_messages_may_send(events in stream(ANTHROPIC)) {
        check(HttpDialect::Anthropic, &events);
    }

    #[test]
    fn it_does_for_whatever_a_server_of_responses_may_send(events in stream(RESPONSES)) {
        check(HttpDialect::Responses, &events);
    }

    #[test]
    fn it_does_for_a_recording_with_changes(
        which in any::<Index>(),
        changes in prop::collection::vec((any::<Index>(), change()), 1..6),
    ) {
        let fixtures = fixtures();
        let (_, dialect, stream) = &fixtures[which.index(fixtures.len())];
        let mut events = events(stream);
        for (at, change) in changes {
            let at = at.index(events.len());
            events[at].1 = changed(events[at].1.clone(), Some(change));
        }
        check(*dialect, &events);
    }
}
