//! Finds and reads the files of the configuration.
//!
//! The only part of the configuration that reads files. Must never interpret their contents.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use harness_files::{Opening, open_regular};

use super::{Config, ConfigError, Dialects};

/// Largest file that is read.
const LARGEST_FILE: u64 = 1024 * 1024;
/// The directory of the parts, beside the main file.
const PARTS: &str = "conf.d";
/// Most files of `conf.d`.
const MOST_FILES: usize = 1000;

/// The source of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSource {
    /// The main file; `conf.d` lies beside it.
    pub path: PathBuf,
    /// Whether the file must exist: its path was given explicitly.
    pub required: bool,
    /// The dialects that its providers may speak, beside `scripted`.
    pub dialects: Dialects,
}

impl ConfigSource {
    /// Reads and checks all files, for a start or a reload.
    ///
    /// # Errors
    /// If a file cannot be read, or has a problem.
    pub fn load(&self) -> Result<Config, LoadError> {
        Ok(Config::load(&read_files(&self.path, self.required)?, self.dialects)?)
    }

    /// The part that exists: the main file, or else the directory of parts; `None` if neither does.
    pub fn there(&self) -> Option<PathBuf> {
        let parts = self.path.with_file_name(PARTS);
        [self.path.clone(), parts].into_iter().find(|path| path.exists())
    }
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A file has a problem.
    #[error(transparent)]
    Wrong(#[from] ConfigError),
}

/// A file that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the configuration {}: {source}", path.display())]
pub struct ReadError {
    /// The file or directory that cannot be read.
    pub path: PathBuf,
    /// The error of the operating system.
    pub source: io::Error,
}

/// The texts of the main file and of `conf.d/*.toml` beside it, in the order in which they apply. A missing main file
/// counts as empty, unless it is `required`.
///
/// # Errors
/// If a file or directory exists and cannot be read.
pub fn read_files(path: &Path, required: bool) -> Result<Vec<(PathBuf, String)>, ReadError> {
    let mut files = Vec::new();
    match read(path) {
        Ok(text) => files.push((path.to_path_buf(), text)),
        Err(source) if !required && is_absent(path, &source) => {}
        Err(source) => return Err(ReadError { path: path.to_path_buf(), source }),
    }
    let dir = path.with_file_name(PARTS);
    let parts = list(&dir).map_err(|source| ReadError { path: dir, source })?;
    for path in parts {
        let text = read(&path).map_err(|source| ReadError { path: path.clone(), source })?;
        files.push((path, text));
    }
    Ok(files)
}

/// Whether nothing of that name exists. A link to a missing file, and a file in the place of a directory, do exist.
fn is_absent(path: &Path, error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) && path.symlink_metadata().is_err()
}

fn list(dir: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if is_absent(dir, &error) => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|extension| extension == "toml") {
            paths.push(path);
        }
        if paths.len() > MOST_FILES {
            return Err(io::Error::other(format!("more than {MOST_FILES} files")));
        }
    }
    paths.sort();
    Ok(paths)
}

fn read(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    open_regular(path, Opening::Read)?.take(LARGEST_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > LARGEST_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {LARGEST_FILE} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::*;

    fn names(path: &Path, required: bool) -> Vec<String> {
        let files = read_files(path, required).unwrap();
        files.iter().map(|(path, _)| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn what_is_no_regular_file_is_refused_and_never_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        for path in [pipe.as_path(), dir.path(), Path::new("/dev/null")] {
            assert!(read_files(path, true).is_err(), "{}", path.display());
        }
    }

    #[test]
    fn the_main_file_goes_before_the_parts_and_these_go_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let main = dir.path().join("config.toml");
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        for name in ["config.toml", "conf.d/20-b.toml", "conf.d/10-a.toml", "conf.d/.hidden.toml", "conf.d/30.toml~"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(names(&main, true), ["config.toml", "10-a.toml", "20-b.toml"]);
        fs::remove_file(&main).unwrap();
        assert_eq!(names(&main, false), ["10-a.toml", "20-b.toml"]);
    }

    #[test]
    fn a_missing_main_file_is_the_default_unless_it_was_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nowhere/config.toml");
        assert_eq!(
            ConfigSource { path: path.clone(), required: false, dialects: &[] }.load().unwrap(),
            Config::default()
        );
        let error = ConfigSource { path: path.clone(), required: true, dialects: &[] }.load().unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }

    #[test]
    fn what_has_the_name_and_leads_nowhere_is_told_and_not_passed_over() {
        use std::os::unix::fs::symlink;
        for name in ["config.toml", "conf.d", "conf.d/a.toml"] {
            for to in ["nowhere", "itself"] {
                let dir = tempfile::tempdir().unwrap();
                let link = dir.path().join(name);
                fs::create_dir_all(link.parent().unwrap()).unwrap();
                symlink(if to == "itself" { link.clone() } else { dir.path().join(to) }, &link).unwrap();
                let source = ConfigSource { path: dir.path().join("config.toml"), required: false, dialects: &[] };
                let error = source.load().unwrap_err().to_string();
                assert!(error.contains(link.to_str().unwrap()), "{name} -> {to}: {error}");
            }
        }
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("conf.d"), "").unwrap();
        let source = ConfigSource { path: dir.path().join("config.toml"), required: false, dialects: &[] };
        assert!(source.load().unwrap_err().to_string().contains("conf.d"));
        fs::remove_file(dir.path().join("conf.d")).unwrap();
        assert_eq!(source.there(), None);
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        assert_eq!(source.there(), Some(dir.path().join("conf.d")));
        fs::write(&source.path, "").unwrap();
        assert_eq!(source.there(), Some(source.path));
    }

    #[test]
    fn what_is_there_and_cannot_be_read_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.toml");
        fs::create_dir(&path).unwrap();
        assert!(read_files(&path, false).is_err());
        fs::remove_dir(&path).unwrap();
        fs::write(&path, [0xFF]).unwrap();
        assert!(read_files(&path, false).is_err());
        fs::write(&path, "#".repeat(1024 * 1024 + 1)).unwrap();
        assert!(read_files(&path, false).is_err());
    }
}
