//! A command's way to the daemon: finds it, starts it where that is wanted, and asks again where asking again is safe.
//!
//! Owns what is retried. A request that the daemon may have taken is repeated only if it changes nothing, or carries a key.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use harness_protocol::paths::Surroundings;
use harness_protocol::rpc::{Method, SubmitParams};

use crate::client::{Client, ClientError, Taken};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::patience::PATIENCE;
use crate::start;
use crate::start_error::StartError;

/// Requests that change nothing. Whether they were taken does not matter.
const READS: &[&str] = &[
    "daemon.hello",
    "daemon.status",
    "run.list",
    "run.show",
    "run.wait",
    "run.output",
    "interaction.list",
    "lane.list",
    "event.subscribe",
];
/// How often a request is sent to a daemon that leaves before it reads it.
const ATTEMPTS: u32 = 5;
/// Between two looks for a daemon that comes back.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// The way to the daemon.
#[derive(Debug)]
pub(crate) struct Session {
    socket: PathBuf,
    may_start: bool,
    client: Option<Client>,
    started: bool,
    /// Daemons that left before they read anything of ours, one after the other.
    replaced: u32,
    interrupt: Option<Interrupt>,
}

impl Session {
    /// A session on `socket`, or on the one that the surroundings tell.
    pub(crate) fn new(socket: Option<PathBuf>, may_start: bool) -> Self {
        let socket = socket.unwrap_or_else(|| {
            Surroundings {
                var: &|name| std::env::var(name).ok(),
                uid: nix::unistd::geteuid().as_raw(),
                exists: &|path| path.exists(),
            }
            .socket()
        });
        // The daemon has another working directory than we have.
        let socket = std::path::absolute(&socket).unwrap_or(socket);
        Self { socket, may_start, client: None, started: false, replaced: 0, interrupt: None }
    }

    /// The socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// From here on no daemon is started.
    pub(crate) fn never_start(&mut self) {
        self.may_start = false;
    }

    /// Whether the daemon was started for this session.
    pub(crate) fn started(&self) -> bool {
        self.started
    }

    /// From here on Ctrl-C ends waiting with [`ClientError::Interrupted`] instead of the process.
    pub(crate) fn heed_interrupts(&mut self) -> Result<(), Failure> {
        if self.interrupt.is_none() {
            let interrupt = Interrupt::install().map_err(ClientError::Io)?;
            if let Some(client) = &mut self.client {
                client.heed(interrupt.clone());
            }
            self.interrupt = Some(interrupt);
        }
        Ok(())
    }

    /// The connection.
    pub(crate) fn client(&mut self) -> Result<&mut Client, Failure> {
        if self.client.is_none() {
            let stream = if self.may_start {
                let found = start::find_or_start(&self.socket)?;
                self.started |= found.started;
                found.stream
            } else {
                start::find(&self.socket)?
            };
            self.client = Some(Client::new(stream, self.interrupt.clone()).map_err(ClientError::Io)?);
        }
        match &mut self.client {
            Some(client) => Ok(client),
            None => Err(Failure::Client(ClientError::Lost { taken: Taken::No })),
        }
    }

    /// Forgets the connection; the next request makes a new one.
    pub(crate) fn hang_up(&mut self) {
        self.client = None;
    }

    /// A request, 10 s at most.
    pub(crate) fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Reply, Failure> {
        self.ask::<M>(params, Some(PATIENCE), READS.contains(&M::NAME))
    }

    /// A request that may take any time, or as long as `limit`.
    pub(crate) fn call_within<M: Method>(
        &mut self,
        params: &M::Params,
        limit: Option<Duration>,
    ) -> Result<M::Reply, Failure> {
        self.ask::<M>(params, limit, READS.contains(&M::NAME))
    }

    /// A submit: with a key it may be repeated.
    pub(crate) fn submit(&mut self, params: &SubmitParams) -> Result<harness_protocol::rpc::Submitted, Failure> {
        self.ask::<harness_protocol::rpc::method::RunSubmit>(params, Some(PATIENCE), params.idempotency_key.is_some())
    }

