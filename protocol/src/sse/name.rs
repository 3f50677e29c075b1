//! Defines the name of an event. Pure. A name with a line break cannot be constructed, because it would forge another
//! field.

/// The name of an event that we send: one line, not empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EventName<'a>(&'a str);

/// Why a text cannot name an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EventNameError {
    /// Readers treat an empty name like the default name.
    #[error("the name of an event is not empty")]
    Empty,
    /// The text after the line break would be a field of its own.
    #[error("the name of an event has no line breaks")]
    LineBreak,
}

impl<'a> EventName<'a> {
    /// Checks a name. `const`, so that fixed names are checked when compiled.
    ///
    /// # Errors
    /// For an empty name, and for a name with a line feed or a carriage return.
    pub const fn new(name: &'a str) -> Result<Self, EventNameError> {
        let bytes = name.as_bytes();
        if bytes.is_empty() {
            return Err(EventNameError::Empty);
        }
        let mut at = 0;
        while at < bytes.len() {
            if bytes[at] == b'\n' || bytes[at] == b'\r' {
                return Err(EventNameError::LineBreak);
            }
            at += 1;
        }
        Ok(Self(name))
    }

    /// The name as text.
    pub const fn as_str(self) -> &'a str {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_line_that_is_not_empty() {
        assert_eq!(EventName::new("run-finished").map(EventName::as_str), Ok("run-finished"));
        assert_eq!(EventName::new(""), Err(EventNameError::Empty));
        for name in ["\n", "a\nb", "a\r", "a\r\ndata: forged"] {
            assert_eq!(EventName::new(name), Err(EventNameError::LineBreak), "{name:?}");
        }
    }
}
