//! Tests of the command line's grammar and help.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use clap::CommandFactory;

use super::*;

fn parse(words: &[&str]) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(["harnessctl"].iter().chain(words))
}

fn code(words: &[&str]) -> i32 {
    parse(words).unwrap_err().exit_code()
}

#[test]
fn the_definition_holds_together() {
    Cli::command().debug_assert();
}

#[test]
fn every_verb_says_what_it_does_and_shows_how() {
    fn check(command: &clap::Command) {
        for verb in command.get_subcommands() {
            assert!(verb.get_about().is_some(), "{}", verb.get_name());
            let example = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(example.contains("harnessctl "), "{} shows no example", verb.get_name());
            for arg in verb.get_arguments() {
                assert!(arg.get_help().is_some(), "{} {}", verb.get_name(), arg.get_id());
            }
            check(verb);
        }
    }
    let mut command = Cli::command();
    command.build();
    check(&command);
    let help = parse(&["submit", "--help"]).unwrap_err().to_string();
    assert!(help.contains("Examples:") && help.contains("--script demo.toml"), "{help}");
    assert!(parse(&["--help"]).unwrap_err().to_string().contains("130  detached"));
}

#[test]
fn the_examples_of_the_help_are_commands() {
    fn examples(command: &clap::Command, all: &mut Vec<String>) {
        for verb in command.get_subcommands() {
            let help = verb.get_after_help().map(ToString::to_string).unwrap_or_default();
            all.extend(help.strip_prefix("Example: ").and_then(|help| help.lines().next()).map(str::to_owned));
            examples(verb, all);
        }
    }
    let mut all = Vec::new();
    examples(&Cli::command(), &mut all);
    assert!(all.len() > 25, "{all:?}");
    for line in all {
        // The part before characters that only a shell reads.
        let command = line.split(['|', '>', ';']).next().unwrap();
        let words: Vec<&str> = command.split_whitespace().skip(1).map(|word| word.trim_matches('"')).collect();
        let words = if command.contains('"') { words[..3].to_vec() } else { words };
        if let Err(error) = parse(&words) {
            panic!("{line}: {error}");
        }
    }
}

#[test]
fn the_verbs_of_the_manual_are_there() {
    for words in [
        &["submit", "hi"][..],
        &["submit", "-", "-q", "--follow", "-C", "/", "--name", "n", "--label", "a=b", "--share", "s", "-p", "x"],
        &["submit", "--script", "f", "--env", "A", "--env-file", "f", "--max-steps", "1", "--max-tokens", "2"],
        &["submit", "hi", "--max-time", "1.5s", "--deadline", "2h", "--priority", "high", "--model", "m"],
        &["submit", "hi", "--idempotency-key", "k", "--on-interaction=fail", "--retry-for", "10m", "--wait", "-o", "f"],
        &["submit", "hi", "--limit", "open_files=64", "--limit", "address_space_bytes=64MiB"],
        &["submit", "--batch", "-", "--wait", "-o", "f"],
        &["submit", "--script", "-", "hi"],
        &["list", "--tree", "-l", "a=b", "--state", "queued,acting", "--all", "--json"],
        &["show", "@last", "--answer"],
        &["follow", "abc"],
        &["logs", "abc", "--call", "1", "--stream", "stderr", "--raw", "--tail", "5", "-f"],
        &["wait", "a", "b", "--for", "waiting", "--timeout", "5"],
        &["wait", "--any", "-l", "a=b", "--waiting-for", "lane,person"],
        &["wait", "-", "--timeout", "5"],
        &["show", "a", "b", "--answer"],
        &["follow", "-l", "a=b", "--state", "acting"],
        &["logs", "--waiting-for", "run", "--tail", "3"],
        &["export", "-l", "a=b", "--dir", "/d"],
        &["pending", "-l", "a=b"],
        &["usage", "-l", "a=b", "--by", "model"],
        &["cancel", "-l", "a=b", "--force"],
        &["cancel", "-", "--waiting-for", "budget", "-y"],
        &["pause", "--all", "-y"],
        &["resume", "a"],
        &["retry", "a", "--follow"],
        &["retry", "-l", "a=b", "--state", "failed", "--model", "m", "--max-cost", "2", "--max-steps", "9", "-y"],
        &["retry", "a", "--name", "n", "--add-label", "c=d", "--env", "A=1", "--limit", "open_files=64", "--wait"],
        &["message", "a", "text"],
        &["message", "a", "b", "text", "--wait"],
        &["message", "-l", "a=b", "text", "-y"],
        &["prune", "--all", "--dry-run"],
        &["prune", "--older-than", "30d", "--keep", "100", "-l", "a=b", "--state", "failed", "-n"],
        &["export", "a", "--dir", "/d"],
        &["pending"],
        &["reply", "id", "-"],
        &["lane"],
        &["lane", "tool", "--watch"],
        &["lane", "--watch", "0.5"],
        &["lane", "--check", "queued", "-w", "5", "-c", "10"],
        &["--json", "lane", "relieve", "--by", "2", "--for", "10m"],
        &["lane", "relieve", "local", "--undo", "0000000000001", "--json"],
        &["lane", "resize", "8"],
        &["lane", "pause"],
        &["lane", "resume", "local"],
        &["relieve", "--by", "2"],
        &["events", "--from", "1", "-f", "--run", "a", "--tree", "--kind", "run-finished", "--deltas"],
        &["events", "--after", "0"],
        &["daemon", "start"],
        &["daemon", "stop"],
        &["daemon", "status", "--json", "--socket", "/s", "--no-start", "--color", "never"],
        &["daemon", "drain", "--timeout", "5"],
        &["daemon", "undrain"],
        &["daemon", "reload"],
        &["daemon", "backup", "/f"],
        &["schema"],
        &["schema", "run.submit", "--json"],
        &["completions", "bash"],
    ] {
        if let Err(error) = parse(words) {
            panic!("{words:?}: {error}");
        }
    }
}

#[test]
fn arguments_without_sense_are_a_usage_error() {
    for words in [
        &["submit", "--batch", "f", "hi"][..],
        &["submit", "--batch", "f", "--follow"],
        &["submit", "hi", "--max-time", "soon"],
        &["submit", "one", "two"],
        &["submit", "hi", "--label", "x"],
        &["list", "--state", "tired"],
        &["list", "--waiting-for", "godot"],
        &["message"],
        &["retry", "a", "--prompt", "x"],
        &["export", "a"],
        &["daemon", "backup"],
        &["prune", "--older-than", "old"],
        &["events", "--after", "1", "--from", "1"],
        &["lane", "resize"],
        &["logs", "a", "--stream", "stdout"],
        &["party"],
        &[],
    ] {
        assert_eq!(code(words), 2, "{words:?}");
    }
}
