//! Submits a run so that it is made once at most, even if the reply, the daemon or the connection is lost. Retries and
//! messages are sent in the same way.
//!
//! The only place that makes idempotency keys and sends submits again under them. A submit without a key of the user
//! gets a random one here, so that sending it again never makes a second run. If it stays unknown whether a submit took
//! effect, the error says so and names the command that settles it; it must not be reported as a refusal.

use std::fs::File;
use std::io::Read;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use harness_protocol::rpc::{
    ErrorKind, MessageParams, Method, Reason, RetryParams, RpcError, SubmitParams, Submitted, method,
};
use harness_protocol::submit_key::SubmitKey;
use harness_protocol::time::Span;

use crate::client::{ClientError, Taken, is_for_now};
use crate::error::{Failure, Settle};
use crate::launch::error::StartError;
use crate::session::Session;
use crate::session::submit_retry_delay::pause_before_retry;
use crate::spec::env;

/// Number of connections that may be lost, one after the other, without a reply.
const LOSSES: u32 = 5;
/// Time between two looks for a daemon.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// First minor version of the protocol with such keys.
const KEYS_SINCE_MINOR: u32 = 1;
/// First minor version in which a client names the folder of the working directory, and may be asked for variables.
const FOLDERS_SINCE_MINOR: u32 = 2;
/// Source of random bytes.
const RANDOM: &str = "/dev/urandom";

/// A random key that no submit has had before.
pub(crate) fn fresh_key() -> Result<SubmitKey, Failure> {
    let mut bytes = [0; 16];
    File::open(RANDOM)
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|source| Failure::Read { path: Path::new(RANDOM).to_owned(), source })?;
    Ok(SubmitKey::from_u128(u128::from_ne_bytes(bytes)))
}

/// A request that is sent under a key, so that it takes effect once, however often it is sent.
pub(crate) trait Keyed: Method<Reply = Submitted> {
    /// First minor version of the protocol in which it has a key.
    const SINCE: u32;

    /// Its key, and whether the key is sent for the first time.
    fn key(params: &mut Self::Params) -> (&mut Option<SubmitKey>, &mut bool);

    /// Whether the user gave it a key.
    fn has_other_key(_: &Self::Params) -> bool {
        false
    }

    /// Removes fields that a daemon of this minor version does not know. Gives whether there were any.
    fn leave_out(params: &mut Self::Params, minor: u32) -> bool {
        let (key, first) = Self::key(params);
        let leaves = key.is_some() && minor < Self::SINCE;
        if leaves {
            (*key, *first) = (None, false);
        }
        // Both are removed, whatever the first gives.
        leaves | Self::leave_out_later(params, minor)
    }

    /// The same for fields that are newer than the key.
    fn leave_out_later(_: &mut Self::Params, _minor: u32) -> bool {
        false
    }

    /// Adds variables that the daemon wants, as far as they are set here.
    fn pass_variables(_: &mut Self::Params, _: &RpcError) {}
}

impl Keyed for method::RunSubmit {
    const SINCE: u32 = KEYS_SINCE_MINOR;

    fn key(params: &mut SubmitParams) -> (&mut Option<SubmitKey>, &mut bool) {
        (&mut params.submit_key, &mut params.first)
    }

    fn has_other_key(params: &SubmitParams) -> bool {
        params.idempotency_key.is_some()
    }

    fn leave_out_later(params: &mut SubmitParams, minor: u32) -> bool {
        let has_any = params.spec.workdir_id.is_some() || params.passes_workdir || params.asks_variables;
        let leaves = has_any && minor < FOLDERS_SINCE_MINOR;
        if leaves {
            (params.spec.workdir_id, params.passes_workdir, params.asks_variables) = (None, false, false);
        }
        leaves
    }

    fn pass_variables(params: &mut SubmitParams, error: &RpcError) {
        pass_variables(params, error);
    }
}

impl Keyed for method::RunRetry {
    const SINCE: u32 = 2;

    fn key(params: &mut RetryParams) -> (&mut Option<SubmitKey>, &mut bool) {
        (&mut params.submit_key, &mut params.first)
    }
}

impl Keyed for method::RunMessage {
    const SINCE: u32 = 2;

    fn key(params: &mut MessageParams) -> (&mut Option<SubmitKey>, &mut bool) {
        (&mut params.submit_key, &mut params.first)
    }
}

/// Sends one submit, retry or message.
pub(crate) fn one<M: Keyed>(
    session: &mut Session,
    params: M::Params,
    retry_for: Option<Span>,
) -> Result<Submitted, Failure> {
    one_passing::<M>(session, params, None, retry_for)
}

