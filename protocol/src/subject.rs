//! Defines the things that refusals are about, for programs: a closed set of kinds, and the text of each thing on the
//! wire.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use crate::blob::BlobHash;
use crate::id::{CallId, InteractionId, ReliefId, RunId, Seq, SubscriptionId};

macro_rules! subjects {
    ($($(#[$doc:meta])+ $name:ident($thing:ty),)+) => {
        /// Kind of the thing that a refusal is about: what its text in `subject` is.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
        #[serde(rename_all = "kebab-case")]
        pub enum SubjectKind {
            $($(#[$doc])+ $name,)+
            /// The daemon is of another version, and has a kind that this program does not know.
            #[serde(other)]
            Other,
        }

        /// The thing that a refusal is about.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub enum Subject {
            $($(#[$doc])+ $name($thing),)+
        }

        impl Subject {
            /// The kind of the subject.
            pub const fn kind(&self) -> SubjectKind {
                match self {
                    $(Self::$name(_) => SubjectKind::$name,)+
                }
            }

            /// Its text on the wire.
            pub fn text(&self) -> String {
                match self {
                    $(Self::$name(thing) => thing.to_string(),)+
                }
            }

            /// The thing of this kind with this text; `None` for an unknown kind, and for a text that is none of such
            /// a thing.
            pub fn read(kind: SubjectKind, text: &str) -> Option<Self> {
                match kind {
                    $(SubjectKind::$name => text.parse().ok().map(Self::$name),)+
                    SubjectKind::Other => None,
                }
            }
        }

        #[cfg(test)]
        const KINDS: &[SubjectKind] = &[$(SubjectKind::$name),+];
    };
}

subjects! {
    /// A run, by its id.
    Run(RunId),
    /// The text by which a request names a run or an interaction.
    Name(String),
    /// An interaction, by its id.
    Interaction(InteractionId),
    /// A call, by its id.
    Call(CallId),
    /// A long text, by its hash.
    Text(BlobHash),
    /// An event, by its number.
    Event(Seq),
    /// A lane, by its name.
    Lane(String),
    /// A relief, by its id.
    Relief(ReliefId),
    /// A provider, by its name.
    Provider(String),
    /// A share, by its name.
    Share(String),
    /// The key of a label.
    Label(String),
    /// A field of the request.
    Field(String),
    /// A place in a script.
    ScriptPlace(String),
    /// Names of variables, separated by commas.
    Variables(String),
    /// A setting of the configuration, such as `limits.live_runs`.
    Setting(String),
    /// A path of the file system.
    Path(String),
    /// A user, by the user id.
    User(u32),
    /// A method of the protocol.
    Method(String),
    /// A kind of event.
    EventKind(String),
    /// A subscription of the connection, by its number.
    Subscription(SubscriptionId),
}

impl Subject {
    /// Most characters of a text that comes from a client: an error repeats no more of it.
    const MOST: usize = 80;

    /// So much of a client's text as an error repeats.
    pub fn short(text: &str) -> Cow<'_, str> {
        match text.char_indices().nth(Self::MOST) {
            Some((end, _)) => Cow::Owned(text[..end].to_owned()),
            None => Cow::Borrowed(text),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_subject_comes_back_from_its_kind_and_text() {
        for &kind in KINDS {
            let hash = "0d".repeat(32);
            let found = ["00000000000d7", "17", &hash, "a, b"].into_iter().find_map(|text| {
                let subject = Subject::read(kind, text)?;
                (subject.text() == text).then_some(subject)
            });
            assert_eq!(found.unwrap().kind(), kind);
            let written = serde_json::to_value(kind).unwrap();
            assert_eq!(serde_json::from_value::<SubjectKind>(written).unwrap(), kind);
        }
        assert_eq!(Subject::read(SubjectKind::Run, "no id!"), None);
        assert_eq!(serde_json::from_str::<SubjectKind>("\"a-kind-of-later\"").unwrap(), SubjectKind::Other);
        assert_eq!(Subject::read(SubjectKind::Other, "x"), None);
    }

    #[test]
    fn an_error_repeats_no_more_than_a_line_of_what_a_client_wrote() {
        for (characters, kept) in [(0, 0), (79, 79), (80, 80), (81, 80), (100_000, 80)] {
            let text = "é".repeat(characters);
            assert_eq!(Subject::short(&text).chars().count(), kept);
        }
    }
}
