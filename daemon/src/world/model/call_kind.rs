//! Defines what kinds of calls there are, and how an event says the kind of its call.
//!
//! An event says the kind only where it differs from a fixed table of names. That table must never change, and the
//! configuration has no part in it: so a history means the same under every configuration.

use harness_protocol::run::{CallKind, CallRequest};
use harness_protocol::spec::RunSpec;

use crate::tools::ToolKind;

/// What the name of a tool means where an event does not say it. These are the tools of the first journals: the table
/// never changes.
fn by_name(tool: &str, spec: &RunSpec) -> Option<ToolKind> {
    let kind = match tool {
        "shell" => ToolKind::Job { parallel_safe: false },
        "ask_user" | "spawn_agent" | "wait_for_agent" => ToolKind::World,
        _ => return None,
    };
    spec.allows_tool(tool).then_some(kind)
}

/// The kind of a call, as its event says it; `None` where there is nothing to carry out.
pub(crate) fn of(request: &CallRequest, spec: &RunSpec) -> Option<ToolKind> {
    // A call with unusable arguments has no kind, so no job is started for it.
    if request.unusable.is_some() {
        return None;
    }
    request.kind.map_or_else(|| by_name(&request.tool, spec), read)
}

/// What is recorded, as the world has it.
pub(crate) fn read(kind: CallKind) -> Option<ToolKind> {
    match kind {
        CallKind::Unknown => None,
        CallKind::World => Some(ToolKind::World),
        CallKind::Job => Some(ToolKind::Job { parallel_safe: false }),
        CallKind::ParallelJob => Some(ToolKind::Job { parallel_safe: true }),
    }
}

/// What the world has, as it is recorded.
pub(crate) fn recorded(kind: Option<ToolKind>) -> CallKind {
    match kind {
        None => CallKind::Unknown,
        Some(ToolKind::World) => CallKind::World,
        Some(ToolKind::Job { parallel_safe: false }) => CallKind::Job,
        Some(ToolKind::Job { parallel_safe: true }) => CallKind::ParallelJob,
    }
}

/// What an event has to say of a call, where its tool is of this kind now.
pub(crate) fn to_record(tool: &str, kind: Option<ToolKind>, spec: &RunSpec) -> Option<CallKind> {
    let kind = kind.filter(|_| spec.allows_tool(tool));
    (kind != by_name(tool, spec)).then(|| recorded(kind))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use harness_protocol::id::CallId;

    use super::*;

    #[test]
    fn what_is_recorded_says_what_the_call_was_and_what_is_usual_needs_no_word() {
        let jobs = [false, true].map(|parallel_safe| Some(ToolKind::Job { parallel_safe }));
        let only_shell = Arc::from([Arc::from("shell")]);
        for tools in [None, Some(only_shell)] {
            let spec = RunSpec { tools, ..RunSpec::default() };
            for tool in ["shell", "ask_user", "spawn_agent", "wait_for_agent", "novel"] {
                for kind in [None, Some(ToolKind::World), jobs[0], jobs[1]] {
                    let recorded = to_record(tool, kind, &spec);
                    let request = CallRequest { kind: recorded, ..CallRequest::new(CallId::from_u64(1), tool, "{}") };
                    assert_eq!(of(&request, &spec), kind.filter(|_| spec.allows_tool(tool)), "{tool} {kind:?}");
                    let unusable = CallRequest { unusable: Some("cut".into()), ..request };
                    assert_eq!(of(&unusable, &spec), None);
                }
            }
            for (name, kind) in crate::tools::catalogue().names().map(|name| (name.to_owned(), name)) {
                assert_eq!(to_record(&name, crate::tools::catalogue().kind(kind), &spec), None, "{name}");
            }
        }
    }
}
