//! `daemon reload`: it takes over what the files have now, whole, or changes nothing and says why.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use harness_tests::{Daemon, Place, json, need_root};
use nix::sys::stat::Mode;
use nix::unistd::{Group, getegid, mkfifo};

use crate::workdirs_mounted::Hanging;

/// The section of a provider that no process serves.
fn provider(name: &str, more: &str) -> String {
    format!("[provider.{name}]\ndialect = \"openai\"\nbase_url = \"http://127.0.0.1:9/v1\"\nmodel = \"m\"\n{more}\n")
}

/// The main file of the configuration.
fn main_file(place: &Place) -> PathBuf {
    place.path("home/.config/harness/config.toml")
}

/// The configuration in force, as the daemon tells it.
fn in_force(place: &Place) -> serde_json::Value {
    place.ctl(["daemon", "status", "--json"]).json()["config"].clone()
}

fn providers(place: &Place) -> Vec<String> {
    let listed = place.rpc("provider.list", json!({}));
    listed["providers"].as_array().unwrap().iter().map(|provider| provider["name"].as_str().unwrap().into()).collect()
}

fn lane_names(place: &Place) -> Vec<String> {
    let listed = place.rpc("lane.list", json!({}));
    listed["lanes"].as_array().unwrap().iter().map(|lane| lane["name"].as_str().unwrap().into()).collect()
}

#[test]
fn a_file_that_is_written_after_the_daemon_started_counts_with_the_next_reload() {
    let place = Place::new();
    place.ctl(["list"]).ok();
    let main = main_file(&place);
    // A file that is not there is not told to be read.
    let told = place.ctl(["daemon", "reload"]).exits(0).tells("there is no file").tells("nothing changed");
    assert!(told.stderr.contains(main.to_str().unwrap()) && !told.stderr.contains("read /"), "{told}");
    assert_eq!(in_force(&place)["files"], json!([]));
    place.configure(&format!("[lane.tool]\nwidth = 3\n{}", provider("local", "")));
    place.ctl(["daemon", "reload"]).exits(0).tells(&format!("read {}", main.display()));
    assert_eq!(providers(&place), ["local", "scripted"]);
    assert_eq!(lane_names(&place).len(), 3);
    fs::create_dir(main.with_file_name("conf.d")).unwrap();
    let part = main.with_file_name("conf.d").join("a.toml");
    fs::write(&part, "[lane.tool]\nwidth = 5\n").unwrap();
    place.ctl(["daemon", "reload"]).exits(0).tells(part.to_str().unwrap());
    let told = in_force(&place);
    assert_eq!(told["files"], json!([main, part]));
    assert!(told["read_at"].is_string(), "{told}");
    let status = place.ctl(["daemon", "status"]).ok();
    assert!(status.contains(main.to_str().unwrap()) && status.contains(part.to_str().unwrap()), "{status}");
    // Without its files the daemon has its defaults again, as after a start, and says so.
    fs::remove_dir_all(main.parent().unwrap()).unwrap();
    let told = place.ctl(["daemon", "reload"]).exits(0).tells("the defaults are in force");
    assert!(told.stdout.contains("provider local: gone"), "{told}");
    assert_eq!(in_force(&place)["files"], json!([]));
}

