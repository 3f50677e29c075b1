//! Makes event streams in the forms of the three APIs: a beginning, thousands of events, an end.
//!
//! The text of the answer repeats. Everything that a server generates anew for each event is generated anew here too.

/// Events of each stream that bring a piece.
pub const PIECES: usize = 2_000;

/// A stream, and which API sends it.
pub struct Sent {
    pub name: &'static str,
    pub api: &'static str,
    pub bytes: Vec<u8>,
}

pub fn all() -> Vec<Sent> {
    let sent = |name, api, bytes: String| Sent { name, api, bytes: bytes.into_bytes() };
    vec![
        sent("openai text", "openai", openai_text()),
        sent("openai args", "openai", openai_args(1)),
        sent("openai args x2", "openai", openai_args(2)),
        sent("anthropic text", "anthropic", anthropic_text()),
        sent("anthropic args", "anthropic", anthropic_args()),
        sent("responses text", "responses", responses_text()),
        sent("responses args", "responses", responses_args()),
    ]
}

/// Of 185 bytes each, like those of a compatible server.
fn openai_text() -> String {
    openai("\"role\":\"assistant\",\"content\":\"\"", "", "stop", |n| format!("\"content\":\" {}\"", word(n)))
}

/// Calls as OpenAI streams them, with the random padding that hides the length of each event on the wire. The pieces of
/// several calls alternate, so that no event has the form of the one before.
fn openai_args(calls: usize) -> String {
    let call = |index| {
        format!(
            "{{\"index\":{index},\"id\":\"call_{index}\",\"type\":\"function\",\"function\":{{\"name\":\"shell\",\
             \"arguments\":\"\"}}}}"
        )
    };
    let first = (0..calls).map(call).collect::<Vec<_>>().join(",");
    let first = format!("\"role\":\"assistant\",\"tool_calls\":[{first}]");
    let more = ",\"service_tier\":\"default\",\"system_fingerprint\":\"fp_3e7d2a\"";
    openai(&first, more, "tool_calls", |n| {
        let (index, args) = (n % calls, args(n / calls, PIECES / calls));
        format!("\"tool_calls\":[{{\"index\":{index},\"function\":{{\"arguments\":\"{args}\"}}}}]")
    })
}

fn openai(first: &str, more: &str, finish: &str, delta: impl Fn(usize) -> String) -> String {
    let head = format!(
        "data: {{\"id\":\"chatcmpl-B9MHDbslfkBeAs8l4bebGdFOJ6PeGx7Qm2ZkT\",\"object\":\"chat.completion.chunk\",\
         \"created\":1741570283,\
         \"model\":\"gpt-4o\"{more},\"choices\":[{{\"index\":0,\"delta\":{{"
    );
    let tail = |n| match more {
        "" => "}}]}\n\n".to_owned(),
        _ => format!(
            "}},\"logprobs\":null,\"finish_reason\":null}}],\"usage\":null,\"obfuscation\":\"{}\"}}\n\n",
            padding(n)
        ),
    };
    let mut stream = format!("{head}{first}{}", tail(0));
    for n in 0..PIECES {
        stream += &format!("{head}{}{}", delta(n), tail(n));
    }
    stream + &format!("{head}}},\"finish_reason\":\"{finish}\"}}]}}\n\ndata: [DONE]\n\n")
}

/// Of 185 bytes each: half a line of text.
fn anthropic_text() -> String {
    anthropic("{\"type\":\"text\",\"text\":\"\"}", "end_turn", |n| {
        let text = format!("{} of the wood was a lantern in the long dark, and what it was then ", word(n));
        format!("{{\"type\":\"text_delta\",\"text\":\"{text}\"}}")
    })
}

fn anthropic_args() -> String {
    let block = r#"{"type":"tool_use","id":"toolu_0","name":"shell","input":{}}"#;
    anthropic(block, "tool_use", |n| {
        format!("{{\"type\":\"input_json_delta\",\"partial_json\":\"{}\"}}", args(n, PIECES))
    })
}

