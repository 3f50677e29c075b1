//! `provider.check`: sends a short request to providers, and reports to the world which of them answered; the world
//! then closes the circuit breakers of these.

use std::sync::Arc;

use harness_protocol::rpc::{ProviderCheck, ProviderCheckParams, ProviderChecks};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::request::{Request, Wanted};
use super::services::Services;
use crate::refusal::{Fault, NameRefusal, Refusal};
use crate::world::api::Command;

/// Checks one provider, or all of them at the same time.
pub(super) async fn check(
    uid: u32,
    services: &Services,
    params: ProviderCheckParams,
) -> Result<ProviderChecks, Refusal> {
    let names: Vec<Arc<str>> = match params.provider {
        Some(name) => vec![name],
        None => (services.list_providers)().into_iter().map(|provider| provider.name).collect(),
    };
    let mut running = JoinSet::new();
    for name in names {
        let check = (services.check_provider)(Arc::clone(&name), params.model.clone());
        running.spawn(async move { check.await.ok_or(name) });
    }
    let mut checks: Vec<ProviderCheck> = Vec::new();
    while let Some(done) = running.join_next().await {
        match done {
            Ok(Ok(check)) => checks.push(check),
            Ok(Err(name)) => {
                let known = (services.list_providers)().into_iter().map(|provider| provider.name).collect();
                return Err(NameRefusal::NoProvider { provider: name.to_string(), known }.into());
            }
            Err(_) => return Err(Fault::CheckLost.into()),
        }
    }
    checks.sort_by(|one, other| one.provider.cmp(&other.provider));
    for check in checks.iter().filter(|check| check.ok) {
        let (tell, told) = oneshot::channel();
        let wanted = Wanted::Own(Command::Release(Arc::clone(&check.provider)), tell);
        services.inbox.put(Request::own(uid, wanted)).await;
        // The answer does not depend on whether a breaker was open.
        let _ = told.await;
    }
    Ok(ProviderChecks { checks })
}
