//! Lists the differences between two configurations, in words for the operator who reloads.
//!
//! The only place that says which changes take effect at a reload and which need a restart. It must say what
//! `startup/reload`, `driver/reload` and `Engine::configure` do, which put a change in force. Pure: must not apply a
//! change.

use std::sync::Arc;

use super::Config;

/// The changes from `before` to `after` that take effect at once. Changed widths are reported by the lanes, not here.
pub fn taken_over(before: &Config, after: &Config) -> Vec<String> {
    let mut told = Vec::new();
    let mut names: Vec<&Arc<str>> = before.providers.keys().chain(after.providers.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        match (before.providers.get(name), after.providers.get(name)) {
            (None, _) => told.push(format!("provider {name}: new")),
            (_, None) => told.push(format!("provider {name}: gone")),
            (Some(before), Some(after)) => {
                // The lane reports a changed width.
                let mut same_width = before.clone();
                same_width.width = after.width;
                if same_width != *after {
                    told.push(format!("provider {name}: changed"));
                }
            }
        }
    }
    if before.run != after.run {
        told.push("[run]: changed".to_owned());
    }
    if before.control != after.control {
        told.push("[control]: changed".to_owned());
    }
    if before.limits.connections != after.limits.connections {
        told.push(format!("limits.connections: {}", after.limits.connections));
    }
    told
}

/// The changes in `after` that take effect with the next start. `running` is the configuration of the last start.
pub fn for_the_next_start(running: &Config, after: &Config) -> Vec<String> {
    let mut limits = running.limits.clone();
    limits.connections = after.limits.connections;
    let parts = [
        ("[limits]", limits != after.limits),
        ("[share]", running.shares != after.shares),
        ("[tool.shell]", running.shell != after.shell),
        ("[retention]", running.retention != after.retention),
        ("[journal]", running.journal != after.journal),
    ];
    let changed = parts.into_iter().filter(|(_, changed)| *changed);
    changed.map(|(part, _)| format!("{part}: changed; that takes a restart of the daemon")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Provider, Share};

    #[test]
    fn changes_that_take_effect_at_once_are_told_and_no_others() {
        let before = Config::default();
        assert!(taken_over(&before, &before).is_empty() && for_the_next_start(&before, &before).is_empty());
        let mut after = before.clone();
        after.providers.insert("a".into(), Provider::scripted(1));
        after.run.max_steps = 7;
        after.limits.connections = 9;
        assert_eq!(taken_over(&before, &after), ["provider a: new", "[run]: changed", "limits.connections: 9"]);
        assert_eq!(taken_over(&after, &before)[0], "provider a: gone");
        assert!(for_the_next_start(&before, &after).is_empty());
        let mut wider = after.clone();
        wider.providers.insert("a".into(), Provider::scripted(5));
        assert!(taken_over(&after, &wider).is_empty(), "that is told of the lane");
        wider.providers.insert("a".into(), Provider { context_tokens: Some(9), ..Provider::scripted(5) });
        assert_eq!(taken_over(&after, &wider), ["provider a: changed"]);
    }

    #[test]
    fn changes_that_need_a_restart_are_told_so() {
        let running = Config::default();
        let mut after = running.clone();
        after.limits.depth = 3;
        after.shares.insert("batch".into(), Share { weight: 1, max: None });
        let told = for_the_next_start(&running, &after);
        assert!(told.len() == 2 && told.iter().all(|line| line.ends_with("a restart of the daemon")), "{told:?}");
        assert!(taken_over(&running, &after).is_empty());
    }
}