    fn ask<M: Method>(
        &mut self,
        params: &M::Params,
        limit: Option<Duration>,
        repeatable: bool,
    ) -> Result<M::Reply, Failure> {
        let mut attempt = 1;
        loop {
            match self.client()?.call_within::<M>(params, limit) {
                Err(ClientError::Lost { taken }) if attempt < ATTEMPTS && (repeatable || taken == Taken::No) => {
                    self.hang_up();
                    attempt += 1;
                }
                Err(error) => return Err(error.into()),
                Ok(reply) => return Ok(reply),
            }
        }
    }

    /// After a loss: a daemon that left before it read the first request is replaced at once, one that served us is waited for.
    pub(crate) fn recover(&mut self, failure: &Failure) -> Result<(), Failure> {
        if matches!(failure, Failure::Client(ClientError::Lost { taken: Taken::No })) && self.replaced < ATTEMPTS {
            self.replaced += 1;
            self.hang_up();
            return Ok(());
        }
        self.reconnect()
    }

    /// Waits up to 10 s for a daemon that restarts, and connects to it. Starts none: whoever stopped it may have meant it.
    fn reconnect(&mut self) -> Result<(), Failure> {
        self.hang_up();
        let until = Instant::now() + PATIENCE;
        loop {
            match start::find(&self.socket) {
                Ok(stream) => {
                    self.client = Some(Client::new(stream, self.interrupt.clone()).map_err(ClientError::Io)?);
                    return Ok(());
                }
                Err(StartError::NotRunning { .. }) if Instant::now() < until => {
                    let interrupted = match &self.interrupt {
                        Some(interrupt) => interrupt.sleep(LOOK_AGAIN),
                        None => {
                            std::thread::sleep(LOOK_AGAIN);
                            false
                        }
                    };
                    if interrupted {
                        return Err(ClientError::Interrupted.into());
                    }
                }
                Err(StartError::NotRunning { .. }) => {
                    return Err(Failure::Other {
                        code: harness_protocol::run::exit::UNREACHABLE,
                        message: format!(
                            "the daemon at {} is gone and did not come back within {} s",
                            self.socket.display(),
                            PATIENCE.as_secs()
                        ),
                        hint: Some("its runs are kept; start it: harnessctl daemon start".to_owned()),
                    });
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use crate::testing::{Fake, reply};
    use harness_protocol::rpc::{Empty, METHODS, method};
    use harness_protocol::spec::RunSpec;

    #[test]
    fn what_may_be_repeated_are_methods_that_exist() {
        assert!(READS.iter().all(|name| METHODS.contains(name)));
    }

    #[test]
    fn a_request_that_a_leaving_daemon_did_not_read_is_sent_to_the_next_one() {
        let fake = Fake::new();
        let mut session = Session::new(Some(fake.path()), false);
        let server = fake.serve(vec![
            // The first one takes the connection and leaves without reading.
            Box::new(drop),
            Box::new(|stream| reply(stream, "{}")),
        ]);
        session.call::<method::DaemonUndrain>(&Empty {}).unwrap();
        server.join().unwrap();
    }

    #[test]
    fn a_submit_that_may_have_been_taken_is_repeated_only_with_a_key() {
        let read_and_leave = || -> crate::testing::Step {
            Box::new(|stream| {
                crate::testing::request(&stream);
            })
        };
        let fake = Fake::new();
        let server = fake.serve(vec![read_and_leave()]);
        let mut params = SubmitParams { spec: RunSpec::default(), idempotency_key: None };
        let error = Session::new(Some(fake.path()), false).submit(&params).unwrap_err();
        assert_eq!(error.code(), 7);
        server.join().unwrap();

        params.idempotency_key = Some("k".into());
        let fake = Fake::new();
        let server = fake.serve(vec![
            read_and_leave(),
            Box::new(|stream| reply(stream, r#"{"id":"0000000000001","seq":3,"existing":true}"#)),
        ]);
        assert!(Session::new(Some(fake.path()), false).submit(&params).unwrap().existing);
        server.join().unwrap();
    }
}
