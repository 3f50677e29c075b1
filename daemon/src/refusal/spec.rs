//! Defines the refusals of specifications, and of the texts that come with other requests.

use std::fmt;
use std::sync::Arc;

use harness_protocol::id::RunId;
use harness_protocol::json_size::quoted;
use harness_protocol::limit::CallLimit;
use harness_protocol::rpc::Reason;
use harness_protocol::variable::VariableError;

use super::{listed, shown};

/// Why a specification, or a text, cannot be taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpecRefusal {
    /// A text has too many bytes as JSON.
    #[error("{text} has {bytes} bytes as JSON; at most {most} are taken (limits.text_bytes)")]
    TextTooLarge {
        /// The text that is too large.
        text: Text,
        /// Its size as JSON, in bytes.
        bytes: usize,
        /// The configured bound, in bytes.
        most: u32,
    },
    /// A text has too many bytes.
    #[error("{text} has {bytes} bytes; at most {most} are taken")]
    TooLong {
        /// The text that is too long.
        text: Text,
        /// Its size in bytes.
        bytes: usize,
        /// The bound, in bytes.
        most: usize,
    },
    /// The specification as a whole does not fit into its event.
    #[error("the specification takes {bytes} bytes as JSON; at most {most} are taken")]
    SpecTooLarge {
        /// Its size as JSON, in bytes.
        bytes: usize,
        /// The bound, in bytes.
        most: usize,
    },
    /// A text has a character that cannot be shown as it is.
    #[error(
        "{text} has the character U+{:04X}: no control characters, no changes of direction, nothing invisible",
        u32::from(*.character)
    )]
    Character {
        /// The text that has the character.
        text: Text,
        /// The first such character.
        character: char,
    },
    /// A text is empty.
    #[error("{text} is empty")]
    Empty {
        /// The text that is empty.
        text: Text,
    },
    /// There is neither a prompt nor a script.
    #[error("a run needs a prompt, or a script")]
    NoPrompt,
    /// The name is a whole id.
    #[error("{name:?} is an id, and cannot be a name")]
    NameIsId {
        /// The name that was wanted.
        name: String,
    },
    /// The name is the beginning of the id of a run.
    #[error("{name:?} is the beginning of the id of run {run}, and cannot be a name")]
    NameBeginsId {
        /// The name that was wanted.
        name: String,
        /// The run; to a caller inside a run, one of its tree.
        run: RunId,
    },
    /// The name has characters that no name has, or too many.
    #[error(
        "{} cannot be a name: 1 to 63 letters, digits, dots, dashes and underscores, the first a letter or digit",
        shown(.name)
    )]
    NameForm {
        /// The name that was wanted.
        name: String,
    },
    /// There are too many labels.
    #[error("a run has at most {most} labels")]
    TooManyLabels {
        /// Most labels of a run.
        most: usize,
    },
    /// A label has a key or a value that no label has.
    #[error("the label {} does not do: keys have 1 to 63 bytes without '=' and ',', values at most 255", shown(.key))]
    Label {
        /// The key of the label.
        key: String,
    },
    /// A limit on steps or tokens is 0.
    #[error("a limit on steps or tokens is at least 1")]
    NoSteps {
        /// The field of the limit.
        field: &'static str,
    },
    /// A limit on time is 0.
    #[error("a limit on time is more than 0 seconds")]
    NoTime {
        /// The field of the limit.
        field: &'static str,
    },
    /// The limit on cost is no amount.
    #[error("a limit on cost is a number of USD, more than 0")]
    Cost,
    /// A limit of calls is out of its bounds.
    #[error("the limit {} is a number from {} to {}", .limit.name(), .limit.bounds().start(), .limit.bounds().end())]
    CallLimit {
        /// The limit that is out of bounds.
        limit: CallLimit,
    },
    /// The deadline has passed.
    #[error("its deadline has passed already")]
    DeadlinePassed,
    /// No such share is configured.
    #[error("no share {} is configured; there are: {}", quoted(.share), listed(.known))]
    NoShare {
        /// The share that was asked for.
        share: String,
        /// Those that are configured.
        known: Vec<Arc<str>>,
    },
    /// A run inside another one asks for another share than that run has.
    #[error(
        "a run inside another one is of that one's share, {}; it cannot be of {}",
        quoted(.of_parent), quoted(.share)
    )]
    OtherShare {
        /// The share that was asked for.
        share: String,
        /// The share of the run above.
        of_parent: String,
    },
    /// No such provider is configured.
    #[error("no provider {} is configured; there are: {}", quoted(.provider), listed(.known))]
    NoProvider {
        /// The provider that was asked for.
        provider: String,
        /// Those that are configured.
        known: Vec<Arc<str>>,
    },
    /// There is no such tool.
    #[error("there is no tool {}; there are: {}", quoted(.tool), listed(.known))]
    NoTool {
        /// The tool that was asked for.
        tool: String,
        /// Those that there are.
        known: Vec<Arc<str>>,
    },
    /// The provider plays scripts, and there is none.
    #[error("the provider {provider:?} is scripted: give it a script (--script FILE)")]
    NoScript {
        /// The provider that plays scripts.
        provider: Arc<str>,
    },
    /// No model is named.
    #[error("no model is named: --model, or `model` in [provider.{provider}]")]
    NoModel {
        /// The provider, which has none of its own.
        provider: Arc<str>,
    },
    /// A limit on cost cannot be kept without a price.
    #[error(
        "the provider {provider:?} has no price{}, so --max-cost cannot be kept; set `price` in [provider.{provider}]",
        .model.as_deref().map(|model| format!(" for the model {model:?}")).unwrap_or_default()
    )]
    NoPrice {
        /// The provider that has no price.
        provider: Arc<str>,
        /// The model, where one is chosen.
        model: Option<Arc<str>>,
    },
    /// The same for a provider that may stand in.
    #[error("the provider {fallback:?}, which stands in for {provider:?}, has no price, so --max-cost cannot be kept")]
    NoPriceOfFallback {
        /// The provider of the run.
        provider: Arc<str>,
        /// The provider that may stand in.
        fallback: Arc<str>,
    },
    /// The path of the working directory is not absolute.
    #[error("the working directory {} is not absolute", quoted(.path))]
    WorkdirNotAbsolute {
        /// The path, as the client gave it.
        path: String,
    },
    /// A variable cannot be taken.
    #[error(transparent)]
    Variable(#[from] VariableError),
    /// A script cannot be played.
    #[error("{place}: {fault}")]
    Script {
        /// Which kind of fault it is.
        reason: Reason,
        /// The place in the script.
        place: String,
        /// What is wrong there, as the checker of scripts says.
        fault: String,
    },
}

