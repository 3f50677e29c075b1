//! Recognises errors in place of an answer, from servers whose HTTP status always reports success.
//!
//! Pure. The only place with the forms of such envelopes, and with the places of code and text in them. What the code
//! and the text mean is decided in `inference/errors/classify.rs`.

use serde_json::{Map, Value};

use super::classify::in_answer;
use crate::prompt::InferenceError;

/// Names of what an answer has in it: whatever has one of these is none of the envelopes of here.
const ANSWERS: [&str; 6] = ["choices", "content", "output", "usage", "delta", "candidates"];
/// Names of codes, the first that says something counts.
const CODES: [&str; 6] = ["code", "error_code", "errcode", "status_code", "status", "http_code"];
/// Names of the words that go with them.
const WORDS: [&str; 8] = ["message", "msg", "status_msg", "error_msg", "errmsg", "error_message", "detail", "title"];
/// Words of a status that is none of success.
const FAILED: [&str; 4] = ["error", "ERROR", "fail", "failed"];
/// Codes of those for whom all is well.
const WELL: [&str; 7] = ["0", "200", "ok", "success", "succeeded", "null", "none"];

/// The error that an object of JSON is, where it is one and no answer.
pub(in crate::inference) fn error(json: &str) -> Option<InferenceError> {
    let Ok(Value::Object(object)) = serde_json::from_str(json.trim()) else { return None };
    let base = object.get("base_resp").and_then(Value::as_object);
    let went_wrong = base.and_then(code).is_some_and(|code| !is_well(&code));
    if !went_wrong && ANSWERS.iter().any(|name| object.get(*name).is_some_and(has_something)) {
        return None;
    }
    let first = || object.get("errors").and_then(|errors| errors.get(0)).and_then(Value::as_object);
    let envelope = match base {
        Some(base) => base,
        None => first().unwrap_or(&object),
    };
    let words = words(envelope).or_else(|| words(&object));
    let code = code(envelope).or_else(|| code(&object));
    let status = object.get("status").and_then(Value::as_str);
    let failed =
        object.get("success") == Some(&Value::Bool(false)) || status.is_some_and(|status| FAILED.contains(&status));
    let is_error = match (&code, base) {
        (Some(code), _) if is_well(code) => failed,
        (Some(_), Some(_)) => went_wrong || failed,
        (code, _) => failed || (code.is_some() && words.is_some()),
    };
    if !is_error {
        return None;
    }
    let code = code.filter(|code| !is_well(code)).unwrap_or_default();
    let words = words.unwrap_or_else(|| json.trim().to_owned());
    // All of it goes along: some field may say when it is over.
    let mut told = object.clone();
    told.insert("error".to_owned(), serde_json::json!({ "code": code, "message": words }));
    Some(in_answer(&Value::Object(told).to_string()))
}

fn has_something(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(list) => !list.is_empty(),
        Value::Object(object) => !object.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Bool(true) | Value::Number(_) => true,
    }
}

fn code(of: &Map<String, Value>) -> Option<String> {
    let text = |value: &Value| match value {
        Value::String(text) => Some(text.trim().to_owned()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    // A status in words is no code: answers have such, too.
    let is_code = |name: &str, text: &str| !text.is_empty() && (name != "status" || text.parse::<u32>().is_ok());
    CODES.iter().find_map(|name| of.get(*name).and_then(text).filter(|text| is_code(name, text)))
}

fn words(of: &Map<String, Value>) -> Option<String> {
    let text = |name: &&str| of.get(*name).and_then(Value::as_str).map(str::trim).filter(|text| !text.is_empty());
    WORDS.iter().find_map(text).map(str::to_owned)
}

fn is_well(code: &str) -> bool {
    WELL.iter().any(|well| code.eq_ignore_ascii_case(well))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prompt::ErrorClass::{self, Credentials, Never, Quota, RateLimit, Retry};

    /// An error in the envelope of an answer gets its class and its text (entry C3).
    #[test]
    fn an_error_in_the_envelope_of_an_answer_has_its_class_and_its_words() {
        for (json, class, told) in [
            (r#"{"base_resp":{"status_code":1008,"status_msg":"insufficient balance"}}"#, Quota(None), "insufficient"),
            (
                r#"{"base_resp":{"status_code":1004,"status_msg":"login fail"},"choices":null}"#,
                Credentials,
                "login fail",
            ),
            (r#"{"base_resp":{"status_code":2049,"status_msg":"invalid api key"}}"#, Credentials, "invalid api key"),
            (r#"{"base_resp":{"status_code":1002,"status_msg":"RPM"},"choices":[]}"#, RateLimit(None), "RPM"),
            (r#"{"base_resp":{"status_code":"1039","status_msg":"TPM"},"usage":null}"#, RateLimit(None), "TPM"),
            (r#"{"base_resp":{"status_code":1027,"status_msg":"output sensitive"}}"#, Never, "output sensitive"),
            (r#"{"base_resp":{"status_code":1000,"status_msg":"unknown error"}}"#, Retry, "unknown error"),
            (r#"{"code":500,"msg":"404 NOT_FOUND","success":false}"#, Retry, "404 NOT_FOUND"),
            (r#"{"code":401,"msg":"token expired or incorrect"}"#, Credentials, "token expired"),
            (r#"{"code":"429","message":"Too fast","data":null}"#, RateLimit(None), "Too fast"),
            (r#"{"code":"Throttling.RateQuota","message":"later","request_id":"a"}"#, RateLimit(None), "later"),
            (
                r#"{"code":1113,"msg":"Insufficient balance. Please recharge.","success":false}"#,
                Quota(None),
                "recharge",
            ),
            (
                r#"{"success":false,"errors":[{"code":10000,"message":"Authentication error"}]}"#,
                Retry,
                "Authentication",
            ),
            (r#"{"title":"Too Many Requests","status":429}"#, RateLimit(None), "Too Many Requests"),
            (r#"{"error_code":"InvalidApiKey.permission","error_msg":"No permission"}"#, Credentials, "No permission"),
            (r#"{"success":false}"#, Retry, "success"),
            (r#"{"status":"error","message":"it broke"}"#, Retry, "it broke"),
        ] {
            let error = error(json).map(|error| (error.class, error.message));
            let (is, says): (Option<ErrorClass>, String) =
                error.map_or((None, String::new()), |(is, says)| (Some(is), says));
            assert_eq!(is, Some(class), "{json}: {says}");
            assert!(says.contains(told), "{says}: {json}");
        }
    }

    /// An envelope that reports success is no error (entry C3).
    #[test]
    fn what_says_that_all_is_well_is_no_error() {
        for json in [
            r#"{"base_resp":{"status_code":0,"status_msg":""}}"#,
            r#"{"base_resp":{"status_code":0,"status_msg":"success"},"choices":null}"#,
            r#"{"code":0,"msg":"ok"}"#,
            r#"{"code":200,"message":"success"}"#,
            r#"{"code":"Success","message":"","success":true}"#,
            r#"{"choices":[{"delta":{}}],"code":500,"message":"no"}"#,
            r#"{"usage":{"prompt_tokens":1},"code":500,"message":"no"}"#,
            r#"{"message":"hello"}"#,
            r#"{"code":7}"#,
            r#"{"status":"completed","message":"hello"}"#,
            r#"{"id":"x","object":"chat.completion.chunk"}"#,
            "{}",
            "[]",
            "words",
        ] {
            assert!(error(json).is_none(), "{json}");
        }
    }
}
