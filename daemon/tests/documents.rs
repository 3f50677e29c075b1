//! Reads the documents: every file and every directory that those for maintainers name is there, and every block of
//! code can be read as one.
//!
//! A path is a word with slashes in backticks. It may leave out `.rs` or `/mod.rs`, and the directories above a part of
//! the tree that the words around it name (`daemon/src`, `ctl/src/commands`).
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

const DOCUMENTS: [&str; 3] = ["ARCHITECTURE.md", "CONTRIBUTING.md", "tests/README.md"];
/// The documents with blocks of code.
const WITH_BLOCKS: [&str; 5] = ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md", "tests/README.md"];
/// What may stand behind the mark of a block.
const LANGUAGES: [&str; 6] = ["", "sh", "sh tests", "text", "toml", "rust"];
/// Where a path may begin.
const PLACES: &[&str] = &[
    "",
    "daemon",
    "daemon/src",
    "daemon/src/world",
    "daemon/src/process",
    "daemon/src/inference",
    "daemon/src/inference/http",
    "ctl",
    "ctl/src",
    "ctl/src/commands",
    "protocol",
    "protocol/src",
    "files/src",
    "tests",
    "tests/behaviour",
];
/// Words with slashes that are no paths of this repository, by their beginnings.
const ELSEWHERE: &[&str] = &["calls-STATE/", "text/event-stream"];

/// The words in backticks that look like paths, or like modules of Rust: a path is written with slashes.
fn paths(document: &str) -> impl Iterator<Item = &str> {
    let is_letter = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    document.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).filter(move |word| {
        let parts: Vec<&str> = word.trim_end_matches('/').split('/').collect();
        let is_path = parts.len() > 1 && parts.iter().all(|part| !part.is_empty() && part.chars().all(is_letter));
        is_path && !ELSEWHERE.iter().any(|elsewhere| word.starts_with(elsewhere))
    })
}

fn exists(path: &str) -> bool {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let path = path.trim_end_matches('/');
    let names = [path.to_owned(), format!("{path}.rs"), format!("{path}/mod.rs")];
    PLACES.iter().any(|place| names.iter().any(|name| root.join(place).join(name).exists()))
}

#[test]
fn every_path_that_a_document_names_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut missing = Vec::new();
    for document in DOCUMENTS {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let paths: Vec<&str> = paths(&text).collect();
        assert!(paths.len() > 5, "{document} names {paths:?}");
        missing.extend(paths.into_iter().filter(|path| !exists(path)).map(|path| format!("{document}: {path}")));
    }
    assert!(missing.is_empty(), "no such file or directory:\n{}", missing.join("\n"));
}

#[test]
fn a_path_is_seen_and_one_that_is_not_there_is_told() {
    let text =
        "see `control/rights` and `daemon/src/` or `x`, `text/event-stream`, `a/b c`, `gone/away`; not lone/some";
    let found: Vec<&str> = paths(text).collect();
    assert_eq!(found, ["control/rights", "daemon/src/", "gone/away"]);
    assert_eq!(found.iter().map(|path| exists(path)).collect::<Vec<_>>(), [true, true, false]);
}

/// A program that breaks lines of prose joins the lines of a block, and `.ci/readme` no longer sees its commands.
#[test]
fn every_block_of_code_begins_and_ends_on_a_line_of_its_own() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut blocks, mut wrong) = (0, Vec::new());
    for document in WITH_BLOCKS {
        let text = fs::read_to_string(root.join(document)).unwrap();
        let marks: Vec<&str> = text.lines().filter(|line| line.contains("```")).collect();
        blocks += marks.len() / 2;
        let is_mark = |line: &str| line.trim_start().strip_prefix("```").is_some_and(|rest| LANGUAGES.contains(&rest));
        wrong.extend(marks.iter().filter(|line| !is_mark(line)).map(|line| format!("{document}: {line}")));
        assert!(marks.len().is_multiple_of(2), "{document}: a block has no end");
    }
    assert!(blocks > 10, "{blocks} blocks");
    assert!(wrong.is_empty(), "no begin and no end of a block:\n{}", wrong.join("\n"));
}