/// A text that a client gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Text {
    /// The prompt of a run.
    Prompt,
    /// A message to a run.
    Message,
    /// The answer to a question.
    Answer,
    /// The idempotency key of a submit.
    IdempotencyKey,
    /// The name of a run.
    Name,
    /// The name of a share.
    Share,
    /// The name of a model.
    Model,
    /// The name of a model, where its size is meant.
    ModelName,
    /// The name of a provider.
    Provider,
    /// The path of a working directory.
    Workdir,
    /// The key of a label.
    LabelKey,
    /// The value of the label with this key.
    LabelValue(String),
}

impl Text {
    /// The field of the request that has it.
    pub const fn field(&self) -> &'static str {
        match self {
            Self::Prompt => "prompt",
            Self::Message => "text",
            Self::Answer => "answer",
            Self::IdempotencyKey => "idempotency_key",
            Self::Name => "name",
            Self::Share => "share",
            Self::Model | Self::ModelName => "model",
            Self::Provider => "provider",
            Self::Workdir => "workdir",
            Self::LabelKey | Self::LabelValue(_) => "labels",
        }
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Prompt => "the prompt",
            Self::Message => "the message",
            Self::Answer => "the answer",
            Self::IdempotencyKey => "the idempotency key",
            Self::Name => "the name",
            Self::Share => "the share",
            Self::Model => "the model",
            Self::ModelName => "the name of the model",
            Self::Provider => "the provider",
            Self::Workdir => "the working directory",
            Self::LabelKey => "a label",
            Self::LabelValue(key) => return write!(f, "the value of the label {}", quoted(key)),
        })
    }
}
