//! The working directory of a run is one folder: never another folder that has its path for the daemon, or later.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::Path;

use harness_protocol::run::RunState;
use harness_tests::{Daemon, MOST_PASSED, Place, Run, Script, Value, eventually, folder, json, now, runs, says, turn};
use rusqlite::Connection;

/// Device and inode of a folder, as a client says them.
pub fn id(path: &Path) -> Value {
    let found = fs::metadata(path).unwrap();
    json!({"device": found.dev(), "inode": found.ino()})
}

/// A specification with this working directory.
pub fn at(place: &Place, script: &Script, path: &Path, more: Value) -> Value {
    let mut spec = place.spec(script, more);
    spec["workdir"] = path.to_str().unwrap().into();
    spec
}

/// What a refusal is for programs.
pub fn reason(error: &Value) -> (&str, &str) {
    (error["data"]["kind"].as_str().unwrap(), error["data"]["reason"].as_str().unwrap_or_default())
}

fn count(place: &Place) -> u64 {
    let runs = &place.rpc("daemon.status", json!({}))["runs"];
    runs.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum()
}

/// U22: a client that is told wrong numbers, or passes another folder, is refused, with a reason for programs and words
/// for people.
#[test]
fn a_submit_whose_path_means_another_folder_to_its_client_is_refused() {
    let daemon = Daemon::start();
    let work = daemon.work();
    let other = daemon.path("other");
    fs::create_dir(&other).unwrap();
    let right = id(&work);
    let (device, inode) = (right["device"].as_u64().unwrap(), right["inode"].as_u64().unwrap());
    let proc = id(Path::new("/proc"));
    for wrong in [
        id(&other),
        id(Path::new("/")),
        proc.clone(),
        json!({"device": device, "inode": inode + 1}),
        json!({"device": device + 1, "inode": inode}),
        json!({"device": inode, "inode": device}),
        json!({"device": 0, "inode": 0}),
        json!({"device": u64::MAX, "inode": u64::MAX}),
        // What a client says of a boot means nothing.
        json!({"device": device + 1, "inode": inode, "boot": "0b19d3cd-8f20-4d26-a2ee-4f4e2c2c0a01"}),
    ] {
        let spec = at(&daemon, &says("x"), &work, json!({"workdir_id": wrong}));
        let error = daemon.refused("run.submit", json!({"spec": spec}));
        assert_eq!(reason(&error), ("invalid", "other-folder"), "{wrong}: {error}");
        assert_eq!((&error["data"]["subject"], &error["data"]["exit_code"]), (&json!("workdir"), &json!(2)));
        let told = error["message"].as_str().unwrap();
        for part in ["another folder for the daemon than for you", "mount namespace", "HARNESS_SOCKET", "work"] {
            assert!(told.contains(part), "{part}: {told}");
        }
    }
    let mut client = daemon.connect();
    let spec = at(&daemon, &says("x"), &work, json!({}));
    for (passed, why) in [
        (folder(&other), "other-folder"),
        (folder(Path::new("/")), "other-folder"),
        (folder(Path::new("/proc/self")), "other-folder"),
        (File::open("/dev/null").unwrap(), "no-descriptor"),
        (File::open(std::env::current_exe().unwrap()).unwrap(), "no-descriptor"),
        (File::from(std::os::fd::OwnedFd::from(UnixStream::pair().unwrap().0)), "no-descriptor"),
    ] {
        let error = client.submit_passing(&spec, passed).unwrap_err();
        assert_eq!(reason(&error), ("invalid", why), "{error}");
    }
    let error = client.try_call("run.submit", json!({"spec": spec, "passes_workdir": true})).unwrap_err();
    assert_eq!(reason(&error), ("invalid", "no-descriptor"), "{error}");
    assert_eq!(count(&daemon), 0, "nothing was queued");
}

