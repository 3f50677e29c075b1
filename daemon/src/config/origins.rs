//! Where in the files the keys stand whose values can fail only when they are used: a group, a file of certificates.
//!
//! Must never know how they are used.

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
