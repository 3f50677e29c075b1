//! A real small model behind a real server, over each of the three APIs. Started by `tests/models/run`, which says
//! where both are.
//!
//! Such a small model calls a tool only after an example in the conversation. So its conversations begin with a server
//! of our own, which asks for real commands, and continue with the model after a restart of the daemon under another
//! configuration.

use std::time::Duration;

use harness_protocol::event::{Event, EventBody, ProviderFault};
use harness_protocol::run::{Entry, RunView};
use harness_tests::chat::{says, wants};
use harness_tests::{FaultServer, Llama, Place, Run, found_within, json};

use crate::model_servers::{DIALECTS, of_stream, streamed};

/// A small model on a busy machine takes its time.
const PATIENCE: Duration = Duration::from_secs(300);

fn configure(place: &Place, dialect: &str, url: &str, most: u32) {
    let key = place.file("home/key", Llama::KEY);
    place.configure(&format!(
        "[provider.local]\ndialect = \"{dialect}\"\nbase_url = \"{url}\"\nmodel = \"small\"\napi_key_file = \"{key}\"\n\
         max_output_tokens = {most}\ntemperature = 0\n"
    ));
}

fn ended(run: &Run) -> RunView {
    found_within(PATIENCE, "the model is done", || Some(run.view()).filter(|view| view.state.is_terminal()))
}

#[test]
#[ignore = "needs a model: tests/models/run"]
fn a_real_model_streams_text_over_each_api() {
    let llama = Llama::start();
    for dialect in DIALECTS {
        let place = Place::new();
        configure(&place, dialect, &llama.url(), 64);
        let daemon = place.start();
        let mut client = daemon.connect();
        client.subscribe(json!({"deltas": true}));
        let run = daemon.ask("What is the capital of France?");
        let pieces = of_stream(&streamed(&mut client, &run), "text");
        let view = ended(&run);
        assert!(pieces.len() > 2, "{dialect}: {pieces:?}, {view:?}");
        assert_eq!(Some(&*pieces.concat()), view.answer.as_deref(), "{dialect}");
        assert!(view.usage.input_tokens > 20 && view.usage.output_tokens > 2, "{dialect}: {:?}", view.usage);
    }
}

#[test]
#[ignore = "needs a model: tests/models/run"]
fn an_answer_cut_at_the_limit_is_told_over_each_api() {
    let llama = Llama::start();
    for dialect in DIALECTS {
        let place = Place::new();
        configure(&place, dialect, &llama.url(), 8);
        let daemon = place.start();
        let view = ended(&daemon.ask("Tell me a long story about the sea."));
        let answer = view.answer.clone().unwrap_or_default();
        assert!(answer.ends_with("\n[cut off by the limit of output tokens]"), "{dialect}: {view:?}");
        assert_eq!(view.usage.output_tokens, 8, "{dialect}");
    }
}

/// A conversation in which four commands were asked for and executed.
fn conversation(place: &Place) -> Run {
    let server = FaultServer::start();
    configure(place, "openai", &server.url(), 64);
    let daemon = place.start();
    let mut run = None::<Run>;
    for word in ["apple", "pear", "plum", "fig"] {
        server.answer(wants(&format!("echo {word}"))).answer(says(&format!("It says {word}.")));
        let prompt = format!("Run the command: echo {word}");
        let next = match &run {
            None => daemon.ask(&prompt),
            Some(run) => run.tell(&prompt),
        };
        assert_eq!(next.answer(), format!("It says {word}."));
        run = Some(next);
    }
    run.unwrap()
}

#[test]
#[ignore = "needs a model: tests/models/run"]
fn a_real_model_has_a_command_executed_and_reads_its_result_over_each_api() {
    let llama = Llama::start();
    for dialect in DIALECTS {
        let place = Place::new();
        let before = conversation(&place);
        configure(&place, dialect, &llama.url(), 64);
        let daemon = place.start();
        let run = before.tell("Run the command: echo kiwi");
        let view = ended(&run);
        let transcript = run.transcript();
        let said: Vec<&Entry> = transcript.iter().skip_while(|entry| !is_last_prompt(entry)).collect();
        let Some(Entry::Assistant { calls, .. }) = said.get(1) else { panic!("{dialect}: {view:?}\n{said:#?}") };
        assert!(calls.iter().any(|call| &*call.tool == "shell"), "{dialect}: {said:#?}");
        let Some(Entry::Result { result }) = said.get(2) else { panic!("{dialect}: {view:?}\n{said:#?}") };
        assert_eq!(&*result.envelope, "Exit code: 0\nkiwi\n", "{dialect}");
        let finished = |event: &Event| matches!(event.body, EventBody::InferenceFinished { .. });
        assert!(daemon.events(&run).iter().filter(|event| finished(event)).count() > 1, "{dialect}: it went back");
        assert!(view.answer.is_some(), "{dialect}: {view:?}\n{said:#?}");
        eprintln!("{dialect}: {:?}, {:?}", view.answer, view.usage);
    }
}

fn is_last_prompt(entry: &Entry) -> bool {
    matches!(entry, Entry::User { text } if text.contains("kiwi"))
}

#[test]
#[ignore = "needs a model: tests/models/run"]
fn a_conversation_that_is_longer_than_a_real_model_takes_goes_on_over_each_api() {
    let llama = Llama::taking(2048);
    for dialect in DIALECTS {
        let place = Place::new();
        let before = {
            let server = FaultServer::start();
            configure(&place, "openai", &server.url(), 64);
            let daemon = place.start();
            let long = "The sea is wide and the boat is small. ".repeat(220);
            server.answer(says(&long));
            let run = daemon.ask("Tell me of the sea.");
            assert!(run.answer().len() > 8_000);
            run
        };
        configure(&place, dialect, &llama.url(), 200);
        let daemon = place.start();
        let run = before.tell("What is the capital of France?");
        let view = ended(&run);
        let events = daemon.events(&run);
        let refused = events.iter().find_map(|event| match &event.body {
            EventBody::InferenceFailed { error, fault: ProviderFault::ContextTooLong, .. } => Some(error),
            _ => None,
        });
        let summary = events.iter().find_map(|event| match &event.body {
            EventBody::CompactionFinished { text, usage, .. } => Some((text, usage)),
            _ => None,
        });
        assert!(refused.is_some(), "{dialect}: {view:?}");
        let (text, usage) = summary.unwrap_or_else(|| panic!("{dialect}: {view:?}"));
        assert!(usage.input_tokens > 100 && usage.input_tokens < 2048, "{dialect}: {usage:?}");
        assert!(view.answer.is_some(), "{dialect}: {view:?}");
        eprintln!("{dialect}: {refused:?}; {text:?}; {:?}, {:?}", view.answer, view.usage);
    }
}
