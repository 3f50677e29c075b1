//! Collects the environment that the submitting client gives to a run's calls: the variables that the user named, and
//! `PATH`. It must not pass any other variable, because the client's environment may have secrets.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use harness_protocol::variable;

use crate::error::Failure;
use crate::output::note;

/// Looks up a variable of our own environment.
pub(crate) type Var<'a> = &'a dyn Fn(&str) -> Option<OsString>;

/// Our own environment.
pub(crate) fn here(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The named variables, and PATH. A value of `--env` replaces one of `--env-file`, and a later value replaces an
/// earlier one.
pub(crate) fn collect(words: &[String], files: &[PathBuf], var: Var<'_>) -> Result<BTreeMap<String, String>, Failure> {
    let mut env = named(words, files, var)?;
    if let (false, Some(path)) = (env.contains_key("PATH"), var("PATH")) {
        env.insert("PATH".to_owned(), text("PATH", path).map_err(Failure::usage)?);
    }
    Ok(env)
}

/// The named variables, and nothing else.
pub(crate) fn named(words: &[String], files: &[PathBuf], var: Var<'_>) -> Result<BTreeMap<String, String>, Failure> {
    let mut env = BTreeMap::new();
    for file in files {
        let text = std::fs::read_to_string(file).map_err(|source| Failure::Read { path: file.clone(), source })?;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim_start();
            if !line.is_empty() && !line.starts_with('#') {
                let (key, value) = variable(line, var)
                    .map_err(|why| Failure::usage(format!("{}:{}: {why}", file.display(), number + 1)))?;
                env.insert(key, value);
            }
        }
    }
    for word in words {
        let (key, value) = variable(word, var).map_err(Failure::usage)?;
        env.insert(key, value);
    }
    variable::check(&env).map_err(|error| Failure::usage(error.to_string()))?;
    Ok(env)
}

/// Adds the values that these variables have here, if they are set and were not named. Reports values that cannot be
/// passed.
pub(crate) fn pass<'a>(env: &mut BTreeMap<String, String>, names: impl Iterator<Item = &'a str>, var: Var<'_>) {
    for name in names.filter(|name| variable::check_name(name).is_ok()) {
        if env.contains_key(name) {
            continue;
        }
        match var(name).map(OsString::into_string) {
            None => {}
            Some(Ok(value)) => _ = env.insert(name.to_owned(), value),
            Some(Err(_)) => note(format_args!("harnessctl: {name} is not passed: its value is not UTF-8")),
        }
    }
}

/// Reads `KEY=VALUE`, or `KEY` for its value here. Values stay unchanged, quotes included.
fn variable(word: &str, var: Var<'_>) -> Result<(String, String), String> {
    let (key, value) = match word.split_once('=') {
        Some((key, value)) => (key, Some(value.to_owned())),
        None => (word.trim_end(), None),
    };
    variable::check_name(key).map_err(|error| error.to_string())?;
    let value = match value {
        Some(value) => value,
        None => match var(key) {
            Some(value) => text(key, value)?,
            None => return Err(format!("{key} is not set here: give it a value, {key}=VALUE")),
        },
    };
    Ok((key.to_owned(), value))
}

/// The value of a variable, which must be UTF-8 for JSON.
fn text(key: &str, value: OsString) -> Result<String, String> {
    value.into_string().map_err(|_| format!("{key} is set here, but its value is not UTF-8: give it another one"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::ffi::OsStringExt;

    use super::*;

    fn here(name: &str) -> Option<OsString> {
        let known = [("PATH", "/bin"), ("TOKEN", "t"), ("EMPTY", ""), ("SPACES", "a b\nc=d")];
        let broken = || OsString::from_vec(vec![0xff, b'x']);
        let found = known.iter().find(|(n, _)| *n == name).map(|(_, value)| OsString::from(*value));
        found.or_else(|| (name == "BROKEN").then(broken))
    }

    /// Entry U16 in `tests/README.md`.
    #[test]
    fn configured_variables_are_passed_with_their_values_here_and_never_over_named_ones() {
        let mut env = BTreeMap::from([("TOKEN".to_owned(), "own".to_owned())]);
        let names = ["TOKEN", "SPACES", "EMPTY", "NOT_SET", "BROKEN", "HARNESS_SOCKET", "", "A=B"];
        pass(&mut env, names.into_iter(), &here);
        let expected = [("EMPTY", ""), ("SPACES", "a b\nc=d"), ("TOKEN", "own")];
        assert_eq!(env.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect::<Vec<_>>(), expected);
    }

    /// Entries U16 and B12 in `tests/README.md`.
    #[test]
    fn names_and_values_that_cannot_be_are_each_told_for_what_they_are() {
        for (word, told) in [
            ("BROKEN", "its value is not UTF-8"),
            ("NOPE", "is not set here"),
            ("HARNESS_RUN_ID=x", "those of the harness"),
            ("HARNESS_SOCKET", "those of the harness"),
            ("=x", "cannot be the name"),
            ("", "cannot be the name"),
            ("A B=x", "cannot be the name"),
        ] {
            let error = collect(&[word.to_owned()], &[], &here).unwrap_err();
            assert!(error.to_string().contains(told) && error.code() == 2, "{word}: {error}");
        }
        let error = collect(&[format!("BIG={}", "x".repeat(variable::LONGEST))], &[], &here).unwrap_err();
        assert!(error.to_string().contains("BIG") && error.to_string().contains("bytes"), "{error}");
    }

    #[test]
    fn path_comes_along_and_a_named_value_goes_before_it() {
        let words = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let env = collect(&words(&["TOKEN", "A=1=2"]), &[], &here).unwrap();
        let expected = [("A", "1=2"), ("PATH", "/bin"), ("TOKEN", "t")].map(|(k, v)| (k.to_owned(), v.to_owned()));
        assert_eq!(env.into_iter().collect::<Vec<_>>(), expected);
        assert_eq!(collect(&words(&["PATH=/x"]), &[], &here).unwrap()["PATH"], "/x");
    }

    #[test]
    fn a_variable_that_is_not_set_is_an_error_that_names_it() {
        let error = collect(&["NOPE".to_owned()], &[], &here).unwrap_err();
        assert_eq!(error.to_string(), "NOPE is not set here: give it a value, NOPE=VALUE");
        assert_eq!(error.code(), 2);
    }

    #[test]
    fn a_file_has_comments_and_its_errors_have_lines() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("env");
        std::fs::write(&file, "# one\n\nA=x y\n  B='q'\nTOKEN\n").unwrap();
        let env = collect(&[], std::slice::from_ref(&file), &here).unwrap();
        assert_eq!((env["A"].as_str(), env["B"].as_str(), env["TOKEN"].as_str()), ("x y", "'q'", "t"));
        std::fs::write(&file, "A=1\nexport B=2\n").unwrap();
        let error = collect(&[], std::slice::from_ref(&file), &here).unwrap_err();
        assert!(error.to_string().contains("env:2: \"export B\""), "{error}");
        assert_eq!(collect(&[], &[dir.path().join("no")], &here).unwrap_err().code(), 2);
    }
}
