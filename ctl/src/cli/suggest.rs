//! Suggests the right command for an unknown one, by its meaning in other tools: `ps` suggests `list`.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Commands of other tools, and the commands with the same meaning here.
const MEANT: &[(&str, &str)] = &[
    ("run", "submit"),
    ("start", "submit"),
    ("new", "submit"),
    ("create", "submit"),
    ("add", "submit"),
    ("exec", "submit"),
    ("queue", "submit"),
    ("ask", "submit"),
    ("status", "daemon status"),
    ("info", "daemon status"),
    ("health", "doctor"),
    ("restart", "daemon stop"),
    ("stop", "daemon stop"),
    ("reload", "daemon reload"),
    ("backup", "daemon backup"),
    ("drain", "daemon drain"),
    ("ps", "list"),
    ("jobs", "list"),
    ("runs", "list"),
    ("queued", "list"),
    ("kill", "cancel"),
    ("abort", "cancel"),
    ("end", "cancel"),
    ("rm", "prune"),
    ("delete", "prune"),
    ("remove", "prune"),
    ("clean", "prune"),
    ("gc", "prune"),
    ("tail", "follow"),
    ("watch", "follow"),
    ("attach", "follow"),
    ("log", "logs"),
    ("output", "logs"),
    ("transcript", "logs"),
    ("cat", "logs"),
    ("get", "show"),
    ("inspect", "show"),
    ("describe", "show"),
    ("answer", "reply"),
    ("respond", "reply"),
    ("questions", "pending"),
    ("send", "message"),
    ("tell", "message"),
    ("say", "message"),
    ("rerun", "retry"),
    ("again", "retry"),
    ("continue", "resume"),
    ("unpause", "resume"),
    ("cost", "usage"),
    ("stats", "usage"),
    ("models", "provider"),
    ("providers", "provider"),
    ("lanes", "lane"),
    ("join", "wait"),
];

/// The same for the verbs of `harnessctl daemon`.
const MEANT_OF_DAEMON: &[(&str, &str)] = &[
    ("kill", "stop"),
    ("end", "stop"),
    ("shutdown", "stop"),
    ("down", "stop"),
    ("run", "start"),
    ("up", "start"),
    ("serve", "start"),
    ("launch", "start"),
    ("restart", "stop"),
    ("ps", "status"),
    ("info", "status"),
    ("health", "status"),
    ("save", "backup"),
    ("dump", "backup"),
    ("recover", "restore"),
];

/// Suggests the command with the same meaning, in place of those with a similar name.
pub(crate) fn improve(error: &mut clap::Error) {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else { return };
    let usage = match error.get(ContextKind::Usage) {
        Some(ContextValue::StyledStr(usage)) => usage.to_string(),
        _ => String::new(),
    };
    let below = |verb: &str| usage.contains(&format!("harnessctl {verb} "));
    let meant = if below("daemon") {
        meant(MEANT_OF_DAEMON, typed)
    } else if usage.contains("harnessctl [OPTIONS] <") || usage.contains("harnessctl <") {
        meant(MEANT, typed)
    } else {
        // For the verbs of another verb, only the spelling is known.
        None
    };
    if let Some(meant) = meant {
        let tip = ContextValue::Strings(vec![meant.to_owned()]);
        error.insert(ContextKind::SuggestedSubcommand, tip);
    }
}

fn meant(table: &[(&str, &'static str)], typed: &str) -> Option<&'static str> {
    let typed = typed.to_ascii_lowercase();
    table.iter().find(|(other, _)| *other == typed).map(|(_, ours)| *ours)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::{CommandFactory, Parser};

    use super::*;
    use crate::commands::Cli;

    /// Entry U5 in `tests/README.md`.
    #[test]
    fn a_verb_of_another_tool_gets_the_verb_with_the_same_meaning() {
        let verbs = Cli::command();
        for (typed, ours) in MEANT {
            let mut error = Cli::try_parse_from(["harnessctl", typed]).unwrap_err();
            improve(&mut error);
            assert!(error.to_string().contains(&format!("'{ours}'")), "{typed}: {error}");
            let mut words = ours.split(' ');
            let verb = verbs.find_subcommand(words.next().unwrap()).unwrap();
            assert!(words.all(|word| verb.find_subcommand(word).is_some()), "{ours} is there");
        }
        for (typed, ours) in MEANT_OF_DAEMON {
            let mut error = Cli::try_parse_from(["harnessctl", "daemon", typed]).unwrap_err();
            improve(&mut error);
            assert!(error.to_string().contains(&format!("'{ours}'")), "daemon {typed}: {error}");
            assert!(verbs.find_subcommand("daemon").unwrap().find_subcommand(ours).is_some(), "{ours} is there");
        }
        for (verb, typed) in [("provider", "add"), ("provider", "run"), ("provider", "kill"), ("provider", "new")] {
            let mut error = Cli::try_parse_from(["harnessctl", verb, typed]).unwrap_err();
            improve(&mut error);
            for wrong in ["'submit'", "'cancel'"] {
                assert!(!error.to_string().contains(wrong), "{verb} {typed}: {error}");
            }
        }
        let mut error = Cli::try_parse_from(["harnessctl", "lsit"]).unwrap_err();
        improve(&mut error);
        assert!(error.to_string().contains("'list'"), "letters still count: {error}");
    }
}
