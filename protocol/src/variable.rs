//! Checks the environment variables that a client gives to a run's calls: which names are allowed, and how large they
//! may be.
//!
//! Pure. Only the calls may see the values: an error must not contain one, it has the name instead.

use std::collections::BTreeMap;

use crate::terminal_safe;

/// Prefix of the harness's own names: a call's run, its socket, the daemon's paths.
pub const RESERVED: &str = "HARNESS_";
/// Most variables of one run.
pub const MOST: usize = 1_024;
/// Bytes of the longest name.
pub const LONGEST_NAME: usize = 255;
/// Bytes of the largest variable, with its name: the kernel takes no string of 128 KiB.
pub const LONGEST: usize = 128 * 1024 - 2;
/// Bytes of all variables of one run together, at most. The kernel takes about 2 MiB of arguments and environment.
pub const MOST_BYTES: usize = 1024 * 1024;

/// Why a variable, or an environment as a whole, is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VariableError {
    /// The name is empty, too long, or contains a character that is not allowed in names.
    #[error("{0} cannot be the name of an environment variable")]
    Name(String),
    /// The harness itself sets variables with this prefix.
    #[error("{0} cannot be set: variables that begin with {RESERVED} are those of the harness")]
    Reserved(String),
    /// The value contains a NUL byte.
    #[error("the value of the environment variable {0} has a NUL byte")]
    Nul(String),
    /// The kernel takes no variable of that size.
    #[error("the environment variable {0} has {1} bytes with its name; at most {LONGEST} are taken")]
    TooLong(String, usize),
    /// There are too many variables.
    #[error("the environment has {0} variables; at most {MOST} are taken")]
    TooMany(usize),
    /// All variables together are too large.
    #[error("the environment has {0} bytes; at most {MOST_BYTES} are taken")]
    TooLarge(usize),
}

impl VariableError {
    /// Whether the error is about a size.
    pub const fn is_of_size(&self) -> bool {
        matches!(self, Self::TooLong(..) | Self::TooMany(_) | Self::TooLarge(_))
    }
}

/// Checks the name of a variable.
///
/// # Errors
/// If a variable must not have this name.
pub fn check_name(name: &str) -> Result<(), VariableError> {
    let shown = || crate::json_size::quoted(name);
    let is_name = !name.is_empty()
        && name.len() <= LONGEST_NAME
        && !name.contains(|c: char| c == '=' || c.is_whitespace())
        && terminal_safe::refused(name).is_none();
    match name {
        _ if !is_name => Err(VariableError::Name(shown())),
        name if name.starts_with(RESERVED) => Err(VariableError::Reserved(shown())),
        _ => Ok(()),
    }
}

/// Checks all names and values, but not their sizes.
///
/// # Errors
/// The first problem.
pub fn check_all_names(env: &BTreeMap<String, String>) -> Result<(), VariableError> {
    for (name, value) in env {
        check_name(name)?;
        if value.contains('\0') {
            return Err(VariableError::Nul(crate::json_size::quoted(name)));
        }
    }
    Ok(())
}

/// Checks all names, values and sizes.
///
/// # Errors
/// The first problem.
pub fn check(env: &BTreeMap<String, String>) -> Result<(), VariableError> {
    if env.len() > MOST {
        return Err(VariableError::TooMany(env.len()));
    }
    check_all_names(env)?;
    let mut bytes = 0;
    for (name, value) in env {
        let size = name.len() + value.len() + 1;
        if size > LONGEST {
            return Err(VariableError::TooLong(crate::json_size::quoted(name), size));
        }
        bytes += size + 1;
    }
    if bytes > MOST_BYTES { Err(VariableError::TooLarge(bytes)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn env(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Entry U16 in `tests/README.md`.
    #[test]
    fn a_refused_variable_is_told_by_its_name_and_never_by_its_value() {
        for good in ["A", "_", "a.b-c", "SSH_AUTH_SOCK", "HARNESS", "harness_x", "ÄÖ", "BASH_FUNC_x%%"] {
            assert_eq!(check(&env(&[(good, "any value\n= at all")])), Ok(()), "{good}");
        }
        let long = "N".repeat(LONGEST_NAME + 1);
        for bad in ["", "A=B", "A B", "A\0", "A\n", "\u{1b}[31m", "\t", &long] {
            assert!(matches!(check(&env(&[(bad, "x")])), Err(VariableError::Name(_))), "{bad:?}");
        }
        for reserved in ["HARNESS_", "HARNESS_RUN_ID", "HARNESS_SOCKET", "HARNESS_STATE_DIR", "HARNESS_X"] {
            assert!(matches!(check(&env(&[(reserved, "x")])), Err(VariableError::Reserved(_))), "{reserved}");
        }
        let error = check(&env(&[("KEY", "s3cret\0")])).unwrap_err();
        assert!(matches!(error, VariableError::Nul(_)) && !error.to_string().contains("s3cret"));
    }

    #[test]
    fn sizes_are_taken_up_to_their_bounds() {
        let value = |bytes: usize| "v".repeat(bytes);
        assert_eq!(check(&env(&[("A", &value(LONGEST - 2))])), Ok(()));
        assert!(matches!(check(&env(&[("A", &value(LONGEST - 1))])), Err(VariableError::TooLong(_, LONGEST_BY_ONE))));
        let many = |count: usize, bytes: usize| (0..count).map(|n| (format!("V{n:05}"), value(bytes))).collect();
        assert_eq!(check(&many(MOST, 10)), Ok(()));
        assert_eq!(check(&many(MOST + 1, 1)), Err(VariableError::TooMany(MOST + 1)));
        assert_eq!(check(&many(8, 128 * 1024 - 20)), Ok(()));
        let error = check(&many(9, 128 * 1024 - 20)).unwrap_err();
        assert!(error.is_of_size() && matches!(error, VariableError::TooLarge(_)), "{error}");
    }

    const LONGEST_BY_ONE: usize = LONGEST + 1;
}
