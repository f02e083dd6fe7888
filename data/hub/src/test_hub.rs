//! A server that speaks the hub's protocol, for tests.
