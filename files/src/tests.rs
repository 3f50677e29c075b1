//! Tests attacks by runs that plant or swap files in directories to which an operator writes.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use tempfile::TempDir;

use crate::{
    Anew, Dir, NotRegular, Opening, Writing, open_own, open_regular, open_to_write, open_trusted, remove_left,
};

/// Content that must stay as it is.
const PRECIOUS: &str = "precious";

/// A directory that others may write to, beside a file that they may not write to.
fn shared() -> (TempDir, std::path::PathBuf, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (shared, precious) = (dir.path().join("shared"), dir.path().join("precious"));
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o777)).unwrap();
    fs::write(&precious, PRECIOUS).unwrap();
    (dir, shared, precious)
}

fn is_intact(precious: &Path, after: &str) {
    assert_eq!(fs::read_to_string(precious).unwrap(), PRECIOUS, "{after}");
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_planted_entry_is_neither_written_to_nor_entered() {
    type Plant = fn(&Path, &Path);
    let plants: [(&str, Plant); 7] = [
        ("a link to a file", |at, precious| symlink(precious, at).unwrap()),
        ("a link to nothing", |at, precious| symlink(precious.with_extension("new"), at).unwrap()),
        ("a link to a directory", |at, precious| symlink(precious.parent().unwrap(), at).unwrap()),
        ("another name of a file", |at, precious| fs::hard_link(precious, at).unwrap()),
        ("a file", |at, _| fs::write(at, "x").unwrap()),
        ("a directory", |at, _| fs::create_dir(at).unwrap()),
        ("a directory of links", |at, precious| {
            fs::create_dir(at).unwrap();
            symlink(precious, at.join("file")).unwrap();
        }),
    ];
    for (plant, planted) in plants {
        let (_all, at, precious) = shared();
        planted(&at.join("x"), &precious);
        let dir = Dir::open(&at).unwrap();
        assert_eq!(dir.create("x", 0o600).unwrap_err().kind(), ErrorKind::AlreadyExists, "{plant}");
        assert_eq!(dir.make("x").unwrap_err().kind(), ErrorKind::AlreadyExists, "{plant}");
        let new = Anew::beside(&at.join("x")).unwrap();
        new.dir().create("a", 0o600).unwrap().write_all(b"mine").unwrap();
        assert_eq!(new.place("a", "x").unwrap_err().kind(), ErrorKind::AlreadyExists, "{plant}");
        drop(new);
        assert_eq!(names(&at), ["x"], "{plant}: nothing of ours is left");
        is_intact(&precious, plant);
        assert!(!precious.with_extension("new").exists(), "{plant}");
    }
}

#[test]
fn an_entry_that_is_swapped_in_gets_nothing() {
    let (_all, at, precious) = shared();
    let new = Anew::beside(&at.join("x")).unwrap();
    let hidden = new.path();
    fs::rename(&hidden, at.join("theirs")).unwrap();
    fs::create_dir(&hidden).unwrap();
    for name in ["file", "events.jsonl", "below"] {
        symlink(&precious, hidden.join(name)).unwrap();
    }
    new.dir().create("file", 0o600).unwrap().write_all(b"mine").unwrap();
    let below = new.dir().make("below").unwrap();
    below.create("events.jsonl", 0o600).unwrap().write_all(b"mine").unwrap();
    is_intact(&precious, "all is written to what was made");
    assert_eq!(fs::read_to_string(at.join("theirs/below/events.jsonl")).unwrap(), "mine");
    assert_eq!(new.place_whole().unwrap_err().kind(), ErrorKind::PermissionDenied, "and the other one is told of");
    is_intact(&precious, "nor is anything removed");
}

#[test]
fn an_unfinished_directory_is_removed_without_files_of_others() {
    let (_all, at, precious) = shared();
    let new = Anew::beside(&at.join("x")).unwrap();
    new.dir().make("below").unwrap().create("file", 0o600).unwrap();
    symlink(precious.parent().unwrap(), new.path().join("below/link")).unwrap();
    drop(new);
    assert!(names(&at).is_empty());
    is_intact(&precious, "a link was removed, and not what it leads to");
    let new = Anew::beside(&at.join("x")).unwrap();
    let hidden = new.path();
    fs::rename(&hidden, at.join("theirs")).unwrap();
    fs::create_dir(&hidden).unwrap();
    fs::write(hidden.join("of-others"), "").unwrap();
    drop(new);
    assert!(hidden.join("of-others").exists());
}

#[test]
fn a_whole_one_takes_the_place_of_nothing_or_of_an_empty_directory() {
    let (_all, at, _) = shared();
    for (before, name) in [(false, "new"), (true, "empty")] {
        if before {
            fs::create_dir(at.join(name)).unwrap();
        }
        let new = Anew::beside(&at.join(name)).unwrap();
        new.dir().create("file", 0o600).unwrap();
        new.place_whole().unwrap();
        assert_eq!(names(&at.join(name)), ["file"], "{name}");
    }
    let new = Anew::beside(&at.join("new")).unwrap();
    assert!(new.place_whole().is_err());
    assert_eq!(names(&at), ["empty", "new"]);
}

#[test]
fn a_copy_has_files_and_directories_and_nothing_of_links() {
    let (_all, at, precious) = shared();
    let from = at.join("from");
    fs::create_dir_all(from.join("a/b")).unwrap();
    fs::write(from.join("a/b/file"), "12345").unwrap();
    fs::write(from.join("top"), "678").unwrap();
    for (name, to) in [("link", precious.as_path()), ("a/up", Path::new("..")), ("a/dangling", Path::new("no"))] {
        symlink(to, from.join(name)).unwrap();
    }
    nix_fifo(&from.join("pipe"));
    let to = Dir::open(&at).unwrap().make("to").unwrap();
    assert_eq!(to.copy_from(&Dir::open(&from).unwrap()).unwrap(), 8);
    assert_eq!(names(&at.join("to")), ["a", "top"]);
    assert_eq!(names(&at.join("to/a")), ["b"]);
    assert_eq!(names(&at.join("to/a/b")), ["file"]);
    assert_eq!(fs::metadata(at.join("to/a/b/file")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(to.copy_from(&Dir::open(&from).unwrap()).unwrap_err().kind(), ErrorKind::AlreadyExists);
}

#[test]
fn a_copy_goes_down_some_levels_and_no_further_however_deep_it_is() {
    let (_all, at, _) = shared();
    let from = Dir::open(&at).unwrap().make("from").unwrap();
    let mut inner = from.make("d").unwrap();
    for _ in 0..1_000 {
        inner = inner.make("d").unwrap();
    }
    let to = Dir::open(&at).unwrap().make("to").unwrap();
    assert_eq!(to.copy_from(&from).unwrap(), 0);
    let deep = |levels: usize| at.join("to").join(vec!["d"; levels].join("/"));
    assert!(deep(16).is_dir() && !deep(17).exists());
    assert_eq!(from.believe_all("from").unwrap(), 0);
    Dir::open(&at).unwrap().remove_all("from").unwrap();
}

fn nix_fifo(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::RWXU, 0).unwrap();
}

/// Paths in the usual spellings.
#[test]
fn a_file_that_is_named_is_written_to_as_a_shell_does() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    fs::write(at.join("old"), "much more than what is written").unwrap();
    fs::create_dir(at.join("sub")).unwrap();
    symlink("sub", at.join("to-sub")).unwrap();
    symlink(at.join("old"), at.join("to-old")).unwrap();
    symlink("../made-through-a-link", at.join("sub/dangling")).unwrap();
    for (name, lands) in [
        ("new", "new"),
        ("old", "old"),
        ("to-old", "old"),
        ("to-sub/new", "sub/new"),
        ("sub/../new", "new"),
        ("sub/./new", "sub/new"),
        ("to-sub/dangling", "made-through-a-link"),
    ] {
        open_to_write(&at.join(name)).unwrap().write_all(name.as_bytes()).unwrap();
        assert_eq!(fs::read_to_string(at.join(lands)).unwrap(), name);
    }
    open_to_write(Path::new("/dev/null")).unwrap().write_all(b"x").unwrap();
    assert!(open_to_write(&at.join("sub")).is_err());
    assert!(open_to_write(&at.join("no/x")).is_err());
    let (mut reader, writer) = std::io::pipe().unwrap();
    let named = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
    open_to_write(Path::new(&named)).unwrap().write_all(b"through a pipe").unwrap();
    drop(writer);
    let mut read = String::new();
    reader.read_to_string(&mut read).unwrap();
    assert_eq!(read, "through a pipe");
}

#[test]
fn another_name_of_a_file_is_not_written_to_where_others_may_have_made_it() {
    let (_all, at, precious) = shared();
    fs::hard_link(&precious, at.join("x")).unwrap();
    assert_eq!(open_to_write(&at.join("x")).unwrap_err().kind(), ErrorKind::PermissionDenied);
    is_intact(&precious, "it is the same file");
}

#[test]
#[ignore = "needs root, to make a link of another user"]
fn links_of_another_user_are_not_followed() {
    let (_all, at, precious) = shared();
    let theirs = |name: &str, to: &Path| {
        symlink(to, at.join(name)).unwrap();
        std::os::unix::fs::lchown(at.join(name), Some(61_234), None).unwrap();
    };
    theirs("file", &precious);
    theirs("dir", precious.parent().unwrap());
    assert!(open_to_write(&at.join("file")).unwrap_err().to_string().contains("another user (uid 61234)"));
    assert!(open_to_write(&at.join("dir/new")).unwrap_err().to_string().contains("another user (uid 61234)"));
    assert!(Dir::open(&at.join("dir")).is_err() && Anew::beside(&at.join("dir/x")).is_err());
    is_intact(&precious, "neither");
}

#[test]
fn a_place_is_ours_if_no_other_user_can_turn_its_name() {
    let (all, at, _) = shared();
    let own = all.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::create_dir(at.join("below")).unwrap();
    symlink(&own, at.join("to-own")).unwrap();
    symlink(&own, all.path().join("link")).unwrap();
    for (place, ours) in
        [("own", true), ("link", true), ("shared", false), ("shared/below", false), ("shared/to-own", false)]
    {
        assert_eq!(Dir::open(&all.path().join(place)).unwrap().is_ours(), ours, "{place}");
    }
    fs::set_permissions(&at, Permissions::from_mode(0o1777)).unwrap();
    assert!(Dir::open(&at.join("below")).unwrap().is_ours(), "as in /tmp");
}

#[test]
fn anything_but_a_regular_file_is_refused_without_a_wait() {
    let (dir, _, precious) = shared();
    let at = |name: &str| dir.path().join(name);
    assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    fs::create_dir(at("dir")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
    symlink(at("pipe"), at("to a pipe")).unwrap();
    symlink(&precious, at("to a file")).unwrap();
    for opening in [Opening::Read, Opening::ReadInPlace, Opening::Keep] {
        for path in [at("pipe"), at("dir"), at("socket"), at("to a pipe"), "/dev/null".into()] {
            open_regular(&path, opening).unwrap_err();
        }
        let through_a_link = open_regular(&at("to a file"), opening);
        assert_eq!(through_a_link.is_ok(), opening == Opening::Read, "{opening:?}");
        open_regular(&precious, opening).unwrap();
    }
    assert!(NotRegular::is_why(&open_regular(&at("pipe"), Opening::Keep).unwrap_err()));
    assert!(!NotRegular::is_why(&open_regular(&at("nothing"), Opening::Read).unwrap_err()));
    let kept = open_regular(&at("kept"), Opening::Keep).unwrap();
    assert_eq!(kept.metadata().unwrap().mode() & 0o777, 0o600);
    is_intact(&precious, "it was opened");
}

#[test]
fn a_foreign_entry_in_the_place_of_our_file_is_not_written_to() {
    let (dir, _, precious) = shared();
    let path = dir.path().join("own");
    for writing in [Writing::Anew, Writing::Append, Writing::Keep] {
        let plants: [&dyn Fn(); 6] = [
            &|| symlink(&precious, &path).unwrap(),
            &|| symlink(dir.path().join("nothing"), &path).unwrap(),
            &|| symlink(dir.path(), &path).unwrap(),
            &|| fs::hard_link(&precious, &path).unwrap(),
            &|| assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success()),
            &|| drop(std::os::unix::net::UnixListener::bind(&path).unwrap()),
        ];
        for (index, plant) in plants.iter().enumerate() {
            plant();
            open_own(&path, writing, true).unwrap().write_all(b"written").unwrap();
            is_intact(&precious, "it was written to");
            assert_eq!(fs::read(&path).unwrap(), b"written", "{writing:?} {index}");
            let made = fs::symlink_metadata(&path).unwrap();
            assert!(made.is_file() && made.mode() & 0o777 == 0o600, "{writing:?} {index}");
            open_own(&path, writing, true).unwrap().write_all(b"W").unwrap();
            let expected: &[u8] = match writing {
                Writing::Anew => b"W",
                Writing::Append => b"writtenW",
                Writing::Keep => b"Written",
            };
            assert_eq!(fs::read(&path).unwrap(), expected);
            fs::remove_file(&path).unwrap();
        }
        fs::create_dir(&path).unwrap();
        open_own(&path, writing, true).unwrap_err();
        fs::remove_dir(&path).unwrap();
    }
    assert!(!dir.path().join("nothing").exists());
    symlink(precious.parent().unwrap(), dir.path().join("linked")).unwrap();
    open_own(&dir.path().join("linked/new"), Writing::Anew, true).unwrap_err();
    open_own(&dir.path().join("linked/new"), Writing::Anew, false).unwrap();
}

#[test]
fn a_file_is_believed_that_only_its_owner_may_write_to() {
    let (_all, at, precious) = shared();
    let own = precious.parent().unwrap();
    let told = |path: &Path| open_trusted(path).map(drop).map_err(|error| error.to_string()).unwrap_err();
    assert_eq!(fs::read_to_string(&precious).unwrap().len(), 8);
    for (mode, believed) in
        [(0o600, true), (0o644, true), (0o400, true), (0o660, false), (0o606, false), (0o622, false)]
    {
        fs::set_permissions(&precious, Permissions::from_mode(mode)).unwrap();
        assert_eq!(open_trusted(&precious).is_ok(), believed, "{mode:o}");
    }
    assert!(told(&precious).contains("mode 0622"), "{}", told(&precious));
    fs::set_permissions(&precious, Permissions::from_mode(0o600)).unwrap();
    fs::write(at.join("x"), "x").unwrap();
    assert!(!open_trusted(&at.join("x")).unwrap().dir.is_ours());
    assert!(open_trusted(&precious).unwrap().dir.is_ours());
    fs::hard_link(&precious, at.join("also")).unwrap();
    assert!(told(&at.join("also")).contains("is also another file"));
    fs::remove_file(at.join("also")).unwrap();
    symlink(&precious, at.join("link")).unwrap();
    assert_eq!(open_trusted(&at.join("link")).unwrap().name, "precious", "one of our own");
    symlink(own, at.join("to-own")).unwrap();
    assert!(!open_trusted(&at.join("to-own/precious")).unwrap().dir.is_ours(), "the link may be turned");
    nix_fifo(&at.join("pipe"));
    assert!(told(&at.join("pipe")).contains("is no regular file"));
    assert!(open_trusted(&at).is_err() && open_trusted(&at.join("no")).unwrap_err().kind() == ErrorKind::NotFound);
}

#[test]
fn leftovers_of_a_gone_process_are_removed_and_nothing_else() {
    let (_all, at, precious) = shared();
    // No process can have the first number; the second is that of the parent of these tests.
    let (gone, lives) = (i32::MAX, std::os::unix::process::parent_id());
    let left = format!(".x.partial-{gone}-0");
    let kept = [
        format!(".x.partial-{lives}-0"),
        format!("x.partial-{gone}-0"),
        format!(".x.partial-{gone}-0.db"),
        format!(".x.partial-{gone}"),
        format!(".x.partial--{gone}-0"),
        ".x.partial-0-0".to_owned(),
    ];
    for name in kept.iter().chain([&left, &format!(".y.partial-{}-7", std::process::id())]) {
        fs::create_dir_all(at.join(name).join("below")).unwrap();
        symlink(&precious, at.join(name).join("below/link")).unwrap();
    }
    let (file, link) = (format!(".f.partial-{gone}-0"), format!(".l.partial-{gone}-0"));
    fs::write(at.join(&file), "").unwrap();
    symlink(precious.parent().unwrap(), at.join(&link)).unwrap();
    remove_left(&at).unwrap();
    let mut expected: Vec<_> = kept.into_iter().chain([file, link]).collect();
    expected.sort();
    let mut found = names(&at);
    found.sort();
    assert_eq!(found, expected);
    is_intact(&precious, "no link was followed");
}

#[test]
fn a_trusted_copy_has_no_file_that_others_may_write_to() {
    type Plant = fn(&Path);
    let plants: [(&str, Plant); 4] = [
        ("nothing", |_| {}),
        ("a file", |at| fs::set_permissions(at.join("a/file"), Permissions::from_mode(0o666)).unwrap()),
        ("a directory", |at| fs::set_permissions(at.join("a"), Permissions::from_mode(0o777)).unwrap()),
        ("all of it", |at| fs::set_permissions(at, Permissions::from_mode(0o770)).unwrap()),
    ];
    for (plant, planted) in plants {
        let (all, _, _) = shared();
        let from = all.path().join("from");
        fs::create_dir_all(from.join("a")).unwrap();
        fs::write(from.join("a/file"), "12345").unwrap();
        nix_fifo(&from.join("a/pipe"));
        for (path, mode) in [("", 0o755), ("a", 0o755), ("a/file", 0o644)] {
            fs::set_permissions(from.join(path), Permissions::from_mode(mode)).unwrap();
        }
        planted(&from);
        let to = Dir::open(all.path()).unwrap().make("to").unwrap();
        let found = Dir::open(&from).unwrap();
        assert_eq!(found.believe_all("from").ok(), (plant == "nothing").then_some(5), "{plant}");
        let copied = to.copy_trusted_from(&found, "from");
        assert_eq!(copied.ok(), (plant == "nothing").then_some(5), "{plant}");
    }
}

#[test]
#[ignore = "needs root, to make files of another user"]
fn files_of_another_user_are_not_believed() {
    use std::os::unix::fs::chown;
    let (all, at, precious) = shared();
    chown(&precious, Some(61_234), None).unwrap();
    assert!(open_trusted(&precious).unwrap_err().to_string().contains("another user (uid 61234)"));
    fs::write(at.join("file"), "x").unwrap();
    fs::set_permissions(&at, Permissions::from_mode(0o755)).unwrap();
    let copied = |to: &str| {
        let to = Dir::open(all.path()).unwrap().make(to).unwrap();
        let found = Dir::open(&at).unwrap();
        let copied = to.copy_trusted_from(&found, "shared").map_err(|error| error.to_string());
        let believed = found.believe_all("shared").map_err(|error| error.to_string());
        assert_eq!(believed, copied, "it is refused before it is copied");
        copied
    };
    assert_eq!(copied("one"), Ok(1));
    chown(at.join("file"), Some(61_234), None).unwrap();
    assert!(copied("two").unwrap_err().contains("\"file\" belongs to another user"));
    chown(&at, Some(61_234), None).unwrap();
    assert!(copied("three").unwrap_err().contains("\"shared\" belongs to another user"));
}
