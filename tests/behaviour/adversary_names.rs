//! Ways in which a process inside a run names runs: by the names of runs of other trees, and by beginnings of ids. For
//! this process a name means a run of its own tree or nothing, whatever it asks, and it learns of no other tree. And
//! attempts to make its operator take a child of the run for another run.

use harness_tests::{Daemon, Place, Value, eventually, json, turn};

use crate::lane::until_there_is;

const ADVERSARY: &str = env!("CARGO_BIN_EXE_adversary");
/// What the operators' runs write, and the children that are called as these are.
const THEIRS: &str = "of-an-operator";
const ITS_OWN: &str = "of-the-run-itself";

/// Every method that takes the name of a run, with that name.
fn asks(name: &str) -> Vec<(&'static str, Value)> {
    vec![
        ("run.show", json!({"run": name, "transcript": true})),
        ("run.export", json!({"run": name})),
        ("run.wait", json!({"run": name, "timeout_seconds": 0.01})),
        ("run.output", json!({"run": name, "call": "0000000000000", "stream": "stdout", "offset": 0})),
        ("run.list", json!({"root": name})),
        ("run.list", json!({"select": {"runs": [name]}})),
        ("run.list", json!({"root": name, "select": {"runs": [name]}})),
        ("event.subscribe", json!({"run": name, "after": 0})),
        ("event.subscribe", json!({"run": name, "after": 0, "tree": true, "deltas": true})),
        ("run.cancel", json!({"select": {"runs": [name]}})),
        ("run.pause", json!({"select": {"runs": [name]}})),
        ("run.resume", json!({"select": {"runs": [name]}})),
        ("run.prune", json!({"select": {"runs": [name]}})),
        ("run.retry", json!({"run": name})),
        ("run.message", json!({"run": name, "text": "hello"})),
        ("interaction.answer", json!({"interaction": name, "answer": "yes"})),
    ]
}

/// What a run is told that has children with these names and asks with all of `names`: by method and name.
fn told(daemon: &Daemon, children: &[&str], names: &[String]) -> Vec<(String, Value)> {
    let asked: Vec<(String, String)> = names
        .iter()
        .flat_map(|name| asks(name).into_iter().map(move |(method, params)| (name.clone(), method, params)))
        .map(|(name, method, params)| {
            let line = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string();
            (format!("{method} of {name}: {params}"), line)
        })
        .collect();
    let (_, answers) = answers(daemon, children, &asked);
    asked.into_iter().map(|(what, _)| what).zip(answers).collect()
}

