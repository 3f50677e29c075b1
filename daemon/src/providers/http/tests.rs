//! The client against sockets that say one thing.