/// The same, with a descriptor beside it, which an older daemon does not take.
pub(crate) fn one_passing<M: Keyed>(
    session: &mut Session,
    mut params: M::Params,
    mut passed: Option<BorrowedFd<'_>>,
    retry_for: Option<Span>,
) -> Result<Submitted, Failure> {
    let mut attempts = Attempts::new(retry_for);
    loop {
        let asked = session.client().and_then(|client| Ok(client.call_passing::<M>(&params, passed)?));
        let has_other = M::has_other_key(&params);
        let failed = match asked {
            Ok(submitted) => return Ok(submitted),
            // The greeting says by now which protocol it speaks. It refused because it does not know newer fields.
            Err(Failure::Refused(error))
                if error.kind() == ErrorKind::Invalid
                    && M::leave_out(&mut params, session.client()?.greeting()?.protocol_minor) =>
            {
                passed = None;
                continue;
            }
            Err(Failure::Refused(error)) if wants_variables(&error) => {
                M::pass_variables(&mut params, &error);
                continue;
            }
            Err(failure) => failure,
        };
        let (key, first) = M::key(&mut params);
        let key = *key;
        *first = false;
        // Without a key it might take effect twice.
        if key.is_none() && !has_other && !failed.is_unread() && is_undecided(&failed) {
            return Err(failed);
        }
        let again = attempts.again(session, failed);
        again.map_err(|failure| attempts.end(failure, key, 1, 0))?;
    }
}

/// Whether the daemon only wants variables of our environment.
pub(crate) fn wants_variables(error: &RpcError) -> bool {
    error.is_because(Reason::PassVariables)
}

/// Adds the variables that the daemon wants, as far as they are set here.
pub(crate) fn pass_variables(params: &mut SubmitParams, error: &RpcError) {
    let names = error.data.subject.as_deref().unwrap_or_default();
    env::pass(&mut params.spec.env, names.split(','), &env::here);
    params.asks_variables = false;
}

/// Removes fields that a daemon of an earlier minor version does not know. Gives whether there were any.
pub(crate) fn leave_out(session: &mut Session, params: &mut SubmitParams) -> Result<bool, Failure> {
    let minor = session.client()?.greeting()?.protocol_minor;
    Ok(method::RunSubmit::leave_out(params, minor))
}

/// The attempts at a submit, or at many, after a first failure.
#[derive(Debug)]
pub(crate) struct Attempts {
    until: Option<Instant>,
    losses: u32,
    /// Something was sent of which it is not known whether it takes effect.
    undecided: bool,
}

impl Attempts {
    /// No attempt yet. With `retry_for`, attempts go on for that long.
    pub(crate) fn new(retry_for: Option<Span>) -> Self {
        Self { until: retry_for.map(|span| Instant::now() + span.to_std()), losses: 0, undecided: false }
    }

    /// A reply has come.
    pub(crate) fn got_on(&mut self) {
        self.losses = 0;
    }

    /// After a failure: waits until the next attempt.
    ///
    /// # Errors
    /// If no further attempt makes sense: that failure, or a later one.
    pub(crate) fn again(&mut self, session: &mut Session, failure: Failure) -> Result<(), Failure> {
        self.undecided |= is_undecided(&failure);
        session.be_patient_until(self.until);
        let has_time = self.until.is_some_and(|until| Instant::now() < until);
        match failure {
            failure if failure.is_unread() || failure.is_loss() => {
                self.losses += 1;
                if self.losses > LOSSES && !has_time {
                    return Err(failure);
                }
                session.recover(&failure)
            }
            // There is no daemon just now: it is being restarted, or another process is about to start it.
            Failure::Start(
                StartError::NotRunning { .. }
                | StartError::SystemNotRunning { .. }
                | StartError::Unreachable { .. }
                | StartError::Elsewhere { .. },
            ) if has_time => {
                std::thread::sleep(LOOK_AGAIN);
                Ok(())
            }
            Failure::Client(ClientError::Silent { .. }) if has_time => {
                session.hang_up();
                Ok(())
            }
            Failure::Refused(error) if is_for_now(&error) => match pause_before_retry(&error, self.until) {
                Some(pause) => {
                    std::thread::sleep(pause);
                    Ok(())
                }
                None => Err(Failure::Refused(error)),
            },
            failure => Err(failure),
        }
    }

    /// The final failure, with `left` runs without a reply and `done` queued ones. Runs that may have been queued are
    /// not reported as refused, and queued ones are not submitted again with the rest.
    pub(crate) fn end(&self, why: Failure, key: Option<SubmitKey>, left: usize, done: usize) -> Failure {
        if !self.undecided && done == 0 {
            return why;
        }
        let settle = key.map_or(Settle::Again, Settle::UnderKey);
        Failure::Unsettled { why: Box::new(why), left, undecided: self.undecided, settle }
    }
}

