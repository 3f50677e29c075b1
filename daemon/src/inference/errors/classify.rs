//! Classifies a provider's error, from a status with a body or from an error event within a stream.
//!
//! | class | |
//! |---|---|
//! | retry, retry after | overload, faults of the server, broken streams; error events of an unknown kind |
//! | rate limit | asked too often, with the wait that was named |
//! | quota | a limit of the account (`errors/quota.rs`), and any limit that lasts long, until the time that was named |
//! | credentials | the key and its permissions |
//! | context too long | by code, or by one of the many ways in which servers put it |
//! | unusable | the model made a call that the server itself could not read |
//! | never | errors of the request, refusals of the model or of a content filter: a retry gets the same answer |
//!
//! A gateway may send the errors of any family, so nothing here depends on the dialect. An error that a gateway wraps
//! is classified like a direct one.

use harness_protocol::time::{Span, Timestamp};
use jiff::tz::TimeZone;
use serde_json::Value;

use super::{quota, rate_limit, reset_time, too_long};
use crate::prompt::{ErrorClass, InferenceError};

/// Characters of a provider's message that are passed on.
const SHOWN: usize = 500;
/// Seconds up to which a time is a wait rather than an instant, for who has no clock: a year.
const LONGEST_WITHOUT_CLOCK: u64 = 365 * 24 * 3600;

/// What a response with an error status means.
pub fn classify(status: u16, headers: &[(&str, &str)], body: &str, now: Timestamp) -> InferenceError {
    let said = Said::read(body);
    let class = class(said.status().filter(|_| said.passed_on == Some(true)).or(Some(status)), &said);
    let wait = match class {
        // The windows of a minute that headers tell of, too, are not what is used up.
        ErrorClass::Quota(_) => {
            let said = said.wait(now);
            said.filter(|wait| *wait > Span::ZERO).or_else(|| rate_limit::of_account(headers, now)).or(said)
        }
        ErrorClass::RateLimit(_) => rate_limit::wait(headers, now).max(said.wait(now)),
        _ => rate_limit::wait(headers, now).or_else(|| said.wait(now)),
    };
    let class = quota::with_wait(class, wait);
    InferenceError::new(class, format!("the provider refused with status {status}: {}", said.reason()))
}

/// What an error means that came in place of an answer, or in its middle: an object of JSON, or any text.
pub(in crate::inference) fn in_answer(body: &str) -> InferenceError {
    let said = Said::read(body);
    // Who reads a stream has no clock: an instant is read later, from the message.
    let class = quota::with_wait(class(said.status(), &said), said.wait(Timestamp::default()));
    let until = match class {
        ErrorClass::RateLimit(None) | ErrorClass::Quota(None) => said.instant(),
        _ => None,
    };
    let until = until.map(|at| format!(" (resets at {at})")).unwrap_or_default();
    InferenceError::new(class, format!("the provider broke off: {}{until}", said.reason()))
}

/// An error in an answer, with the instant that its words name, where it is a limit that has no time yet.
pub(in crate::inference) fn dated(error: InferenceError, now: Timestamp) -> InferenceError {
    let class = match error.class {
        class @ (ErrorClass::RateLimit(None) | ErrorClass::Quota(None)) => {
            quota::with_wait(class, reset_time::in_text(&error.message, now, &TimeZone::system()))
        }
        other => other,
    };
    InferenceError { class, ..error }
}

/// The stream is not what was agreed, or not whole.
pub(in crate::inference) fn broken(message: impl Into<String>) -> InferenceError {
    InferenceError::new(ErrorClass::Retry, message)
}

/// The model, or a filter before or behind it, will not answer this.
pub(in crate::inference) fn refused(by: &str, text: &str) -> InferenceError {
    let text = shortened(text);
    let message = if text.is_empty() { by.to_owned() } else { format!("{by}: {text}") };
    InferenceError::new(ErrorClass::Never, message)
}

/// What an event that is no JSON, or an answer that is none, is told as.
pub(in crate::inference) fn unreadable(what: &str, body: &str, error: &serde_json::Error) -> InferenceError {
    broken(format!("the provider sent {what} that cannot be read ({error}): {}", shortened(&readable(body))))
}

/// Characters of a message that are looked at.
const LOOKED_AT: usize = 8_192;
/// How deep an error of another server may lie in one.
const DEEPEST: u32 = 3;

/// What there is to go by.
struct Said {
    message: String,
    /// As much of it as is looked at, in lower case.
    lower: String,
    /// Code, type and status in lower case, one after the other.
    kinds: String,
    /// The code alone.
    code: String,
    /// The error is another server's, which this one passes on; and whether that one names a status.
    passed_on: Option<bool>,
    /// All of it, where it is JSON.
    body: Value,
}

impl Said {
    fn read(body: &str) -> Self {
        Self::read_within(body, DEEPEST)
    }