/// What is in the place of a file is never waited for, and whatever it is, a configuration that cannot be read changes
/// nothing.
#[test]
fn whatever_is_in_the_place_of_a_file_a_broken_one_changes_nothing_and_is_told_with_its_path() {
    type Put = fn(&Path);
    let puts: [(&str, Put, &str); 9] = [
        ("a mistake", |path| fs::write(path, "[lane.tool]\nwidht = 6\n").unwrap(), ":2: unknown key `widht`"),
        ("half a file", |path| fs::write(path, "[lane.tool]\nwidth =").unwrap(), ":2: not TOML"),
        ("bytes", |path| fs::write(path, b"\n\n\xFF").unwrap(), ":3: not TOML: it is not UTF-8"),
        ("a huge file", |path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap(), "larger than"),
        ("a directory", |path| fs::create_dir(path).unwrap(), "it is no regular file"),
        ("a pipe", |path| mkfifo(path, Mode::S_IRWXU).unwrap(), "it is no regular file"),
        ("a device", |path| symlink("/dev/zero", path).unwrap(), "it is no regular file"),
        ("a link to nothing", |path| symlink("nowhere", path).unwrap(), "No such file"),
        ("a link to itself", |path| symlink(path, path).unwrap(), "symbolic links"),
    ];
    let good = "[lane.tool]\nwidth = 2\n";
    for name in ["config.toml", "conf.d/a.toml"] {
        let daemon = Daemon::of_width(2);
        let dir = main_file(&daemon).parent().unwrap().to_owned();
        let path = dir.join(name);
        fs::create_dir(dir.join("conf.d")).unwrap();
        let before = in_force(&daemon);
        for (what, put, told) in puts {
            drop(fs::remove_file(&path));
            put(&path);
            let output = daemon.ctl(["daemon", "reload"]).exits(2).tells("the configuration stays as it was");
            assert!(output.stderr.contains(path.to_str().unwrap()), "{what}: {output}");
            assert!(output.stderr.contains(told), "{what}: {output}");
            let after = in_force(&daemon);
            assert_eq!((&after["files"], &after["read_at"]), (&before["files"], &before["read_at"]), "{what}");
            assert!(after["failed"]["message"].as_str().unwrap().contains(told), "{what}: {after}");
            assert_eq!(daemon.lane("tool").width, 2, "{what}");
            if path.is_dir() { fs::remove_dir(&path).unwrap() } else { fs::remove_file(&path).unwrap() }
        }
        fs::write(&path, good).unwrap();
        daemon.ctl(["daemon", "reload"]).exits(0);
        assert_eq!(in_force(&daemon)["failed"], json!(null), "a reload that goes well ends that");
    }
}

#[test]
fn the_refusal_of_a_reload_has_file_line_and_reason_for_programs() {
    let daemon = Daemon::of_width(2);
    let main = main_file(&daemon);
    let ca_file = provider("p", "ca_file = \"/no/such.pem\"");
    for (text, reason, line, what) in [
        ("[lane.tool]\n\nwidht = 6\n", "bad-configuration", 3, "did you mean `width`?"),
        ("\n[control]\ngroup = \"no-such-group-here\"\n", "bad-configuration", 3, "no group"),
        (ca_file.as_str(), "bad-configuration", 5, "cannot read /no/such.pem"),
    ] {
        daemon.configure(text);
        let error = daemon.refused("daemon.reload", json!({}));
        let problem = &error["data"]["problems"][0];
        assert_eq!((&error["data"]["kind"], &error["data"]["reason"]), (&json!("invalid"), &json!(reason)), "{error}");
        assert_eq!((&problem["file"], &problem["line"]), (&json!(main), &json!(line)), "{error}");
        assert!(problem["reason"].as_str().unwrap().contains(what), "{error}");
    }
    fs::remove_file(&main).unwrap();
    fs::create_dir(&main).unwrap();
    let error = daemon.refused("daemon.reload", json!({}));
    assert_eq!((&error["data"]["reason"], &error["data"]["subject"]), (&json!("bad-configuration"), &json!(main)));
    assert_eq!(error["data"]["problems"][0].get("line"), None, "{error}");
}

/// Each of these is found out after other parts were read: none of them is changed.
#[test]
fn a_part_that_cannot_be_used_leaves_every_other_part_as_it_was() {
    let daemon = Daemon::configured(&format!("{}[run]\nprovider = \"old\"\n", provider("old", "")));
    let before = providers(&daemon);
    let mode = || fs::metadata(daemon.socket()).unwrap().mode();
    let (lanes, mode_before) = (lane_names(&daemon), mode());
    for broken in [
        "[control]\ngroup = \"no-such-group-here\"\n".to_owned(),
        provider("third", "ca_file = \"/no/such.pem\""),
        provider("third", "fallback = \"nothing\""),
    ] {
        daemon.configure(&format!("[lane.tool]\nwidth = 1\n{}{broken}", provider("new", "")));
        daemon.ctl(["daemon", "reload"]).exits(2);
        assert_eq!((providers(&daemon), lane_names(&daemon), mode()), (before.clone(), lanes.clone(), mode_before));
        assert_eq!(daemon.lane("tool").width, 8, "{broken}");
    }
}

