//! Builds the scripts for the runs of a storm. Each call writes a line with its own id to a file: that counts its
//! executions.

use crate::{Script, turn};

use super::chance::Chance;

/// The file, in the working directory.
pub const TOKENS: &str = "tokens";

/// Kinds of runs, by name. An `endless` one ends only when it is cancelled; a `passing` one may be pruned.
pub const KINDS: [&str; 8] = ["quick", "passing", "steps", "family", "question", "slow", "loud", "endless"];

/// A command that leaves its token and then does this.
pub fn token(then: &str) -> String {
    format!("echo $HARNESS_CALL_ID >> {TOKENS}; {then}")
}

/// A script of a kind.
pub fn script(kind: &str, chance: &mut Chance) -> Script {
    let short = |chance: &mut Chance| token(&format!("sleep 0.0{}", chance.below(10)));
    match kind {
        "steps" => {
            let (one, two) = (short(chance), short(chance));
            turn("").shell(&one).shell(&two).turn("").shell(&two).turn("").shell(&one).turn("three steps")
        }
        "family" => {
            let child = turn("").shell(&short(chance)).turn("a child's answer");
            let parent = turn("").spawn("child").spawn("child").shell(&short(chance)).wait_for_all();
            parent.turn("a parent's answer").child("child", &child)
        }
        "question" => turn("").ask("well?").shell(&short(chance)).turn("answered"),
        "slow" => {
            let call = token("sleep 0.3");
            turn("").after(0.1).shell(&call).turn("").after(0.2).shell(&call).turn("slow").after(0.1)
        }
        "loud" => turn("").shell(&token("seq 3000")).turn("loud"),
        "endless" => turn("").shell(&token("sleep 600")).turn("never"),
        _ => turn("").shell(&short(chance)).turn("done"),
    }
}
