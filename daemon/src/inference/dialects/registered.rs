//! Lists the dialects, a line each. No other code distinguishes them.

use super::*;
use crate::config::Dialects;

dialects! {
    /// OpenAI's Chat Completions API, and the servers with a similar API.
    OpenAi(openai_chat::OpenAiChat),
    /// OpenAI's Responses API.
    Responses(openai_responses::OpenAiResponses),
    /// Anthropic's Messages API.
    Anthropic(anthropic::Anthropic),
}

/// A dialect, as it is called by requests. Its reader is called by its own type, so that an event costs no more for
/// there being several dialects.
pub(super) struct Registered {
    pub(super) rules: &'static DialectRules,
    pub(super) path: &'static str,
    pub(super) headers: &'static [(&'static str, &'static str)],
    pub(super) auth: fn(&str) -> (&'static str, String),
    pub(super) body: Body,
    pub(super) reader: fn(Quirks) -> AnyReader,
    pub(super) plain: fn(&str, Quirks) -> Result<Completion, InferenceError>,
    pub(super) refusal: Refusal,
}

type Refusal = fn(u16, &[(&str, &str)], &str, Timestamp) -> InferenceError;
type Body = fn(&Settings, &Prompt, &[ToolSpec], &[Box<RawValue>]) -> Result<Vec<u8>, serde_json::Error>;

/// Makes of the list the dialects by name, and the readers by type.
macro_rules! dialects {
    ($($(#[$doc:meta])* $name:ident($dialect:ty),)+) => {
        /// Dialects that go over HTTP.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum HttpDialect {
            $($(#[$doc])* $name,)+
        }

        impl HttpDialect {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name),+];
            /// What may be configured of each.
            pub const CONFIGURED: Dialects = &[$(&<$dialect as Dialect>::RULES),+];

            pub(super) const fn registered(self) -> &'static Registered {
                match self {
                    $(Self::$name => &Registered {
                        rules: &<$dialect as Dialect>::RULES,
                        path: <$dialect as Dialect>::PATH,
                        headers: <$dialect as Dialect>::HEADERS,
                        auth: <$dialect as Dialect>::auth,
                        body: <$dialect as Dialect>::body,
                        reader: |quirks| AnyReader::$name(Box::new(<$dialect as Dialect>::reader(quirks))),
                        plain: <$dialect as Dialect>::plain,
                        refusal: <$dialect as Dialect>::refusal,
                    },)+
                }
            }
        }

        /// The reader of one of them.
        #[derive(Debug)]
        pub(super) enum AnyReader {
            $($name(Box<<$dialect as Dialect>::Reader>),)+
        }

        impl AnyReader {
            pub(super) fn event(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
                match self {
                    $(Self::$name(reader) => {
                        if before_reading::<$dialect>(reader, name, data)? {
                            Ok(())
                        } else {
                            reader.event(name, data, show)
                        }
                    })+
                }
            }

            #[cfg(test)]
            pub(super) fn any(&mut self, name: &str, data: &str, show: Show<'_>) -> Result<(), InferenceError> {
                match self {
                    $(Self::$name(reader) => {
                        if before_reading::<$dialect>(reader, name, data)? {
                            Ok(())
                        } else {
                            reader.any(name, data, show)
                        }
                    })+
                }
            }

            pub(super) fn get(&self) -> &dyn ReadAnswer {
                match self { $(Self::$name(reader) => &**reader,)+ }
            }

            pub(super) fn get_mut(&mut self) -> &mut dyn ReadAnswer {
                match self { $(Self::$name(reader) => &mut **reader,)+ }
            }

            pub(super) fn finish(self, ended: Ended) -> Result<Completion, InferenceError> {
                match self { $(Self::$name(reader) => reader.finish(ended),)+ }
            }
        }
    };
}
use dialects;