#[test]
fn what_a_reload_takes_over_is_in_force_in_every_part_when_it_is_answered() {
    let daemon = Daemon::configured(&provider("a", ""));
    let group = Group::from_gid(getegid()).unwrap().unwrap();
    let default = |daemon: &Place| {
        let listed = daemon.rpc("provider.list", json!({}));
        let all = listed["providers"].as_array().unwrap().clone();
        all.iter().find(|provider| provider["default"] == true).unwrap()["name"].clone()
    };
    let socket =
        || (fs::metadata(daemon.socket()).unwrap().mode() & 0o777, fs::metadata(daemon.socket()).unwrap().gid());
    assert_eq!((default(&daemon), socket().0), (json!("scripted"), 0o600));
    daemon.configure(&format!(
        "{}[run]\nprovider = \"a\"\n[control]\ngroup = \"{}\"\n",
        provider("a", "api_key_file = \"/no/such/key\""),
        group.name
    ));
    let told = daemon.ctl(["daemon", "reload"]).exits(0);
    // A key that is missing is no mistake: the lane waits for it. It is told all the same.
    assert!(told.stdout.contains("provider a has no key: cannot read the key in /no/such/key"), "{told}");
    assert_eq!((default(&daemon), socket()), (json!("a"), (0o660, group.gid.as_raw())));
    daemon.configure(&provider("a", ""));
    daemon.ctl(["daemon", "reload"]).exits(0);
    assert_eq!((default(&daemon), socket().0), (json!("scripted"), 0o600));
}

#[test]
fn a_file_that_was_named_and_has_vanished_is_an_error_and_not_the_default() {
    let place = Place::new();
    let named = place.file("named.toml", "[lane.tool]\nwidth = 4\n");
    let ctl = |words: &[&str]| {
        let mut command = place.command(harness_tests::program("harnessctl"));
        command.args(words).env("HARNESS_CONFIG", &named);
        harness_tests::Running::start(command).finish()
    };
    ctl(&["daemon", "start"]).exits(0);
    fs::remove_file(&named).unwrap();
    ctl(&["daemon", "reload"]).exits(2).tells(&named).tells("No such file");
    assert_eq!(ctl(&["lane", "tool", "--json"]).json()["width"], 4);
}

/// Root may read everything, so the daemon is another user's where the tests are root's.
#[test]
fn a_file_or_a_directory_that_may_not_be_read_is_told_and_never_taken_for_a_missing_one() {
    let place = Place::configured("[lane.tool]\nwidth = 3\n");
    let main = main_file(&place);
    let daemon = place.start_unprivileged(&[]);
    let set_mode = |path: &Path, mode: u32| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    for (path, mode) in [(main.clone(), 0o600), (main.parent().unwrap().to_owned(), 0o700)] {
        set_mode(&path, 0);
        daemon
            .ctl_unprivileged(&["daemon", "reload"])
            .exits(2)
            .tells(main.to_str().unwrap())
            .tells("Permission denied");
        let width = daemon.ctl_unprivileged(&["lane", "tool", "--json"]).json()["width"].clone();
        assert_eq!(width, 3, "{}", path.display());
        set_mode(&path, mode);
        daemon.ctl_unprivileged(&["daemon", "reload"]).exits(0);
    }
}

#[test]
#[ignore = "needs root, to mount"]
fn a_directory_that_gives_no_answer_fails_the_reload_and_holds_nothing_up() {
    need_root();
    let daemon = Daemon::of_width(2);
    let hanging = Hanging::at(&daemon.path("hanging"));
    symlink(&hanging.at, main_file(&daemon).with_file_name("conf.d")).unwrap();
    let reloads: Vec<_> = (0..6).map(|_| daemon.spawn_ctl(["daemon", "reload"])).collect();
    // Reads of the journal have places of their own.
    daemon.ctl(["list"]).ok();
    daemon.ctl(["show", "@last"]).exits(6);
    for reload in reloads {
        reload.finish().exits(75).tells("it gave no answer within 3 s");
    }
    assert_eq!(daemon.lane("tool").width, 2);
}

#[test]
fn a_fresh_machine_is_told_that_no_model_is_configured_and_where_to_write_it() {
    let place = Place::new();
    let main = main_file(&place);
    let told = place.ctl(["doctor"]).ok();
    assert!(told.contains("no model is configured") && told.contains(main.to_str().unwrap()), "{told}");
    assert!(place.ctl(["doctor", "--json"]).json()["advice"].as_str().unwrap().contains("no model"));
    // The advice is right: what is written there counts.
    place.configure(&provider("local", ""));
    place.ctl(["daemon", "reload"]).exits(0);
    let told = place.ctl(["doctor"]);
    assert!(!told.stdout.contains("no model is configured") && told.stdout.contains("local"), "{told}");
}
