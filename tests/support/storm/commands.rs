//! A client that is a shell script, so to speak: it calls `harnessctl`, and goes by what that prints and how it ends.

use std::sync::atomic::Ordering;

use super::chance::Chance;
use super::scripts::script;
use super::told::Submit;
use super::{Mood, Shared, pause};

/// Submits under a key until there is an id, then waits for the end.
pub(super) fn submit_and_wait(shared: &Shared, mut chance: Chance) {
    let place = &shared.place;
    let kinds: Vec<_> =
        ["quick", "steps"].map(|kind| (kind, place.script_file(&script(kind, &mut chance)))).into_iter().collect();
    while shared.mood() == Mood::Stormy {
        let number = shared.next.fetch_add(1, Ordering::SeqCst);
        let (kind, file) = chance.pick(&kinds);
        let key = format!("ctl-{number}");
        shared.told().submits.insert(number, Submit { key: Some(key.clone()), kind, run: None, seq: 0 });
        let label = format!("n={number}");
        let words = ["submit", "-q", "--no-start", "--idempotency-key", &key, "-l", &label, "--script", &file];
        let id = loop {
            let output = place.ctl(words);
            match output.code {
                0 => break output.stdout.trim().to_owned(),
                7 | 75 if shared.mood() != Mood::Over => pause(&mut chance),
                _ => return shared.told().wrong.push(format!("harnessctl submit: {output}")),
            }
        };
        shared.told().submitted(number, &id, 0);
        let output = place.ctl(["wait", "--no-start", "--timeout", "2s", &id]);
        let mut told = shared.told();
        told.count("commands");
        match output.code {
            0 => {
                let answer = output.stdout.strip_suffix('\n').unwrap_or(&output.stdout).to_owned();
                told.ended(&id, "succeeded", Some(&answer));
            }
            // A message that came when all had been said asks for more than the script has.
            1 => told.ended(&id, "failed", None),
            // Cancelled; unreachable for too long; not yet.
            5 | 7 | 8 => {}
            _ => told.wrong.push(format!("harnessctl wait {id}: {output}")),
        }
    }
}
