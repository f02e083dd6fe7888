//! Another way to add integers than over the connections.

/// Adds integers over all ranks of a run, such as MPI or NCCL.
///
/// A door precedes each call: no rank begins before all others have arrived with as many values. A call may still hang when a rank is lost inside it. It therefore calls `is_running`
/// several times a second, and returns an error soon after the result is `false`.
pub trait AllReduce: std::fmt::Debug + Send {
    /// Replaces `sums` by the elementwise sums over all ranks, modulo 2^64.
    ///
    /// # Errors
    ///
    /// The call failed, or the run is over. The values are then undefined.
    fn add_all(
        &mut self,
        sums: &mut [i64],
        is_running: &dyn Fn() -> bool,
    ) -> std::result::Result<(), String>;

    /// Ends the library. All ranks call it. After a failed call it returns at once.
    ///
    /// # Errors
    ///
    /// The call failed, or the run is over.
    fn end(self: Box<Self>, is_running: &dyn Fn() -> bool) -> std::result::Result<(), String>;
}
