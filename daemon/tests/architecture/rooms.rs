//! Lists, as a second level of the rules, the submodules inside a module or a crate in their order: each may import
//! those before it.

use super::source::Source;

/// A house of rooms: a module of a crate, or the crate itself where `below` is empty.
pub(crate) struct House {
    /// Where the sources are, below the root of the repository.
    pub(crate) sources: &'static str,
    /// The module whose rooms these are.
    pub(crate) below: &'static str,
    /// Its rooms. Each may import those that stand before it, and no other; what is in none of them may import all.
    pub(crate) rooms: &'static [&'static str],
}

/// All that have an order.
pub(crate) const HOUSES: &[House] = &[
    House {
        sources: "daemon/src",
        below: "world",
        rooms: &[
            "name_or_id",
            "settlement",
            "api",
            "model",
            "apply",
            "view",
            "tx",
            "ending",
            "interactions",
            "inference",
            "commands",
            "tools",
            "steps",
            "recover",
            "fold",
            "engine",
            "queries",
            "digest",
            "redundant_events",
            "testing",
        ],
    },
    House {
        sources: "daemon/src",
        below: "inference",
        rooms: &["fast_path", "errors", "common", "dialects", "scripted", "http", "tests"],
    },
    House {
        sources: "daemon/src",
        below: "process",
        rooms: &[
            "timing",
            "unkillable",
            "cancel",
            "rlimits",
            "input",
            "output",
            "cgroup",
            "tree",
            "owner",
            "supervisor",
            "spawn",
            "pool",
            "tests",
        ],
    },
    House {
        sources: "daemon/src",
        below: "control",
        rooms: &[
            "refusals",
            "rights",
            "limits",
            "workdir",
            "outgoing",
            "request",
            "socket",
            "services",
            "provider_check",
            "subscription",
            "connection",
        ],
    },
    House {
        sources: "ctl/src",
        below: "",
        rooms: &[
            "render",
            "cli",
            "output",
            "client",
            "launch",
            "error",
            "exit_code",
            "spec",
            "session",
            "context",
            "select",
            "progress",
            "commands",
            "main",
        ],
    },
    House {
        sources: "protocol/src",
        below: "",
        rooms: &[
            "paths",
            "inside_run",
            "terminal_safe",
            "json_size",
            "variable",
            "exact_size_list",
            "hex",
            "blob",
            "splitmix64",
            "time",
            "id",
            "submit_key",
            "folder",
            "framing",
            "envelope",
            "lane",
            "interaction",
            "script",
            "spec",
            "limit",
            "run",
            "waiting_words",
            "provider",
            "reason",
            "subject",
            "event",
            "params",
            "rpc",
            "schema",
            "sse",
        ],
    },
];

impl House {
    /// What is wrong with the imports of one source: a room that stands no lower, or one without a place.
    pub(crate) fn wrong_imports(&self, source: &Source) -> Vec<String> {
        let inside = |path: &[String]| -> Option<String> {
            let rest = if self.below.is_empty() { path } else { path.strip_prefix(&[self.below.to_owned()])? };
            rest.first().cloned()
        };
        let Some(own) = inside(&source.module) else { return Vec::new() };
        let place = |room: &str| self.rooms.iter().position(|known| *known == room);
        let Some(at) = place(&own) else {
            return vec![format!("{}: `{own}` has no place among the rooms of `{}`", source.name, self.below)];
        };
        let goes_up = |path: &[String]| {
            let room = inside(path)?;
            let other = place(&room)?;
            (other > at).then(|| format!("{}: imports {}", source.name, path.join("::")))
        };
        source.crate_imports().iter().filter_map(|import| goes_up(&import.path)).collect()
    }
}
