//! Builds the environment of a call: a few of the daemon's own variables, those that the submit named, and settings
//! that keep programs from waiting for a person.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

use harness_protocol::id::{CallId, RunId};

use crate::process::RUN_VARIABLE;

/// What a call gets of the daemon's own environment, beside `LC_*`.
const FROM_DAEMON: &[&str] = &["HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ", "TMPDIR", "PATH"];
/// So that no program opens a pager, an editor or a question, whatever its own configuration says. A submit may name
/// others.
const QUIET: &[(&str, &str)] = &[
    ("TERM", "dumb"),
    ("PAGER", "cat"),
    ("GIT_PAGER", "cat"),
    ("MANPAGER", "cat"),
    ("SYSTEMD_PAGER", "cat"),
    ("EDITOR", "false"),
    ("VISUAL", "false"),
    ("GIT_EDITOR", "false"),
    ("GIT_SEQUENCE_EDITOR", "false"),
    ("HGEDITOR", "false"),
    ("SVN_EDITOR", "false"),
    ("GIT_TERMINAL_PROMPT", "0"),
    ("DEBIAN_FRONTEND", "noninteractive"),
];
/// Where a daemon without PATH finds programs.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The part that is the same for all calls.
#[derive(Debug, Clone)]
pub(super) struct Environment {
    common: Vec<(OsString, OsString)>,
    socket: OsString,
}

impl Environment {
    /// From the daemon's own variables and the path of its socket.
    pub(super) fn new(own: impl IntoIterator<Item = (OsString, OsString)>, socket: &Path) -> Self {
        let mut common: BTreeMap<OsString, OsString> = BTreeMap::from([("PATH".into(), DEFAULT_PATH.into())]);
        common.extend(own.into_iter().filter(|(name, _)| passes(name)));
        common.extend(QUIET.iter().map(|(name, value)| ((*name).into(), (*value).into())));
        Self { common: common.into_iter().collect(), socket: socket.into() }
    }

    /// All of it, for one call; where a name comes twice, the last one counts.
    pub(super) fn of_call(
        &self,
        named: &BTreeMap<String, String>,
        run: RunId,
        call: CallId,
    ) -> Vec<(OsString, OsString)> {
        let mut all = Vec::with_capacity(self.common.len() + named.len() + 3);
        all.extend_from_slice(&self.common);
        all.extend(named.iter().map(|(name, value)| (name.into(), value.into())));
        all.push((RUN_VARIABLE.into(), run.to_string().into()));
        all.push(("HARNESS_CALL_ID".into(), call.to_string().into()));
        all.push(("HARNESS_SOCKET".into(), self.socket.clone()));
        all
    }
}

fn passes(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| FROM_DAEMON.contains(&name) || name.starts_with("LC_"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variables(own: &[(&str, &str)], named: &[(&str, &str)]) -> BTreeMap<String, String> {
        let own = own.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let named = named.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Environment::new(own, Path::new("/run/x.sock"))
            .of_call(&named, RunId::from_u64(1), CallId::from_u64(2))
            .into_iter()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect()
    }

    #[test]
    fn of_the_daemons_own_only_the_list_passes() {
        let all = variables(&[("HOME", "/h"), ("LC_ALL", "C"), ("API_KEY", "secret"), ("TERM", "xterm")], &[]);
        assert_eq!((all["HOME"].as_str(), all["LC_ALL"].as_str(), all["TERM"].as_str()), ("/h", "C", "dumb"));
        assert!(!all.contains_key("API_KEY"));
    }

    #[test]
    fn what_the_submit_names_goes_first_but_never_our_own() {
        let all = variables(&[("PATH", "/daemon")], &[("PATH", "/mine"), ("PAGER", "less"), ("HARNESS_RUN_ID", "x")]);
        assert_eq!((all["PATH"].as_str(), all["PAGER"].as_str()), ("/mine", "less"));
        assert_eq!(all["HARNESS_RUN_ID"], RunId::from_u64(1).to_string());
        assert_eq!(all["HARNESS_CALL_ID"], CallId::from_u64(2).to_string());
        assert_eq!(all["HARNESS_SOCKET"], "/run/x.sock");
    }

    #[test]
    fn there_is_always_a_path() {
        assert_eq!(variables(&[], &[])["PATH"], DEFAULT_PATH);
        assert_eq!(variables(&[("PATH", "/daemon")], &[])["PATH"], "/daemon");
    }
}
