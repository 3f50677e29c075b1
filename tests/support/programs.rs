//! Builds the programs under test once for each test process, and finds the external programs that tests need.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The directory with the binaries. The first caller builds them, with the profile of the tests and with the points at
/// which a test can kill the daemon, unless `HARNESS_PROGRAMS` says where they are.
pub(crate) fn directory() -> &'static Path {
    static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();
    DIRECTORY.get_or_init(|| {
        if let Some(directory) = std::env::var_os("HARNESS_PROGRAMS") {
            return directory.into();
        }
        // target/PROFILE/deps/behaviour-HASH
        let exe = std::env::current_exe().unwrap();
        let directory = exe.ancestors().nth(2).unwrap().to_owned();
        let profile = match directory.file_name().and_then(|name| name.to_str()).unwrap() {
            "debug" => "dev",
            other => other,
        };
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "-p", "harnessd", "-p", "harnessctl", "--profile", profile])
            .args(["--features", "harnessd/failpoints"])
            .arg("--manifest-path")
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml"))
            .arg("--target-dir")
            .arg(directory.parent().unwrap())
            .status()
            .unwrap();
        assert!(status.success(), "the programs under test cannot be built");
        directory
    })
}

/// The path of one of our programs.
///
/// # Panics
/// Where it is not there.
#[track_caller]
pub fn program(name: &str) -> PathBuf {
    let path = directory().join(name);
    assert!(path.is_file(), "this test needs {}", path.display());
    path
}

/// Copies a program to where it is executed. Another process does the copying: a descriptor of ours that may write to
/// the file would be inherited for a moment by whatever another test starts, and a file that is open for writing cannot
/// be executed (`ETXTBSY`).
///
/// # Panics
/// Where it cannot be copied.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("--").args([from, to]).status().unwrap();
    assert!(copied.success(), "{} cannot be copied to {}", from.display(), to.display());
}

/// Asserts that the machine has a program, and says what provides it.
///
/// # Panics
/// Where it has not.
#[track_caller]
pub fn need(name: &str, package: &str) {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let there = std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    assert!(there, "this test needs `{name}`; install the package {package}");
}

/// Asserts that the tests run as root.
///
/// # Panics
/// Where they do not: a test that needs root is ignored by default.
#[track_caller]
pub fn need_root() {
    assert!(nix::unistd::geteuid().is_root(), "this test needs root");
}
