//! No tool sees a secret of the daemon's environment: not in `env`, not in /proc, not in the daemon's files.

use std::fs;
use std::path::Path;

use harness_tests::{Place, turn};

const PLANTED: &str = "planted-9f3a77";
/// An unprivileged user id, as which neither the daemon nor its tools can read what only root may read.
const NOBODY: u32 = 65534;

fn holds(path: &Path) -> bool {
    if path.is_dir() {
        return fs::read_dir(path).unwrap().any(|entry| holds(&entry.unwrap().path()));
    }
    fs::read(path).is_ok_and(|bytes| bytes.windows(PLANTED.len()).any(|window| window == PLANTED.as_bytes()))
}

#[test]
#[ignore = "needs root, to be another user"]
fn no_tool_sees_the_daemons_environment() {
    let place = Place::new();
    let planted = format!("PLANTED_API_KEY={PLANTED}");
    let daemon = place.start_as(NOBODY, &["env", &planted]);
    let environments = "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'";
    // Pieces, so that the search does not find itself.
    let (head, tail) = PLANTED.split_at(4);
    let script = turn("")
        .shell(&format!("env | grep -c {head}'{tail}'"))
        .shell(&format!("{environments} | grep -c {head}'{tail}'"))
        .shell(&format!("{environments} | grep -c HARNESS_RUN_ID | grep -qv '^0$' && echo seen"))
        .shell("id -u")
        .turn("looked");
    let run = daemon.submit(&script);
    assert_eq!(run.answer(), "looked");
    let found: Vec<String> = run.results().iter().map(|result| result.envelope.to_string()).collect();
    assert_eq!(found, ["Exit code: 1\n0\n", "Exit code: 1\n0\n", "Exit code: 0\nseen\n", "Exit code: 0\n65534\n"]);
    assert!(!holds(&place.path("home")) && !holds(&place.path("daemon.log")));
    let daemons_own = format!("/proc/{}/environ", daemon.process().0);
    assert!(!holds(Path::new(&daemons_own)), "not even root finds it there");
}
