//! The key of the ids: made once for a state directory, so that its ids stay what they are.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Name of its file in the state directory.
const NAME: &str = "id.key";

/// Reads the key, or makes it.
///
/// # Errors
/// Where the file cannot be read or made, or is no key.
pub fn load_or_make(state_dir: &Path) -> io::Result<u64> {
    let path = state_dir.join(NAME);
    let mut bytes = [0; 8];
    match File::open(&path) {
        Ok(mut file) => {
            file.read_exact(&mut bytes)?;
            return Ok(u64::from_le_bytes(bytes));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    // Whole or not at all: a name is given to it once it is on disk.
    let fresh = state_dir.join("id.key.new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
    file.write_all(&bytes)?;
    file.sync_all()?;
    std::fs::rename(&fresh, &path)?;
    File::open(state_dir)?.sync_all()?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn a_state_directory_keeps_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let key = load_or_make(dir.path()).unwrap();
        assert_eq!(load_or_make(dir.path()).unwrap(), key);
        assert_ne!(load_or_make(tempfile::tempdir().unwrap().path()).unwrap(), key);
    }
}
