//! Remembers where in the files a key stands whose value can fail only later, such as a group or a file of
//! certificates, so that the error names file and line. It must not use the value.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::toml_reader::Place;

/// Files and lines of such keys.
#[derive(Debug, Clone, Default)]
pub struct Origins(BTreeMap<String, (PathBuf, usize)>);

impl Origins {
    /// Notes where `key` stands. Of a key that several files have, the last one counts.
    pub(super) fn note(&mut self, key: impl Into<String>, place: &Place) {
        self.0.insert(key.into(), (place.file.to_path_buf(), place.line));
    }

    /// The file and the line, from 1, of `key`, such as `provider.local.ca_file`, or of the table that it belongs to.
    pub fn of(&self, key: &str) -> Option<(PathBuf, usize)> {
        let table = || self.0.get(key.rsplit_once('.')?.0);
        self.0.get(key).or_else(table).cloned()
    }
}
