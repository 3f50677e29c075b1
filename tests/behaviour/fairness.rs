//! The order in which runs are served: by priority, by share, by tree. Each test fills a paused lane, then checks the
//! order.

use std::collections::BTreeMap;

use harness_protocol::lane::Limiter;
use harness_tests::{Daemon, Script, eventually, json, runs, turn};

use crate::lane::{open, until_there_is};

/// Notes which run this is, and what it is of.
fn notes(letter: &str) -> Script {
    runs(&format!("echo $HARNESS_RUN_ID {letter} >> order"))
}

/// The order in which a lane grants permits to what `fill` puts into it. Processes that execute at once may write in
/// another order.
fn order(daemon: &Daemon, batches: usize, fill: impl FnOnce()) -> Vec<String> {
    let mut grants = daemon.connect();
    grants.subscribe(json!({"kinds": ["call-started"]}));
    daemon.rpc("lane.pause", json!({}));
    fill();
    eventually("all batches are queued", || daemon.lane("tool").queued as usize == batches);
    daemon.rpc("lane.resume", json!({}));
    eventually("all were served", || daemon.written("order").lines().count() == batches);
    let notes = daemon.written("order");
    let notes: BTreeMap<&str, &str> = notes.lines().filter_map(|line| line.split_once(' ')).collect();
    assert_eq!(notes.len(), batches, "each run notes itself once");
    (0..batches).map(|_| notes[grants.event()["run"].as_str().unwrap()].to_owned()).collect()
}

fn places(order: &[String], letter: &str) -> Vec<usize> {
    order.iter().enumerate().filter(|(_, found)| *found == letter).map(|(place, _)| place).collect()
}

#[test]
fn shares_are_served_in_proportion_to_their_weights() {
    let daemon = Daemon::configured("[lane.tool]\nwidth = 1\n[share.a]\nweight = 3\n[share.b]\nweight = 1\n");
    let order = order(&daemon, 24, || {
        for share in ["b", "a"] {
            (0..12).for_each(|_| drop(daemon.submit_with(&notes(share), json!({"share": share}))));
        }
    });
    let early = places(&order[..8], "a").len();
    assert!((5..=7).contains(&early), "three of four are a's: {order:?}");
}

#[test]
fn a_share_with_many_roots_does_not_shut_out_one_with_two() {
    let daemon = Daemon::configured("[lane.tool]\nwidth = 2\n[share.many]\n[share.few]\n");
    let order = order(&daemon, 102, || {
        let spec = |share: &str| json!({"spec": daemon.spec(&notes(share), json!({"share": share}))});
        daemon.connect().pipeline((0..100).map(|_| ("run.submit", spec("many"))));
        daemon.connect().pipeline((0..2).map(|_| ("run.submit", spec("few"))));
    });
    assert!(places(&order, "few").iter().all(|&place| place < 8), "{order:?}");
}

#[test]
fn a_share_never_has_more_than_its_bound() {
    let daemon = Daemon::configured("[lane.tool]\nwidth = 4\n[share.narrow]\nmax = 1\n");
    let spec = || json!({"share": "narrow"});
    let narrow: Vec<_> = (0..3).map(|_| daemon.submit_with(&until_there_is("gate"), spec())).collect();
    eventually("two are queued", || daemon.lane("tool").queued == 2);
    let lane = daemon.lane("tool");
    assert_eq!((lane.busy, lane.limiter), (1, Limiter::Share));
    let share = lane.shares.iter().find(|share| &*share.share == "narrow").unwrap();
    assert_eq!((share.max, share.queued, share.busy, share.permits), (Some(1), 2, 1, 1));
    assert_eq!(daemon.submit(&runs("true")).answer(), "done", "others go past");
    open(&daemon, "gate");
    narrow.iter().for_each(|run| assert_eq!(run.answer(), "done"));
    let refused = daemon.refused("run.submit", json!({"spec": daemon.spec(&runs("true"), json!({"share": "wide"}))}));
    assert!(refused["message"].as_str().unwrap().contains("narrow"), "it lists those that there are: {refused}");
}

#[test]
fn priorities_go_first_and_shut_no_run_out() {
    let daemon = Daemon::of_width(1);
    let order = order(&daemon, 30, || {
        for priority in ["low", "normal", "high"] {
            (0..10).for_each(|_| drop(daemon.submit_with(&notes(priority), json!({"priority": priority}))));
        }
    });
    let sum = |priority| places(&order, priority).iter().sum::<usize>();
    assert!(sum("high") < sum("normal") && sum("normal") < sum("low"), "{order:?}");
    for priority in ["normal", "low"] {
        assert!(places(&order, priority)[0] < 10, "every class gets one of eight: {order:?}");
    }
}

#[test]
fn a_run_with_many_children_does_not_shut_out_the_others() {
    let daemon = Daemon::of_width(2);
    let order = order(&daemon, 104, || {
        let large = (0..100).fold(turn(""), |script, _| script.spawn("child")).wait_for_all().turn("all");
        daemon.submit(&large.child("child", &notes("child")));
        eventually("the children are queued", || daemon.lane("tool").queued == 100);
        daemon.submit_many(4, &notes("small"));
    });
    assert!(places(&order, "small").iter().all(|&place| place < 16), "{order:?}");
}
