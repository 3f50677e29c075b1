//! Tests the many ways in which servers of chat completions send parallel calls (fault 4).

use super::super::dialects::HttpDialect;
use super::read;

/// What comes of these lists of `tool_calls`, one for each chunk.
fn calls(chunks: &[&str]) -> Vec<(String, String)> {
    let chunk = |calls: &&str| format!(r#"{{"choices":[{{"index":0,"delta":{{"tool_calls":{calls}}}}}]}}"#);
    let mut events: Vec<String> = chunks.iter().map(chunk).collect();
    events.push(r#"{"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}"#.to_owned());
    events.push("[DONE]".to_owned());
    let read = read(HttpDialect::OpenAi, &events);
    read.calls()
        .into_iter()
        .map(|(tool, args, unusable)| {
            assert_eq!(unusable, None, "{tool} {args}");
            (tool, args)
        })
        .collect()
}

fn check(chunks: &[&str], expected: &[(&str, &str)]) {
    let expected: Vec<_> = expected.iter().map(|(tool, args)| ((*tool).to_owned(), (*args).to_owned())).collect();
    assert_eq!(calls(chunks), expected, "{chunks:#?}");
}

const BOTH: &[(&str, &str)] = &[("a", r#"{"x":1}"#), ("b", r#"{"y":2}"#)];

#[test]
fn argument_deltas_are_interleaved() {
    check(
        &[
            r#"[{"index":0,"id":"1","function":{"name":"a","arguments":"{\"x\""}}]"#,
            r#"[{"index":1,"id":"2","function":{"name":"b","arguments":"{\"y\""}}]"#,
            r#"[{"index":0,"function":{"arguments":":1}"}}]"#,
            r#"[{"index":1,"function":{"arguments":":2}"}}]"#,
        ],
        BOTH,
    );
}

#[test]
fn headers_come_first_and_arguments_by_index() {
    check(
        &[
            concat!(
                r#"[{"index":0,"id":"1","function":{"name":"a","arguments":""}},"#,
                r#"{"index":1,"id":"2","function":{"name":"b","arguments":""}}]"#,
            ),
            r#"[{"index":1,"function":{"arguments":"{\"y\":2}"}},{"index":0,"function":{"arguments":"{\"x\":"}}]"#,
            r#"[{"index":0,"function":{"arguments":"1}"}}]"#,
        ],
        BOTH,
    );
}

#[test]
fn headers_without_an_index_are_counted() {
    check(
        &[
            r#"[{"id":"1","function":{"name":"a","arguments":""}},{"id":"2","function":{"name":"b","arguments":""}}]"#,
            r#"[{"index":1,"function":{"arguments":"{\"y\":2}"}},{"index":0,"function":{"arguments":"{\"x\":"}}]"#,
            r#"[{"index":0,"function":{"arguments":"1}"}}]"#,
        ],
        BOTH,
    );
}

#[test]
fn the_index_is_missing() {
    for index in ["", r#""index":null,"#] {
        let with = |piece: &str| piece.replace('@', index);
        let chunks = [
            with(r#"[{@"id":"1","function":{"name":"a","arguments":"{\"x\""}}]"#),
            with(r#"[{@"function":{"arguments":":1}"}}]"#),
            with(r#"[{@"id":"2","function":{"name":"b","arguments":""}}]"#),
            with(r#"[{@"id":"2","function":{"arguments":"{\"y\":2}"}}]"#),
        ];
        check(&chunks.each_ref().map(String::as_str), BOTH);
    }
    check(
        &[concat!(
            r#"[{"id":"1","function":{"name":"a","arguments":"{\"x\":1}"}},"#,
            r#"{"id":"2","function":{"name":"b","arguments":"{\"y\":2}"}}]"#,
        )],
        BOTH,
    );
}

#[test]
fn the_index_is_a_text() {
    check(
        &[
            r#"[{"index":"0","id":"1","function":{"name":"a","arguments":"{\"x\""}}]"#,
            r#"[{"index":"0","function":{"arguments":":1}"}}]"#,
        ],
        &BOTH[..1],
    );
}

#[test]
fn the_index_is_reused() {
    check(
        &[
            r#"[{"index":0,"id":"1","function":{"name":"a","arguments":"{\"x\":1}"}}]"#,
            r#"[{"index":0,"id":"2","function":{"name":"b","arguments":"{\"y\":2}"}}]"#,
        ],
        BOTH,
    );
    check(
        &[
            r#"[{"index":0,"function":{"name":"a","arguments":"{\"x\":1}"}}]"#,
            r#"[{"index":0,"function":{"name":"a","arguments":"{\"x\":2}"}}]"#,
        ],
        &[("a", r#"{"x":1}"#), ("a", r#"{"x":2}"#)],
    );
    check(
        &[
            r#"[{"index":0,"id":"1","function":{"name":"a","arguments":""}}]"#,
            r#"[{"index":0,"function":{"arguments":"{\"x\":1}"}}]"#,
            r#"[{"index":0,"id":"2","function":{"name":"b","arguments":""}}]"#,
            r#"[{"index":0,"function":{"arguments":"{\"y\":2}"}}]"#,
        ],
        BOTH,
    );
}

#[test]
fn the_id_comes_once_and_is_empty_or_null_afterwards() {
    for id in ["", r#""id":"","#, r#""id":null,"#] {
        let rest = r#"[{"index":0,@"type":null,"function":{"name":null,"arguments":":1}"}}]"#.replace('@', id);
        check(&[r#"[{"index":0,"id":"1","function":{"name":"a","arguments":"{\"x\""}}]"#, &rest], &BOTH[..1]);
    }
}

#[test]
fn there_is_no_id_at_all() {
    check(
        &[
            r#"[{"index":0,"function":{"name":"a","arguments":"{\"x\":1}"}}]"#,
            r#"[{"index":1,"function":{"name":"b","arguments":"{\"y\""}}]"#,
            r#"[{"index":1,"function":{"arguments":":2}"}}]"#,
        ],
        BOTH,
    );
    check(
        &[
            r#"[{"function":{"name":"a","arguments":"{\"x\":1}"}},{"function":{"name":"b","arguments":"{\"y\""}}]"#,
            r#"[{"function":{"arguments":":2}"}}]"#,
        ],
        BOTH,
    );
    check(&[r#"[{"function":{"name":"a"}},{"function":{"name":"a"}}]"#], &[("a", "{}"), ("a", "{}")]);
}

#[test]
fn one_id_serves_all_calls() {
    check(
        &[concat!(
            r#"[{"id":"c","function":{"name":"a","arguments":"{\"x\":1}"}},"#,
            r#"{"id":"c","function":{"name":"b","arguments":"{\"y\":2}"}}]"#,
        )],
        BOTH,
    );
    check(
        &[concat!(
            r#"[{"index":0,"id":"c","function":{"name":"a","arguments":"{\"x\":1}"}},"#,
            r#"{"index":1,"id":"c","function":{"name":"b","arguments":"{\"y\":2}"}}]"#,
        )],
        BOTH,
    );
}

#[test]
fn each_piece_has_an_id_of_its_own() {
    check(
        &[
            r#"[{"index":0,"id":"1","function":{"name":"a","arguments":"{\"x\""}}]"#,
            r#"[{"index":0,"id":"2","function":{"arguments":":1"}}]"#,
            r#"[{"index":0,"id":"3","function":{"arguments":"}"}}]"#,
        ],
        &BOTH[..1],
    );
}

#[test]
fn the_name_is_split_over_chunks() {
    check(
        &[
            r#"[{"index":0,"id":"1","function":{"name":"spawn"}}]"#,
            r#"[{"index":0,"function":{"name":"_agent"}}]"#,
            r#"[{"index":0,"function":{"arguments":"{}"}}]"#,
        ],
        &[("spawn_agent", "{}")],
    );
}

#[test]
fn the_name_is_said_in_every_chunk() {
    let piece = |args: &str| format!(r#"[{{"index":0,"id":"1","function":{{"name":"a","arguments":"{args}"}}}}]"#);
    let chunks = [piece(""), piece(r#"{\"x\""#), piece(":1"), piece("}")];
    check(&chunks.each_ref().map(String::as_str), &BOTH[..1]);
    let growing = [r#"[{"index":0,"function":{"name":"sh"}}]"#, r#"[{"index":0,"function":{"name":"shell"}}]"#];
    check(&growing, &[("shell", "{}")]);
}

#[test]
fn all_is_said_once_more_at_the_end() {
    let whole = r#"[{"index":0,"id":"1","function":{"name":"a","arguments":"{\"x\":1}"}}]"#;
    check(&[whole, whole], &BOTH[..1]);
    check(&[whole, r#"[{"index":0,"id":"1","function":{"name":"a","arguments":""}}]"#], &BOTH[..1]);
}

#[test]
fn arguments_are_an_object_instead_of_its_text() {
    check(&[r#"[{"index":0,"id":"1","function":{"name":"a","arguments":{"x":1}}}]"#], &BOTH[..1]);
    check(&[r#"[{"index":0,"id":"1","function":{"name":"a","arguments":null}}]"#], &[("a", "{}")]);
    check(&[r#"[{"index":0,"id":"1","function":{"name":"a","arguments":"\"{\\\"x\\\":1}\""}}]"#], &BOTH[..1]);
}

#[test]
fn the_oldest_form_of_a_call_is_understood() {
    let events = [
        r#"{"choices":[{"delta":{"function_call":{"name":"a","arguments":"{\"x\""}}}]}"#,
        r#"{"choices":[{"delta":{"function_call":{"arguments":":1}"}},"finish_reason":"function_call"}]}"#,
        "[DONE]",
    ];
    assert_eq!(read(HttpDialect::OpenAi, &events).calls(), [("a".to_owned(), r#"{"x":1}"#.to_owned(), None)]);
}
