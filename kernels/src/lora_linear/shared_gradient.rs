//! A gradient that goes from one operation's backward pass to another's, past the graph.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Joins the two shares of the gradient of a residual stream that one stack reads and another one, behind
/// it, adds to.
///
/// The graph would hold the share of the one that adds and add the other one to it, in a pass of its own
/// over three arrays of f32. With one of these in the [`LinearExtras`](super::LinearExtras) of both, the
/// one that reads adds both in the pass that computes its own share.
///
/// What the stack that adds is given must follow from what the other one returned; else the share may be
/// lost.
#[derive(Clone, Default)]
pub struct SharedGradient(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    /// Nobody will take what is left.
    #[default]
    Unclaimed,
    /// The backward pass of the stack that reads is still to come.
    Claimed,
    Left(Box<dyn Any + Send>),
    /// It has been.
    Taken,
}

impl SharedGradient {
    /// Says that [`SharedGradient::take`] is to come.
    pub(super) fn claim(&self) {
        *self.state() = State::Claimed;
    }

    /// Leaves a share, or gives it back where nobody will take it.
    pub(super) fn leave<T: Any + Send>(&self, share: T) -> Option<T> {
        let mut state = self.state();
        match *state {
            State::Claimed => {
                *state = State::Left(Box::new(share));
                None
            }
            State::Unclaimed | State::Left(_) | State::Taken => Some(share),
        }
    }

    /// What was left.
    pub(super) fn take<T: Any + Send>(&self) -> Option<T> {
        match std::mem::replace(&mut *self.state(), State::Taken) {
            State::Left(share) => {
                let share = share.downcast().expect("both stacks have one backend");
                Some(*share)
            }
            State::Unclaimed | State::Claimed | State::Taken => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SharedGradient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedGradient")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_will_be_taken_is_left() {
        let shared = SharedGradient::default();
        assert_eq!(shared.leave(1), Some(1));
        shared.claim();
        assert_eq!(shared.leave(2), None);
        assert_eq!(shared.leave(3), Some(3), "a second share");
        assert_eq!(shared.take(), Some(2));
        assert_eq!(shared.leave(4), Some(4), "after it was taken");
        assert_eq!(shared.take::<i32>(), None);
    }
}
