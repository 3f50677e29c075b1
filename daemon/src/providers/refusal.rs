//! Why a provider did not answer, from what it said instead: a status with a body, or an error within a stream.
//!
//! | class | |
//! |---|---|
//! | retry, retry after | rate limits, overload, faults of the server, streams that broke; what says nothing at all |
//! | credentials | the key, its permissions, and the account behind it: quota and credit are for a person to settle, too |
//! | context too long | by code, or by one of the many ways in which servers put it |
//! | never | what is wrong with the request, and refusals of the model or of a content filter: asking again gets the same |
//!
//! Bodies come in the shape of any family on the endpoints of any other, so nothing here depends on the dialect.

use harness_protocol::time::{Span, Timestamp};
use serde_json::Value;

use super::rate_limit;
use crate::prompt::{ErrorClass, InferenceError};

/// Characters of a provider's message that are passed on.
const SHOWN: usize = 500;

/// What a response with an error status means.
pub fn classify(status: u16, headers: &[(&str, &str)], body: &str, now: Timestamp) -> InferenceError {
    let said = Said::read(body);
    let class = class(Some(status), &said);
    let wait = || rate_limit::wait(headers, now).or_else(|| said.wait());
    let class = match class {
        ErrorClass::Retry => wait().map_or(ErrorClass::Retry, ErrorClass::RetryAfter),
        other => other,
    };
    let reason = if said.message.is_empty() { "without a word" } else { &said.message };
    InferenceError::new(class, format!("the provider refused with status {status}: {reason}"))
}

/// What an error means that came in place of an answer, or in its middle: an object of JSON, or any text.
pub(super) fn in_answer(body: &str) -> InferenceError {
    let said = Said::read(body);
    let status = said.code.parse().ok().filter(|code| (300..600).contains(code));
    let class = match class(status, &said) {
        ErrorClass::Retry => said.wait().map_or(ErrorClass::Retry, ErrorClass::RetryAfter),
        other => other,
    };
    let reason = if said.message.is_empty() { "without a word" } else { &said.message };
    InferenceError::new(class, format!("the provider broke off: {reason}"))
}

/// The stream is not what was agreed, or not whole.
pub(super) fn broken(message: impl Into<String>) -> InferenceError {
    InferenceError::new(ErrorClass::Retry, message)
}

/// The model, or a filter before or behind it, will not answer this.
pub(super) fn refused(by: &str, text: &str) -> InferenceError {
    let text = shortened(text);
    let message = if text.is_empty() { by.to_owned() } else { format!("{by}: {text}") };
    InferenceError::new(ErrorClass::Never, message)
}

/// What an event that is no JSON, or an answer that is none, is told as.
pub(super) fn unreadable(what: &str, body: &str, error: &serde_json::Error) -> InferenceError {
    broken(format!("the provider sent {what} that cannot be read ({error}): {}", shortened(&readable(body))))
}

/// What there is to go by.
struct Said {
    message: String,
    /// Code, type and status in lower case, one after the other.
    kinds: String,
    /// The code alone.
    code: String,
}

impl Said {
    fn read(body: &str) -> Self {
        let Ok(value) = serde_json::from_str::<Value>(body) else {
            return Self { message: shortened(&readable(body)), kinds: String::new(), code: String::new() };
        };
        let value = value.get(0).unwrap_or(&value);
        // {"error": {…}}, {"error": "…"}, {"detail": …}, {"message": …}; {"response": {"error": {…}}} in a stream.
        let nested = value.get("response").unwrap_or(value);
        let error = nested.get("error").filter(|error| !error.is_null()).unwrap_or(nested);
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let field = |name: &str| error.get(name).filter(|value| !value.is_null());
        let message = text(error)
            .or_else(|| field("message").and_then(text))
            .or_else(|| error.pointer("/metadata/raw").and_then(text))
            .or_else(|| field("detail").map(|detail| text(detail).unwrap_or_else(|| detail.to_string())))
            .or_else(|| value.get("message").and_then(text))
            .unwrap_or_else(|| error.to_string());
        let word = |name: &str| field(name).map(|value| text(value).unwrap_or_else(|| value.to_string()));
        let code = word("code").unwrap_or_default().to_ascii_lowercase();
        let kinds = ["type", "status"].into_iter().filter_map(word).collect::<Vec<_>>().join(" ").to_ascii_lowercase();
        Self { message: shortened(&message), kinds: format!("{code} {kinds}"), code }
    }

    fn is(&self, kinds: &[&str]) -> bool {
        kinds.iter().any(|kind| self.kinds.contains(kind))
    }

    fn says(&self, phrases: &[&str]) -> bool {
        let message = self.message.to_ascii_lowercase();
        phrases.iter().any(|phrase| message.contains(phrase))
    }

    /// "Please try again in 1.2s."
    fn wait(&self) -> Option<Span> {
        let (_, rest) = self.message.split_once("try again in ")?;
        let word = rest.split_whitespace().next()?.trim_end_matches(['.', ',']);
        rate_limit::duration(word).filter(|wait| *wait > Span::ZERO)
    }
}