#[test]
fn a_folder_that_is_the_same_for_both_is_taken_however_it_is_told_and_the_run_keeps_it() {
    let daemon = Daemon::start();
    let work = daemon.work();
    symlink("work", daemon.path("link")).unwrap();
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    let mut kept = id(&work);
    kept["boot"] = boot.trim().into();
    let mut client = daemon.connect();
    let script = runs("pwd -P");
    let wrong = json!({"workdir_id": {"device": 1, "inode": 1}});
    let mut replies = vec![
        client.submit_passing(&at(&daemon, &script, &work, json!({})), folder(&work)).unwrap(),
        client.submit_passing(&at(&daemon, &script, &daemon.path("link"), json!({})), folder(&work)).unwrap(),
        // The descriptor counts where both are there.
        client.submit_passing(&at(&daemon, &script, &work, wrong), folder(&work)).unwrap(),
        client.submit_passing(&at(&daemon, &script, &work, json!({})), File::open(&work).unwrap()).unwrap(),
    ];
    for more in [json!({}), json!({"workdir_id": id(&work)}), json!({"workdir_id": null})] {
        for path in [work.clone(), daemon.path("link"), daemon.path("run/../work/.")] {
            replies.push(client.call("run.submit", json!({"spec": at(&daemon, &script, &path, more.clone())})));
        }
    }
    for reply in replies {
        let run = daemon.run(reply["id"].as_str().unwrap());
        assert_eq!(run.answer(), "done");
        assert_eq!(run.envelopes(), [format!("Exit code: 0\n{}\n", work.display())]);
        let made = &daemon.rpc("run.export", json!({"run": run.id}))["events"][0];
        assert_eq!(made["spec"]["workdir_id"], kept, "{made}");
    }
    daemon.ctl(["submit", "--wait", "--script", &daemon.script_file(&script)]).ok();
}

/// U17, U22: also a raw client is told at the door.
#[test]
fn a_path_that_the_daemon_cannot_open_is_refused_at_the_door() {
    let daemon = Daemon::start();
    daemon.file("work/file", "");
    symlink("nowhere", daemon.path("work/dangling")).unwrap();
    symlink("round", daemon.path("work/round")).unwrap();
    fs::create_dir(daemon.path("work/gone")).unwrap();
    let gone = id(&daemon.path("work/gone"));
    let held = folder(&daemon.path("work/gone"));
    fs::remove_dir(daemon.path("work/gone")).unwrap();
    for (path, told) in [
        ("/nonexist", "does not exist"),
        ("/proc/1/cwd/no/such/thing", "may not be entered cannot be opened"),
        ("/proc/self/cwd", "cannot be opened"),
        ("/proc/self/root/tmp", "cannot be opened"),
        ("work/gone", "does not exist"),
        ("work/dangling", "does not exist"),
        ("work/file", "is not a directory"),
        ("work/file/below", "is not a directory"),
        ("work/round", "cannot be opened"),
        ("/dev/null", "is not a directory"),
        ("/proc/self/fd/0", "cannot be opened"),
    ] {
        let spec = at(&daemon, &says("x"), &daemon.path(path), json!({}));
        let error = daemon.refused("run.submit", json!({"spec": spec}));
        assert_eq!(reason(&error), ("invalid", "no-workdir"), "{path}: {error}");
        let message = error["message"].as_str().unwrap();
        let said = message.split(" (as the daemon sees it)").next().unwrap().rsplit('"').next().unwrap().trim();
        assert!(told.contains(said.split(':').next().unwrap()), "{path}: {said:?}");
    }
    // A client that has it, where the daemon has not, is in another place.
    let spec = at(&daemon, &says("x"), &daemon.path("work/gone"), json!({"workdir_id": gone}));
    let mut client = daemon.connect();
    let errors = [
        daemon.refused("run.submit", json!({"spec": spec})),
        client.submit_passing(&at(&daemon, &says("x"), &daemon.path("work/gone"), json!({})), held).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(reason(&error), ("invalid", "no-workdir"), "{error}");
        assert!(error["message"].as_str().unwrap().contains("mount namespace"), "{error}");
    }
    for wrong in ["relative", "", "./work"] {
        let mut spec = daemon.spec(&says("x"), json!({}));
        spec["workdir"] = wrong.into();
        let error = daemon.refused("run.submit", json!({"spec": spec}));
        assert!(error["message"].as_str().unwrap().contains("is not absolute"), "{error}");
    }
    assert_eq!(count(&daemon), 0, "nothing was queued");
}

