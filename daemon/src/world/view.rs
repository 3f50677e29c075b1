//! What the world shows of itself. Reads, and never changes anything.
