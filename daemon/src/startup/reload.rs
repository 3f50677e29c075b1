//! Prepares a reload: reads and checks everything that a new configuration needs, and gives the driver a value that
//! puts it in force.
//!
//! The only place with the list of the parts, outside of the world, that take over a configuration. What can fail or
//! may block for long is done here, and changes nothing yet. One thing can still fail when the value is put in force:
//! the mode and the group of the socket file, which is only logged.

use std::path::Path;
use std::sync::Arc;

use tracing::warn;

use crate::config::{Config, ConfigSource, Loaded, Origins, ReloadError};
use crate::control::socket::listener::Listener;
use crate::control::socket::peer::{GroupError, Members};
use crate::driver::{Prepare, Prepared};
use crate::inference::http::Providers;
use crate::timed_read;

/// The key of the group that may use the socket.
const GROUP: &str = "control.group";

/// Prepares reloads from `source` for the listener and for the clients of the providers.
pub(super) fn preparing(source: ConfigSource, listener: Arc<Listener>, providers: Arc<Providers>) -> Prepare {
    Arc::new(move || {
        let Loaded { config, files, origins } = source.load()?;
        let clients = providers
            .prepare(&config)
            .map_err(|error| ReloadError::Unusable { at: origins.of(&error.key()), what: error.to_string() })?;
        let members = members(&config, &origins, &listener)?;
        let warnings: Vec<_> = clients.without_keys().map(|(name, why)| no_key(name, &why)).collect();
        let (listener, providers) = (Arc::clone(&listener), Arc::clone(&providers));
        let connections = config.limits.connections;
        let put_in_force = Box::new(move || {
            providers.put_in_force(clients);
            listener.allow(connections);
            if let Err(error) = listener.set_members(members) {
                warn!(%error, "the socket file keeps its mode and its group");
            }
        });
        Ok(Prepared { config, files, warnings, put_in_force })
    })
}

/// In words: a provider cannot be asked, because its key cannot be read.
pub(super) fn no_key(provider: &str, why: &str) -> String {
    format!("provider {provider} has no key: {why}")
}

/// Looks up who may connect. The group database may be asked over a network.
fn members(config: &Config, origins: &Origins, listener: &Arc<Listener>) -> Result<Option<Members>, ReloadError> {
    let at = || origins.of(GROUP);
    let (group, listener) = (config.control.group.clone(), Arc::clone(listener));
    let name = group.as_ref().map_or_else(|| "of the socket".to_owned(), |name| format!("{name:?}"));
    let looked_up = timed_read::within(Path::new(GROUP), timed_read::PATIENCE, move || match group {
        Some(name) => Members::of_group(&name).and_then(|members| listener.can_be_given(&name, members)).map(Some),
        None => Ok(listener.members_of_file()),
    });
    match looked_up {
        Err(_) => Err(ReloadError::Silent { at: at(), what: format!("the look-up of the group {name}") }),
        Ok(found) => {
            found.map_err(|error: GroupError| ReloadError::Unusable { at: at(), what: format!("`{GROUP}`: {error}") })
        }
    }
}