/// A script that asks before each of two calls, and says what came of them.
pub fn waits_then_writes(mark: &str) -> Script {
    let write = format!("echo {mark} >> written; pwd -P");
    turn("").ask("first?").turn("").shell(&write).ask("second?").turn("").shell(&write).turn("done")
}

/// Replaces what is at the path of a folder.
type Replace = fn(&Path);

fn aside(path: &Path) {
    fs::rename(path, path.with_extension("aside")).unwrap();
}

fn back(path: &Path) {
    if path.is_dir() && !path.is_symlink() {
        fs::remove_dir_all(path).unwrap();
    } else if path.exists() || path.is_symlink() {
        fs::remove_file(path).unwrap();
    }
    fs::rename(path.with_extension("aside"), path).unwrap();
}

const REPLACED: [(&str, Replace, &str); 7] = [
    (
        "by another folder",
        |path| {
            aside(path);
            fs::create_dir(path).unwrap();
        },
        "is another folder now",
    ),
    (
        "by a link to another",
        |path| {
            aside(path);
            symlink("/tmp", path).unwrap();
        },
        "is another folder now",
    ),
    (
        "by a link to the root",
        |path| {
            aside(path);
            symlink("/", path).unwrap();
        },
        "is another folder now",
    ),
    (
        "by a folder of another device",
        |path| {
            aside(path);
            symlink("/proc", path).unwrap();
        },
        "is another folder now",
    ),
    (
        "by a file",
        |path| {
            aside(path);
            fs::write(path, "").unwrap();
        },
        "is not a directory",
    ),
    ("by nothing", aside, "does not exist"),
    (
        "by a link to nothing",
        |path| {
            aside(path);
            symlink("nowhere", path).unwrap();
        },
        "does not exist",
    ),
];

/// U22: each call looks anew; what is executed is executed in the folder that the run was submitted for, or not at all.
#[test]
fn a_call_ends_with_a_text_where_its_folder_was_replaced_and_the_run_goes_on() {
    let daemon = Daemon::start();
    let mut all = Vec::new();
    for (index, (what, replace, told)) in REPLACED.into_iter().enumerate() {
        let path = daemon.path(&format!("folder-{index}"));
        fs::create_dir(&path).unwrap();
        let mark = format!("mark-{index}");
        let spec = at(&daemon, &waits_then_writes(&mark), &path, json!({}));
        let reply = daemon.rpc("run.submit", json!({"spec": spec}));
        all.push((what, replace, told, path, daemon.run(reply["id"].as_str().unwrap())));
    }
    for (what, replace, told, path, run) in all {
        run.reach(RunState::Waiting);
        replace(&path);
        run.reply("go");
        eventually("it asks again", || run.results().len() == 2 && !run.questions().is_empty());
        let result = &run.results()[1];
        assert!(result.envelope.contains(told), "{what}: {}", result.envelope);
        assert!(result.envelope.starts_with("the working directory "), "{what}: {}", result.envelope);
        assert_eq!((result.exit_code, result.is_error), (None, true), "{what}");
        assert!(!path.join("written").exists() && !Path::new("/written").exists(), "{what}: executed elsewhere");
        back(&path);
        run.reply("go");
        assert_eq!(run.answer(), "done", "{what}");
        let last = run.envelopes().pop().unwrap();
        assert_eq!(last, format!("Exit code: 0\n{}\n", path.display()), "{what}");
        assert_eq!(fs::read_to_string(path.join("written")).unwrap().lines().count(), 1, "{what}");
    }
}

