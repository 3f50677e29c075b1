//! Defines the errors of a reload. After such an error nothing has changed.

use std::path::PathBuf;

use super::LoadError;

/// Why a configuration cannot be put in force. The one before it stays as it is, in every part.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// A file cannot be read, or is wrong.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The files are right, and name something that cannot be used: a group that does not exist, a file of
    /// certificates.
    #[error("{}{what}", at.as_ref().map(|(file, line)| format!("{}:{line}: ", file.display())).unwrap_or_default())]
    Unusable {
        /// The file and the line, from 1, that name it.
        at: Option<(PathBuf, usize)>,
        /// What cannot be used, and why.
        what: String,
    },
    /// A look-up did not end in time, and may never end.
    #[error(
        "{}{what} gave no answer in time",
        at.as_ref().map(|(file, line)| format!("{}:{line}: ", file.display())).unwrap_or_default()
    )]
    Silent {
        /// The file and the line, from 1, that need it.
        at: Option<(PathBuf, usize)>,
        /// What was looked up.
        what: String,
    },
    /// The work was never finished.
    #[error("internal error (bug): the configuration was not read to its end; see the log")]
    Fault,
}