fn anthropic(block: &str, reason: &str, delta: impl Fn(usize) -> String) -> String {
    let event = |name: &str, inside: String| format!("event: {name}\ndata: {{\"type\":\"{name}\"{inside}}}\n\n");
    let message = ",\"message\":{\"id\":\"msg_0\",\"type\":\"message\",\"role\":\"assistant\",\"content\":[],\
                   \"model\":\"m\",\
                   \"stop_reason\":null,\"usage\":{\"input_tokens\":25,\"output_tokens\":1}}";
    let mut stream = event("message_start", message.to_owned());
    stream += &event("content_block_start", format!(",\"index\":0,\"content_block\":{block}"));
    for n in 0..PIECES {
        stream += &event("content_block_delta", format!(",\"index\":0,\"delta\":{}", delta(n)));
    }
    stream += &event("content_block_stop", ",\"index\":0".to_owned());
    let stop = format!(
        ",\"delta\":{{\"stop_reason\":\"{reason}\",\"stop_sequence\":null}},\"usage\":{{\"output_tokens\":15}}"
    );
    stream + &event("message_delta", stop) + &event("message_stop", String::new())
}

fn responses_text() -> String {
    let item = |status: &str| {
        format!(
            "{{\"id\":\"{ITEM}\",\"type\":\"message\",\"status\":\"{status}\",\"role\":\"assistant\",\"content\":[]}}"
        )
    };
    responses(&item("in_progress"), "response.output_text.delta", |n| {
        let text = format!("\"content_index\":0,\"delta\":\" {}\",\"logprobs\":[],", word(n));
        format!("{text}\"obfuscation\":\"{}\"", padding(n))
    })
}

fn responses_args() -> String {
    let item = format!(
        "{{\"id\":\"{ITEM}\",\"type\":\"function_call\",\"status\":\"in_progress\",\"arguments\":\"\",\
         \"call_id\":\"call_0\",\"name\":\"shell\"}}"
    );
    responses(&item, "response.function_call_arguments.delta", |n| {
        format!("\"delta\":\"{}\",\"obfuscation\":\"{}\"", args(n, PIECES), padding(n))
    })
}

const ITEM: &str = "msg_67c9fdcf37fc8190ba82116e33fb28c507b8b0ad4e5eb654";

fn responses(item: &str, kind: &str, delta: impl Fn(usize) -> String) -> String {
    let event = |name: &str, n: usize, inside: &str| {
        format!("event: {name}\ndata: {{\"type\":\"{name}\",\"sequence_number\":{n},{inside}}}\n\n")
    };
    let created = "\"response\":{\"id\":\"resp_0\",\"object\":\"response\",\"status\":\"in_progress\",\"output\":[]}";
    let mut stream = event("response.created", 0, created);
    stream += &event("response.output_item.added", 1, &format!("\"output_index\":0,\"item\":{item}"));
    for n in 0..PIECES {
        stream += &event(kind, n + 2, &format!("\"item_id\":\"{ITEM}\",\"output_index\":0,{}", delta(n)));
    }
    let usage = "\"usage\":{\"input_tokens\":36,\"output_tokens\":87,\"total_tokens\":123}";
    let completed = format!("\"response\":{{\"id\":\"resp_0\",\"status\":\"completed\",\"output\":[],{usage}}}");
    stream + &event("response.completed", PIECES + 2, &completed)
}

fn word(n: usize) -> &'static str {
    const WORDS: &[&str] = &["lantern", "the", "signal", "house", "of", "morning", "a", "window", "under", "north"];
    WORDS[n % WORDS.len()]
}

/// A piece of `{"command":"… … …"}` as it stands in a string: every tenth with an escape, beside the first and the
/// last.
fn args(n: usize, of: usize) -> String {
    match n {
        0 => "{\\\"command\\\":\\\"".to_owned(),
        _ if n + 1 == of => "\\\"}".to_owned(),
        _ if n.is_multiple_of(10) => " \\\\n".to_owned(),
        _ => format!(" {}", word(n)),
    }
}

fn padding(n: usize) -> String {
    (0..3 + n * 7 % 13).map(|at| char::from(b'a' + u8::try_from(n * (at + 3) % 26).unwrap_or_default())).collect()
}
