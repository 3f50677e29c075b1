//! Finds and reads the files of the configuration.
//!
//! The only part of the configuration that reads files. It must not interpret their contents: `load` does.

use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use harness_files::{Opening, open_regular};

use super::{Config, ConfigError, Dialects, Origins, Problem};
use crate::timed_read;

/// Largest file that is read.
const LARGEST_FILE: u64 = 1024 * 1024;
/// Most bytes of all files together.
const MOST_BYTES: usize = 16 * 1024 * 1024;
/// The directory of the parts, beside the main file.
const PARTS: &str = "conf.d";
/// Most files of `conf.d`.
const MOST_FILES: usize = 1000;

/// Where the configuration comes from. The places are looked at anew for each read: a file that is made while the
/// daemon runs counts with the next reload.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigSource {
    /// Where the main file may be, at least one path. The first counts that is there, or has a `conf.d` beside it.
    pub places: Vec<PathBuf>,
    /// The file must exist, because its path was given explicitly.
    pub required: bool,
    /// The dialects that its providers may speak, beside `scripted`.
    pub dialects: Dialects,
}

/// A configuration that was read and checked.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The configuration that the files come to.
    pub config: Config,
    /// The files that were read, in the order in which they count; none if the defaults are all there is.
    pub files: Vec<PathBuf>,
    /// Where in the files the keys stand whose values can fail later.
    pub origins: Origins,
}

impl ConfigSource {
    /// Reads and checks everything: at the start, and again for a reload. Takes a few seconds at most.
    ///
    /// # Errors
    /// A file that cannot be read, or not in time, and everything that is wrong in the files.
    pub fn load(&self) -> Result<Loaded, LoadError> {
        let Some(first) = self.places.first() else { return Ok(Loaded::of(Vec::new(), self.dialects)?) };
        let source = self.clone();
        let silent = |source| ReadError { path: first.clone(), source };
        let files = timed_read::within(first, timed_read::PATIENCE, move || source.read_files());
        Ok(Loaded::of(files.map_err(silent)??, self.dialects)?)
    }

    /// The main file's path, if it or a `conf.d` beside it is there now.
    pub fn there(&self) -> Option<&Path> {
        self.places.iter().map(PathBuf::as_path).find(|path| is_there(path) || is_there(&path.with_file_name(PARTS)))
    }

    /// The texts of the main file and of `conf.d/*.toml` beside it, in the order in which they count. A main file that
    /// is not there is an empty one, unless it is required.
    fn read_files(&self) -> Result<Vec<(PathBuf, String)>, LoadError> {
        let main = if self.required { self.places.first().map(PathBuf::as_path) } else { self.there() };
        let Some(main) = main else { return Ok(Vec::new()) };
        let mut files = Vec::new();
        match read(main) {
            Ok(bytes) => files.push((main.to_path_buf(), bytes)),
            Err(error) if !self.required && is_absent(main, &error) => {}
            Err(source) => return Err(ReadError { path: main.to_path_buf(), source }.into()),
        }
        let dir = main.with_file_name(PARTS);
        let parts = list(&dir).map_err(|source| ReadError { path: dir.clone(), source })?;
        let mut total = 0;
        for path in parts {
            let bytes = read(&path).map_err(|source| ReadError { path: path.clone(), source })?;
            total += bytes.len();
            if total > MOST_BYTES {
                let source =
                    io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {MOST_BYTES} bytes in all"));
                return Err(ReadError { path: dir, source }.into());
            }
            files.push((path, bytes));
        }
        Ok(texts(files)?)
    }
}

impl Loaded {
    fn of(files: Vec<(PathBuf, String)>, dialects: Dialects) -> Result<Self, ConfigError> {
        let (config, origins) = Config::load_with_origins(&files, dialects)?;
        Ok(Self { config, files: files.into_iter().map(|(path, _)| path).collect(), origins })
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

/// The files as texts.
fn texts(files: Vec<(PathBuf, Vec<u8>)>) -> Result<Vec<(PathBuf, String)>, ConfigError> {
    let mut problems = Vec::new();
    let mut texts = Vec::new();
    for (path, bytes) in files {
        match String::from_utf8(bytes) {
            Ok(text) => texts.push((path, text)),
            Err(error) => {
                let good = &error.as_bytes()[..error.utf8_error().valid_up_to()];
                let line = 1 + good.iter().filter(|&&byte| byte == b'\n').count();
                problems.push(Problem { file: path, line, what: "not TOML: it is not UTF-8".to_owned() });
            }
        }
    }
    if problems.is_empty() { Ok(texts) } else { Err(ConfigError { problems }) }
}

/// Whether there is something of that name, also if it cannot be looked at: that has to be told, and not passed over.
fn is_there(path: &Path) -> bool {
    let absent = |error: &io::Error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory);
    !path.symlink_metadata().is_err_and(|error| absent(&error))
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

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    open_regular(path, Opening::Read)?.take(LARGEST_FILE + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LARGEST_FILE {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("larger than {LARGEST_FILE} bytes")));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use std::os::unix::fs::symlink;

    use super::*;

    /// A configuration that need not be there, in this directory.
    fn source(dir: &tempfile::TempDir) -> ConfigSource {
        ConfigSource { places: vec![dir.path().join("config.toml")], required: false, dialects: &[] }
    }

    fn names(source: &ConfigSource) -> Vec<String> {
        let files = source.load().unwrap().files;
        files.iter().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned()).collect()
    }

