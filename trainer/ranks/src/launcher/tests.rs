//! Tests of launchers.
