//! Reads standard input if an argument names it (`-`), up to the size of the largest request. A larger input is a usage
//! error.

use std::io::{self, Read};

use harness_protocol::MAX_FRAME_BYTES;

use crate::error::Failure;

/// All of standard input. Stops reading where no request could carry more.
pub(crate) fn read(what: &str) -> Result<String, Failure> {
    let failed = |source| Failure::Read { path: "standard input".into(), source };
    let mut bytes = Vec::new();
    io::stdin().lock().take(MAX_FRAME_BYTES as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() > MAX_FRAME_BYTES {
        return Err(Failure::usage_hint(
            format!("{what} is larger than {} MiB", MAX_FRAME_BYTES >> 20),
            "put the bulk into a file and name it in the prompt",
        ));
    }
    String::from_utf8(bytes).map_err(|_| Failure::usage(format!("{what} is not UTF-8")))
}
