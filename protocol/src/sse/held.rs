//! The copied parts of an event whose end has not come yet.

/// Fields of the open event that had to be copied. The buffers keep their capacity from event to event.
#[derive(Clone, Default)]
pub(super) struct Held {
    /// Which of the buffers hold a field of the open event.
    pub(super) has: Fields,
    name: Vec<u8>,
    id: Vec<u8>,
    data: Vec<u8>,
    /// Position of the data: before it is the name of the field, where the buffer was a whole line.
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
    /// The buffer of the name. Only `has` says which of these three is a field of the event.
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

    /// Takes a whole line as the first data line without copying it: its value begins at `start`. In its place `line`
    /// gets an empty buffer.
    pub(super) fn take_data_line(&mut self, line: &mut Vec<u8>, start: usize) {
        std::mem::swap(&mut self.data, line);
        self.data_start = start;
        self.has.data = true;
        line.clear();
    }
}
