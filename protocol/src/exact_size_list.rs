//! Deserialises lists that are kept for long, so that they allocate exactly the memory of their elements.
//!
//! A list that grows while it is read allocates room for four elements at first. A hundred thousand runs have such
//! lists in their specifications and transcripts. Pure. It must not change an element.

use serde::{Deserialize, Deserializer};

/// Reads a list and frees the memory that its elements do not use. For `#[serde(deserialize_with)]`.
///
/// # Errors
/// The errors of the list's own `Deserialize`.
pub(crate) fn deserialize<'de, D, T>(deserializer: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    let mut list = Vec::deserialize(deserializer)?;
    list.shrink_to_fit();
    Ok(list)
}

#[cfg(test)]
mod tests {
    use crate::id::CallId;
    use crate::run::Entry;
    use crate::script::Script;

    #[test]
    fn lists_that_are_kept_have_no_room_to_spare() {
        for calls in 0..6 {
            let call = r#"{"tool":"shell","args":{"command":"true"}}"#;
            let listed = vec![call; calls].join(",");
            let script = format!(r#"{{"turn":[{{"call":[{listed}]}},{{"text":"done"}}]}}"#);
            let script: Script = serde_json::from_str(&script).unwrap();
            assert_eq!((script.turns.len(), script.turns.capacity()), (2, 2));
            assert_eq!((script.turns[0].calls.len(), script.turns[0].calls.capacity()), (calls, calls));

            let call = format!(r#"{{"call":"{}","tool":"shell","args":"{{}}"}}"#, CallId::from_u64(1));
            let listed = vec![call.as_str(); calls].join(",");
            let entry = format!(r#"{{"role":"assistant","text":"","calls":[{listed}]}}"#);
            let Entry::Assistant { calls: read, .. } = serde_json::from_str(&entry).unwrap() else {
                panic!("another kind of entry: {entry}")
            };
            assert_eq!((read.len(), read.capacity()), (calls, calls));
        }
    }
}
