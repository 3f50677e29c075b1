//! `harnessd`: a daemon that runs LLM agents. This page is the table of contents, from the ground up.
#![forbid(unsafe_code)]

pub mod catalogue;
pub mod config;
pub mod control;
pub mod driver;
pub mod feed;
pub mod inbox;
pub mod journal;
pub mod lane;
pub mod observe;
pub mod prompt;
pub mod world;

pub mod cli;
pub mod detach;
pub mod signals;

use std::path::PathBuf;
use std::time::Duration;

use tracing::{error, info};

use config::{Config, ConfigSource, LoadError};
use control::listener::Listener;
use control::lock::StateDir;
use control::peer::Members;
use detach::Inherited;
use observe::notify::Notifier;
use signals::{Asked, Signals};

/// What a daemon has once it is set up: everything of the system that it needs, and nothing of what it does.
#[derive(Debug)]
pub struct Setup {
    /// The configuration.
    pub config: Config,
    /// Where it came from, to be read again.
    pub config_source: ConfigSource,
    /// The open door. The journal is not replayed yet: connections wait until they are accepted.
    pub listener: Listener,
    // After the listener: whoever gets this lock finds the socket gone.
    /// The state directory, locked.
    pub state_dir: StateDir,
    /// SIGTERM, SIGINT, SIGHUP.
    pub signals: Signals,
    /// The line to systemd.
    pub notifier: Notifier,
    /// What tools get back.
    pub inherited: Inherited,
    /// Somebody who started us on demand waits to hear that we serve.
    pub on_demand: bool,
}

impl Setup {
    /// Tells whoever waits for it that we serve. Once.
    pub fn ready(&mut self, status: &str) {
        self.notifier.ready(status);
        if std::mem::take(&mut self.on_demand)
            && let Err(error) = detach::leave_streams()
        {
            error!(%error, "the standard streams stay as they are");
        }
    }

    /// Reads the configuration again and gives what concerns the door to it. What was before stays when something is wrong.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn reload(&mut self) -> Result<(), LoadError> {
        let config = self.config_source.load()?;
        self.listener.allow(config.limits.connections);
        if config.control.group != self.config.control.group {
            match config.control.group.as_deref().map(Members::of_group).transpose() {
                Ok(members) => self.listener.set_members(members),
                Err(error) => error!(%error, "who may connect stays as it is"),
            }
        }
        self.config = config;
        Ok(())
    }
}

/// Serves until it is told to stop.
pub async fn serve(mut setup: Setup) {
    let socket: PathBuf = setup.listener.path().to_path_buf();
    info!(socket = %socket.display(), state_dir = %setup.state_dir.path().display(), "serving");
    setup.ready("serving");
    let mut watchdog = tokio::time::interval(setup.notifier.watchdog().unwrap_or(Duration::from_secs(3600)));
    loop {
        tokio::select! {
            accepted = setup.listener.accept() => drop(accepted),
            _ = watchdog.tick(), if setup.notifier.watchdog().is_some() => setup.notifier.alive(),
            asked = setup.signals.next() => match asked {
                Asked::Reload => {
                    setup.notifier.reloading();
                    match setup.reload() {
                        Ok(()) => info!("the configuration was read again"),
                        Err(error) => error!(%error, "the configuration stays as it was"),
                    }
                    setup.notifier.ready("serving");
                }
                Asked::Stop => break,
            },
        }
    }
    info!("stopping");
    setup.notifier.stopping("stopping");
}