/// While a call looks at its folder, the path is changed again and again: it is executed in the right folder or not at
/// all.
#[test]
fn nothing_is_executed_in_the_wrong_folder_however_fast_it_is_exchanged() {
    let daemon = Daemon::start();
    let (right, wrong, path) = (daemon.path("right"), daemon.path("wrong"), daemon.path("path"));
    for dir in [&right, &wrong] {
        fs::create_dir(dir).unwrap();
    }
    symlink("right", &path).unwrap();
    let write = "echo x >> written";
    let script = (1..60).fold(turn("").shell(write), |script, _| script.turn("").shell(write)).turn("done");
    let spec = at(&daemon, &script, &path, json!({"workdir_id": id(&right)}));
    let reply = daemon.rpc("run.submit", json!({"spec": spec}));
    let run = daemon.run(reply["id"].as_str().unwrap());
    let mut turns = 0_u32;
    while run.view().ended_at.is_none() {
        for to in ["wrong", "right"] {
            symlink(to, path.with_extension("next")).unwrap();
            fs::rename(path.with_extension("next"), &path).unwrap();
            turns += 1;
        }
    }
    assert_eq!(run.answer(), "done");
    assert!(turns > 1 && !wrong.join("written").exists(), "something was executed in the wrong folder");
    let results = run.results();
    let executed = results.iter().filter(|result| result.exit_code == Some(0)).count();
    let ended = results.iter().filter(|result| result.envelope.contains("is another folder now")).count();
    assert_eq!(executed + ended, 60);
    let written = fs::read_to_string(right.join("written")).unwrap_or_default();
    assert_eq!(written.lines().count(), executed);
}

/// Children, runs inside of runs, retries, messages and lines of a batch: each is of a folder, too.
#[test]
fn a_run_of_a_run_keeps_its_folder_and_a_submit_inside_of_it_is_checked() {
    let daemon = Daemon::start();
    let path = daemon.path("src");
    fs::create_dir(&path).unwrap();
    let child = says("").shell("pwd -P; echo x >> written").turn("child done");
    let script = turn("").ask("now?").turn("").spawn("child").wait_for_all().turn("done").child("child", &child);
    let submit = |script: &Script| {
        let reply = daemon.rpc("run.submit", json!({"spec": at(&daemon, script, &path, json!({}))}));
        daemon.run(reply["id"].as_str().unwrap())
    };
    let inside = daemon.script_file(&runs("pwd -P"));
    let submits = format!("cd {}; harnessctl submit --wait --script {inside}", path.display());
    let (family, inner) = (submit(&script), submit(&runs(&submits)));
    let plain = submit(&runs("pwd -P").turn("").shell("pwd -P").turn("done again"));
    family.reach(RunState::Waiting);
    assert_eq!((inner.answer(), plain.answer()), ("done".to_owned(), "done".to_owned()));
    assert_eq!(inner.envelopes(), ["Exit code: 0\ndone\n"]);

    aside(&path);
    fs::create_dir(&path).unwrap();
    family.reply("now");
    assert_eq!(family.answer(), "done");
    let children = daemon.rpc("run.list", json!({"root": family.id}));
    let of_children = children["runs"].as_array().unwrap().iter().filter(|run| run["parent"] == family.id.as_str());
    let of_children: Vec<Run> = of_children.map(|run| daemon.run(run["id"].as_str().unwrap())).collect();
    assert_eq!(of_children.len(), 1);
    // Tried again, and gone on from: the folder stays the one that it was.
    let retried = daemon.rpc("run.retry", json!({"run": plain.id}));
    let retried = daemon.run(retried["id"].as_str().unwrap());
    let told = plain.tell("once more");
    for run in [&of_children[0], &retried, &told] {
        run.wait();
        let last = run.results().pop().unwrap();
        assert!(last.envelope.contains("is another folder now"), "{}: {:?}", run.id, run.envelopes());
        assert_eq!(last.exit_code, None, "{}", run.id);
    }
    assert!(!path.join("written").exists());
    // A new submit is of what is there now.
    assert_eq!(submit(&runs("echo x >> written")).answer(), "done");
    assert!(path.join("written").exists());
}

