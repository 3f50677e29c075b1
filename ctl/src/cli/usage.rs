//! Defines the arguments of `usage`.

use std::fmt;
use std::str::FromStr;

use clap::Args;
use harness_protocol::time::Span;

use super::select::SelectArgs;
use super::values::duration;

/// Arguments of `usage`.
#[derive(Debug, Args)]
pub(crate) struct UsageArgs {
    #[command(flatten)]
    pub(crate) select: SelectArgs,
    /// Groups: label.KEY, provider, model, share, state, owner or day (of the submit, in UTC); separated by commas
    #[arg(long, value_name = "WHAT", default_value = "provider", value_delimiter = ',')]
    pub(crate) by: Vec<By>,
    /// Only runs submitted within this time: 12h, 30d
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub(crate) since: Option<Span>,
}

/// What runs are grouped by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum By {
    /// The value of a label.
    Label(String),
    /// The provider that they ask.
    Provider,
    /// The model that they ask.
    Model,
    /// Their share of the lanes.
    Share,
    /// Their present state.
    State,
    /// The user who submitted them.
    Owner,
    /// The day on which they were submitted, in UTC.
    Day,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Label(key) => write!(f, "label.{key}"),
            Self::Provider => f.write_str("provider"),
            Self::Model => f.write_str("model"),
            Self::Share => f.write_str("share"),
            Self::State => f.write_str("state"),
            Self::Owner => f.write_str("owner"),
            Self::Day => f.write_str("day"),
        }
    }
}

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "provider" => Self::Provider,
            "model" => Self::Model,
            "share" => Self::Share,
            "state" => Self::State,
            "owner" => Self::Owner,
            "day" => Self::Day,
            _ => match text.strip_prefix("label.").filter(|key| !key.is_empty()) {
                Some(key) => Self::Label(key.to_owned()),
                None => return Err("groups are label.KEY, provider, model, share, state, owner and day".to_owned()),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_written_group_reads_back() {
        for text in ["label.team", "provider", "model", "share", "state", "owner", "day"] {
            assert_eq!(text.parse::<By>().unwrap().to_string(), text);
        }
        assert!("label.".parse::<By>().is_err() && "team".parse::<By>().is_err());
    }
}
