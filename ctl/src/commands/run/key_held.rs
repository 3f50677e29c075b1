//! Explains the refusal of a submit whose idempotency key belongs to another run.

use harness_protocol::rpc::{Reason, RpcError, Subject};

use crate::error::Failure;

/// The explanation, if the daemon refused this key; `None` for any other refusal.
pub(in crate::commands) fn held(key: &str, error: &RpcError) -> Option<Failure> {
    let (true, Some(Subject::Run(holder))) = (error.is_because(Reason::KeyTaken), error.subject()) else { return None };
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
    use harness_protocol::rpc::ErrorKind;

    use super::*;

    #[test]
    fn the_run_that_holds_the_key_is_named() {
        let holder = Subject::Run("0123456789abc".parse().unwrap());
        let conflict = || RpcError::new(ErrorKind::Conflict, "any words");
        let failure = held("nightly", &conflict().because(Reason::KeyTaken, holder.clone())).unwrap();
        assert_eq!(failure.code(), 2);
        assert!(failure.to_string().contains("\"nightly\" belongs to run 0123456789abc,"), "{failure}");
        assert!(failure.hint().unwrap().contains("harnessctl show 0123456789abc"));
        assert!(held("nightly", &conflict().because(Reason::NameTaken, holder)).is_none());
        // A daemon before protocol 1.3 says so in words alone, which are shown as they are.
        assert!(held("nightly", &conflict()).is_none());
    }
}