/// The answers to requests that a process of a run sends which has children with these names. Also the ids of the run
/// and of its children.
fn answers(daemon: &Daemon, children: &[&str], asked: &[(String, String)]) -> (Vec<String>, Vec<Value>) {
    let lines: String = asked.iter().map(|(_, line)| format!("{line}\n")).collect();
    daemon.file("asks", &lines);
    let asks = daemon.path("asks");
    let waits = turn("").shell(&format!("echo {ITS_OWN}")).ask("may I?").turn("yes");
    let script = children.iter().fold(turn(""), |script, name| script.spawn_as(name, "child"));
    let command = format!("until [ -e go ]; do sleep 0.02; done; {ADVERSARY} ask-each < {} > told", asks.display());
    let open = || daemon.rpc("interaction.list", json!({}))["interactions"].as_array().unwrap().len();
    let before = open();
    let run = daemon.submit(&script.shell(&command).turn("asked").child("child", &waits));
    eventually("its children ask", || open() == before + children.len());
    let own = daemon.rpc("run.list", json!({"root": run.id}));
    let own = own["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect();
    std::fs::write(daemon.work().join("go"), "").unwrap();
    eventually("it has asked", || run.results().len() > children.len());
    let results = run.results();
    assert_eq!(results.last().unwrap().exit_code, Some(0), "{:?}", results.last());
    std::fs::remove_file(daemon.work().join("go")).unwrap();
    assert_eq!(open(), before + children.len(), "nothing was answered");
    let text = daemon.written("told");
    let answers: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(answers.len(), asked.len(), "{text}");
    run.cancel();
    run.wait();
    (own, answers)
}

#[test]
fn no_name_and_no_beginning_of_an_id_tells_a_run_of_another_tree() {
    let place = Place::new();
    let daemon = place.start();
    let live = turn("").shell(&format!("echo {THEIRS}")).ask(THEIRS).turn("yes");
    let nightly = daemon.submit_with(&live, json!({"name": "nightly"}));
    let weekly = daemon.submit_with(&turn("").shell(&format!("echo {THEIRS}")).turn(THEIRS), json!({"name": "weekly"}));
    weekly.wait();
    let above = turn("").spawn_as("worker", "child").wait_for_all().turn("done").child("child", &live);
    let above = daemon.submit_with(&above, json!({"name": "above"}));
    for number in 0..30 {
        daemon.submit_with(&turn(THEIRS), json!({"name": format!("more-{number}")})).wait();
    }
    let alone = daemon.submit_with(&until_there_is("never"), json!({"name": "alone"}));
    eventually("they ask", || daemon.rpc("interaction.list", json!({}))["interactions"].as_array().unwrap().len() == 2);
    let list = daemon.rpc("run.list", json!({"limit": 1000}));
    let theirs: Vec<String> =
        list["runs"].as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_owned()).collect();
    assert_eq!(theirs.len(), 35, "{list}");

    let own = ["nightly", "weekly", "worker", "above"];
    let beginnings = "0123456789abcdefghjkmnpqrstvwxyz".chars().map(|digit| digit.to_string());
    let longer = theirs.iter().take(3).flat_map(|id| [id[..4].to_owned(), id[..12].to_owned()]);
    let names: Vec<String> = own.iter().map(|&name| name.to_owned()).collect();
    let others: Vec<String> = ["alone", "more-3", "@last"].map(str::to_owned).into();
    let all = names.iter().cloned().chain(others).chain(beginnings).chain(longer).collect::<Vec<_>>();
    for (what, answer) in told(&daemon, &own, &all) {
        let text = answer.to_string();
        assert!(!text.contains(THEIRS), "{what}: {text}");
        for id in &theirs {
            assert!(!text.contains(id.as_str()), "{what}: {text}");
        }
    }
    // A name does mean its own child, so that something was asked at all; whole ids tell nothing.
    let mut ids = theirs;
    ids.truncate(3);
    ids.extend([nightly.id.clone(), weekly.id.clone(), above.id.clone()]);
    for (what, answer) in told(&daemon, &own, &names) {
        let reads = ["run.show", "run.export", "run.wait", "run.list", "event.subscribe"];
        if reads.iter().any(|method| what.starts_with(method)) {
            assert!(answer["result"].is_object(), "{what}: {answer}");
            if what.starts_with("run.show") {
                assert!(answer.to_string().contains(ITS_OWN), "{what}: {answer}");
            }
        } else {
            assert!(answer["error"].is_object(), "{what}: {answer}");
        }
    }
    for (what, answer) in told(&daemon, &[], &ids) {
        assert!(answer["error"].is_object() && !answer.to_string().contains(THEIRS), "{what}: {answer}");
    }
    alone.cancel();
}

