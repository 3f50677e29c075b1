//! Lists come in pages: the last page says that it is the last, and no page outgrows a frame.

use harness_tests::{Daemon, json, says, turn};

#[test]
fn the_last_page_of_a_list_has_no_cursor() {
    let daemon = Daemon::start();
    daemon.submit_many(3, &says("x"));
    let page = daemon.rpc("run.list", json!({"limit": 10}));
    assert_eq!((page["runs"].as_array().unwrap().len(), &page["cursor"]), (3, &json!(null)));
}

#[test]
fn a_page_of_runs_with_large_answers_ends_before_it_outgrows_a_frame() {
    let daemon = Daemon::start();
    let runs = daemon.submit_many(3, &says(&"x".repeat(4 << 20)));
    runs.iter().for_each(|run| drop(run.wait()));
    assert_eq!(daemon.ctl(["list", "--all", "--json"]).ok().lines().count(), 3);
}

#[test]
fn questions_of_one_batch_are_listed_in_the_order_in_which_they_were_asked() {
    let daemon = Daemon::start();
    let script = (0..8).fold(turn(""), |script, n| script.ask(&format!("question {n}?"))).turn("never");
    let run = daemon.submit(&script);
    harness_tests::eventually("all are asked", || run.questions().len() == 8);
    let open = daemon.rpc("interaction.list", json!({}));
    let questions: Vec<_> =
        open["interactions"].as_array().unwrap().iter().map(|one| one["question"].as_str().unwrap()).collect();
    assert_eq!(questions, (0..8).map(|n| format!("question {n}?")).collect::<Vec<_>>());
}
