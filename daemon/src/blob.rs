//! Texts that are stored once, and their names: which texts of an event have a name, and the form in which it stands
//! in their place.
//!
//! Pure. Owns the choice of these texts. An event in memory has both, text and name; the journal and subscribers have
//! the name alone ([`named_form`]). So a text that many runs share is written, sent and held once. Must not fetch a
//! text by its name, or store one: `journal/content` does.

use std::borrow::Cow;
use std::sync::Arc;

use harness_protocol::blob::{BlobHash, LONGEST_INLINE};
use harness_protocol::event::{EventBody, ToolDefinition};
use harness_protocol::script::Script;
use harness_protocol::spec::RunSpec;

/// The name of a text.
pub fn hash(text: &str) -> BlobHash {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref());
    BlobHash::new(bytes)
}

/// A text that an event names. What is no text is stored as its JSON.
#[derive(Debug, Clone, Copy)]
pub enum Text<'e> {
    /// The prompt of a run.
    Prompt(&'e Arc<str>),
    /// The script of a run.
    Script(&'e Arc<Script>),
    /// What the model of a run is told of tools.
    Tools(&'e Arc<[ToolDefinition]>),
}

impl Text<'_> {
    /// The text, as it is stored.
    ///
    /// # Errors
    /// If it has no form as JSON.
    pub fn written(&self) -> Result<Cow<'_, str>, serde_json::Error> {
        Ok(match self {
            Self::Prompt(text) => Cow::Borrowed(text),
            Self::Script(script) => Cow::Owned(serde_json::to_string(script)?),
            Self::Tools(tools) => Cow::Owned(serde_json::to_string(tools)?),
        })
    }

    /// Its name, if it is long. A short text is not hashed.
    fn name(&self) -> Option<Box<BlobHash>> {
        match self {
            Self::Prompt(text) if text.len() <= LONGEST_INLINE => return None,
            // As JSON it has fewer bytes, but for characters that JSON escapes.
            Self::Script(script) if script.approximate_bytes() <= LONGEST_INLINE => return None,
            Self::Prompt(_) | Self::Script(_) | Self::Tools(_) => {}
        }
        let written = self.written().ok()?;
        (written.len() > LONGEST_INLINE).then(|| Box::new(hash(&written)))
    }
}

/// Names the long texts of a specification that comes from outside: names that it has already count for nothing.
pub fn name_anew(spec: &mut RunSpec) {
    (spec.prompt_blob, spec.script_blob) = (None, None);
    name(spec);
}

/// Names the long texts of a specification that have no name yet.
pub fn name(spec: &mut RunSpec) {
    if spec.prompt_blob.is_none() {
        spec.prompt_blob = spec.prompt.as_ref().and_then(|prompt| Text::Prompt(prompt).name());
    }
    if spec.script_blob.is_none() {
        spec.script_blob = spec.script.as_ref().and_then(|script| Text::Script(script).name());
    }
}

/// The name of what models are told of tools, if that is long.
pub fn name_of_tools(tools: &Arc<[ToolDefinition]>) -> Option<Box<BlobHash>> {
    Text::Tools(tools).name()
}

/// The texts of an event that have a name.
pub fn named(body: &EventBody) -> impl Iterator<Item = (BlobHash, Text<'_>)> {
    all(body).into_iter().filter_map(|(name, text)| name.copied().zip(text))
}

/// The names of texts in an event, with its texts or in their place.
pub fn names(body: &EventBody) -> impl Iterator<Item = BlobHash> {
    all(body).into_iter().filter_map(|(name, _)| name.copied())
}

/// The places for texts that may have a name.
fn all(body: &EventBody) -> [(Option<&BlobHash>, Option<Text<'_>>); 2] {
    match body {
        EventBody::RunSubmitted { spec, .. } => [
            (spec.prompt_blob.as_deref(), spec.prompt.as_ref().map(Text::Prompt)),
            (spec.script_blob.as_deref(), spec.script.as_ref().map(Text::Script)),
        ],
        EventBody::RunPrepared { definitions, definitions_blob } => {
            [(definitions_blob.as_deref(), definitions.as_ref().map(Text::Tools)), (None, None)]
        }
        _ => [(None, None), (None, None)],
    }
}

/// The event as it is stored and shown, with names in the place of texts; `None` if none of its texts has a name.
pub fn named_form(body: &EventBody) -> Option<EventBody> {
    named(body).next()?;
    let mut body = body.clone();
    match &mut body {
        EventBody::RunSubmitted { spec, .. } => {
            let spec = Arc::make_mut(spec);
            spec.prompt.take_if(|_| spec.prompt_blob.is_some());
            spec.script.take_if(|_| spec.script_blob.is_some());
        }
        EventBody::RunPrepared { definitions, .. } => *definitions = None,
        _ => {}
    }
    Some(body)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn script(bytes: usize) -> Arc<Script> {
        Arc::new(toml::from_str(&format!("[[turn]]\ntext = '{}'", "x".repeat(bytes))).unwrap())
    }

    fn spec(prompt: usize, script_bytes: usize) -> RunSpec {
        RunSpec { prompt: Some("p".repeat(prompt).into()), script: Some(script(script_bytes)), ..RunSpec::default() }
    }

    fn submitted(spec: RunSpec) -> EventBody {
        EventBody::RunSubmitted {
            number: 1,
            owner: 7,
            parent: None,
            retry_of: None,
            continues: None,
            idempotency_key: None,
            submit_key: None,
            spec: Arc::new(spec),
            earlier: Arc::default(),
        }
    }

    #[test]
    fn a_name_is_the_sha_256_of_a_text() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(hash("").to_string(), empty);
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hash("abc").to_string(), abc);
    }

    #[test]
    fn long_texts_get_a_name_and_short_ones_stay_where_they_are() {
        let mut short = spec(LONGEST_INLINE, 10);
        name(&mut short);
        assert_eq!((&short.prompt_blob, &short.script_blob), (&None, &None));
        assert!(named_form(&submitted(short)).is_none());
        let mut long = spec(LONGEST_INLINE + 1, 2_000);
        name(&mut long);
        assert_eq!(long.prompt_blob.as_deref(), Some(&hash(long.prompt.as_ref().unwrap())));
        let json = serde_json::to_string(long.script.as_ref().unwrap()).unwrap();
        assert_eq!(long.script_blob.as_deref(), Some(&hash(&json)));
        let Some(EventBody::RunSubmitted { spec: shown, .. }) = named_form(&submitted(long.clone())) else { panic!() };
        let expected = RunSpec { prompt: None, script: None, ..long };
        assert_eq!(*shown, expected);
    }

    /// What a client says of names is not believed: it could read the texts of others under them.
    #[test]
    fn names_that_came_from_outside_count_for_nothing() {
        let wrong = Some(Box::new(hash("the secret of another run")));
        let named = RunSpec { prompt_blob: wrong.clone(), script_blob: wrong, ..RunSpec::default() };
        let mut without = named.clone();
        name_anew(&mut without);
        assert_eq!(without, RunSpec::default());
        let mut long = RunSpec { prompt: Some("p".repeat(2_000).into()), ..named };
        name_anew(&mut long);
        assert_eq!(long.prompt_blob.as_deref(), Some(&hash(long.prompt.as_ref().unwrap())));
        assert_eq!(long.script_blob, None);
    }
}