/// Whether a run of another tree is live, has ended, has left the world, was pruned, is a child, or was never there,
/// and how many there are whose ids begin so: the refusal is the same, word for word.
#[test]
fn what_is_not_of_the_own_tree_is_refused_alike_whatever_it_is() {
    let daemon = Daemon::configured("[limits]\nfinished_runs = 1\n");
    let live = daemon.submit_with(&until_there_is("never"), json!({"name": "nightly"}));
    let family = turn("").spawn_as("kid", "kid").wait_for("kid").turn("").child("kid", &turn("").ask("?").turn("yes"));
    let above = daemon.submit_with(&family, json!({"name": "above"}));
    let mut ended: Vec<String> = Vec::new();
    for number in 0..4 {
        let run = daemon.submit_with(&turn("x"), json!({"name": format!("ended-{number}")}));
        run.wait();
        ended.push(run.id);
    }
    daemon.ctl(["prune", &ended[0]]).ok();
    eventually("the child asks", || daemon.rpc("interaction.list", json!({}))["total"] == 1);
    let whole: Vec<String> = [&live.id, &above.id, &above.child("kid").id].into_iter().chain(&ended).cloned().collect();
    let beginnings = whole.iter().flat_map(|id| [1, 2, 4, 5, 8, 12].map(|length| id[..length].to_owned()));
    let names = ["nightly", "above", "kid", "ended-0", "ended-1", "ended-3", "@last", "zzz-none", "zzzz", ""];
    let none = ["1111111111111", "2222222222222"].map(str::to_owned);
    let names: Vec<String> =
        whole.iter().cloned().chain(none).chain(beginnings).chain(names.map(str::to_owned)).collect();
    // First what names a run, then what gives a name to one.
    let mut asked: Vec<(String, &str, Value)> = Vec::new();
    for name in &names {
        let several = json!({"runs": [name], "after": 0});
        let more = (name.len() == 13).then_some(("event.subscribe", several));
        asked.extend(asks(name).into_iter().chain(more).map(|(method, params)| (name.clone(), method, params)));
    }
    let named = asked.len();
    for name in names.iter().filter(|name| name.len() < 13) {
        asked.push((
            name.clone(),
            "run.submit",
            json!({"spec": daemon.spec(&until_there_is("never"), json!({ "name": name }))}),
        ));
    }
    let line = |method: &str, params: &Value| {
        json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).to_string()
    };
    let lines: Vec<(String, String)> =
        asked.iter().map(|(name, method, params)| (name.clone(), line(method, params))).collect();
    let (own, answers) = answers(&daemon, &["own"], &lines);
    let is_own = |name: &str| own.iter().any(|id| !name.is_empty() && id.starts_with(name));
    let mut seen = std::collections::BTreeMap::<String, Vec<String>>::new();
    for ((name, method, params), mut answer) in asked.iter().zip(answers.clone()).take(named) {
        if is_own(name) {
            continue;
        }
        // The same request with another text in the place of the name.
        let request = params.to_string().replace(&format!("{name:?}"), "NAME");
        let message = answer["error"]["message"].as_str().unwrap_or_default().replace(&format!("{name:?}"), "NAME");
        answer["error"]["message"] = message.into();
        if answer["error"]["data"]["subject"] == **name {
            answer["error"]["data"]["subject"] = "NAME".into();
        }
        seen.entry(format!("{method} {request}")).or_default().push(answer.to_string());
    }
    assert_eq!(seen.len(), asks("x").len() + 1);
    for (request, told) in seen {
        assert!(told.len() > 5 && told.iter().all(|one| *one == told[0]), "{request}: {told:#?}");
    }
    // The beginning of an id of another tree is a name like any other; that of an id of the own tree is none.
    for ((name, ..), answer) in asked.iter().zip(&answers).skip(named) {
        let is_none = name.is_empty() || name.starts_with('@') || (name.len() >= 4 && is_own(name));
        let told = answer["error"]["data"]["reason"].as_str();
        let is_taken = told == Some("name-taken");
        assert!(is_taken || told == is_none.then_some("bad-name"), "{name}: {answer}");
    }
    live.cancel();
}

