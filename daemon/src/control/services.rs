//! What every connection works with: the inbox, the feed, the history, limits, and services of other modules.

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::pin::Pin;
use std::sync::Arc;

use harness_protocol::id::{CallId, RunId};
use harness_protocol::rpc::{OutputStream, ProviderCheck, ProviderView, RpcError};
use harness_protocol::spec::RunSpec;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::limits::memory::Memory;
use super::request::Request;
use super::rights::Origin;
use super::socket::arrivals::Arrivals;
use crate::blocking::Blocking;
use crate::config::Bounds;
use crate::feed::Feed;
use crate::folders::Folders;
use crate::inbox::Inbox;
use crate::journal::history::History;

/// A range of a stream: where it begins, the bytes, and how many there are in all.
pub type OutputRange = (u64, Vec<u8>, u64);
/// Reads a range of the output of a call.
pub type ReadOutput = dyn Fn(RunId, CallId, OutputStream, i64, u32) -> io::Result<OutputRange> + Send + Sync;

/// How far a chain of parents is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// A few steps: as far as those of most processes go.
    Short,
    /// As far as any is followed.
    Whole,
}

/// Tells whose the process behind a descriptor is; nothing where its chain of parents is longer than the reach.
pub type Trace = dyn Fn(Option<BorrowedFd<'_>>, Reach) -> Option<Origin> + Send + Sync;
/// Tells whether the process of a number has the mark of what runs start, or cannot be looked at. Waits for nothing.
pub type IsMarked = dyn Fn(u32) -> bool + Send + Sync;

/// Tells who the peers of connections are.
pub struct Tracing {
    /// The quick look, which gives no rights.
    pub is_marked: Box<IsMarked>,
    /// The whole one, which may take long.
    pub trace: Arc<Trace>,
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracing").finish_non_exhaustive()
    }
}
/// Tells what is wrong with a specification.
pub type CheckSpec = dyn Fn(&RunSpec) -> SpecChecked + Send + Sync;
/// What comes of that.
pub type SpecChecked = Pin<Box<dyn Future<Output = Result<(), RpcError>> + Send>>;

/// Lists the providers.
pub type ListProviders = dyn Fn() -> Vec<ProviderView> + Send + Sync;
/// What comes of a check.
pub type Checked = Pin<Box<dyn Future<Output = Option<ProviderCheck>> + Send>>;
/// Checks the provider of a name, with a model in place of the configured one; nothing where there is no such provider.
pub type CheckProvider = dyn Fn(Arc<str>, Option<Arc<str>>) -> Checked + Send + Sync;

/// What every connection works with.
pub struct Services {
    /// Where requests go.
    pub inbox: Inbox<Request>,
    /// Where events come from.
    pub feed: Feed,
    /// And where those are that happened before.
    pub history: History,
    /// Where the reading of them is done.
    pub blocking: Blocking,
    /// Where large requests are parsed.
    pub parsing: Blocking,
    /// The runtime for what may take long: there large answers are encoded, and events for subscriptions.
    pub background: Handle,
    /// The turns in which events are encoded for subscriptions.
    pub follower_turns: Semaphore,
    /// Pages of the journal that are there at once for subscriptions of operators, and for those of others.
    pub pages: [Arc<Semaphore>; 2],
    /// The bounds of runs and of their requests, as configured.
    pub bounds: Bounds,
    /// Looks at working directories.
    pub folders: Folders,
    /// What all connections together may hold.
    pub memory: Memory,
    /// Those who have come and are not known yet.
    pub arrivals: Arrivals,
    /// What is wrong with a specification that only its provider can tell.
    pub check_spec: Box<CheckSpec>,
    /// Reads the output of a call.
    pub read_output: Box<ReadOutput>,
    /// Lists the providers.
    pub list_providers: Box<ListProviders>,
    /// Checks one provider by a short request.
    pub check_provider: Box<CheckProvider>,
}
