//! Parses the command line of `harnessd`, and derives the paths of the state directory, the socket and the
//! configuration.
//!
//! The environment is read by the rules of `harness_protocol`, which clients share. It must not read a file.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use clap::Parser;
pub use harness_protocol::paths::NotUtf8;
use harness_protocol::paths::{ConfigPlaces, Environment, Variables};

use crate::config::ConfigSource;
use crate::inference::dialects::HttpDialect;
use crate::observe::log::Filter;

/// Runs LLM agents, and bounds how many of their tool batches execute at once.
#[derive(Debug, Parser)]
#[command(name = "harnessd", version, about, max_term_width = 100)]
pub struct Cli {
    /// Socket to serve [default: $HARNESS_SOCKET, or harness/control.sock in the runtime directory]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Directory for all files that are kept [default: $HARNESS_STATE_DIR, or ~/.local/state/harness]
    #[arg(long, value_name = "DIR")]
    pub state_dir: Option<PathBuf>,
    /// Configuration file; conf.d/*.toml beside it is read, too [default: $HARNESS_CONFIG, or harness/config.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Leave the terminal, log to a file in the state directory, print each step of the start, and then `ready`
    #[arg(long)]
    pub on_demand: bool,
    /// What to log: off, error, warn, info, debug, trace, or targets such as `harnessd::driver=debug`
    #[arg(long, value_name = "LEVEL", env = "HARNESS_LOG", default_value = "info")]
    pub log: Filter,
    /// A task instead of serving
    #[command(subcommand)]
    pub verb: Option<Verb>,
}

/// Tasks that need no daemon.
#[derive(Debug, Clone, PartialEq, Eq, clap::Subcommand)]
pub enum Verb {
    /// Replace the journal by a backup; the old journal is moved into a directory of its own
    Restore {
        /// The backup, made by `harnessctl daemon backup`
        file: PathBuf,
        /// Only check whether it can be put in place; a daemon may serve meanwhile
        #[arg(long)]
        check: bool,
    },
    /// Copy the readable part of a damaged journal into a new journal
    Salvage {
        /// The damaged journal
        from: PathBuf,
        /// The new journal; the file must not exist
        to: PathBuf,
    },
}

/// The paths of the daemon, all absolute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Paths {
    /// The control socket.
    pub socket: PathBuf,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Where the main configuration file may be, and whether it must exist.
    pub config: ConfigSource,
}

/// Variables that are needed to read the command line.
const READ_FIRST: &[&str] = &["HARNESS_LOG"];

/// Checks that the variables that are needed to read the command line can be read.
///
/// # Errors
/// The first variable that cannot.
pub fn readable(var: &dyn Fn(&str) -> Option<OsString>) -> Result<(), NotUtf8> {
    let variables = Variables::new(var);
    READ_FIRST.iter().for_each(|name| drop(variables.get(name)));
    variables.all_were_readable()
}

impl Cli {
    /// The paths, from the options and from the environment of this process.
    ///
    /// # Errors
    /// If a variable for one of them is not UTF-8, or if the current directory is needed and gone.
    pub fn paths(&self) -> anyhow::Result<Paths> {
        let var = |name: &str| std::env::var_os(name);
        let variables = Variables::new(&var);
        let paths = self.paths_in(&Environment {
            var: &|name| variables.get(name),
            uid: nix::unistd::geteuid().as_raw(),
            exists: &|path| path.symlink_metadata().is_ok(),
        });
        variables.all_were_readable()?;
        Ok(paths?)
    }

    fn paths_in(&self, environment: &Environment<'_>) -> io::Result<Paths> {
        let absolute = |path: &Path| std::path::absolute(path);
        let config = match &self.config {
            Some(path) => ConfigPlaces { files: vec![path.clone()], named: true },
            None => environment.config(),
        };
        let places = config.files.iter().map(|path| absolute(path)).collect::<io::Result<_>>()?;
        Ok(Paths {
            socket: absolute(&self.socket.clone().unwrap_or_else(|| environment.socket()))?,
            state_dir: absolute(&self.state_dir.clone().unwrap_or_else(|| environment.state_dir()))?,
            config: ConfigSource { places, required: config.named, dialects: HttpDialect::CONFIGURED },
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn paths(args: &[&str], vars: &[(&str, &str)]) -> Paths {
        let cli = Cli::try_parse_from(std::iter::once("harnessd").chain(args.iter().copied())).unwrap();
        let var = |name: &str| vars.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned());
        cli.paths_in(&Environment { var: &var, uid: 1000, exists: &|_| false }).unwrap()
    }

    #[test]
    fn options_go_before_the_environment() {
        let vars = [("HARNESS_SOCKET", "/e.sock"), ("HARNESS_STATE_DIR", "/e"), ("HARNESS_CONFIG", "/e.toml")];
        let found = paths(&["--socket", "/o.sock", "--state-dir", "/o", "--config", "/o.toml"], &vars);
        let config = ConfigSource { places: vec!["/o.toml".into()], required: true, dialects: HttpDialect::CONFIGURED };
        assert_eq!(found, Paths { socket: "/o.sock".into(), state_dir: "/o".into(), config });
        let found = paths(&[], &vars);
        let config = ConfigSource { places: vec!["/e.toml".into()], required: true, dialects: HttpDialect::CONFIGURED };
        assert_eq!(found, Paths { socket: "/e.sock".into(), state_dir: "/e".into(), config });
    }

    #[test]
    fn a_configuration_that_nobody_named_need_not_be_there() {
        let places = |user: Option<&str>| ConfigSource {
            places: user.into_iter().chain(["/etc/harness/config.toml"]).map(Into::into).collect(),
            required: false,
            dialects: HttpDialect::CONFIGURED,
        };
        assert_eq!(paths(&[], &[]).config, places(None));
        assert_eq!(paths(&[], &[("HARNESS_CONFIG", "")]).config, places(None));
        let home = ("HOME", "/h");
        assert_eq!(paths(&[], &[home]).config, places(Some("/h/.config/harness/config.toml")));
        assert_eq!(paths(&[], &[home, ("XDG_CONFIG_HOME", "/x")]).config, places(Some("/x/harness/config.toml")));
        assert_eq!(paths(&[], &[home, ("XDG_CONFIG_HOME", "/etc")]).config, places(None));
    }

    /// A variable whose value is not UTF-8 is reported by name (entry B12).
    #[test]
    fn a_variable_that_is_not_utf_8_is_named() {
        use std::os::unix::ffi::OsStringExt;
        for bytes in [&b"\xff"[..], b"/a\xc3", b"\xed\xa0\x80", b"info\x80", b"\xf5"] {
            let var = |name: &str| (name == "HARNESS_LOG").then(|| OsString::from_vec(bytes.to_vec()));
            let told = readable(&var).unwrap_err().to_string();
            assert_eq!(told, "HARNESS_LOG is set, but its value is not UTF-8");
        }
        assert!(readable(&|_| None).is_ok() && readable(&|_| Some("info".into())).is_ok());
    }

    #[test]
    fn relative_paths_are_those_of_the_caller() {
        let here = std::env::current_dir().unwrap();
        assert_eq!(paths(&["--socket", "a/b.sock"], &[]).socket, here.join("a/b.sock"));
    }

    #[test]
    fn a_log_level_that_is_none_is_refused() {
        let parse = |level| Cli::try_parse_from(["harnessd", "--log", level]);
        assert!(parse("warn").is_ok() && parse("info,harnessd::driver=debug").is_ok());
        assert!(parse("loud").is_err());
    }
}