#[test]
fn each_line_of_a_batch_is_of_its_own_folder() {
    let daemon = Daemon::start();
    let dirs: Vec<_> = (0..6).map(|index| daemon.path(&format!("dir-{index}"))).collect();
    let mut lines = String::new();
    for dir in &dirs {
        fs::create_dir(dir).unwrap();
        lines += &format!("{}\n", json!({"workdir": dir, "script": runs("pwd -P > here").json()}));
    }
    lines += &format!("{}\n", json!({"script": runs("pwd -P > here").json()}));
    let batch = daemon.file("batch.jsonl", &lines);
    daemon.ctl(["submit", "--batch", &batch, "--wait", "-C", daemon.path("home").to_str().unwrap()]).ok();
    for dir in dirs.iter().chain([&daemon.path("home")]) {
        assert_eq!(fs::read_to_string(dir.join("here")).unwrap(), format!("{}\n", dir.display()));
    }
    let missing = daemon.file("missing.jsonl", &format!("{}\n", json!({"workdir": "/no/such", "prompt": "x"})));
    daemon.ctl(["submit", "--batch", &missing]).exits(2).tells("missing.jsonl:1");
}

fn open_files(place: &Place) -> u64 {
    place.rpc("daemon.status", json!({}))["open_files"].as_u64().unwrap()
}

/// U22: a hostile client passes descriptors wherever it can; none of them stays.
#[test]
fn descriptors_that_were_not_asked_for_are_closed() {
    let daemon = Daemon::start();
    let before = {
        let mut settled = open_files(&daemon);
        eventually("the number of descriptors settles", || {
            let same = open_files(&daemon) == settled;
            settled = open_files(&daemon);
            same
        });
        settled
    };
    let null = File::open("/dev/null").unwrap();
    let (pipe, _writer) = std::io::pipe().unwrap();
    let work = folder(&daemon.work());
    let status = r#"{"jsonrpc":"2.0","id":1,"method":"daemon.status"}"#;
    let spec = daemon.spec(&says("x"), json!({"workdir_id": id(&daemon.work())}));
    let submit = json!({"jsonrpc": "2.0", "id": 1, "method": "run.submit", "params": {"spec": spec}}).to_string();
    let lines = [
        format!("{status}\n"),
        format!("{status}\n{status}\n"),
        format!("{submit}\n"),
        "{\"jsonrpc\":\"2.0\",\"method\":\"daemon.status\"}\n".to_owned(),
        "no json\n".to_owned(),
        "\n".to_owned(),
        submit.clone(),
        "{".to_owned(),
    ];
    let mut held = Vec::new();
    for line in &lines {
        for passed in [1, 2, 3, 5, MOST_PASSED] {
            use std::os::fd::AsFd;
            let all = [null.as_fd(), pipe.as_fd(), work.as_fd()];
            let descriptors: Vec<_> = all.iter().copied().cycle().take(passed).collect();
            let mut client = daemon.connect();
            for _ in 0..3 {
                client.write_passing(line.as_bytes(), &descriptors);
            }
            held.push(client);
        }
    }
    // Everything was read: what these connections still have is themselves, and the lines that are not finished two
    // each at most.
    eventually("what was passed is closed", || open_files(&daemon) <= before + held.len() as u64 * 3);
    drop(held);
    eventually("nothing of it stays", || open_files(&daemon) <= before + 2);
    assert_eq!(daemon.submit(&runs("true")).answer(), "done");
}

/// What the journal says of the working directory of a run is changed, as another boot would.
fn in_another_boot(place: &Place, run: &Run, set: &str) {
    let db = Connection::open(place.state("harness.db")).unwrap();
    let sql = format!("UPDATE event SET body = {set} WHERE run = ?1 AND kind = 'run-submitted'");
    assert_eq!(db.execute(&sql, [&run.id]).unwrap(), 1);
}

