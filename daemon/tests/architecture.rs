//! Checks rules for all sources: which module may import which, what pure modules may not use, how long a file may be.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

#[path = "architecture/rooms.rs"]
mod rooms;
#[path = "architecture/source.rs"]
mod source;

use std::fs;
use std::path::{Path, PathBuf};

use rooms::HOUSES;
use source::{Import, Source};

/// Modules of the daemon, from the ground up, and which others each may import. The driver, and what sets the daemon
/// up, may import all. `world::api` is all that is seen of the world from above.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("refusal", &[]),
    ("blob", &[]),
    ("prompt", &[]),
    ("feed", &[]),
    ("fair_queue", &[]),
    ("blocking", &["fair_queue"]),
    ("fd_passing", &[]),
    ("close_threads", &[]),
    ("folders", &["blocking", "close_threads", "fair_queue"]),
    ("lane", &[]),
    ("policy", &[]),
    ("sandbox", &[]),
    ("timed_read", &[]),
    ("config", &["timed_read"]),
    ("process", &["close_threads", "folders", "fd_passing", "timed_read"]),
    ("tools", OF_TOOLS),
    ("world", &["tools", "lane", "prompt", "policy", "refusal", "sandbox", "config", "blob"]),
    ("inference", &["tools", "prompt", "config", "process", "timed_read"]),
    ("inbox", &[API, "fair_queue"]),
    ("journal", &[API, "blob", "prompt", "refusal", "config"]),
    (
        "jobs",
        &[
            API,
            "fair_queue",
            "folders",
            "inbox",
            "prompt",
            "policy",
            "sandbox",
            "config",
            "inference",
            "process",
            "tools",
        ],
    ),
    (
        "control",
        &[
            API,
            "blob",
            "blocking",
            "close_threads",
            "fair_queue",
            "feed",
            "folders",
            "inbox",
            "journal",
            "fd_passing",
            "prompt",
            "refusal",
            "config",
        ],
    ),
    ("observe", &[API, "lane", "config"]),
];
const API: &str = "world::api";
/// A tool plans a process, and reads how it ended: of `process` it sees the words for both, and nothing that acts.
const OF_TOOLS: &[&str] = &[
    "policy",
    "sandbox",
    "config",
    "process::Program",
    "process::Finished",
    "process::Captured",
    "process::Grouped",
    "process::Meeting",
];
/// Modules that may import all.
const TOP: &[&str] = &["driver", "lib", "main", "cli", "startup"];

/// Pure modules: no I/O, no clock, no runtime.
const PURE: &[&str] = &["blob", "tools", "fair_queue", "prompt", "lane", "policy", "refusal", "sandbox", "world"];
const IMPURE_PATHS: &[&str] = &[
    "tokio",
    "nix",
    "rustix",
    "std::fs",
    "std::net",
    "std::process",
    "std::thread",
    "std::env",
    "std::os",
    "std::time::Instant",
    "std::time::SystemTime",
    "jiff::Timestamp::now",
];
const IMPURE_WORDS: &[&str] = &["tokio", "SystemTime", "Instant"];

/// The room that makes errors of the wire; below it a refusal is data.
const WIRE_ERROR: &str = "RpcError";
const MAKES_WIRE_ERRORS: &str = "control";
/// Fields in which the daemon tells people something. Programs read `reason` and `subject` instead.
const FOR_PEOPLE: &[&str] = &["message", "why", "note"];
/// Methods that look into a text.
const LOOK_INTO: &[&str] = &[
    "bytes",
    "char_indices",
    "chars",
    "contains",
    "ends_with",
    "eq",
    "eq_ignore_ascii_case",
    "find",
    "find_map",
    "is_match",
    "lines",
    "matches",
    "parse",
    "replace",
    "replacen",
    "rfind",
    "rsplit",
    "rsplit_once",
    "split",
    "split_once",
    "split_whitespace",
    "splitn",
    "starts_with",
    "strip_prefix",
    "strip_suffix",
    "trim",
    "trim_end_matches",
    "trim_start_matches",
];
/// Sources below `world` that may name bevy's `World`: who owns it, who changes it, and by what all others see it.
const MAY_NAME_THE_WORLD: &[&str] = &[
    "world/fold.rs",
    "world/steps/mod.rs",
    "world/tx.rs",
    "world/apply/",
    "world/view/reads.rs",
    "world/model/indexes/hooks.rs",
];
/// Words, and the sources below `world` that alone may use them: a phase changes together with its markers, and no run
/// takes another one along when it leaves.
const WORDS_OF: &[(&str, &[&str])] = &[
    ("set_phase", &["world/model/components.rs", "world/apply/transition.rs"]),
    ("linked_spawn", &[]),
    (
        "resource_mut",
        &["world/fold.rs", "world/engine.rs", "world/tx.rs", "world/apply/", "world/model/indexes/hooks.rs"],
    ),
];

