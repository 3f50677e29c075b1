//! Conversations that become too long for their model: an inference of its own summarises the older part, the run goes
//! on, and its transcript keeps everything.

use harness_protocol::event::{Event, EventBody};
use harness_protocol::run::{Entry, RunState};
use harness_tests::chat::{finish, messages_says, responses_says, says, shell, text, usage, wants};
use harness_tests::{Answer, Daemon, FaultServer, Gate, Place, Run, Value, eventually, json};

use crate::archived::has_left;
use crate::provider_faults::{asking, config};

/// Writes 20,000 bytes, and that it ran.
const NOISY: &str = "echo ran >> log; head -c 20000 /dev/zero | tr '\\0' x";
/// What the summary says.
const GIST: &str = "The command wrote only the letter x, twice.";

/// A server whose model takes two small results, but not two large ones, and that is asked to run `NOISY` twice.
fn crowded() -> FaultServer {
    let server = FaultServer::start();
    server.takes_at_most(30_000).answer(wants(NOISY)).answer(wants(NOISY));
    server
}

fn summaries(run: &Run) -> Vec<Entry> {
    run.transcript().into_iter().filter(|entry| matches!(entry, Entry::Summary { .. })).collect()
}

fn is_for_a_summary(body: &Value) -> bool {
    body["tools"].is_null() && body.to_string().contains("The older part of the conversation:")
}

#[test]
fn a_conversation_that_grew_too_long_is_summarised_and_goes_on() {
    let server = crowded();
    server.answer(says(GIST)).answer(says("Twice x."));
    let daemon = asking(&server, "");
    let run = daemon.ask("Look at it.");
    assert_eq!(run.answer(), "Twice x.");
    let requests = server.requests();
    assert_eq!(requests.len(), 5, "two steps, one that is refused, the summary, the answer");
    assert!(requests[2].length > 30_000 && is_for_a_summary(&requests[3].body), "{}", requests[3].body);
    let last = requests[4].body.to_string();
    assert!(last.contains("Look at it.") && last.contains(GIST) && !last.contains("xxx"), "{last}");
    assert_eq!(daemon.written("log"), "ran\nran\n", "nothing runs again for it");
    // The transcript is whole, and says where it was summarised.
    assert!(run.envelopes().iter().all(|envelope| envelope.len() > 20_000));
    let [Entry::Summary { text, entries, kept }] = &*summaries(&run) else { panic!("{:?}", summaries(&run)) };
    assert_eq!((&**text, *entries, &**kept), (GIST, 5, &[0][..]));
    // What it used is counted, and it is no step.
    let view = run.view();
    assert_eq!((view.usage.tokens(), view.steps), (4 * 15, 3));
}

#[test]
fn a_summary_is_told_to_followers_and_is_never_the_answer() {
    let server = crowded();
    server.answer(says(GIST)).answer(says("Twice x."));
    let daemon = asking(&server, "");
    let followed = daemon.ctl(["submit", "--follow", "Look at it."]).exits(0);
    assert!(!followed.stdout.contains(GIST) && followed.stdout.ends_with("Twice x.\n"), "{}", followed.stdout);
    followed.tells("too long for the model").tells("the first 5 entries were summarised");
    let shown = daemon.ctl(["logs", "@last"]).ok();
    assert!(shown.contains("in place of the first 5 entries") && shown.contains(GIST), "{shown}");
    assert_eq!(daemon.ctl(["show", "--answer", "@last"]).ok(), "Twice x.\n");
}

#[test]
fn it_is_the_same_in_each_dialect() {
    for (dialect, says) in
        [("anthropic", messages_says as fn(&str) -> Answer), ("responses", responses_says as fn(&str) -> Answer)]
    {
        let server = FaultServer::start();
        let long = "x".repeat(20_000);
        server.takes_at_most(30_000);
        let daemon = Daemon::configured(&config(&server, dialect, ""));
        server.answer(says(&long));
        let first = daemon.ask("Say much.");
        assert_eq!(first.answer().len(), 20_000);
        server.answer(says(GIST)).answer(says("Short now."));
        let next = first.tell(&"y".repeat(15_000));
        assert_eq!(next.answer(), "Short now.", "{dialect}");
        let requests = server.requests();
        assert!(is_for_a_summary(&requests[2].body), "{dialect}: {}", requests[2].body);
        let last = requests[3].body.to_string();
        assert!(last.contains(GIST) && last.contains("yyy") && !last.contains("xxx"), "{dialect}: {last:.2000}");
    }
}

