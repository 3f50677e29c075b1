//! Builds answers of model servers in the formats of the three APIs, as far as tests need them.

use serde_json::{Value, json};

use crate::faults::Answer;

/// A chunk of chat completions with this delta.
pub fn delta(delta: &Value) -> String {
    json!({"id": "c", "object": "chat.completion.chunk",
        "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
    .to_string()
}

/// A chunk of text.
pub fn text(text: &str) -> String {
    delta(&json!({"content": text}))
}

/// The chunk that says why it ends.
pub fn finish(reason: &str) -> String {
    json!({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}).to_string()
}

/// The chunk with what was used.
pub fn usage(input: u64, output: u64) -> String {
    json!({"id": "c", "choices": [], "usage": {"prompt_tokens": input, "completion_tokens": output}}).to_string()
}

/// A chunk with a whole call.
pub fn call(index: u64, id: &str, name: &str, args: &str) -> String {
    let function = json!({"name": name, "arguments": args});
    delta(&json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]}))
}

/// A chunk with a call of the shell.
pub fn shell(index: u64, command: &str) -> String {
    call(index, &format!("call_{index}"), "shell", &json!({"command": command}).to_string())
}

/// A whole answer that says this, with its usage.
pub fn says(words: &str) -> Answer {
    Answer::events([text(words), finish("stop"), usage(10, 5), "[DONE]".to_owned()])
}

/// A whole answer that wants this command executed.
pub fn wants(command: &str) -> Answer {
    Answer::events([shell(0, command), finish("tool_calls"), usage(10, 5), "[DONE]".to_owned()])
}

/// An answer of Anthropic's messages that says this.
pub fn messages_says(words: &str) -> Answer {
    Answer::events([
        event("message_start", json!({"message": {"usage": {"input_tokens": 10, "output_tokens": 1}}})),
        event("content_block_start", json!({"index": 0, "content_block": {"type": "text", "text": ""}})),
        event("content_block_delta", json!({"index": 0, "delta": {"type": "text_delta", "text": words}})),
        event("content_block_stop", json!({"index": 0})),
        event("message_delta", json!({"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}})),
        event("message_stop", json!({})),
    ])
}

/// An answer of OpenAI's responses that says this.
pub fn responses_says(words: &str) -> Answer {
    let item = json!({"type": "message", "id": "m", "role": "assistant", "status": "completed",
        "content": [{"type": "output_text", "text": words, "annotations": []}]});
    let usage = json!({"input_tokens": 10, "output_tokens": 5, "total_tokens": 15});
    Answer::events([
        event("response.created", json!({"response": {"id": "r", "status": "in_progress"}})),
        event(
            "response.output_item.added",
            json!({"output_index": 0, "item": {"type": "message", "id": "m", "content": []}}),
        ),
        event(
            "response.output_text.delta",
            json!({"output_index": 0, "content_index": 0, "item_id": "m", "delta": words}),
        ),
        event("response.output_item.done", json!({"output_index": 0, "item": item})),
        event(
            "response.completed",
            json!({"response": {"id": "r", "status": "completed", "output": [item], "usage": usage}}),
        ),
    ])
}

/// A named event whose data has its name as type.
pub fn event(name: &str, mut data: Value) -> String {
    data["type"] = name.into();
    format!("event: {name}\ndata: {data}")
}
