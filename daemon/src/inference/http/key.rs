//! Reads API keys from their sources: an environment variable, a file or a systemd credential.
//!
//! A key is held in memory only. It must not be logged or shown. A provider may repeat it: `redact_keys` removes it
//! from what the provider says.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use harness_protocol::paths::NotUtf8;
use harness_protocol::time::Timestamp;

use crate::config::KeySource;
use crate::timed_read;

/// Bytes of the longest key.
const LONGEST: u64 = 64 * 1024;
/// What stands in a message in place of a key.
pub(super) const IN_ITS_PLACE: &str = "[key]";

/// Variables that the daemon was started with and that are no longer in its environment.
#[derive(Clone, Default)]
pub struct Variables(pub BTreeMap<String, OsString>);

impl fmt::Debug for Variables {
    /// Without the values.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

impl Variables {
    /// Whether it is there, and empty.
    fn is_empty(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| value.is_empty())
    }

    /// A variable that is there and not empty.
    ///
    /// # Errors
    /// Where it is no text.
    pub(super) fn get(&self, name: &str) -> Result<Option<&str>, NotUtf8> {
        match self.0.get(name).filter(|value| !value.is_empty()) {
            Some(value) => value.to_str().map(Some).ok_or_else(|| NotUtf8(name.to_owned())),
            None => Ok(None),
        }
    }
}

/// What clients have around them.
#[derive(Clone)]
pub struct Environment {
    /// Variables of the environment.
    pub variables: Variables,
    /// Where systemd put the credentials.
    pub credentials: Option<PathBuf>,
    /// The wall clock, for dates that providers give.
    pub now: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl Default for Environment {
    /// Nothing around, and a clock that stands still.
    fn default() -> Self {
        Self { variables: Variables::default(), credentials: None, now: Arc::new(Timestamp::default) }
    }
}

/// An API key. Its `Debug` output hides it.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(IN_ITS_PLACE)
    }
}

impl Secret {
    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn new(text: &str) -> Result<Self, &'static str> {
        let text = text.trim();
        if text.is_empty() {
            return Err("is empty");
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("is no key: it has other signs than ASCII letters, digits and punctuation");
        }
        Ok(Self(text.to_owned()))
    }
}

/// Reads a key from where it is.
pub(super) fn read(source: &KeySource, around: &Environment) -> Result<Secret, String> {
    match source {
        KeySource::Environment(name) => {
            let value = around.variables.get(name).map_err(|error| error.to_string())?.ok_or_else(|| {
                let was = if around.variables.is_empty(name) { "was empty in" } else { "was not in" };
                format!(
                    "{name} {was} the environment that the daemon was started with; set it and restart the \
                     daemon, or use api_key_file"
                )
            })?;
            Secret::new(value).map_err(|why| format!("{name} {why}"))
        }
        KeySource::File(path) => from_file(path),
        KeySource::Credential(name) => {
            let dir = around.credentials.as_deref().ok_or_else(|| {
                format!("there is no credential {name}: systemd passes none to this daemon (LoadCredential=)")
            })?;
            from_file(&dir.join(&**name))
        }
    }
}

fn from_file(path: &Path) -> Result<Secret, String> {
    match timed_read::read(path, LONGEST + 1) {
        Ok(text) if text.len() as u64 > LONGEST => Err(format!("{} is too large for a key", path.display())),
        Ok(text) => Secret::new(&String::from_utf8_lossy(&text)).map_err(|why| format!("{} {why}", path.display())),
        Err(error) => Err(format!("cannot read the key in {}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn around(variables: &[(&str, &str)], credentials: Option<&Path>) -> Environment {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        Environment {
            variables: Variables(variables),
            credentials: credentials.map(Path::to_owned),
            now: Arc::new(Timestamp::default),
        }
    }

    #[test]
    fn a_key_comes_from_the_environment_a_file_or_a_credential() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("k"), " sk-1\n").unwrap();
        let around = around(&[("K", "sk-2"), ("E", "")], Some(dir.path()));
        let key = |source: KeySource| read(&source, &around).map(|secret| secret.as_str().to_owned());
        assert_eq!(key(KeySource::File(dir.path().join("k"))).unwrap(), "sk-1");
        assert_eq!(key(KeySource::Credential("k".into())).unwrap(), "sk-1");
        assert_eq!(key(KeySource::Environment("K".into())).unwrap(), "sk-2");
        for (name, told) in [("E", "E was empty in the environment"), ("NONE", "NONE was not in the environment")] {
            let error = key(KeySource::Environment(name.into())).unwrap_err();
            assert!(error.starts_with(told), "{error}");
        }
        assert!(key(KeySource::File(dir.path().join("none"))).unwrap_err().contains("cannot read"));
    }

    /// A key that is not UTF-8 is reported as such, not as missing (entry B12).
    #[test]
    fn a_key_that_is_not_utf_8_is_not_told_to_be_missing() {
        use std::os::unix::ffi::OsStringExt;
        for bytes in [&b"sk-\xff"[..], b"\xc3", b"\x80key", b"key\xe2\x82", b"\xf0\x9f"] {
            let mut around = around(&[], None);
            around.variables.0.insert("K".to_owned(), OsString::from_vec(bytes.to_vec()));
            let error = read(&KeySource::Environment("K".into()), &around).unwrap_err();
            assert_eq!(error, "K is set, but its value is not UTF-8");
        }
    }

    #[test]
    fn what_cannot_be_a_key_is_told_without_showing_it() {
        let around = around(&[("K", "a b-s3cret")], None);
        let error = read(&KeySource::Environment("K".into()), &around).unwrap_err();
        assert!(error.starts_with("K is no key") && !error.contains("s3cret"), "{error}");
        assert!(read(&KeySource::Credential("k".into()), &around).unwrap_err().contains("LoadCredential"));
        assert!(!format!("{:?}", around.variables).contains("s3cret"));
        assert!(!format!("{:?}", Secret::new("s3cret")).contains("s3cret"));
    }
}