    fn refusal(source: &ConfigSource) -> String {
        source.load().expect_err("a refusal").to_string()
    }

    #[test]
    fn the_main_file_goes_before_the_parts_and_these_go_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let source = source(&dir);
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        for name in ["config.toml", "conf.d/20-b.toml", "conf.d/10-a.toml", "conf.d/.hidden.toml", "conf.d/30.toml~"] {
            fs::write(dir.path().join(name), "").unwrap();
        }
        assert_eq!(names(&source), ["config.toml", "10-a.toml", "20-b.toml"]);
        fs::remove_file(&source.places[0]).unwrap();
        assert_eq!(names(&source), ["10-a.toml", "20-b.toml"]);
    }

    #[test]
    fn the_places_are_looked_at_anew_and_the_first_that_is_there_counts() {
        let dir = tempfile::tempdir().unwrap();
        let [first, second] = ["user/config.toml", "system/config.toml"].map(|name| dir.path().join(name));
        let source = ConfigSource { places: vec![first.clone(), second.clone()], required: false, dialects: &[] };
        assert!(source.load().unwrap().files.is_empty() && source.there().is_none());
        for (made, counts) in [(&second, &second), (&first, &first)] {
            fs::create_dir(made.parent().unwrap()).unwrap();
            fs::write(made, "").unwrap();
            assert_eq!(source.load().unwrap().files, std::slice::from_ref(counts));
        }
        fs::remove_file(&first).unwrap();
        assert_eq!(source.load().unwrap().files, [second]);
        // Parts alone are a configuration as well.
        fs::create_dir(first.with_file_name("conf.d")).unwrap();
        assert!(source.load().unwrap().files.is_empty());
        fs::write(first.with_file_name("conf.d").join("a.toml"), "[lane.tool]\nwidth = 3\n").unwrap();
        assert_eq!(source.load().unwrap().config.tool_width, 3);
    }

    #[test]
    fn a_missing_main_file_is_the_default_unless_it_was_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("nowhere/config.toml");
        let source = |required| ConfigSource { places: vec![path.clone()], required, dialects: &[] };
        let loaded = source(false).load().unwrap();
        assert_eq!((loaded.config, loaded.files), (Config::default(), Vec::new()));
        assert!(refusal(&source(true)).contains(path.to_str().unwrap()));
    }

    /// What is in the place of a file and cannot be read is told with its path, is never waited for, and is never taken
    /// for a missing file.
    #[test]
    fn a_file_that_is_there_and_cannot_be_read_is_an_error_that_names_it() {
        type Put = fn(&Path);
        let fifo: Put = |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
        let puts: [(&str, Put, &str); 8] = [
            ("a directory", |path| fs::create_dir(path).unwrap(), "no regular file"),
            ("a pipe", fifo, "no regular file"),
            ("a device", |path| symlink("/dev/zero", path).unwrap(), "no regular file"),
            ("a link to nothing", |path| symlink("nowhere", path).unwrap(), "No such file"),
            ("a link to itself", |path| symlink(path, path).unwrap(), "symbolic links"),
            ("a huge file", |path| fs::File::create(path).unwrap().set_len(1 << 40).unwrap(), "larger than"),
            ("a large file", |path| fs::write(path, "#".repeat(1024 * 1024 + 1)).unwrap(), "larger than"),
            (
                "bytes that are no text",
                |path| fs::write(path, b"a = 1\n\xFF").unwrap(),
                ":2: not TOML: it is not UTF-8",
            ),
        ];
        for name in ["config.toml", "conf.d/a.toml"] {
            for (what, put, told) in puts {
                for required in [false, true] {
                    let dir = tempfile::tempdir().unwrap();
                    let source = ConfigSource { required, ..source(&dir) };
                    fs::create_dir(dir.path().join("conf.d")).unwrap();
                    if name != "config.toml" {
                        fs::write(&source.places[0], "").unwrap();
                    }
                    let path = dir.path().join(name);
                    put(&path);
                    let error = refusal(&source);
                    assert!(error.contains(path.to_str().unwrap()) && error.contains(told), "{name}, {what}: {error}");
                }
            }
        }
    }

    #[test]
    fn an_entry_in_the_place_of_the_parts_that_is_no_directory_is_told() {
        type Put = fn(&Path);
        let puts: [Put; 3] = [
            |path| fs::write(path, "").unwrap(),
            |path| symlink("nowhere", path).unwrap(),
            |path| nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap(),
        ];
        for put in puts {
            let dir = tempfile::tempdir().unwrap();
            put(&dir.path().join("conf.d"));
            assert!(refusal(&source(&dir)).contains("conf.d"));
        }
    }

    #[test]
    fn parts_that_are_too_much_together_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("conf.d")).unwrap();
        for number in 0..17 {
            fs::write(dir.path().join(format!("conf.d/{number}.toml")), "#".repeat(1024 * 1024)).unwrap();
        }
        assert!(refusal(&source(&dir)).contains("bytes in all"));
    }
}