#[test]
fn where_it_is_known_how_much_the_model_takes_it_is_not_even_asked_for_more() {
    let server = FaultServer::start();
    server.answer(wants(NOISY)).answer(says(GIST)).answer(says("Done."));
    let daemon = asking(&server, "context_tokens = 8192");
    let run = daemon.ask("Look at it.");
    assert_eq!(run.answer(), "Done.");
    let requests = server.requests();
    assert_eq!(requests.len(), 3, "none was too long");
    assert!(is_for_a_summary(&requests[1].body));
    // A server knows better than we do what was not configured.
    assert!(requests[0].body["max_tokens"].is_null() && requests[2].body["max_tokens"].is_null());
    assert!(requests[1].body["max_tokens"].as_u64().is_some_and(|most| most <= 4096), "{}", requests[1].body);
}

#[test]
fn an_answer_that_does_not_fit_beside_the_prompt_is_asked_to_be_shorter() {
    let server = FaultServer::start();
    server.always(says("Done."));
    let daemon = asking(&server, "context_tokens = 8192\nmax_output_tokens = 6000");
    assert_eq!(daemon.ask("Look at it.").answer(), "Done.");
    assert_eq!(daemon.ask(&"word ".repeat(1_500)).answer(), "Done.");
    let most: Vec<u64> = server.requests().iter().map(|request| request.body["max_tokens"].as_u64().unwrap()).collect();
    assert!(most[0] == 6000 && most[1] < 5_000 && most[1] > 2_000, "{most:?}");
}

#[test]
fn a_text_that_is_too_long_to_be_summarised_is_shown_in_parts() {
    let server = FaultServer::start();
    server.answer(wants(NOISY));
    server.takes_at_most(8_000).answer(says(GIST)).answer(says("Done."));
    let daemon = asking(&server, "");
    let run = daemon.ask("Look at it.");
    assert_eq!(run.answer(), "Done.");
    let requests = server.requests();
    let for_summary: Vec<usize> =
        requests.iter().filter(|request| is_for_a_summary(&request.body)).map(|request| request.length).collect();
    assert!(for_summary.len() >= 2 && for_summary[0] > 8_000, "the first is too long itself: {for_summary:?}");
    assert!(for_summary.is_sorted_by(|one, next| one > next), "each is shorter than the one before: {for_summary:?}");
    assert!(for_summary.last().is_some_and(|&last| last <= 8_000));
    assert_eq!(summaries(&run).len(), 1);
}

#[test]
fn a_task_that_is_too_long_by_itself_is_refused_with_the_reason() {
    let server = FaultServer::start();
    server.takes_at_most(8_000);
    let daemon = asking(&server, "");
    let run = daemon.ask(&"word ".repeat(4_000));
    let view = run.wait();
    assert_eq!((view.state, view.exit_code, server.count()), (RunState::Failed, Some(1), 1));
    let error = view.error.unwrap();
    assert!(error.contains("maximum context length") && error.contains("nothing of it can be left out"), "{error}");
}

/// A model that thought until its limit, and said nothing.
fn says_nothing() -> Answer {
    Answer::events([text(" \n"), finish("length"), usage(1, 1)])
}

#[test]
fn a_model_that_gives_no_summary_is_asked_again_for_a_longer_one_and_its_calls_are_not_executed() {
    let server = crowded();
    server.answer(Answer::events([shell(0, "echo stray >> log"), finish("tool_calls"), usage(1, 1)]));
    server.answer(says(GIST)).answer(says("Twice x."));
    let daemon = asking(&server, "");
    let run = daemon.ask("Look at it.");
    assert_eq!(run.answer(), "Twice x.");
    assert_eq!(daemon.written("log"), "ran\nran\n");
    let most = |index: usize| server.requests()[index].body["max_tokens"].as_u64().unwrap();
    assert!(most(4) > most(3), "{} {}", most(3), most(4));
    assert_eq!(run.view().usage.tokens(), 2 + 4 * 15, "what came of nothing is counted, too");
}

#[test]
fn a_run_does_not_fail_for_the_lack_of_a_summary() {
    let refusal = || Answer::refusal(400, &[], "tool_choice is of no use without tools");
    for (no_summary, asked) in [(says_nothing as fn() -> Answer, 3), (refusal, 1)] {
        let server = crowded();
        (0..asked).for_each(|_| _ = server.answer(no_summary()));
        server.answer(says("Twice x."));
        let daemon = asking(&server, "");
        let run = daemon.ask("Look at it.");
        assert_eq!(run.answer(), "Twice x.");
        let [Entry::Summary { text, .. }] = &*summaries(&run) else { panic!("{:?}", summaries(&run)) };
        assert!(text.starts_with("[There is no summary.") && text.contains("bytes are left out here"), "{text}");
        assert!(server.requests().last().unwrap().body.to_string().contains("There is no summary"));
    }
}