/// U22: numbers of devices hold until the next boot; the inode does longer.
#[test]
fn after_another_boot_the_inode_is_compared_and_the_new_device_is_recorded() {
    const OTHER: &str = "'$.spec.workdir_id.boot', '0b19d3cd-8f20-4d26-a2ee-4f4e2c2c0a01'";
    let daemon = Daemon::start();
    let cases = [
        // Another boot, and the device has another number.
        (format!("json_set(body, {OTHER}, '$.spec.workdir_id.device', 7)"), true, true),
        (format!("json_set(body, {OTHER})"), true, true),
        (format!("json_set(body, {OTHER}, '$.spec.workdir_id.inode', 7)"), false, false),
        // The same boot.
        ("json_set(body, '$.spec.workdir_id.device', 7)".to_owned(), false, false),
        ("json_set(body, '$.spec.workdir_id.inode', 7)".to_owned(), false, false),
        // Runs of a time before: they have none, and nothing is compared.
        ("json_remove(body, '$.spec.workdir_id')".to_owned(), true, false),
        // The boot of the folder's number is not known.
        ("json_remove(body, '$.spec.workdir_id.boot')".to_owned(), true, true),
    ];
    let all: Vec<Run> = cases.iter().map(|_| daemon.submit(&waits_then_writes("x"))).collect();
    all.iter().for_each(|run| _ = run.reach(RunState::Waiting));
    let mut kept = id(&daemon.work());
    kept["boot"] = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().into();
    let place = daemon.crash();
    for (run, (set, ..)) in all.iter().zip(&cases) {
        in_another_boot(&place, run, set);
    }
    let daemon = place.start();
    let found = |run: &Run| -> Vec<Value> {
        let events = daemon.rpc("run.export", json!({"run": run.id}))["events"].clone();
        let found = events.as_array().unwrap().iter().filter(|event| event["kind"] == "workdir-found");
        found.map(|event| event["folder"].clone()).collect()
    };
    for (run, (set, executes, records)) in all.iter().zip(&cases) {
        run.reply("go");
        eventually("it asks again", || run.results().len() == 2 && !run.questions().is_empty());
        let result = &run.results()[1];
        assert_eq!(result.exit_code == Some(0), *executes, "{set}: {}", result.envelope);
        assert_eq!(result.envelope.contains("is another folder now"), !executes, "{set}: {}", result.envelope);
        let expected = if *records { vec![kept.clone()] } else { Vec::new() };
        assert_eq!(found(run), expected, "{set}");
    }
    // What was recorded holds: it is not looked for again, and not after a restart in this boot.
    drop(daemon.crash());
    let daemon = place.start();
    for (run, (set, executes, records)) in all.iter().zip(&cases) {
        run.reply("go");
        assert_eq!(run.answer(), "done", "{set}");
        assert_eq!(run.results()[3].exit_code == Some(0), *executes, "{set}");
        let events = daemon.rpc("run.export", json!({"run": run.id}))["events"].clone();
        let recorded = events.as_array().unwrap().iter().filter(|event| event["kind"] == "workdir-found").count();
        assert_eq!(recorded, usize::from(*records), "{set}");
    }
}

/// A submit that is repeated under its key finds its run, whatever has become of the folder since.
#[test]
fn a_submit_that_is_repeated_is_found_although_its_folder_has_gone() {
    let daemon = Daemon::start();
    let path = daemon.path("src");
    fs::create_dir(&path).unwrap();
    let spec = at(&daemon, &says("x"), &path, json!({}));
    let key = "0123456789abcdef0123456789abcdef";
    let keyed = [json!({"submit_key": key}), json!({"idempotency_key": "k"})].map(|keys| {
        let mut params = json!({"spec": spec});
        params.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        params
    });
    let made = keyed.clone().map(|params| daemon.rpc("run.submit", params)["id"].clone());
    fs::remove_dir(&path).unwrap();
    let again = keyed.map(|params| daemon.rpc("run.submit", params));
    for (made, again) in made.iter().zip(&again) {
        assert_eq!((&again["id"], &again["existing"]), (made, &json!(true)));
    }
    assert_eq!(reason(&daemon.refused("run.submit", json!({"spec": spec}))).1, "no-workdir");
    assert!(now().elapsed().as_secs() < 60);
}