/// Whether the request may have taken effect.
fn is_undecided(failure: &Failure) -> bool {
    match failure {
        Failure::Client(ClientError::Lost { taken }) => *taken == Taken::Maybe,
        Failure::Client(ClientError::Silent { .. } | ClientError::Io(_) | ClientError::Garbled(_)) => true,
        Failure::Refused(error) => error.data.undecided || failure.is_stopping(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::client::testing::{Fake, Step, request};

    fn keyed() -> SubmitParams {
        SubmitParams { submit_key: Some(fresh_key().unwrap()), first: true, ..SubmitParams::default() }
    }

    fn session(fake: &Fake) -> Session {
        Session::new(Some(fake.path()), false).unwrap()
    }

    #[test]
    fn keys_differ() {
        let keys: std::collections::BTreeSet<SubmitKey> = (0..100).map(|_| fresh_key().unwrap()).collect();
        assert_eq!(keys.len(), 100);
    }

    /// Entry B6 in `tests/README.md`.
    #[test]
    fn a_submit_whose_reply_was_lost_is_sent_again_under_its_key_whatever_took_the_reply() {
        type Loss = fn(std::os::unix::net::UnixStream);
        let losses: [(&str, Loss); 6] = [
            ("read and closed", |stream| drop(request(&stream))),
            ("closed unread", drop),
            ("half a reply", |stream| {
                let request = request(&stream);
                let half = format!(r#"{{"jsonrpc":"2.0","id":{},"resul"#, request["id"]);
                std::io::Write::write_all(&mut &stream, half.as_bytes()).unwrap();
            }),
            ("stopping", |stream| {
                let request = request(&stream);
                let error = RpcError::stopping().undecided();
                crate::client::testing::refuse_with(&stream, &request, &error);
            }),
            ("reset", |mut stream| {
                // What was sent to it and not read resets the connection.
                stream.read_exact(&mut [0]).unwrap();
            }),
            ("shut down", |stream| {
                request(&stream);
                stream.shutdown(std::net::Shutdown::Both).unwrap();
            }),
        ];
        for (name, lose) in losses {
            let fake = Fake::new();
            let (tell, told) = std::sync::mpsc::channel();
            let first: Step = Box::new(lose);
            let second: Step = Box::new(move |stream| {
                let request = request(&stream);
                crate::client::testing::answer(&stream, &request, r#"{"id":"0000000000001","seq":3,"existing":true}"#);
                tell.send(request["params"].clone()).unwrap();
            });
            let server = fake.serve(vec![first, second]);
            let params = keyed();
            let submitted = one::<method::RunSubmit>(&mut session(&fake), params.clone(), None)
                .unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(submitted.existing, "{name}");
            let sent = told.recv().unwrap();
            assert_eq!(sent["submit_key"], params.submit_key.unwrap().to_string(), "{name}");
            assert_eq!(sent["first"], serde_json::Value::Null, "{name}");
            server.join().unwrap();
        }
    }

    #[test]
    fn what_may_have_been_taken_is_told_so_and_how_to_settle_it() {
        let held = RpcError::new(ErrorKind::Held, "held: disk full");
        let cases = [
            (ClientError::Lost { taken: Taken::Maybe }.into(), 7, true),
            (ClientError::Lost { taken: Taken::No }.into(), 7, false),
            (ClientError::Silent { seconds: 10, pid: None }.into(), 7, true),
            (Failure::Refused(held.clone().undecided()), 75, true),
            (Failure::Refused(held), 75, false),
            (Failure::Refused(RpcError::new(ErrorKind::Busy, "draining")), 75, false),
            (Failure::Refused(RpcError::stopping()), 75, true),
            (Failure::Refused(RpcError::new(ErrorKind::Invalid, "no")), 2, false),
        ];
        for (failure, code, undecided) in cases {
            let name = failure.to_string();
            let attempts = Attempts { undecided: is_undecided(&failure), ..Attempts::new(None) };
            let key = SubmitKey::from_u128(0xab);
            let told = attempts.end(failure, Some(key), 1, 0);
            assert_eq!(told.code(), code, "{name}");
            assert_eq!(told.to_string().contains("may have been queued"), undecided, "{told}");
            let hint = told.hint().unwrap_or_default();
            assert_eq!(hint.contains(&format!("--again {key}")), undecided, "{hint}");
        }
    }

    #[test]
    fn the_rest_of_a_batch_is_gone_on_with_under_its_key_even_where_it_was_refused() {
        let refused = || Failure::Refused(RpcError::new(ErrorKind::Busy, "draining"));
        let attempts = Attempts::new(None);
        let told = attempts.end(refused(), Some(SubmitKey::from_u128(1)), 3, 2);
        assert_eq!((told.code(), told.to_string()), (75, "draining; 3 runs were not queued".to_owned()));
        assert!(told.hint().unwrap().contains("--again"));
        assert!(attempts.end(refused(), None, 3, 2).hint().unwrap().contains("idempotency key"));
        assert!(!attempts.end(refused(), None, 3, 0).to_string().contains("queued"));
    }

    #[test]
    fn an_attempt_that_was_refused_for_now_and_took_effect_later_is_found_again() {
        let fake = Fake::new();
        let mut session = session(&fake);
        let server = fake.serve(vec![Box::new(|stream| {
            let first = request(&stream);
            let held = RpcError::new(ErrorKind::Held, "held").retry_after(Span::from_micros(1)).undecided();
            crate::client::testing::refuse_with(&stream, &first, &held);
            let second = request(&stream);
            assert_eq!(second["params"]["submit_key"], first["params"]["submit_key"]);
            crate::client::testing::answer(&stream, &second, r#"{"id":"0000000000001","seq":3,"existing":true}"#);
        })]);
        assert!(one::<method::RunSubmit>(&mut session, keyed(), Some(Span::from_secs(60))).unwrap().existing);
        server.join().unwrap();
    }
}
