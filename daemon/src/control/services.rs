//! Bundles what every connection works with: the inbox, the feed, the history, limits, and services of other modules.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use harness_protocol::id::{CallId, RunId};
use harness_protocol::rpc::{OutputStream, ProviderCheck, ProviderView};
use harness_protocol::spec::RunSpec;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::limits::memory::Memory;
use super::request::Request;
use super::socket::arrivals::Arrivals;
use crate::blocking::Blocking;
use crate::config::Bounds;
use crate::feed::Feed;
use crate::folders::Folders;
use crate::inbox::Inbox;
use crate::journal::history::History;
use crate::refusal::SpecRefusal;

/// A range of a stream: its offset, the bytes, and the number of bytes of the stream in all.
pub type OutputRange = (u64, Vec<u8>, u64);
/// Reads a range of the output of a call.
pub type ReadOutput = dyn Fn(RunId, CallId, OutputStream, i64, u32) -> io::Result<OutputRange> + Send + Sync;

/// Checks the parts of a specification that only its provider can judge.
pub type CheckSpec = dyn Fn(&RunSpec) -> SpecChecked + Send + Sync;
/// The outcome of such a check.
pub type SpecChecked = Pin<Box<dyn Future<Output = Result<(), SpecRefusal>> + Send>>;

/// Lists the providers.
pub type ListProviders = dyn Fn() -> Vec<ProviderView> + Send + Sync;
/// The outcome of a provider check; `None` for an unknown provider.
pub type Checked = Pin<Box<dyn Future<Output = Option<ProviderCheck>> + Send>>;
/// Checks the named provider, with a model in place of the configured one.
pub type CheckProvider = dyn Fn(Arc<str>, Option<Arc<str>>) -> Checked + Send + Sync;

/// What every connection works with.
pub struct Services {
    /// The queue of requests to the driver.
    pub inbox: Inbox<Request>,
    /// The source of new events.
    pub feed: Feed,
    /// The source of older events.
    pub history: History,
    /// Executes reads of older events.
    pub blocking: Blocking,
    /// Parses large requests.
    pub parsing: Blocking,
    /// The runtime for long work: it encodes large answers, and events for subscriptions.
    pub background: Handle,
    /// The turns in which events are encoded for subscriptions.
    pub follower_turns: Semaphore,
    /// Places for pages of the journal in memory: for subscriptions of operators, and of others.
    pub pages: [Arc<Semaphore>; 2],
    /// The bounds of runs and of their requests, as configured.
    pub bounds: Bounds,
    /// Looks at working directories.
    pub folders: Folders,
    /// The memory of all connections together.
    pub memory: Memory,
    /// Peers that are not identified yet.
    pub arrivals: Arrivals,
    /// Checks the parts of a specification that only its provider can judge.
    pub check_spec: Box<CheckSpec>,
    /// Reads the output of a call.
    pub read_output: Box<ReadOutput>,
    /// Lists the providers.
    pub list_providers: Box<ListProviders>,
    /// Checks one provider by a short request.
    pub check_provider: Box<CheckProvider>,
}
