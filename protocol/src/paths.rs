//! Decides where the socket, the state directory and the configuration are: one rule for the daemon and for its
//! clients.
//!
//! Pure: the environment, the user and the question whether a path exists are arguments.

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A variable is set but is not UTF-8. It must not be taken for a missing one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0} is set, but its value is not UTF-8")]
pub struct NotUtf8(pub String);

/// Reads variables as texts, and remembers the first that is not UTF-8.
pub struct Variables<'a> {
    var: &'a dyn Fn(&str) -> Option<OsString>,
    unreadable: RefCell<Option<NotUtf8>>,
}

impl<'a> Variables<'a> {
    /// A reader of variables through `var`.
    pub const fn new(var: &'a dyn Fn(&str) -> Option<OsString>) -> Self {
        Self { var, unreadable: RefCell::new(None) }
    }

    /// A variable; `None` if it is not set, or not UTF-8, which is remembered.
    pub fn get(&self, name: &str) -> Option<String> {
        match (self.var)(name)?.into_string() {
            Ok(value) => Some(value),
            Err(_) => {
                self.unreadable.borrow_mut().get_or_insert_with(|| NotUtf8(name.to_owned()));
                None
            }
        }
    }

    /// Checks that all variables so far could be read.
    ///
    /// # Errors
    /// The first variable that could not be read.
    pub fn all_were_readable(&self) -> Result<(), NotUtf8> {
        self.unreadable.borrow().clone().map_or(Ok(()), Err)
    }
}

/// The environment that the rules depend on.
pub struct Environment<'a> {
    /// Reads an environment variable; empty ones count as absent.
    pub var: &'a dyn Fn(&str) -> Option<String>,
    /// Effective user id.
    pub uid: u32,
    /// Whether the path exists, even as a link to nothing: that must be reported, and not passed over.
    pub exists: &'a dyn Fn(&Path) -> bool,
}

/// The system-wide socket.
pub const SYSTEM_SOCKET: &str = "/run/harness/control.sock";

impl Environment<'_> {
    fn var(&self, name: &str) -> Option<PathBuf> {
        (self.var)(name).filter(|v| !v.is_empty()).map(PathBuf::from)
    }

    fn runtime_dir(&self) -> Option<PathBuf> {
        self.var("XDG_RUNTIME_DIR").filter(|d| d.is_absolute()).or_else(|| {
            let dir = PathBuf::from(format!("/run/user/{}", self.uid));
            (self.exists)(&dir).then_some(dir)
        })
    }

    /// The socket: `HARNESS_SOCKET`, the user's, the system's. Of the last two the first that exists; if neither
    /// exists, the user's if there is a runtime directory.
    pub fn socket(&self) -> PathBuf {
        if let Some(path) = self.var("HARNESS_SOCKET") {
            return path;
        }
        let system = PathBuf::from(SYSTEM_SOCKET);
        match self.runtime_dir().map(|dir| dir.join("harness/control.sock")) {
            Some(user) if (self.exists)(&user) || !(self.exists)(&system) => user,
            _ => system,
        }
    }

    /// The state directory: `HARNESS_STATE_DIR`, `$XDG_STATE_HOME/harness`, `~/.local/state/harness`,
    /// `/var/lib/harness`.
    pub fn state_dir(&self) -> PathBuf {
        self.var("HARNESS_STATE_DIR")
            .or_else(|| self.var("XDG_STATE_HOME").filter(|d| d.is_absolute()).map(|d| d.join("harness")))
            .or_else(|| self.var("HOME").filter(|d| d.is_absolute()).map(|d| d.join(".local/state/harness")))
            .unwrap_or_else(|| PathBuf::from("/var/lib/harness"))
    }

    /// Where the main file of the configuration may be: `HARNESS_CONFIG` alone; else the user's, then the system's.
    pub fn config(&self) -> ConfigPlaces {
        if let Some(path) = self.var("HARNESS_CONFIG") {
            return ConfigPlaces { files: vec![path], named: true };
        }
        let user = self
            .var("XDG_CONFIG_HOME")
            .filter(|d| d.is_absolute())
            .or_else(|| self.var("HOME").filter(|d| d.is_absolute()).map(|d| d.join(".config")))
            .map(|d| d.join("harness/config.toml"));
        let mut files: Vec<PathBuf> = user.into_iter().chain([PathBuf::from("/etc/harness/config.toml")]).collect();
        files.dedup();
        ConfigPlaces { files, named: false }
    }
}

/// Where the main file of the configuration may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigPlaces {
    /// Its possible paths, at least one. The first counts that exists, or that has a directory `conf.d` beside it:
    /// parts without a main file are a configuration, too.
    pub files: Vec<PathBuf>,
    /// The path was named explicitly, so the file must exist.
    pub named: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// B12: a variable that is not UTF-8 is not taken for unset, whichever path it would give.
    #[test]
    fn a_variable_that_cannot_be_read_is_told_whichever_it_is() {
        use std::os::unix::ffi::OsStringExt;
        for name in [
            "HARNESS_SOCKET",
            "HARNESS_STATE_DIR",
            "HARNESS_CONFIG",
            "XDG_RUNTIME_DIR",
            "XDG_STATE_HOME",
            "XDG_CONFIG_HOME",
            "HOME",
        ] {
            let var = |asked: &str| (asked == name).then(|| OsString::from_vec(b"/x\xff".to_vec()));
            let variables = Variables::new(&var);
            let around = Environment { var: &|name| variables.get(name), uid: 1, exists: &|_| false };
            drop((around.socket(), around.state_dir(), around.config()));
            assert_eq!(variables.all_were_readable(), Err(NotUtf8(name.to_owned())));
        }
        let fine = |_: &str| Some(OsString::from("/y"));
        assert_eq!(
            (Variables::new(&fine).get("HOME").as_deref(), Variables::new(&fine).all_were_readable()),
            (Some("/y"), Ok(()))
        );
    }

    fn socket(vars: &[(&str, &str)], present: &[&str]) -> String {
        let var = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        let exists = |path: &Path| present.iter().any(|p| Path::new(p) == path);
        Environment { var: &var, uid: 1000, exists: &exists }.socket().display().to_string()
    }

    #[test]
    fn the_socket_named_in_the_environment_goes_first() {
        let vars = [("HARNESS_SOCKET", "/x.sock"), ("XDG_RUNTIME_DIR", "/run/user/1000")];
        assert_eq!(socket(&vars, &[SYSTEM_SOCKET]), "/x.sock");
    }

    #[test]
    fn the_users_socket_goes_before_the_systems_unless_only_the_systems_exists() {
        let vars = [("XDG_RUNTIME_DIR", "/run/user/1000")];
        assert_eq!(socket(&vars, &[]), "/run/user/1000/harness/control.sock");
        assert_eq!(socket(&vars, &[SYSTEM_SOCKET]), SYSTEM_SOCKET);
        assert_eq!(
            socket(&vars, &[SYSTEM_SOCKET, "/run/user/1000/harness/control.sock"]),
            "/run/user/1000/harness/control.sock"
        );
        assert_eq!(socket(&[], &[]), SYSTEM_SOCKET);
        assert_eq!(socket(&[], &["/run/user/1000"]), "/run/user/1000/harness/control.sock");
    }
}
