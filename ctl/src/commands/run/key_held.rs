//! Explains the refusal of a submit whose idempotency key belongs to another run.

use harness_protocol::id::RunId;
use harness_protocol::rpc::{ErrorKind, RpcError};

use crate::error::Failure;

/// The explanation, if the daemon refused this key; `None` for any other refusal.
pub(in crate::commands) fn held(key: &str, error: &RpcError) -> Option<Failure> {
    // The conflict may be about a name.
    if error.kind() != ErrorKind::Conflict || !error.message.contains("idempotency key") {
        return None;
    }
    let holder = error.message.split_whitespace().find_map(|word| word.parse::<RunId>().ok())?;
    Some(Failure::Other {
        code: error.data.exit_code,
        message: format!("the idempotency key {key:?} belongs to run {holder}, which was submitted differently"),
        hint: Some(format!(
            "look at it: harnessctl show {holder}; to submit something else take another key (the directory and \
             the environment that was named count, too)"
        )),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_run_that_holds_the_key_is_named() {
        let message = "run 0123456789abc was submitted under this idempotency key with another specification";
        let failure = held("nightly", &RpcError::new(ErrorKind::Conflict, message)).unwrap();
        assert_eq!(failure.code(), 2);
        assert!(failure.to_string().contains("\"nightly\" belongs to run 0123456789abc,"), "{failure}");
        assert!(failure.hint().unwrap().contains("harnessctl show 0123456789abc"));
        let name = "the live run 0123456789abc has the name \"x\"";
        assert!(held("nightly", &RpcError::new(ErrorKind::Conflict, name)).is_none());
        assert!(held("nightly", &RpcError::new(ErrorKind::Busy, message)).is_none());
    }
}