#[test]
fn a_message_during_a_summary_is_read_next() {
    let server = crowded();
    let gate = Gate::new();
    server.answer(Answer::default().wait(&gate).append(says(GIST))).answer(says("Quickly: x."));
    let daemon = asking(&server, "");
    let run = daemon.ask("Look at it.");
    server.asked(4);
    run.tell("Be quick.");
    gate.open();
    assert_eq!(run.answer(), "Quickly: x.");
    let last = server.requests()[4].body.to_string();
    assert!(last.contains(GIST) && last.contains("Be quick.") && !last.contains("xxx"), "{last}");
}

#[test]
fn a_summarised_run_that_has_left_memory_is_the_same() {
    let server = crowded();
    server.answer(says(GIST)).answer(says("Twice x.")).answer(says("As I said."));
    let daemon = asking(&server, "[limits]\nfinished_runs = 0\n");
    let run = daemon.ask("Look at it.");
    assert_eq!(run.answer(), "Twice x.");
    has_left(&daemon, &run);
    let [Entry::Summary { text, .. }] = &*summaries(&run) else { panic!("{:?}", summaries(&run)) };
    assert_eq!((&**text, run.envelopes().len()), (GIST, 2));
    assert!(daemon.ctl(["logs", &run.id]).ok().contains(GIST));
    assert_eq!(run.tell("And in short?").answer(), "As I said.");
    let last = server.requests().last().unwrap().body.to_string();
    assert!(last.contains(GIST) && !last.contains("xxx"), "{last}");
}

#[test]
fn a_crash_while_it_is_summarised_costs_another_summary_and_nothing_else() {
    let server = crowded();
    let gate = Gate::new();
    server.answer(Answer::stream().event(&text("half of")).wait(&gate).hang());
    let place = Place::new();
    place.configure(&config(&server, "openai", ""));
    let daemon = place.start();
    let run = daemon.ask("Look at it.");
    server.asked(4);
    let place = daemon.crash();
    gate.open();
    server.answer(says(GIST)).answer(says("Twice x."));
    let daemon = place.start();
    assert_eq!(run.answer(), "Twice x.");
    assert_eq!(daemon.written("log"), "ran\nran\n");
    assert_eq!(summaries(&run).len(), 1);
    assert!(server.requests()[4..].iter().any(|request| is_for_a_summary(&request.body)));
}

#[test]
fn a_cancel_does_not_wait_for_the_summary() {
    let server = crowded();
    server.answer(Answer::stream().event(&text("half of")).hang());
    let daemon = asking(&server, "");
    let run = daemon.ask("Look at it.");
    server.asked(4);
    run.cancel();
    assert_eq!(run.wait().state, RunState::Cancelled);
    eventually("the lane is idle", || daemon.lane("local").busy == 0);
}

#[test]
fn a_summary_is_within_the_budget_or_the_run_ends() {
    let server = FaultServer::start();
    server.answer(wants(NOISY)).always(says("never asked"));
    let daemon = asking(&server, "context_tokens = 8192");
    // Enough for the first step, and not for a summary of what came of it.
    let run = daemon.ask_with("Look at it.", json!({"limits": {"max_tokens": 2_500}}));
    let view = run.wait();
    assert_eq!((view.exit_code, server.count()), (Some(9), 1), "{:?}", view.error);
}

#[test]
fn a_run_that_goes_on_from_a_summarised_one_begins_with_its_summary() {
    let server = crowded();
    server.answer(says(GIST)).answer(says("Twice x.")).answer(says("As I said."));
    let daemon = asking(&server, "");
    let run = daemon.ask("Look at it.");
    assert_eq!(run.answer(), "Twice x.");
    let next = run.tell("And in short?");
    assert_eq!(next.answer(), "As I said.");
    assert_eq!(server.count(), 6, "it is not summarised again");
    let last = server.requests()[5].body.to_string();
    assert!(last.contains(GIST) && last.contains("Twice x.") && !last.contains("xxx"), "{last}");
    let begun = |event: &Event| matches!(event.body, EventBody::CompactionBegun { .. });
    assert!(!daemon.events(&next).iter().any(begun));
}
