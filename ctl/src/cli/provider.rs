//! Defines the arguments of `provider` and `doctor`.

use clap::{Args, Subcommand};

/// Arguments of `provider`.
#[derive(Debug, Args)]
pub(crate) struct ProviderArgs {
    #[command(subcommand)]
    pub(crate) what: ProviderVerb,
}

/// Views and checks of providers.
#[derive(Debug, Subcommand)]
pub(crate) enum ProviderVerb {
    /// List the providers, their configuration and their state
    #[command(visible_alias = "ls", after_help = "Example: harnessctl provider list --json")]
    List,
    /// Check that a provider is reachable and that key and model are valid. A success ends a hold of its lane
    #[command(after_help = "Example: harnessctl provider check local")]
    Check(CheckArgs),
}

/// Arguments of `provider check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The provider; all providers if left out
    pub(crate) provider: Option<String>,
    /// The model to ask for, instead of the configured one
    #[arg(long)]
    pub(crate) model: Option<String>,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Only this provider; all providers if left out
    pub(crate) provider: Option<String>,
}