/// Production lines of a file.
const LONGEST_FILE: usize = 600;
/// Characters of a line. rustfmt keeps code to them, but neither strings and comments nor what is inside of macros.
const LONGEST_LINE: usize = 120;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").canonicalize().unwrap()
}

/// Every source below `dir`: its path in there, and its text. What a build has made is none.
fn texts(dir: &str) -> Vec<(String, String)> {
    fn walk(dir: &Path, found: &mut Vec<PathBuf>) {
        let Ok(entries) = fs::read_dir(dir) else { return };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() && !path.ends_with("target") {
                walk(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    let base = root().join(dir);
    let mut paths = Vec::new();
    walk(&base, &mut paths);
    paths.sort();
    let read = |path: &PathBuf| {
        let name = path.strip_prefix(&base).unwrap().to_str().unwrap().to_owned();
        (name, fs::read_to_string(path).unwrap())
    };
    paths.iter().map(read).collect()
}

fn sources(dir: &str) -> Vec<Source> {
    texts(dir).iter().map(|(name, text)| Source::new(name, text)).collect()
}

/// The lines of a source that are too long, as `name:line`.
fn too_long_lines(name: &str, text: &str) -> Vec<String> {
    let long = |&(_, line): &(usize, &str)| line.chars().count() > LONGEST_LINE;
    let told = |(before, line): (usize, &str)| format!("{name}:{}: {} characters", before + 1, line.chars().count());
    text.lines().enumerate().filter(long).map(told).collect()
}

/// What is wrong with the imports of one source of the daemon.
fn wrong_imports(source: &Source) -> Vec<String> {
    let module = source.module.first().map_or("lib", String::as_str);
    if TOP.contains(&module) {
        return Vec::new();
    }
    let Some((_, allowed)) = MAY_IMPORT.iter().find(|(name, _)| *name == module) else {
        return vec![format!("{}: module `{module}` has no place in the table of directions", source.name)];
    };
    let fits = |import: &Import| {
        let path = import.path.join("::");
        import.path.first().is_some_and(|first| first == module)
            || allowed.iter().any(|allowed| path == *allowed || path.starts_with(&format!("{allowed}::")))
    };
    let told = |import: Import| format!("{}: imports crate::{}", source.name, import.path.join("::"));
    source.crate_imports().into_iter().filter(|import| !fits(import)).map(told).collect()
}

fn impurities(source: &Source) -> Vec<String> {
    let mut found: Vec<_> = source
        .paths()
        .into_iter()
        .map(|path| path.join("::"))
        .filter(|path| IMPURE_PATHS.iter().any(|bad| path == bad || path.starts_with(&format!("{bad}::"))))
        .collect();
    found.extend(source.words().filter(|word| IMPURE_WORDS.contains(word)).map(str::to_owned));
    found.into_iter().map(|what| format!("{}: {what}", source.name)).collect()
}

fn names_wire_errors(source: &Source) -> bool {
    source.module.first().is_some_and(|module| module != MAKES_WIRE_ERRORS) && source.words().any(|w| w == WIRE_ERROR)
}

/// Where a source of ctl looks into what the daemon tells people. A text that was put into a variable before is not
/// seen here.
fn looks_into_messages(source: &Source) -> Vec<String> {
    let looks = |field: &&&str| source.methods_on(field).into_iter().any(|method| LOOK_INTO.contains(&method));
    FOR_PEOPLE.iter().filter(looks).map(|field| format!("{}: looks into `{field}`", source.name)).collect()
}

/// What a source of the world names that is not for it to name.
fn reaches_too_far(source: &Source) -> Vec<String> {
    let may = |places: &[&str]| places.iter().any(|place| source.name.starts_with(place));
    let is_forbidden = |word: &&str| WORDS_OF.iter().any(|(known, places)| known == word && !may(places));
    let words = source.words().filter(is_forbidden).map(str::to_owned);
    let paths = source.paths().into_iter().filter(|path| names_the_world(path)).map(|path| path.join("::"));
    let paths = paths.filter(|_| !may(MAY_NAME_THE_WORLD));
    words.chain(paths).map(|what| format!("{}: {what}", source.name)).collect()
}

fn names_the_world(path: &[String]) -> bool {
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    matches!(path.as_slice(), ["bevy_ecs", "world" | "prelude" | "*", ..])
}

fn is_pure(source: &Source) -> bool {
    let module = source.module.first().map_or("", String::as_str);
    let dialects = || !source.name.starts_with("inference/http") && !source.name.starts_with("inference/tests/");
    PURE.contains(&module)
        || (module == "config" && source.name != "config/read.rs")
        || (module == "inference" && dialects())
}

fn none(found: &[String], rule: &str) {
    assert!(found.is_empty(), "{rule}:\n{}", found.join("\n"));
}

#[test]
fn imports_of_the_daemon_run_downward_only() {
    let sources = sources("daemon/src");
    for expected in ["main.rs", "world/api.rs", "control/socket/listener.rs", "config/load.rs"] {
        assert!(sources.iter().any(|source| source.name == expected), "{expected} is not seen");
    }
    assert!(sources.iter().map(|source| source.crate_imports().len()).sum::<usize>() > 5, "no imports are seen");
    let found: Vec<_> = sources.iter().flat_map(wrong_imports).collect();
    none(&found, "imports against the directions");
}

#[test]
fn imports_between_rooms_run_downward_only() {
    for house in HOUSES {
        let sources = sources(house.sources);
        let room_of = |source: &Source| match (source.module.as_slice(), house.below) {
            ([first, ..], "") => Some(first.clone()),
            ([above, room, ..], below) if above == below => Some(room.clone()),
            _ => None,
        };
        for room in house.rooms.iter().filter(|room| **room != "main") {
            let is_there = sources.iter().any(|source| room_of(source).as_deref() == Some(*room));
            assert!(is_there, "`{room}` of `{}` is no room any more", house.below);
        }
        let found: Vec<_> = sources.iter().flat_map(|source| house.wrong_imports(source)).collect();
        none(&found, "imports against the order of the rooms");
    }
}

#[test]
fn pure_modules_touch_nothing() {
    let daemon = sources("daemon/src");
    let pure: Vec<_> = daemon.iter().filter(|source| is_pure(source)).collect();
    assert!(pure.len() >= 5, "too few pure sources are seen");
    let protocol = sources("protocol/src");
    assert!(protocol.len() >= 10, "too few sources of the protocol are seen");
    let found: Vec<_> = pure.into_iter().chain(&protocol).flat_map(impurities).collect();
    none(&found, "I/O, clocks or threads in pure modules");
}

#[test]
fn a_refusal_is_data_below_control_and_no_text_for_ctl() {
    let daemon = sources("daemon/src");
    let makes = daemon.iter().any(|source| source.name.starts_with("control/refusals/") && source.words().count() > 50);
    assert!(makes, "the room that makes errors of the wire is not seen");
    let found: Vec<_> = daemon.iter().filter(|source| names_wire_errors(source)).map(|s| s.name.clone()).collect();
    none(&found, "errors of the wire below control");
    let found: Vec<_> = sources("ctl/src").iter().flat_map(looks_into_messages).collect();
    none(&found, "what the daemon tells people is read by a program");
}

#[test]
fn only_those_that_own_or_change_the_world_name_it() {
    let daemon = sources("daemon/src");
    let world: Vec<_> = daemon.iter().filter(|source| source.name.starts_with("world/")).collect();
    for place in MAY_NAME_THE_WORLD {
        let is_used =
            world.iter().any(|s| s.name.starts_with(place) && s.paths().iter().any(|path| names_the_world(path)));
        assert!(is_used, "{place} needs no permission any more");
    }
    let found: Vec<_> = world.into_iter().flat_map(reaches_too_far).collect();
    none(&found, "sources that reach past `Tx` and `Reads`");
}

#[test]
fn the_client_and_the_protocol_know_nothing_of_the_daemon() {
    for member in ["ctl", "protocol", "files"] {
        let manifest = fs::read_to_string(root().join(member).join("Cargo.toml")).unwrap();
        let names = |line: &str| line.starts_with("harnessd") || (member == "ctl" && line.starts_with("tokio"));
        assert!(!manifest.lines().any(names), "{member} depends on more than it may");
        let sources = sources(&format!("{member}/src"));
        assert!(!sources.is_empty());
        for source in sources {
            assert!(!source.words().any(|word| word == "harnessd"), "{member}/{}", source.name);
        }
    }
}

/// What of the daemon is compiled by a feature. Such code is in few places, so that what is shipped can be told from
/// what a test drives.
const BY_FEATURE: &[&str] = &["journal/failpoints.rs", "startup/scrub_env.rs"];

fn has_a_feature(source: &Source) -> bool {
    let words: Vec<&str> = source.all_words().collect();
    words.windows(2).any(|pair| matches!(pair, ["cfg" | "cfg_attr" | "not" | "all" | "any", "feature"]))
}

#[test]
fn only_the_points_of_crashes_are_compiled_by_a_feature() {
    let sources = sources("daemon/src");
    let found: Vec<_> = sources.iter().filter(|source| has_a_feature(source)).map(|source| &*source.name).collect();
    assert_eq!(found, BY_FEATURE);
    let manifest = fs::read_to_string(root().join("daemon/Cargo.toml")).unwrap();
    let features = manifest.split("[features]").nth(1).unwrap().split("\n[").next().unwrap();
    let features: Vec<_> = features.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    // None is a default, or a build without flags would have it.
    assert_eq!(features, ["failpoints = []"]);
}

#[test]
fn every_file_says_what_it_is_for_and_is_not_too_long() {
    let mut seen = 0;
    let mut found = Vec::new();
    for dir in ["daemon/src", "daemon/tests", "protocol/src", "files/src", "ctl/src", "tests"] {
        for source in sources(dir) {
            seen += 1;
            // A file with nothing in it yet has nothing to say.
            if !source.has_docs() && source.production_lines() > 3 {
                found.push(format!("{dir}/{}: begins without `//!`", source.name));
            }
            if source.production_lines() > LONGEST_FILE {
                found.push(format!("{dir}/{}: {} production lines", source.name, source.production_lines()));
            }
            if source.all_words().any(|word| word == "unsafe") {
                found.push(format!("{dir}/{}: unsafe", source.name));
            }
            let prints = |word: &str| ["println", "eprintln", "print", "eprint", "dbg"].contains(&word);
            if !dir.contains("ctl") && !dir.contains("tests") && source.words().any(prints) {
                found.push(format!("{dir}/{}: prints", source.name));
            }
        }
    }
    assert!(seen > 25, "only {seen} files are seen");
    none(&found, "files");
}

#[test]
fn no_line_is_too_long() {
    let mut found = Vec::new();
    for member in ["ctl", "daemon", "files", "protocol", "tests"] {
        let texts = texts(member);
        assert!(texts.len() > 5, "the sources of {member} are not seen");
        found.extend(texts.iter().flat_map(|(name, text)| too_long_lines(&format!("{member}/{name}"), text)));
    }
    none(&found, "lines of more than 120 characters");
}

#[test]
fn the_rules_see_what_breaks_them() {
    let wrong = |name: &str, text: &str| wrong_imports(&Source::new(name, text));
    assert_eq!(wrong("world/decide.rs", "use crate::{lane::Lane, jobs};"), ["world/decide.rs: imports crate::jobs"]);
    assert_eq!(wrong("jobs/mod.rs", "use crate::world::{api::Job, apply::apply};").len(), 1);
    assert_eq!(wrong("jobs/mod.rs", "fn f(w: &crate::world::Engine) {}").len(), 1);
    assert_eq!(wrong("jobs/mod.rs", "use crate::world;").len(), 1);
    assert_eq!(wrong("prompt.rs", "use super::world::api::Now;").len(), 1);
    assert_eq!(wrong("tools/shell.rs", "use super::super::driver::Driver;").len(), 1);
    assert_eq!(wrong("tools/shell.rs", "use crate::process::{Program, Keepers};").len(), 1);
    assert_eq!(wrong("tools/shell.rs", "// use crate::driver;\nconst A: &str = \"crate::driver\";").len(), 0);
    assert_eq!(wrong("jobs/calls.rs", "use super::run;\nuse crate::jobs::x;\nuse crate::world::api;").len(), 0);
    assert_eq!(wrong("novel.rs", "").len(), 1);
    assert_eq!(wrong("driver.rs", "use crate::world::Engine;").len(), 0);

    let world = HOUSES.iter().find(|house| house.below == "world").unwrap();
    let up = |name: &str, text: &str| world.wrong_imports(&Source::new(name, text)).len();
    assert_eq!(up("world/apply/runs.rs", "use crate::world::steps::tx;"), 1);
    assert_eq!(up("world/apply/runs.rs", "use super::super::{model::phase, commands::select};"), 1);
    assert_eq!(up("world/steps/settle.rs", "use crate::world::{apply, view};\nuse super::ingest;"), 0);
    assert_eq!(up("world/novel.rs", ""), 1);
    assert_eq!(up("jobs/mod.rs", "use crate::world::steps;"), 0);

    let featured = |text: &str| has_a_feature(&Source::new("x.rs", text));
    assert!(featured("#[cfg(feature = \"x\")]\nfn f() {}") && featured("#[cfg(not(feature = \"x\"))]\nfn f() {}"));
    assert!(featured("fn f() { if cfg!(feature = \"x\") {} }") && !featured("// cfg(feature)\nfn f(feature: u8) {}"));

    let wire = |name: &str| names_wire_errors(&Source::new(name, "fn f() -> Result<(), RpcError> {}"));
    assert!(wire("world/api.rs") && wire("driver/reads.rs") && !wire("control/request.rs"));
    let looks = |text: &str| looks_into_messages(&Source::new("client/x.rs", text)).len();
    assert_eq!(looks("fn f() { if e.message.contains(\"key\") {} }"), 1);
    assert_eq!(looks("fn f() { let r = refused(e)?.message\n .as_str().trim().split(' '); }"), 1);
    assert_eq!(looks("fn f() { one.why.replace(a, b); e.data.note.as_deref()?.starts_with(x) }"), 2);
    assert_eq!(looks("fn f() { told(e.message.as_str(), x.contains(y)); e.message.clone(); message.contains(x) }"), 0);
    assert_eq!(looks("fn f() {}\n#[cfg(test)]\nmod tests { fn g() { e.message.contains(x); } }"), 0);

    let (fits, long) = ("ä".repeat(LONGEST_LINE), "a".repeat(LONGEST_LINE + 1));
    assert_eq!(too_long_lines("x.rs", &format!("{fits}\n{long}\n{fits}\n")), ["x.rs:2: 121 characters"]);

    let far = |name: &str, text: &str| reaches_too_far(&Source::new(name, text)).len();
    assert_eq!(far("world/steps/decide.rs", "fn decide(world: &mut bevy_ecs::world::World) {}"), 1);
    assert_eq!(far("world/view/run.rs", "use bevy_ecs::world::World;"), 1);
    assert_eq!(far("world/apply/runs.rs", "fn f(world: &mut World, life: &mut Life) { life.set_phase(phase) }"), 1);
    assert_eq!(far("world/view/run.rs", "use bevy_ecs::{entity::Entity, world::World};"), 1);
    assert_eq!(far("world/apply/runs.rs", "use bevy_ecs::world::World;"), 0);
    assert_eq!(
        far("world/steps/decide.rs", "use crate::catalogue::ToolKind;\nconst A: ToolKind = ToolKind::World;"),
        0
    );
    assert_eq!(far("world/steps/decide.rs", "fn decide(tx: &mut Tx<'_>) { tx.world }"), 0);

    let impure = |text: &str| impurities(&Source::new("world/x.rs", text)).len();
    assert!(impure("use std::{collections::BTreeMap, fs};") > 0);
    assert!(impure("fn f() { let t = std::time::Instant::now(); }") > 0);
    assert!(impure("use std::time::Duration as D; fn f() { std::process::exit(1) }") > 0);
    assert!(impure("async fn f() { tokio::time::sleep(x).await }") > 0);
    assert_eq!(impure("//! tokio, std::fs\nuse std::time::Duration;\nfn f<'a>(x: &'a str) -> char { '\"' }"), 0);
    assert_eq!(impure("fn f() {}\n#[cfg(test)]\nmod tests { use std::fs; }"), 0);
    assert!(impure("#[cfg(test)]\nuse std::fmt;\nuse std::fs;") > 0);
}
