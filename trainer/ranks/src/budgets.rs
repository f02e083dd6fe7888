//! Limits of everything that another process can send. docs/limits.md lists what exceeds each limit
//! and what to do.

/// Maximum ranks of a run. The leader has one connection and one thread per rank.
pub const RANKS: usize = 1024;

/// Maximum bytes of a frame's content before a connection is authenticated. A hello with long
/// digests and device names has about 4 KiB.
pub const HELLO_BYTES: usize = 64 << 10;

/// Maximum bytes of a frame's content. Large messages are sent in several frames, so this is the
/// memory that a length field can claim.
pub const FRAME_BYTES: usize = 1 << 20;

/// Maximum bytes of received frames that wait for the training thread, per connection. When they
/// are reached, the other side waits.
pub const INBOX_BYTES: usize = 4 << 20;

/// Maximum bytes of one message. An adapter of rank 64 for all projections of a 70B model has
/// 3.3 GB in f32.
pub const MESSAGE_BYTES: usize = 4 << 30;

/// Maximum bytes of an error, warning or phase name that another rank sends.
pub const TEXT_BYTES: usize = 16 << 10;

/// Maximum bytes of `ranks.json`. It has about 300 bytes.
pub const RANKS_FILE_BYTES: tooltune_disk::budgets::Limit =
    tooltune_disk::budgets::Limit::new("RANKS_FILE_BYTES", 64 << 10);

/// Maximum connections that are being authenticated at once, in addition to one per rank. Silent
/// connections occupy a slot for [`HANDSHAKE_SECONDS`].
pub const HANDSHAKES: usize = 64;

/// Maximum seconds from accepting a connection to its complete hello.
pub const HANDSHAKE_SECONDS: u64 = 10;

/// Maximum hosts in a Slurm host list.
pub const HOSTS: usize = 65_536;

/// Maximum bytes of a line that a follower prints before the launcher splits it.
pub const RANK_LINE_BYTES: usize = 8 << 10;