/// A run gives a child the label and the name of an operator's job: a retry of that job retries no run of that tree.
#[test]
fn no_child_with_the_label_of_a_job_gets_what_the_job_gets_when_it_is_tried_again() {
    let place = Place::new();
    let daemon = place.start();
    let fails = turn("").shell("echo \"got $TOK\" >> got").turn("done");
    let once = json!({"labels": {"job": "deploy"}, "limits": {"max_steps": 1}});
    let job = daemon.submit_with(&fails, once);
    assert_eq!(job.wait().exit_code, Some(9));
    let script = daemon.script_file(&turn("").shell("echo \"stolen $TOK\" >> stolen").turn("done"));
    let plant = format!("harnessctl submit --wait --name nightly -l job=deploy --max-steps 1 --script {script}");
    let above = daemon.submit(&turn("").shell(&plant).turn("planted"));
    assert_eq!(above.answer(), "planted");
    let list = daemon.rpc("run.list", json!({"root": above.id}));
    let child = list["runs"].as_array().unwrap().iter().find(|run| run["parent"] == *above.id).unwrap();
    let (child, name) = (child["id"].as_str().unwrap(), child["name"].as_str().unwrap());
    let retry = |words: &[&str]| daemon.ctl(["retry", "--max-steps", "5", "--wait", "--yes"].iter().chain(words));
    let of_child = || {
        let all = daemon.rpc("run.list", json!({"select": {"all": true}}));
        all["runs"].as_array().unwrap().iter().filter(|run| run["retry_of"] == child).count()
    };

    for words in
        [&["-l", "job=deploy", "--env", "TOK=secret"][..], &["--all", "--state", "failed", "--env", "TOK=secret"]]
    {
        retry(words).tells("other runs submitted them");
    }
    for words in [&[name, "--env", "TOK=secret"][..], &[name], &[&job.id, name]] {
        retry(words).exits(6).tells("a child run has the name");
    }
    for words in [&[child, "--env", "TOK=secret"][..], &[&child[..12]]] {
        retry(words).exits(2).tells("was submitted by");
    }
    assert_eq!(of_child(), 0);
    assert!(daemon.written("got").contains("got secret") && !daemon.written("stolen").contains("secret"));
    // Where that run is meant it is tried again, as a run of the operator's.
    retry(&[child]).exits(0);
    retry(&[child, "--children", "--env", "TOK=given"]).exits(0);
    assert_eq!(of_child(), 2);
    assert!(daemon.written("stolen").contains("stolen given"));
}

/// The same for questions: what asks in the name of an operator's run is shown as the child that it is.
#[test]
fn a_question_of_a_child_is_shown_as_that() {
    let place = Place::new();
    let daemon = place.start();
    let asks = turn("").ask("the token for nightly?").turn("yes");
    daemon.submit_with(&asks, json!({"name": "nightly"}));
    let above = daemon.submit(&turn("").spawn_as("nightly", "child").wait_for_all().turn("done").child("child", &asks));
    let open = || daemon.rpc("interaction.list", json!({}))["interactions"].as_array().unwrap().clone();
    eventually("both ask", || open().len() == 2);
    let of_child = format!("nightly (child of {})", &above.id[..8]);
    for words in [&["pending"][..], &["list"]] {
        let shown = daemon.ctl(words).ok();
        let lines = shown.lines().filter(|line| line.contains("nightly"));
        let (children, own): (Vec<_>, Vec<_>) = lines.partition(|line| line.contains(&of_child));
        assert_eq!((children.len(), own.len()), (1, 1), "{shown}");
    }
    let parents: Vec<Value> = open().into_iter().map(|mut question| question["parent"].take()).collect();
    assert!(parents.contains(&Value::Null) && parents.contains(&above.id.as_str().into()), "{parents:?}");
}

/// Children that have ended and stay because something of their tree lives are that tree's affair: it gets no more, and
/// everybody else does.
#[test]
fn no_tree_keeps_others_from_submitting_by_what_has_ended_in_it() {
    let daemon = Daemon::configured("[limits]\nfinished_runs = 16\n");
    let child = daemon.script_file(&turn("x"));
    let submit = format!("harnessctl submit -q --script {child}; echo code $?");
    let script = (0..20).fold(turn(""), |script, _| script.spawn("child"));
    let script = script.wait_for_all().shell(&submit).ask("may I?").turn("yes").child("child", &turn("x"));
    let full = daemon.submit(&script);
    eventually("it asks", || !full.questions().is_empty());
    let told = full.envelopes().pop().unwrap();
    assert!(told.contains("code 75") && told.contains(&full.id), "it has what it may have: {told}");
    for _ in 0..3 {
        assert_eq!(daemon.submit(&turn("mine")).answer(), "mine");
        let other = daemon.submit(&turn("").shell(&submit).turn("done"));
        assert_eq!(other.answer(), "done");
        assert!(other.envelopes()[0].contains("code 0"), "{:?}", other.envelopes());
    }
    full.reply("yes");
    full.wait();
}
