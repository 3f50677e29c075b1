//! The driver's inbox: everything that can wake it, in two queues.
//!
//! Outcomes always fit: a job puts exactly one there when it ends, so the queue is bounded by the jobs that are out. Only
//! requests can be told `busy`. Whoever puts something in never waits.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::world::boundary::{Ask, JobId, Outcome};

/// What a job tells the driver.
#[derive(Debug, Clone, PartialEq)]
pub enum Report {
    /// It ended.
    Outcome(JobId, Outcome),
    /// It wants something of its lane.
    Ask(JobId, Ask),
}

/// The queues of an inbox whose requests are `R`.
#[derive(Debug)]
struct Queues<R> {
    reports: VecDeque<Report>,
    requests: VecDeque<R>,
}

/// An inbox. Clones are the same inbox.
#[derive(Debug)]
pub struct Inbox<R> {
    shared: Arc<Shared<R>>,
}

#[derive(Debug)]
struct Shared<R> {
    queues: Mutex<Queues<R>>,
    came: Notify,
    max_requests: usize,
}

impl<R> Clone for Inbox<R> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<R> Inbox<R> {
    /// An inbox that holds at most `max_requests` requests.
    pub fn new(max_requests: usize) -> Self {
        let queues = Mutex::new(Queues { reports: VecDeque::new(), requests: VecDeque::new() });
        Self { shared: Arc::new(Shared { queues, came: Notify::new(), max_requests }) }
    }

    fn queues(&self) -> MutexGuard<'_, Queues<R>> {
        self.shared.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts in what a job tells. Always fits.
    pub fn report(&self, report: Report) {
        self.queues().reports.push_back(report);
        self.shared.came.notify_one();
    }

    /// Puts in a request.
    ///
    /// # Errors
    /// Gives the request back when the inbox is full.
    pub fn request(&self, request: R) -> Result<(), R> {
        {
            let mut queues = self.queues();
            if queues.requests.len() >= self.shared.max_requests {
                return Err(request);
            }
            queues.requests.push_back(request);
        }
        self.shared.came.notify_one();
        Ok(())
    }

    /// Takes what is there: all reports, and at most `max` requests.
    pub fn take(&self, max: usize) -> (Vec<Report>, Vec<R>) {
        let mut queues = self.queues();
        let reports = queues.reports.drain(..).collect();
        let count = queues.requests.len().min(max);
        let requests = queues.requests.drain(..count).collect();
        if !queues.requests.is_empty() {
            self.shared.came.notify_one();
        }
        (reports, requests)
    }

    /// How much is there.
    pub fn pending(&self) -> usize {
        let queues = self.queues();
        queues.reports.len() + queues.requests.len()
    }

    /// Wakes whoever waits, though nothing came: something was left there.
    pub fn wake(&self) {
        self.shared.came.notify_one();
    }

    /// Takes at most `max` requests and leaves the reports where they are.
    pub fn take_requests(&self, max: usize) -> Vec<R> {
        let mut queues = self.queues();
        let count = queues.requests.len().min(max);
        let requests = queues.requests.drain(..count).collect();
        if !queues.requests.is_empty() {
            self.shared.came.notify_one();
        }
        requests
    }

    /// Waits until something is put in. May return without anything there.
    pub async fn came(&self) {
        self.shared.came.notified().await;
    }
}
