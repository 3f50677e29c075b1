//! Buffers the fields of an event that had to be copied, until the event ends: an event that began in one chunk ends in
//! a later one. It must not interpret the bytes.

/// Fields of the open event that had to be copied. The buffers keep their capacity from event to event.
#[derive(Clone, Default)]
pub(super) struct Held {
    /// The fields of the open event that the buffers hold.
    pub(super) has: Fields,
    name: Vec<u8>,
    id: Vec<u8>,
    data: Vec<u8>,
    /// Start of the data. If the buffer was a whole line, the field's name is before it.
    data_start: usize,
}

/// Which fields are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Fields {
    pub(super) name: bool,
    pub(super) id: bool,
    pub(super) data: bool,
}

impl Held {
    /// The bytes of the name. They belong to the event only if `has` says so; the same holds for the other two.
    pub(super) fn name(&self) -> &[u8] {
        &self.name
    }

    pub(super) fn id(&self) -> &[u8] {
        &self.id
    }

    pub(super) fn data(&self) -> &[u8] {
        self.data.get(self.data_start..).unwrap_or_default()
    }

    pub(super) fn set_name(&mut self, name: &[u8]) {
        self.name.clear();
        self.name.extend_from_slice(name);
        self.has.name = true;
    }

    pub(super) fn set_id(&mut self, id: &[u8]) {
        self.id.clear();
        self.id.extend_from_slice(id);
        self.has.id = true;
    }

    /// Adds a data line.
    pub(super) fn push_data(&mut self, value: &[u8]) {
        if self.has.data {
            self.data.push(b'\n');
        } else {
            self.data.clear();
            self.data_start = 0;
            self.has.data = true;
        }
        self.data.extend_from_slice(value);
    }

    /// Takes a whole line as the first data line, without a copy. Its value begins at `start`. `line` gets an empty
    /// buffer in exchange.
    pub(super) fn take_data_line(&mut self, line: &mut Vec<u8>, start: usize) {
        std::mem::swap(&mut self.data, line);
        self.data_start = start;
        self.has.data = true;
        line.clear();
    }
}