fn class(status: Option<u16>, said: &Said) -> ErrorClass {
    if is_too_long(said) {
        return ErrorClass::ContextTooLong;
    }
    if said.is(&["insufficient_quota", "billing", "payment_required", "insufficient_credits"])
        || said.says(&[
            "credit balance is too low",
            "insufficient balance",
            "insufficient credits",
            "api key not valid",
        ])
    {
        return ErrorClass::Credentials;
    }
    if said.is(&["content_filter", "content_policy"]) || (status == Some(403) && said.says(&["moderation", "flagged"]))
    {
        return ErrorClass::Never;
    }
    match status {
        Some(401..=403 | 407) => ErrorClass::Credentials,
        Some(408 | 409 | 425 | 429 | 498 | 499) => ErrorClass::Retry,
        Some(413) => ErrorClass::ContextTooLong,
        Some(501 | 505) => ErrorClass::Never,
        Some(300..500) => ErrorClass::Never,
        Some(500..) => ErrorClass::Retry,
        // Within an answer that began well, and anything odd.
        Some(0..300) | None => class_by_kind(said),
    }
}

fn class_by_kind(said: &Said) -> ErrorClass {
    if said.is(&["authentication", "invalid_api_key", "permission", "unauthorized", "unauthenticated", "forbidden"]) {
        ErrorClass::Credentials
    } else if said.is(&["rate_limit", "overload", "server_error", "timeout", "unavailable", "exhausted"]) {
        ErrorClass::Retry
    } else if said.is(&[
        "invalid_request",
        "invalid_prompt",
        "not_found",
        "unsupported",
        "badrequest",
        "invalid_argument",
    ]) {
        ErrorClass::Never
    } else {
        ErrorClass::Retry
    }
}

fn is_too_long(said: &Said) -> bool {
    said.is(&["context_length", "exceed_context", "context_window", "string_above_max_length", "request_too_large"])
        || said.says(&[
            "maximum context length",
            "context length",
            "context window",
            "context size",
            "context limit",
            "exceeds the context",
            "prompt is too long",
            "input is too long",
            "too many input tokens",
            "reduce the length",
            "request too large",
            "exceeds the maximum number of tokens",
        ])
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
        use ErrorClass::{ContextTooLong, Credentials, Never, Retry};
        for (status, class) in [
            (301, Never),
            (400, Never),
            (401, Credentials),
            (402, Credentials),
            (403, Credentials),
            (404, Never),
            (408, Retry),
            (413, ContextTooLong),
            (422, Never),
            (429, Retry),
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
        use ErrorClass::{ContextTooLong, Credentials, Never, Retry, RetryAfter};
        for (status, body, class) in [
            (
                429,
                r#"{"error":{"message":"You exceeded your current quota","type":"insufficient_quota","code":"insufficient_quota"}}"#,
                Credentials,
            ),
            (
                429,
                r#"{"error":{"message":"Rate limit reached. Please try again in 1.5s.","type":"tokens","code":"rate_limit_exceeded"}}"#,
                RetryAfter(Span::from_micros(1_500_000)),
            ),
            (
                401,
                r#"{"error":{"message":"Incorrect API key provided","type":"invalid_request_error","code":"invalid_api_key"}}"#,
                Credentials,
            ),
            (
                400,
                r#"{"error":{"message":"This model's maximum context length is 8192 tokens","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"prompt is too long: 215000 tokens > 200000 maximum"}}"#,
                ContextTooLong,
            ),
            (
                400,
                r#"{"type":"error","error":{"type":"invalid_request_error","message":"Your credit balance is too low to access the Anthropic API."}}"#,
                Credentials,
            ),
            (529, r#"{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}"#, Retry),
            (
                400,
                r#"{"error":{"code":400,"message":"the request exceeds the available context size, try increasing it","type":"exceed_context_size_error","n_prompt_tokens":9000,"n_ctx":4096}}"#,
                ContextTooLong,
            ),
            (503, r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#, Retry),
            (400, r#"{"object":"error","message":"bad","type":"BadRequestError","code":400}"#, Never),
            (422, r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#, Never),
            (
                400,
                r#"[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}]"#,
                Credentials,
            ),
            (403, r#"{"error":{"code":403,"message":"Input flagged by moderation"}}"#, Never),
            (400, r#"{"error":{"code":"content_filter","message":"The response was filtered"}}"#, Never),
            (404, r#"{"error":"model 'x' not found"}"#, Never),
        ] {
            assert_eq!(class_of(status, body), class, "{body}");
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
        assert_eq!(classify(429, &headers, "", NOW).class, ErrorClass::RetryAfter(Span::from_secs(7)));
        assert_eq!(classify(529, &headers, "", NOW).class, ErrorClass::RetryAfter(Span::from_secs(7)));
        assert_eq!(classify(401, &headers, "", NOW).class, ErrorClass::Credentials);
    }

    #[test]
    fn messages_are_one_bounded_line() {
        let told = classify(500, &[], "<!DOCTYPE html>\n<head><title>502 Bad\nGateway</title>", NOW).message;
        assert_eq!(told, "the provider refused with status 500: a page of HTML, \"502 Bad\\nGateway\"");
        let told = classify(500, &[], &format!("{{\"error\":\"a\\n\\tb {}\"}}", "x".repeat(5000)), NOW).message;
        assert!(told.starts_with("the provider refused with status 500: a b xxx") && told.chars().count() < 560);
        assert_eq!(classify(500, &[], "", NOW).message, "the provider refused with status 500: without a word");
        assert_eq!(in_answer(r#"{"error":{}}"#).message, "the provider broke off: {}");
    }
}
