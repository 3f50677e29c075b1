//! Lets the runs of a rebuilt world share equal values in memory. The runs of one batch have the same script, often the
//! same specification, and the same short texts, such as names of tools and providers.
//!
//! It remembers the values seen so far, within bounds, until the world is rebuilt. It must not change the content of an
//! event.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use harness_protocol::event::{Event, EventBody};
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;

/// Bytes of a text that is remembered.
const LONGEST_TEXT: usize = 256;
/// Texts that are remembered.
const MOST_TEXTS: usize = 65_536;
/// Specifications, and scripts, that are remembered; of those of one size only a few, as each has to be compared.
const MOST: usize = 8_192;
const MOST_OF_A_SIZE: usize = 4;

/// What was seen so far.
#[derive(Debug, Default)]
pub(super) struct Shared {
    texts: HashSet<Arc<str>>,
    scripts: Known<Script>,
    specs: Known<RunSpec>,
}

/// Values, by their size.
#[derive(Debug)]
struct Known<T> {
    by_size: HashMap<usize, Vec<Arc<T>>>,
    count: usize,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self { by_size: HashMap::new(), count: 0 }
    }
}

impl<T: PartialEq> Known<T> {
    /// Replaces a value by an equal one that was seen before.
    fn share(&mut self, value: &mut Arc<T>, size: usize) {
        let known = self.by_size.entry(size).or_default();
        if let Some(same) = known.iter().find(|known| ***known == **value) {
            *value = Arc::clone(same);
        } else if known.len() < MOST_OF_A_SIZE && self.count < MOST {
            known.push(Arc::clone(value));
            self.count += 1;
        }
    }
}

impl Shared {
    /// Lets an event that was just read share its texts with those before it.
    pub(super) fn share(&mut self, event: &mut Arc<Event>) {
        // An event that is held elsewhere stays as it is.
        let Some(event) = Arc::get_mut(event) else { return };
        match &mut event.body {
            EventBody::RunSubmitted { spec, .. } => self.share_spec(spec),
            EventBody::InferenceFinished { text, calls, .. } => {
                self.share_text(text);
                for call in calls {
                    self.share_text(&mut call.tool);
                    self.share_text(&mut call.args);
                }
            }
            EventBody::InteractionOpened { question, .. } => self.share_text(question),
            _ => {}
        }
    }

    fn share_spec(&mut self, shared: &mut Arc<RunSpec>) {
        let Some(spec) = Arc::get_mut(shared) else { return };
        let texts = [&mut spec.prompt, &mut spec.share, &mut spec.provider, &mut spec.model, &mut spec.workdir];
        texts.into_iter().flatten().for_each(|text| self.share_text(text));
        if let Some(script) = &mut spec.script {
            let size = script.approximate_bytes();
            self.scripts.share(script, size);
        }
        let size = shared.approximate_bytes();
        self.specs.share(shared, size);
    }

    fn share_text(&mut self, text: &mut Arc<str>) {
        if text.len() > LONGEST_TEXT {
            return;
        }
        match self.texts.get(&**text) {
            Some(same) => *text = Arc::clone(same),
            None if self.texts.len() < MOST_TEXTS => drop(self.texts.insert(Arc::clone(text))),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use harness_protocol::event::{Cause, EVENT_VERSION};
    use harness_protocol::id::{CallId, Seq};
    use harness_protocol::run::CallRequest;
    use harness_protocol::time::Timestamp;
    use proptest::prelude::*;

    use super::*;

    fn event(body: EventBody) -> Arc<Event> {
        let (seq, at) = (Seq(1), Timestamp::default());
        Arc::new(Event { seq, version: EVENT_VERSION, at, run: None, cause: Cause::HARNESS, body })
    }

    fn submitted(prompt: &str, script: &str) -> Arc<Event> {
        let script = toml::from_str::<Script>(script).unwrap();
        let prompt = (!prompt.is_empty()).then(|| prompt.into());
        let spec = Arc::new(RunSpec { prompt, script: Some(Arc::new(script)), ..RunSpec::default() });
        event(EventBody::RunSubmitted {
            number: 1,
            owner: 7,
            parent: None,
            retry_of: None,
            continues: None,
            idempotency_key: None,
            submit_key: None,
            spec,
            earlier: Arc::default(),
        })
    }

    fn spec(event: &Event) -> &Arc<RunSpec> {
        let EventBody::RunSubmitted { spec, .. } = &event.body else { panic!("a submit") };
        spec
    }

    fn answered(text: &str, args: &str) -> Arc<Event> {
        event(EventBody::InferenceFinished {
            step: 1,
            text: text.into(),
            calls: vec![CallRequest::new(CallId::from_u64(1), "shell", args)],
            usage: Default::default(),
            carried: None,
            cut: false,
        })
    }

    fn any_event() -> impl Strategy<Value = Arc<Event>> {
        let short = || prop::sample::select(vec!["", "a", "b", "go on"]);
        let script = prop::sample::select(vec!["", "[[turn]]\ntext = 'x'", "[[turn]]\ntext = 'y'"]);
        prop_oneof![
            (short(), script).prop_map(|(prompt, script)| submitted(prompt, script)),
            (short(), short()).prop_map(|(text, args)| answered(text, args)),
        ]
    }

    proptest! {
        /// Whatever came before, an event says what it said.
        #[test]
        fn an_event_that_shares_is_equal_to_the_event_that_was_read(
            events in prop::collection::vec(any_event(), 0..60),
        ) {
            let mut shared = Shared::default();
            for read in events {
                let mut event = Arc::new(Event::clone(&read));
                shared.share(&mut event);
                prop_assert_eq!(event, read);
            }
        }
    }

    #[test]
    fn runs_with_equal_specifications_share_one_and_others_share_what_is_equal_in_them() {
        let script = "[[turn]]\ntext = 'x'";
        let mut events = [submitted("a", script), submitted("a", script), submitted("b", script), submitted("a", "")];
        let mut shared = Shared::default();
        events.iter_mut().for_each(|event| shared.share(event));
        let [first, same, prompt, other] = events.each_ref().map(|event| spec(event));
        assert!(Arc::ptr_eq(first, same));
        assert!(!Arc::ptr_eq(first, prompt) && !Arc::ptr_eq(first, other));
        let script = |spec: &RunSpec| Arc::clone(spec.script.as_ref().unwrap());
        assert!(Arc::ptr_eq(&script(first), &script(prompt)) && !Arc::ptr_eq(&script(first), &script(other)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut shared = Shared::default();
        for number in 0..MOST_TEXTS + 10 {
            shared.share(&mut answered(&number.to_string(), &"x".repeat(LONGEST_TEXT + 1)));
            shared.share(&mut submitted(&number.to_string(), ""));
        }
        assert!(shared.texts.len() <= MOST_TEXTS && shared.texts.iter().all(|text| text.len() <= LONGEST_TEXT));
        assert!(shared.specs.count <= MOST && shared.specs.by_size.values().all(|of| of.len() <= MOST_OF_A_SIZE));
    }
}
