//! Limits a child by its parent: a child has no more than its parent has, in limits, tools, priority, share and waiting
//! for people.
//!
//! The only place with this rule, for every child however it is submitted. What a spawned child copies of its parent
//! beside that (folder, provider, environment) is in `world/tools.rs`. Deadlines are not written into the
//! specification; they follow from the tree (`apply::runs`), so that the retry of a run is not bound by the deadline of
//! a tree that has ended.

use std::sync::Arc;

use harness_protocol::limit::CallLimits;
use harness_protocol::spec::{OnInteraction, RunSpec};

use crate::refusal::SpecRefusal;

/// Lets a specification take over what the run above it has: of limits the smaller, of priorities the later, of tools
/// those that both have, and its share. It waits for a person only where that run does. `of_calls` are the configured
/// limits of calls.
///
/// # Errors
/// Where it names another share than that of the run above it.
pub(in crate::world) fn inherit(spec: &mut RunSpec, above: &RunSpec, of_calls: CallLimits) -> Result<(), SpecRefusal> {
    let theirs = above.share.as_deref().unwrap_or("default");
    match &spec.share {
        None => spec.share = Some(theirs.into()),
        Some(mine) if **mine != *theirs => {
            return Err(SpecRefusal::OtherShare { share: mine.to_string(), of_parent: theirs.to_owned() });
        }
        Some(_) => {}
    }
    // What comes later in the order goes later.
    spec.priority = spec.priority.max(above.priority);
    if spec.on_interaction == OnInteraction::Wait {
        spec.on_interaction = above.on_interaction;
    }
    let (mine, theirs) = (&mut spec.limits, &above.limits);
    smaller(&mut mine.max_steps, theirs.max_steps);
    smaller(&mut mine.max_tokens, theirs.max_tokens);
    smaller(&mut mine.max_cost_usd, theirs.max_cost_usd);
    smaller(&mut mine.max_time_seconds, theirs.max_time_seconds);
    let calls = CallLimits::from(&*mine).within(CallLimits::from(theirs).or(of_calls));
    mine.set_of_calls(calls);
    spec.tools = match (spec.tools.take(), &above.tools) {
        (Some(mine), Some(theirs)) => Some(mine.iter().filter(|tool| theirs.contains(tool)).cloned().collect()),
        (mine, theirs) => mine.or_else(|| theirs.as_ref().map(Arc::clone)),
    };
    Ok(())
}

/// Of two limits the smaller; one that is not there limits nothing.
fn smaller<T: PartialOrd + Copy>(mine: &mut Option<T>, theirs: Option<T>) {
    if let Some(theirs) = theirs
        && mine.is_none_or(|mine| theirs < mine)
    {
        *mine = Some(theirs);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use harness_protocol::spec::{Limits, Priority};
    use harness_protocol::time::Span;
    use proptest::prelude::*;

    fn number() -> impl Strategy<Value = Option<u32>> {
        prop::option::of(1u32..100)
    }

    fn spec() -> impl Strategy<Value = RunSpec> {
        let priority = prop::sample::select(vec![Priority::High, Priority::Normal, Priority::Low]);
        let tools = prop::option::of(prop::sample::subsequence(vec!["a", "b", "c", "d"], 0..=4));
        let share = prop::option::of(prop::sample::select(vec!["default", "batch"]));
        let asking = prop::sample::select(vec![OnInteraction::Wait, OnInteraction::Deny, OnInteraction::Fail]);
        (share, priority, tools, (number(), number(), number(), number(), number()), asking).prop_map(
            |(share, priority, tools, (steps, tokens, cost, time, files), on_interaction)| RunSpec {
                on_interaction,
                share: share.map(Into::into),
                priority,
                tools: tools.map(|tools| tools.into_iter().map(Arc::from).collect()),
                limits: Limits {
                    max_steps: steps,
                    max_tokens: tokens.map(u64::from),
                    max_cost_usd: cost.map(f64::from),
                    max_time_seconds: time.map(|time| Span::from_secs(time.into())),
                    open_files: files.map(u64::from),
                    ..Limits::default()
                },
                ..RunSpec::default()
            },
        )
    }

    fn at_most<T: PartialOrd>(mine: Option<T>, theirs: Option<T>) -> bool {
        theirs.is_none_or(|theirs| mine.is_some_and(|mine| mine <= theirs))
    }

    proptest! {
        /// A14: whatever a child asks for, it has no more than its parent and no more than it asked for, and asking
        /// again changes nothing.
        #[test]
        fn a_child_has_at_most_what_its_parent_has(above in spec(), asked in spec()) {
            let mut child = asked.clone();
            let share_above = above.share.as_deref().unwrap_or("default");
            let other_share = asked.share.as_deref().is_some_and(|share| share != share_above);
            let done = inherit(&mut child, &above, CallLimits::default());
            prop_assert_eq!(done.is_err(), other_share);
            if let Err(refused) = done {
                let is_of_share = matches!(refused, SpecRefusal::OtherShare { .. });
                prop_assert!(is_of_share);
                return Ok(());
            }
            prop_assert_eq!(child.share.as_deref(), Some(above.share.as_deref().unwrap_or("default")));
            prop_assert!(child.priority >= above.priority && child.priority >= asked.priority);
            let waits = |spec: &RunSpec| spec.on_interaction == OnInteraction::Wait;
            prop_assert_eq!(waits(&child), waits(&above) && waits(&asked));
            prop_assert!(waits(&asked) || child.on_interaction == asked.on_interaction);
            for tool in ["a", "b", "c", "d"] {
                prop_assert_eq!(child.allows_tool(tool), above.allows_tool(tool) && asked.allows_tool(tool));
            }
            for other in [&above.limits, &asked.limits] {
                let mine = &child.limits;
                prop_assert!(at_most(mine.max_steps, other.max_steps) && at_most(mine.max_tokens, other.max_tokens));
                prop_assert!(at_most(mine.max_cost_usd, other.max_cost_usd));
                prop_assert!(at_most(mine.open_files, other.open_files));
                prop_assert!(at_most(mine.max_time_seconds, other.max_time_seconds));
            }
            let before = child.clone();
            inherit(&mut child, &above, CallLimits::default()).unwrap();
            prop_assert_eq!(child, before);
        }
    }
}