    fn read_within(body: &str, deep: u32) -> Self {
        let body = body.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
        let Ok(value) = serde_json::from_str::<Value>(body) else {
            return Self::new(&readable(body), String::new(), String::new(), &Value::Null);
        };
        let value = value.get(0).unwrap_or(&value);
        // {"error": {…}}, {"error": "…"}, {"detail": …}, {"message": …}; {"response": {"error": {…}}} in a stream.
        // {"errors": [{…}]}, {"base_resp": {…}}.
        let nested = value.get("response").unwrap_or(value);
        let is_there = |error: &&Value| !error.is_null() && error.as_object().is_none_or(|fields| !fields.is_empty());
        let error = nested.get("error").filter(is_there).or_else(|| nested.pointer("/errors/0").filter(is_there));
        let error = error.or_else(|| nested.get("base_resp")).unwrap_or(nested);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let field = |name: &str| error.get(name).filter(|value| !value.is_null());
        let message = text(error)
            .or_else(|| MESSAGE.iter().find_map(|name| field(name).and_then(text)))
            .or_else(|| field("detail").map(|detail| text(detail).unwrap_or_else(|| without_input(detail).to_string())))
            .or_else(|| value.get("message").and_then(text));
        let of_another = || {
            let raw = error.pointer("/metadata/raw").filter(|raw| !raw.is_null());
            let raw = raw.map(|raw| text(raw).unwrap_or_else(|| raw.to_string())).filter(|raw| !raw.trim().is_empty());
            raw.or_else(|| message.clone().filter(|message| message.trim_start().starts_with('{')))
        };
        let word = |name: &str| {
            let value = field(name).or_else(|| value.get(name).filter(|value| !value.is_null()))?;
            Some(text(value).unwrap_or_else(|| value.to_string()))
        };
        let code = word("code").or_else(|| word("status_code")).unwrap_or_default().to_ascii_lowercase();
        let reasons = ["details", "errors"].into_iter().filter_map(|name| field(name)?.as_array()).flatten();
        let reasons = reasons.filter_map(|detail| text(detail.get("reason")?));
        let kinds = ["type", "status", "reason"].into_iter().filter_map(word).chain(reasons);
        let kinds = kinds.collect::<Vec<_>>().join(" ").to_ascii_lowercase();
        let meant = if nested.get("base_resp").is_some() { of_base_resp(&code) } else { "" };
        let kinds = format!("{code} {kinds} {meant}");
        match of_another().filter(|_| deep > 0).map(|raw| Self::read_within(&raw, deep - 1)) {
            Some(inner) => Self {
                kinds: format!("{kinds} {}", inner.kinds),
                passed_on: Some(inner.status().is_some()),
                code: if inner.status().is_some() { inner.code } else { code },
                // When it is over the gateway may say, or the server behind it.
                body: Value::Array(vec![value.clone(), inner.body]),
                ..inner
            },
            None => Self::new(&message.unwrap_or_else(|| error.to_string()), kinds, code, value),
        }
    }

    fn new(message: &str, kinds: String, code: String, body: &Value) -> Self {
        let lower = message.chars().take(LOOKED_AT).collect::<String>().to_ascii_lowercase();
        // What a validator repeats of the request is the user's, not the server's.
        let echo = ECHOES.iter().filter_map(|echo| lower.find(echo)).min().unwrap_or(lower.len());
        let lower = lower[..echo].to_owned();
        Self { message: shortened(message), lower, kinds, code, passed_on: None, body: body.clone() }
    }

    /// The status that an error names itself.
    fn status(&self) -> Option<u16> {
        self.code.parse().ok().filter(|code| (300..600).contains(code))
    }

    fn is(&self, kinds: &[&str]) -> bool {
        kinds.iter().any(|kind| self.kinds.contains(kind))
    }

    fn says(&self, phrases: &[&str]) -> bool {
        phrases.iter().any(|phrase| self.lower.contains(phrase))
    }

    /// What is told of it, with what may cure it where that is known.
    fn reason(&self) -> String {
        let message = if self.message.is_empty() { "without a word" } else { &self.message };
        match self.cure() {
            Some(quirk) => format!("{message} (quirks = [\"{quirk}\"] of the provider may cure that)"),
            None => message.to_owned(),
        }
    }

    /// The quirk that a server has which says this.
    fn cure(&self) -> Option<&'static str> {
        let is_named = REASONING.iter().any(|field| names(&self.lower, field));
        if !is_named {
            return None;
        }
        let is_wanted = ["must be", "missing", "required", "pass back", "passed back", "provide", "expected", "need"];
        let is_refused = [
            "unsupported",
            "not supported",
            "not permitted",
            "not allowed",
            "unknown",
            "unrecognized",
            "unexpected",
            "extra",
            "additional propert",
        ];
        if self.says(&is_refused) {
            Some("drop-reasoning")
        } else if self.says(&["reasoning_content"]) && self.says(&is_wanted) {
            Some("return-reasoning")
        } else {
            None
        }
    }

    /// How long to wait, by its fields or its words.
    fn wait(&self, now: Timestamp) -> Option<Span> {
        reset_time::in_body(&self.body, now)
            .or_else(|| reset_time::in_text(&self.message, now, &TimeZone::system()))
            // Without a clock every instant is far away.
            .filter(|wait| now != Timestamp::default() || *wait < Span::from_secs(LONGEST_WITHOUT_CLOCK))
    }

    /// The instant at which a limit ends, by its fields, for who has no clock.
    fn instant(&self) -> Option<Timestamp> {
        let since_epoch = reset_time::in_body(&self.body, Timestamp::default())?;
        (since_epoch >= Span::from_secs(LONGEST_WITHOUT_CLOCK)).then(|| Timestamp::default() + since_epoch)
    }
}

/// Fields that have the words of an error.
const MESSAGE: [&str; 5] = ["message", "msg", "status_msg", "error_message", "title"];
/// What comes before the part of a request that a validator repeats.
const ECHOES: [&str; 4] = ["'input':", "\"input\":", "input_value=", "'input_value':"];

/// What a validator says, without the parts of the request that it repeats.
fn without_input(value: &Value) -> Value {
    match value {
        Value::Array(values) => values.iter().map(without_input).collect(),
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| !matches!(name.as_str(), "input" | "input_value"));
            Value::Object(kept.map(|(name, value)| (name.clone(), without_input(value))).collect())
        }
        other => other.clone(),
    }
}

/// The kind that a code of MiniMax stands for.
fn of_base_resp(code: &str) -> &'static str {
    match code {
        "1002" | "1039" | "1041" => "rate_limit",
        "1004" | "2049" => "authentication",
        "1008" => "insufficient_balance",
        "2056" => "usage_limit",
        "1026" | "1027" => "content_filter",
        "2013" => "invalid_request",
        _ => "",
    }
}

