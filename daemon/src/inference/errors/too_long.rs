//! Recognises that a prompt is too long, from the error's code or its wording.
//!
//! Pure. The only place with this wording. Limits on answers, on requests per time or on anything else do not count: a
//! shorter prompt would not help there.

/// Words in codes and types.
const KINDS: &[&str] = &[
    "context_length",
    "exceed_context",
    "context_window",
    "context_too_long",
    "string_above_max_length",
    "request_too_large",
    "prompt_too_long",
    "input_too_long",
    "prompt_tokens_exceeded",
    "token_limit_exceeded",
];
/// Codes that mean it by themselves (GLM).
const CODES: &[&str] = &["1261"];
/// Sentences that can mean nothing else.
const PHRASES: &[&str] = &[
    "maximum context length",
    "context length",
    "context window",
    "context size",
    "context limit",
    "exceeds the context",
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "too many input tokens",
    "reduce the length",
    "request too large",
    "exceeds the maximum number of tokens",
    "maximum prompt length",
    "range of input length",
    "token limit reached",
    "exceeded model token limit",
    "`inputs` must have less than",
    "`max_new_tokens` must be <=",
    "sum of prompt tokens",
    "exceed max message tokens",
    "input token count is",
    "length of messages must be",
    "max_tokens must be at least 1, got -",
    "max_completion_tokens must be at least 1, got -",
    "required for long context",
];
/// A sentence that has one word of each of these says it, too.
const WHAT: &[&str] = &["prompt", "input", "context", "message", "request", "conversation"];
const IS_OVER: &[&str] = &[
    "exceed",
    "too long",
    "too large",
    "too many",
    "more than",
    "longer than",
    "greater than",
    "larger than",
    "over the",
];
const OF: &[&str] = &["token", "length", "long", "size"];
/// Unless it is about something else.
const OTHER: &[&str] = &[
    "per min",
    "per day",
    "per hour",
    "per sec",
    "/min",
    "tpm",
    "rpm",
    "rate limit",
    "ratelimit",
    "quota",
    "try again",
    "concurren",
    "max_tokens",
    "max_new_tokens",
    "max_completion_tokens",
    "max_output_tokens",
    "completion token",
    "output token",
    "image",
    "file",
    "audio",
    "tool",
    "function",
    "name",
    "description",
    "schema",
    "header",
    "stop sequence",
    "budget",
    "temperature",
    "batch",
    "credit",
    "balance",
    "billing",
];

/// Whether it does, by `kinds` (code, type and status, in lower case), `code` and `message` in lower case.
/// `may_be_guessed` says that the status is one that servers give to such prompts.
pub(in crate::inference) fn is_said(kinds: &str, code: &str, message: &str, may_be_guessed: bool) -> bool {
    let has = |words: &[&str]| words.iter().any(|word| message.contains(word));
    KINDS.iter().any(|kind| kinds.contains(kind))
        || CODES.contains(&code)
        || has(PHRASES)
        || (may_be_guessed && has(WHAT) && has(IS_OVER) && has(OF) && !has(OTHER))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors of each family for a long prompt are recognised, and no others (entry P5).
    #[test]
    fn a_prompt_that_is_too_long_is_known_by_the_words_of_each_family_and_nothing_else_is() {
        for (code, message, expected) in [
            ("", "too many tokens: total number of tokens in the prompt exceeds the limit of 4081", true),
            ("model_max_prompt_tokens_exceeded", "prompt token count of 70000 exceeds the limit of 64000", true),
            ("model_max_prompt_tokens_exceeded", "no", true),
            ("invalid_parameter_error", "Range of input length should be [1, 129024]", true),
            ("1261", "Prompt exceeds max length", true),
            ("1261", "\u{8f93}\u{5165}\u{8fc7}\u{957f}", true),
            ("1210", "tokens in request more than max tokens allowed", true),
            ("", "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)", true),
            ("", "Invalid request: total message size 10176584 exceeds limit 2097152", true),
            ("", "This model's maximum prompt length is 131072 but the request contains 200000 tokens.", true),
            ("400", "Token limit reached", true),
            (
                "",
                "Input validation error: `inputs` must have less than 8192 tokens: input is longer than the limit",
                true,
            ),
            ("", "Your input exceeds the maximum allowed length of 32000 tokens", true),
            ("", "The conversation is too long: 210000 tokens", true),
            ("", "the number of input tokens (9000) is greater than 8192", true),
            ("", "Request size is larger than the model can take (length 40000)", true),
            ("", "context of 9000 tokens is over the limit", true),
            // What it is not.
            ("", "Rate limit reached on input tokens per min (TPM): Limit 30000, Requested 40000", false),
            ("", "This request would exceed your organization's rate limit of 80,000 input tokens per minute", false),
            ("", "max_tokens is too large: 100000. This model supports at most 4096 completion tokens", false),
            ("", "You exceeded your current quota of input tokens", false),
            ("", "messages.0.content.1.image: image exceeds 5 MB maximum size", false),
            ("", "tools.0.function.name: string too long, maximum length 64 in request", false),
            ("", "too many concurrent requests of this size", false),
            ("", "the budget of thinking exceeds what the request has: size", false),
            ("1210", "API call parameters are wrong", false),
            ("", "Bad request", false),
        ] {
            assert_eq!(is_said(code, code, &message.to_ascii_lowercase(), true), expected, "{code} {message}");
        }
        assert!(!is_said("", "", "your input exceeds the maximum length in tokens", false), "not with any status");
    }
}
