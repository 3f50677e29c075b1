//! Gives a test the view of one run, by its id, as a client gets it.

use std::sync::Arc;

use harness_protocol::rpc::WaitReply;
use harness_protocol::run::{CallResult, Entry, RunState, RunView};
use serde_json::{Value, json};

use crate::{PATIENCE, Place};

/// A submitted run, and the place of its daemon.
#[derive(Debug, Clone)]
pub struct Run {
    place: Place,
    /// Id of the run, as text.
    pub id: String,
}

impl Run {
    #[track_caller]
    pub(crate) fn new(place: &Place, reply: &Value) -> Self {
        let id = reply["id"].as_str().unwrap_or_else(|| panic!("no run was made: {reply}"));
        Self::named(place, id)
    }

    pub(crate) fn named(place: &Place, name: &str) -> Self {
        Self { place: place.clone(), id: name.to_owned() }
    }

    /// The run of this name below it. An operator's name means no child.
    #[track_caller]
    pub fn child(&self, name: &str) -> Self {
        let list = self.place.rpc("run.list", json!({"root": self.id, "limit": 1000}));
        let child =
            list["runs"].as_array().unwrap().iter().find(|run| run["name"] == name && run["parent"].is_string());
        Self::new(&self.place, child.unwrap_or_else(|| panic!("no run below {} is called {name}: {list}", self.id)))
    }

    /// How it is now.
    #[track_caller]
    pub fn view(&self) -> RunView {
        let shown = self.place.rpc("run.show", json!({"run": self.id}));
        serde_json::from_value(shown["run"].clone()).unwrap()
    }

    /// Waits for its end.
    #[track_caller]
    pub fn wait(&self) -> RunView {
        self.wait_for(&json!([]))
    }

    /// Waits until it is in this state.
    #[track_caller]
    pub fn reach(&self, state: RunState) -> RunView {
        self.wait_for(&json!([state]))
    }

    #[track_caller]
    fn wait_for(&self, states: &Value) -> RunView {
        let limit = PATIENCE.as_secs() / 2;
        let reply = self.place.rpc("run.wait", json!({"run": self.id, "for": states, "timeout_seconds": limit}));
        let reply: WaitReply = serde_json::from_value(reply).unwrap();
        assert!(reply.reached, "run {} is {}, not {states}: {:?}", self.id, reply.run.state, reply.run);
        reply.run
    }

    /// Waits for its end, which is to be a good one, and gives the answer.
    #[track_caller]
    pub fn answer(&self) -> String {
        let run = self.wait();
        match run.answer {
            Some(answer) => answer.to_string(),
            None => panic!("run {} {}: {:?}", self.id, run.state, run.error),
        }
    }

    /// Its transcript so far.
    #[track_caller]
    pub fn transcript(&self) -> Vec<Entry> {
        let shown = self.place.rpc("run.show", json!({"run": self.id, "transcript": true}));
        serde_json::from_value(shown.get("transcript").cloned().unwrap_or_else(|| json!([]))).unwrap()
    }

    /// The results of its calls so far, in the order of the calls; they stand in the transcript in the order of their
    /// coming.
    #[track_caller]
    pub fn results(&self) -> Vec<Arc<CallResult>> {
        let (mut calls, mut results) = (Vec::new(), Vec::new());
        for entry in self.transcript() {
            match entry {
                Entry::User { .. } | Entry::Summary { .. } => {}
                Entry::Assistant { calls: asked, .. } => calls.extend(asked.into_iter().map(|call| call.call)),
                Entry::Result { result } => results.push(result),
            }
        }
        results.sort_by_key(|result| calls.iter().position(|call| *call == result.call));
        results
    }

    /// What the model read of its calls.
    #[track_caller]
    pub fn envelopes(&self) -> Vec<String> {
        self.results().iter().map(|result| result.envelope.to_string()).collect()
    }

    /// Tells it something, and gives the run that reads it: another one where this one has ended.
    #[track_caller]
    pub fn tell(&self, text: &str) -> Self {
        Self::new(&self.place, &self.place.rpc("run.message", json!({"run": self.id, "text": text})))
    }

    /// Cancels it, and waits for nothing.
    #[track_caller]
    pub fn cancel(&self) {
        self.place.rpc("run.cancel", json!({"select": {"runs": [self.id]}}));
    }

    /// Pauses the run.
    #[track_caller]
    pub fn pause(&self) {
        self.place.rpc("run.pause", json!({"select": {"runs": [self.id]}}));
    }

    /// Lets it go on.
    #[track_caller]
    pub fn resume(&self) {
        self.place.rpc("run.resume", json!({"select": {"runs": [self.id]}}));
    }

    /// The questions that it asks now, by their ids.
    #[track_caller]
    pub fn questions(&self) -> Vec<String> {
        let open = self.place.rpc("interaction.list", json!({}));
        let open = open["interactions"].as_array().unwrap().iter().filter(|open| open["run"] == self.id.as_str());
        open.map(|open| open["id"].as_str().unwrap().to_owned()).collect()
    }

    /// Answers the one question that it asks.
    #[track_caller]
    pub fn reply(&self, answer: &str) {
        self.place.rpc("interaction.answer", json!({"interaction": self.id, "answer": answer}));
    }
}