/// What a server says that could not read the call that its model made, by its kind and in words (Groq, Ollama,
/// Gemini).
const UNUSABLE_KINDS: [&str; 5] = [
    "tool_use_failed",
    "output_parse_failed",
    "json_validate_failed",
    "malformed_function_call",
    "malformed_tool_call",
];
const UNUSABLE_PHRASES: [&str; 5] = [
    "failed to call a function",
    "tool call validation failed",
    "error parsing tool call",
    "failed to parse tool call",
    "model generated output that could not be parsed",
];
/// What passes by itself: that it is asked too often, and that it fails.
const LIMIT_KINDS: [&str; 4] = ["rate_limit", "too_many_requests", "throttl", "exhausted"];
const PASSING_KINDS: [&str; 4] = ["overload", "server_error", "timeout", "unavailable"];
/// Of these, what counts whatever the status is, and what is said of a limit with the status of a refused key.
const PLAIN_LIMIT_KINDS: [&str; 4] = ["rate_limit", "ratelimit", "too_many_requests", "throttl"];
const LIMIT_PHRASES: [&str; 3] = ["rate limit exceeded", "secondary rate limit", "too many requests"];
/// What is said of a key that is none, also where the status says something else.
const KEY_PHRASES: [&str; 4] = ["api key not valid", "incorrect api key", "invalid api key", "api key expired"];
/// Refusals of a model or a filter: asking again gets the same.
const FILTER_KINDS: [&str; 6] =
    ["content_filter", "content_policy", "policy_violation", "cyber_policy", "datainspection", "data_inspection"];
/// The code for it (GLM).
const FILTER_CODE: &str = "1301";

fn class(status: Option<u16>, said: &Said) -> ErrorClass {
    let may_be_guessed = matches!(status, None | Some(400 | 413 | 422 | 500));
    if too_long::is_said(&said.kinds, &said.code, &said.lower, may_be_guessed) {
        return ErrorClass::ContextTooLong;
    }
    if said.is(&UNUSABLE_KINDS) || said.says(&UNUSABLE_PHRASES) {
        return ErrorClass::Unusable;
    }
    let may_be_the_key = matches!(status, None | Some(0..300 | 400 | 401 | 403));
    if may_be_the_key && (said.says(&KEY_PHRASES) || said.is(&["api_key_invalid"])) {
        return ErrorClass::Credentials;
    }
    if quota::is_account_limit(status, &said.kinds, &said.lower) {
        return ErrorClass::Quota(None);
    }
    let is_filtered = said.is(&FILTER_KINDS) || said.code == FILTER_CODE;
    if is_filtered || (status == Some(403) && said.says(&["moderation", "flagged"])) {
        return ErrorClass::Never;
    }
    if matches!(status, Some(400 | 403)) {
        if said.is(&PLAIN_LIMIT_KINDS) || (status == Some(403) && said.says(&LIMIT_PHRASES)) {
            return ErrorClass::RateLimit(None);
        }
        if said.is(&["overload"]) {
            return ErrorClass::Retry;
        }
    }
    // The status is then that of the server that passes it on.
    if said.passed_on == Some(false) && said.is(&LIMIT_KINDS) {
        return ErrorClass::RateLimit(None);
    }
    if said.passed_on == Some(false) && said.is(&PASSING_KINDS) {
        return ErrorClass::Retry;
    }
    match status {
        Some(401 | 403 | 407) => ErrorClass::Credentials,
        Some(429) => ErrorClass::RateLimit(None),
        Some(408 | 409 | 424 | 425 | 498 | 499) => ErrorClass::Retry,
        Some(413) => ErrorClass::ContextTooLong,
        Some(501 | 505) => ErrorClass::Never,
        Some(300..500) => ErrorClass::Never,
        Some(500..) => ErrorClass::Retry,
        // Within an answer that began well, and anything odd.
        Some(0..300) | None => class_by_kind(said),
    }
}

fn class_by_kind(said: &Said) -> ErrorClass {
    if said.is(&["authentication", "invalid_api_key", "permission", "unauthorized", "unauthenticated", "forbidden"])
        || said.says(&["身份验证", "令牌"])
    {
        ErrorClass::Credentials
    } else if said.is(&LIMIT_KINDS) {
        ErrorClass::RateLimit(None)
    } else if said.is(&PASSING_KINDS) {
        ErrorClass::Retry
    } else if said.is(&[
        "invalid_request",
        "invalid_prompt",
        "not_found",
        "unsupported",
        "badrequest",
        "invalid_argument",
        "invalidparameter",
    ]) || said.says(&["unexpected endpoint or method"])
    {
        ErrorClass::Never
    } else {
        ErrorClass::Retry
    }
}

/// Fields in which reasoning goes back in words.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning_text", "reasoning"];
/// Words before the name of a field.
const BEFORE_FIELDS: [&str; 8] =
    ["field", "property", "argument", "parameter", "key", "attribute", "supplied:", "provided:"];

/// Whether a text in lower case names this field: as a word of its own, which may be a word of the language only where
/// nothing marks it as a name.
fn names(text: &str, field: &str) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(field).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + field.len()..]);
        let is_word = !before.ends_with(is_part) && !after.starts_with(is_part);
        // A field inside it is another one.
        let is_parent = after.strip_prefix('.').is_some_and(|rest| rest.starts_with(is_part));
        let is_marked = field.contains('_')
            || before.ends_with(['.', '\'', '"', '`', '“', '‘'])
            || before.split_whitespace().next_back().is_some_and(|word| BEFORE_FIELDS.contains(&word));
        is_word && !is_parent && is_marked
    })
}

/// A text that may be a page of HTML: its title, or its words.
fn readable(body: &str) -> String {
    let body = body.trim_start();
    if !body.starts_with('<') {
        return body.to_owned();
    }
    let lower = body.to_ascii_lowercase();
    let title = lower.find("<title>").zip(lower.find("</title>")).and_then(|(from, to)| body.get(from + 7..to));
    match title.map(str::trim).filter(|title| !title.is_empty()) {
        Some(title) => format!("a page of HTML, {title:?}"),
        None => "a page of HTML".to_owned(),
    }
}

/// One line of bounded length.
fn shortened(text: &str) -> String {
    let mut line = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
        if let Some((at, _)) = line.char_indices().nth(SHOWN) {
            line.truncate(at);
            line.push('…');
            break;
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_micros(784_111_777_000_000);

    fn class_of(status: u16, body: &str) -> ErrorClass {
        classify(status, &[], body, NOW).class
    }

    #[test]
    fn a_status_says_what_may_be_done() {
        use ErrorClass::{ContextTooLong, Credentials, Never, Quota, RateLimit, Retry};
        for (status, class) in [
            (301, Never),
            (400, Never),
            (401, Credentials),
            (402, Quota(None)),
            (403, Credentials),
            (404, Never),
            (408, Retry),
            (413, ContextTooLong),
            (422, Never),
            (429, RateLimit(None)),
            (500, Retry),
            (501, Never),
            (502, Retry),
            (503, Retry),
            (504, Retry),
            (520, Retry),
            (529, Retry),
        ] {
            assert_eq!(class_of(status, ""), class, "{status}");
            assert_eq!(class_of(status, "<html><title>Bad gateway</title>"), class, "{status}");
        }
    }

    #[test]
    fn errors_of_each_family_are_understood_on_any_endpoint() {
        use ErrorClass::{ContextTooLong, Credentials, Never, Quota, RateLimit, Retry};
        for (status, body, class) in [
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota",
                    "code":"insufficient_quota"}}"#,
                Quota(None),
            ),
            (
                429,
                r#"{"error":{"message":"Rate limit reached. Please try again in 1.5s.","type":"tokens",
                    "code":"rate_limit_exceeded"}}"#,
                RateLimit(Some(Span::from_micros(1_500_000))),
            ),
            (
                401,
                r#"{"error":{"message":"Incorrect API key provided","type":"invalid_request_error",
                    "code":"invalid_api_key"}}"#,
                Credentials,
            ),
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens",
                    "type":"invalid_request_error","code":"context_length_exceeded"}}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error",
                    "message":"prompt is too long: 215000 tokens > 200000 maximum"}}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error",
                    "message":"Your credit balance is too low to access the Anthropic API."}}"#,
                Quota(None),
            ),
            (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Retry),
            (
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it",
                    "type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":4096}}"#,
                ContextTooLong,
            ),
            (503, r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#, Retry),
            (400, r#"{"object":"error","message":"bad","type":"BadRequestError","code":400}"#, Never),
            (422, r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#, Never),
            (
                400,
                r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.",
                    "status":"INVALID_ARGUMENT"}}]"#,
                Credentials,
            ),
            (403, r#"{"error":{"code":403,"message":"Input flagged by moderation"}}"#, Never),
            (400, r#"{"error":{"code":"content_filter","message":"The response was filtered"}}"#, Never),
            (404, r#"{"error":"model 'x' not found"}"#, Never),
        ] {
            assert_eq!(class_of(status, body), class, "{body}");
        }
    }

    /// Errors for a long prompt are recognised in the bodies of each family (entry P5).
    #[test]
    fn prompts_that_are_too_long_are_recognised_in_bodies_of_each_family() {
        for body in [
            r#"{"message": "too many tokens: total number of tokens in the prompt exceeds the limit of 4081"}"#,
            r#"{"error": {"message": "prompt token count of 70000 exceeds the limit of 64000",
                "code": "model_max_prompt_tokens_exceeded"}}"#,
            r#"{"error": {"code": "invalid_parameter_error", "message": "Range of input length should be [1, 129024]",
                "type": "invalid_request_error"}}"#,
            r#"{"error": {"code": "1261", "message": "Prompt exceeds max length"}}"#,
            r#"{"error": {"code": 1261, "message": "?"}}"#,
            r#"{"error": {"code": "1210", "message": "tokens in request more than max tokens allowed"}}"#,
            concat!(
                r#"{"error": {"message": "Invalid request: Your request exceeded model token limit: 262144 "#,
                r#"(requested: 300000)", "type": "invalid_request_error"}}"#,
            ),
            r#"{"error": {"message": "Invalid request: total message size 10176584 exceeds limit 2097152",
                "type": "invalid_request_error"}}"#,
            r#"{"error": {"message": "Token limit reached", "code": 400}}"#,
            r#"{"code": "Client specified an invalid argument",
                "error": "This model's maximum prompt length is 131072 but the request contains 200000 tokens."}"#,
            r#"{"detail": "Your input exceeds the maximum allowed length of 32000 tokens"}"#,
            r#"{"object": "error", "message": "The conversation is too long: 210000 tokens", "code": 400}"#,
            r#"{"type": "error", "error": {"type": "invalid_request_error",
                "message": "input length and others exceed the context: 210000 tokens"}}"#,
            "prompt too long; exceeded max context length by 4000 tokens",
        ] {
            assert_eq!(class_of(400, body), ErrorClass::ContextTooLong, "{body}");
            assert_eq!(class_of(400, &format!("\n\n  {body}")), ErrorClass::ContextTooLong, "{body}");
            assert_eq!(in_answer(body).class, ErrorClass::ContextTooLong, "{body}");
        }
        let limit = r#"{"error":{"message":"This request would exceed the rate limit of 80000 input tokens per minute",
            "type":"rate_limit_error"}}"#;
        assert_eq!(class_of(429, limit), ErrorClass::RateLimit(None));
        let answer = concat!(
            r#"{"error":{"message":"max_tokens is too large: 100000. This model supports at most 4096 completion "#,
            r#"tokens","type":"invalid_request_error"}}"#,
        );
        assert_eq!(class_of(400, answer), ErrorClass::Never);
    }

    /// An error of another server that a gateway wraps is classified like a direct one (entry P6).
    #[test]
    fn what_a_gateway_passes_on_is_read_as_an_error_of_its_own() {
        use ErrorClass::{ContextTooLong, Never, RateLimit, Retry, Unusable};
        let raw = |raw: &str| {
            serde_json::json!({"error": {"message": "Provider returned error", "code": 400,
            "metadata": {"raw": raw, "provider_name": "X"}}})
        };
        for (body, class, told) in [
            (
                raw(r#"{"error":{"message":"prompt is too long: 215000 tokens > 200000 maximum"}}"#),
                ContextTooLong,
                "prompt is too long",
            ),
            (
                raw(r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#),
                Retry,
                "Overloaded",
            ),
            (raw(r#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#), RateLimit(None), "slow down"),
            (raw(r#"{"error":{"code":503,"message":"no engine"}}"#), Retry, "no engine"),
            (raw(r#"{"error":{"code":"tool_use_failed","message":"no call"}}"#), Unusable, "no call"),
            (raw("upstream says: temperature is out of range"), Never, "temperature is out of range"),
            (
                raw(&raw(r#"{"error":{"message":"prompt is too long"}}"#).to_string()),
                ContextTooLong,
                "prompt is too long",
            ),
            (
                serde_json::json!({"error": {"message": "Provider returned error",
                    "metadata": {"raw": {"error": {"message": "input is too long"}}}, "code": 400}}),
                ContextTooLong,
                "input is too long",
            ),
            (
                serde_json::json!({"error": {
                    "message": "{\"error\":{\"message\":\"slow down\",\"type\":\"rate_limit_error\"}}", "code": 400}}),
                RateLimit(None),
                "slow down",
            ),
            (raw(""), Never, "Provider returned error"),
            (
                serde_json::json!({"error": {"message": "Provider returned error", "code": 400,
                    "metadata": {"raw": null}}}),
                Never,
                "Provider returned error",
            ),
        ] {
            let error = classify(400, &[], &body.to_string(), NOW);
            assert_eq!(error.class, class, "{body}");
            assert!(error.message.contains(told), "{}", error.message);
            assert!(in_answer(&body.to_string()).message.contains(told), "{body}");
        }
    }

    /// A call that the server itself could not parse leads to a retry (entry P7).
    #[test]
    fn a_call_that_its_server_could_not_read_is_asked_again() {
        for body in [
            concat!(
                r#"{"error": {"message": "Failed to call a function. Please adjust your prompt. See "#,
                r#"'failed_generation' for more details.", "type": "invalid_request_error","#,
                r#" "code": "tool_use_failed", "failed_generation": "x"}}"#,
            ),
            r#"{"error": {"message": "Failed to call a function.", "type": "invalid_request_error"}}"#,
            concat!(
                r#"{"error": {"message": "Tool call validation failed: attempted to call tool 'x' which was not in "#,
                r#"request.tools", "type": "invalid_request_error"}}"#,
            ),
            r#"{"error": {"message": "Parsing failed.", "type": "invalid_request_error",
                "code": "output_parse_failed"}}"#,
            r#"{"error": {"message": "no", "type": "invalid_request_error", "code": "json_validate_failed"}}"#,
            r#"{"error": "error parsing tool call: raw='{\"a\":', err=unexpected end of JSON input"}"#,
            r#"{"error": {"code": 400, "status": "MALFORMED_FUNCTION_CALL", "message": "no"}}"#,
        ] {
            assert_eq!(class_of(400, body), ErrorClass::Unusable, "{body}");
            assert_eq!(in_answer(body).class, ErrorClass::Unusable, "{body}");
        }
    }

    /// An error about reasoning names the configuration quirk that may help (entry P11).
    #[test]
    fn an_error_about_reasoning_names_the_quirk_that_may_cure_it() {
        for (message, quirk) in [
            ("The `reasoning_content` in the thinking mode must be passed back to the API.", Some("return-reasoning")),
            (
                "thinking is enabled but reasoning_content is missing in assistant tool call message at index 2",
                Some("return-reasoning"),
            ),
            ("messages.1.reasoning_content: field required", Some("return-reasoning")),
            ("property 'reasoning_content' is unsupported", Some("drop-reasoning")),
            ("messages.1.reasoning_content: Extra inputs are not permitted", Some("drop-reasoning")),
            ("Unrecognized request argument supplied: reasoning_content", Some("drop-reasoning")),
            ("property 'reasoning' is unsupported", Some("drop-reasoning")),
            ("messages.1.reasoning: Extra inputs are not permitted", Some("drop-reasoning")),
            ("messages[1].reasoning_text is not allowed", Some("drop-reasoning")),
            ("Unrecognized request argument supplied: reasoning", Some("drop-reasoning")),
            (r#"unknown field "reasoning", expected one of "role", "content""#, Some("drop-reasoning")),
            ("Additional properties are not allowed (`reasoning` was unexpected)", Some("drop-reasoning")),
            ("temperature must be below 2", None),
            ("reasoning_effort is not supported with this model", None),
            ("unknown parameter: 'reasoning_effort'", None),
            ("unsupported value for 'reasoning.effort'", None),
            ("this model has no reasoning, which is not supported with tools", None),
        ] {
            let body = serde_json::json!({"error": {"message": message, "type": "invalid_request_error"}}).to_string();
            let error = classify(400, &[], &body, NOW);
            let named = quirk.map(|quirk| format!("quirks = [\"{quirk}\"]"));
            assert_eq!(error.class, ErrorClass::Never, "{message}");
            match named {
                Some(named) => assert!(error.message.contains(&named), "{}", error.message),
                None => assert!(!error.message.contains("quirks"), "{}", error.message),
            }
        }
    }

    #[test]
    fn an_error_within_a_stream_goes_by_its_code_or_its_kind() {
        use ErrorClass::{ContextTooLong, Credentials, Never, Retry};
        for (body, class) in [
            (r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Retry),
            (r#"{"error":{"code":502,"message":"Provider disconnected"}}"#, Retry),
            (r#"{"error":{"code":401,"message":"No auth"}}"#, Credentials),
            (r#"{"error":{"message":"wrong","type":"invalid_request_error"}}"#, Never),
            (
                r#"{"error":{"message":"Input is too long for the context window","type":"invalid_request_error"}}"#,
                ContextTooLong,
            ),
            (r#"{"type":"response.failed","response":{"error":{"code":"server_error","message":"oops"}}}"#, Retry),
            (r#"{"error":"something"}"#, Retry),
            ("something", Retry),
            ("", Retry),
        ] {
            assert_eq!(in_answer(body).class, class, "{body}");
        }
    }

    #[test]
    fn headers_say_when_but_not_whether() {
        let headers = [("Retry-After", "7")];
        assert_eq!(classify(429, &headers, "", NOW).class, ErrorClass::RateLimit(Some(Span::from_secs(7))));
        assert_eq!(classify(529, &headers, "", NOW).class, ErrorClass::RetryAfter(Span::from_secs(7)));
        assert_eq!(classify(401, &headers, "", NOW).class, ErrorClass::Credentials);
    }

    /// C3: what servers say of a limit of the account, and of its end.
    #[test]
    fn a_limit_of_the_account_is_no_refusal_of_the_key_whatever_its_status() {
        use ErrorClass::{Quota, RateLimit};
        let hours = |hours: u64| Quota(Some(Span::from_secs(hours * 3_600)));
        for (status, headers, body, class) in [
            (402, &[][..], r#"{"error":{"message":"Insufficient Balance","type":"unknown_error"}}"#, Quota(None)),
            (
                402,
                &[],
                r#"{"error":{"code":402,"message":"This request requires more credits, or fewer max_tokens."}}"#,
                Quota(None),
            ),
            (
                400,
                &[],
                r#"{"type":"error","error":{"type":"invalid_request_error",
                    "message":"You have reached your specified API usage limits."}}"#,
                Quota(None),
            ),
            (
                403,
                &[],
                r#"{"error":{"type":"permission_error",
                    "message":"You've reached your usage limit for this billing cycle."}}"#,
                Quota(None),
            ),
            (
                403,
                &[],
                r#"{"code":"Arrearage","message":"Access denied, please make sure your account is in good standing."}"#,
                Quota(None),
            ),
            (
                400,
                &[],
                r#"{"error":{"message":"Budget has been exceeded! Current cost: 5.1, Max budget: 5.0",
                    "type":"budget_exceeded"}}"#,
                Quota(None),
            ),
            (
                429,
                &[],
                r#"{"error":{"type":"usage_limit_reached","message":"The usage limit has been reached",
                    "resets_in_seconds":18000}}"#,
                hours(5),
            ),
            (
                429,
                &[("retry-after", "14400")],
                r#"{"error":{"type":"rate_limit_error","message":"slow down"}}"#,
                hours(4),
            ),
            (
                429,
                &[("x-ratelimit-reset-requests", "20ms")],
                r#"{"error":{"code":"insufficient_quota","message":"You exceeded your current quota"}}"#,
                Quota(None),
            ),
            (429, &[("retry-after", "9999999")], "", Quota(None)),
            (429, &[], r#"{"error":{"code":"1113","message":"余额不足或无可用资源包,请充值。"}}"#, Quota(None)),
            (402, &[], "Payment Required", Quota(None)),
            (429, &[], r#"{"error":{"message":"Weekly limit reached, resets in 6 days 2 hours"}}"#, hours(146)),
            (429, &[], r#"{"error":{"message":"Weekly limit reached, resets in 300 days"}}"#, Quota(None)),
            (
                401,
                &[],
                r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#,
                Quota(None),
            ),
            (
                429,
                &[],
                r#"{"error":{"status":"RESOURCE_EXHAUSTED","message":"Quota exceeded for requests per minute"}}"#,
                RateLimit(None),
            ),
            (
                429,
                &[],
                r#"{"error":{"message":"Tokens per minute limit exceeded, try again in 20s"}}"#,
                RateLimit(Some(Span::from_secs(20))),
            ),
            (429, &[("retry-after", "5")], r#"{"error":{"message":"too fast"}}"#, RateLimit(Some(Span::from_secs(5)))),
        ] {
            assert_eq!(classify(status, headers, body, NOW).class, class, "{status} {body}");
        }
    }

    /// C3: the words of more servers, at any status that they come with.
    #[test]
    fn a_limit_of_the_account_is_known_in_the_words_of_many_servers() {
        use ErrorClass::Quota;
        for (status, body) in [
            (401, r#"{"type":"error","error":{"type":"CreditsError","message":"No payment method."}}"#),
            (401, r#"{"error":{"type":"MonthlyLimitError","message":"Your workspace has reached its limit of $20."}}"#),
            (
                401,
                r#"{"error":{"message":"Authentication Error, ExceededTokenBudget: Max Budget for Token: 2e-07",
                    "type":"auth_error","code":401}}"#,
            ),
            (403, r#"{"error":{"message":"Key limit exceeded (total limit). Manage it in the settings","code":403}}"#),
            (403, r#"{"code":403,"reason":"NOT_ENOUGH_BALANCE","message":"no","metadata":{}}"#),
            (403, r#"{"error":{"message":"Your credits have been exhausted"}}"#),
            (403, r#"{"error":{"message":"User has no remaining balance"}}"#),
            (403, r#"{"error":{"message":"Your free trial has expired"}}"#),
            (403, r#"{"error":{"code":403,"message":"Denied","details":[{"reason":"BILLING_DISABLED"}]}}"#),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error",
                    "message":"You're out of extra usage. Add more and keep going."}}"#,
            ),
            (400, r#"{"error":{"message":"Insufficient account balance"}}"#),
            (400, r#"{"error":{"message":"Your prepaid credit is exhausted"}}"#),
            (400, r#"{"error":{"message":"Your account does not have enough funds"}}"#),
            (400, r#"{"error":{"message":"you have reached the maximum number of requests for today"}}"#),
            (400, r#"{"error":{"message":"ExceededBudget: User over budget. Spend=10, Budget=5"}}"#),
            (404, r#"{"error":{"message":"No credits remaining"}}"#),
            (412, r#"{"error":{"message":"Account suspended, possibly due to failure to pay past invoices"}}"#),
            (422, r#"{"error":{"message":"You do not have enough credits"}}"#),
            (503, r#"{"error":{"message":"Insufficient balance"}}"#),
            (
                429,
                concat!(
                    r#"{"error":{"message":"Your account org-1 request reached organization TPD rate limit, current: "#,
                    r#"1505910","type":"rate_limit_reached_error"}}"#,
                ),
            ),
            (
                429,
                r#"{"error":{"message":"Sorry, you've exceeded your weekly rate limit.",
                    "code":"user_weekly_rate_limited:pro"}}"#,
            ),
            (429, r#"{"error":{"code":"1309","message":"Your package is over."}}"#),
            (429, r#"{"message":"You are using a Trial key, which is limited to 1000 API calls / month."}"#),
            (
                429,
                r#"{"errors":[{"message":"AiError: you have used up your daily free allocation of 10,000 neurons",
                    "code":4006}],"success":false}"#,
            ),
            (429, r#"{"error":{"message":"week allocated quota exceeded.","code":"Throttling.AllocationQuota"}}"#),
            (429, r#"{"error":{"message":"您的套餐额度已用尽"}}"#),
            (200, r#"{"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}"#),
            (200, r#"{"code":1113,"msg":"?","success":false}"#),
        ] {
            assert_eq!(class_of(status, body), Quota(None), "{status} {body}");
        }
    }

    /// C3: what passes within a minute, or is about the request, holds no lane.
    #[test]
    fn what_only_sounds_like_a_limit_of_the_account_is_none() {
        use ErrorClass::{ContextTooLong, Credentials, Never, RateLimit, Retry};
        for (status, body, class) in [
            (
                429,
                r#"{"error":{"code":"1302","message":"您当前使用该API的并发数过高,请降低并发,或联系客服增加限额。"}}"#,
                RateLimit(None),
            ),
            (
                429,
                r#"{"error":{"code":"1303","message":"您当前使用该API的频率过高,请降低频率,或联系客服增加限额。"}}"#,
                RateLimit(None),
            ),
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota: see https://x/error-code#token-limit",
                    "code":"insufficient_quota"}}"#,
                RateLimit(None),
            ),
            (429, r#"{"error":{"message":"you hit your limit of concurrent requests"}}"#, RateLimit(None)),
            (
                400,
                concat!(
                    r#"{"object":"error","message":"[{'type': 'string_type', 'loc': ('body', 'stop'), 'msg': 'Input "#,
                    r#"should be a valid string', 'input': [{'content': 'why the quota exceeded error came'}]}]","#,
                    r#""type":"BadRequestError","code":400}"#,
                ),
                Never,
            ),
            (
                422,
                r#"{"detail":[{"type":"x","loc":["body"],"msg":"field required",
                    "input":{"a":"insufficient credit"}}]}"#,
                Never,
            ),
            (400, r#"{"error":{"message":"the thinking budget is exceeded: budget_tokens"}}"#, Never),
            (400, r#"{"error":{"message":"Rate limit exceeded.","type":"rate_limit_error"}}"#, RateLimit(None)),
            (400, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Retry),
            (403, r#"{"message":"You have exceeded a secondary rate limit."}"#, RateLimit(None)),
            (
                403,
                r#"{"error":{"code":403,"message":"no","errors":[{"reason":"rateLimitExceeded"}],
                    "status":"PERMISSION_DENIED"}}"#,
                RateLimit(None),
            ),
            (424, r#"{"message":"The model produced an unexpected error","originalStatusCode":500}"#, Retry),
            (
                400,
                r#"{"code":"Client specified an invalid argument","error":"Incorrect API key provided: xa***89."}"#,
                Credentials,
            ),
            (400, r#"[{"error":{"code":400,"message":"no","details":[{"reason":"API_KEY_INVALID"}]}}]"#, Credentials),
            (403, r#"{"error":{"message":"You have no access to this model"}}"#, Credentials),
            (
                422,
                concat!(
                    r#"{"error":{"message":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= "#,
                    r#"8193."}}"#,
                ),
                ContextTooLong,
            ),
            (
                400,
                r#"{"message":"the sum of prompt tokens and max_tokens must be less than or equal to 32768"}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"error":{"code":"InvalidParameter",
                    "message":"Total tokens of image and text exceed max message tokens."}}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"[{"error":{"message":"the input token count is 40000 but model only supports up to 32768.",
                    "status":"INVALID_ARGUMENT"}}]"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"object":"error","message":"max_tokens must be at least 1, got -3920.","code":400}"#,
                ContextTooLong,
            ),
            (200, r#"{"base_resp":{"status_code":1002,"status_msg":"slow"}}"#, RateLimit(None)),
            (200, r#"{"base_resp":{"status_code":1004,"status_msg":"no"}}"#, Credentials),
            (200, r#"{"error":{"code":"cyber_policy_violation","message":"flagged"}}"#, Never),
            (200, r#"{"code":"DataInspectionFailed","message":"no"}"#, Never),
            (200, r#"{"error":{"code":"1301","message":"?"}}"#, Never),
            (200, r#"{"code":"InvalidParameter","message":"Range of max_tokens should be [1, 8192]"}"#, Never),
        ] {
            assert_eq!(class_of(status, body), class, "{status} {body}");
        }
    }

    /// C3: a time that has just come, one in a header of another name, and one that lies further away than any.
    #[test]
    fn the_time_of_a_limit_is_kept_wherever_it_is_told() {
        use ErrorClass::{Quota, RateLimit};
        let secs = |secs| Some(Span::from_secs(secs));
        let limit = r#"{"error":{"type":"usage_limit_reached","message":"limit"}}"#;
        for (headers, body, class) in [
            (&[][..], r#"{"error":{"type":"usage_limit_reached","resets_in_seconds":0}}"#, Quota(secs(1))),
            (&[], r#"{"error":{"type":"usage_limit_reached","resets_at":784111700}}"#, Quota(None)),
            (&[], r#"{"error":{"message":"Your quota will reset after 0s.","code":"quota"}}"#, Quota(secs(1))),
            (&[("retry-after", "0")], limit, Quota(secs(1))),
            (&[("Retry-After", "Sun, 06 Nov 1994 08:49:35 GMT")], limit, Quota(secs(1))),
            (&[("Retry-After", "Sun, 06 Nov 1994 06:49:35 GMT")], limit, Quota(None)),
            (&[("retry-after", "90s")], limit, Quota(secs(90))),
            (&[("retry-after", "1994-11-06T08:49:47Z")], limit, Quota(secs(10))),
            (&[("x-ms-retry-after-ms", "4000")], limit, Quota(secs(4))),
            (&[("RateLimit", "\"day\";r=0;t=120")], "", RateLimit(secs(120))),
            (&[("ratelimit-remaining", "0"), ("RateLimit-Reset", "50")], "", RateLimit(secs(50))),
            (
                &[("x-codex-primary-used-percent", "100"), ("x-codex-primary-reset-after-seconds", "9000")],
                limit,
                Quota(secs(9_000)),
            ),
            (
                &[
                    ("anthropic-ratelimit-unified-5h-status", "rejected"),
                    ("anthropic-ratelimit-unified-5h-reset", "1994-11-06T09:49:37Z"),
                    ("anthropic-ratelimit-unified-overage-status", "rejected"),
                    ("anthropic-ratelimit-unified-overage-reset", "1994-12-06T09:49:37Z"),
                ],
                "",
                Quota(secs(3_600)),
            ),
            (
                &[],
                r#"{"error":{"type":"usage_limit_reached","message":"try again in 99999999999 hours"}}"#,
                Quota(None),
            ),
            (&[], r#"{"error":{"message":"slow down","resets_at":1e300}}"#, Quota(None)),
            (&[], r#"{"error":{"message":"slow down, resets at 9999-12-31T23:59:59Z"}}"#, Quota(None)),
        ] {
            assert_eq!(classify(429, headers, body, NOW).class, class, "{headers:?} {body}");
        }
    }

    #[test]
    fn a_limit_within_a_stream_has_its_time_too() {
        for body in [
            r#"{"error":{"type":"usage_limit_reached","message":"The usage limit has been reached",
                "resets_at":1796054400}}"#,
            r#"{"error":{"code":"quota_exceeded","message":"used up","reset_at":"2026-11-30T16:00:00+00:00"}}"#,
            r#"{"type":"response.failed","response":{"error":{"code":"usage_limit_reached","message":"x",
                "resets_at":1796054400}}}"#,
        ] {
            let now = Timestamp::from_micros(1_796_036_520_000_000);
            assert_eq!(dated(in_answer(body), now).class, ErrorClass::Quota(Some(Span::from_secs(17_880))), "{body}");
        }
        let body =
            r#"{"error":{"code":"usage_limit_reached","message":"limit reached, try again at 1994-11-06T10:49:37Z"}}"#;
        let error = in_answer(body);
        assert_eq!(error.class, ErrorClass::Quota(None));
        assert_eq!(dated(error, NOW).class, ErrorClass::Quota(Some(Span::from_secs(7_200))));
        let body = r#"{"error":{"code":"rate_limit_exceeded","message":"Please try again in 11.054s."}}"#;
        assert_eq!(in_answer(body).class, ErrorClass::RateLimit(Some(Span::from_micros(11_054_000))));
        let body = r#"{"error":{"code":"usage_limit_reached","message":"try again at 09:34","reset_at":1796054400}}"#;
        assert_eq!(in_answer(body).class, ErrorClass::Quota(None), "without a clock no time of day is a wait");
        let broken = dated(in_answer("overloaded, try again in 5s"), NOW);
        assert_eq!(broken.class, ErrorClass::RetryAfter(Span::from_secs(5)));
    }

    #[test]
    fn messages_are_one_bounded_line() {
        let told = classify(500, &[], "<!DOCTYPE html>\n<head><title>502 Bad\nGateway</title>", NOW).message;
        assert_eq!(told, "the provider refused with status 500: a page of HTML, \"502 Bad\\nGateway\"");
        let told = classify(500, &[], &format!("{{\"error\":\"a\\n\\tb {}\"}}", "x".repeat(5000)), NOW).message;
        assert!(told.starts_with("the provider refused with status 500: a b xxx") && told.chars().count() < 560);
        assert_eq!(classify(500, &[], "", NOW).message, "the provider refused with status 500: without a word");
        assert_eq!(in_answer(r#"{"error":{}}"#).message, r#"the provider broke off: {"error":{}}"#);
    }
}
