//! Passes a gradient from one operation's backward pass to another's, outside the autodiff graph.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Merges the two summands of the gradient of a residual stream that one stack reads and a later
/// stack adds to.
///
/// The autodiff graph would add the summands in a separate pass over three f32 arrays. If one
/// instance is in the [`LinearExtras`](super::LinearExtras) of both stacks, the reading stack adds
/// both in the pass that computes its own summand.
///
/// The input of the adding stack must depend on the output of the reading stack; otherwise its
/// summand may be lost.
#[derive(Clone, Default)]
pub struct SharedGradient(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    /// No backward pass will take a gradient.
    #[default]
    Unclaimed,
    /// The backward pass of the reading stack has not run yet.
    Claimed,
    Deposited(Box<dyn Any + Send>),
    /// That backward pass has run.
    Taken,
}

impl SharedGradient {
    /// Announces a later [`SharedGradient::take`].
    pub(super) fn claim(&self) {
        *self.state() = State::Claimed;
    }

    /// Deposits a summand, or returns it if no backward pass will take it.
    pub(super) fn deposit<T: Any + Send>(&self, summand: T) -> Option<T> {
        let mut state = self.state();
        match *state {
            State::Claimed => {
                *state = State::Deposited(Box::new(summand));
                None
            }
            State::Unclaimed | State::Deposited(_) | State::Taken => Some(summand),
        }
    }

    /// Takes the deposited summand.
    pub(super) fn take<T: Any + Send>(&self) -> Option<T> {
        match std::mem::replace(&mut *self.state(), State::Taken) {
            State::Deposited(summand) => {
                let summand = summand
                    .downcast()
                    .expect("both stacks use the same backend");
                Some(*summand)
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
    fn only_a_claimed_summand_is_deposited() {
        let shared = SharedGradient::default();
        assert_eq!(shared.deposit(1), Some(1));
        shared.claim();
        assert_eq!(shared.deposit(2), None);
        assert_eq!(shared.deposit(3), Some(3), "a second share");
        assert_eq!(shared.take(), Some(2));
        assert_eq!(shared.deposit(4), Some(4), "after it was taken");
        assert_eq!(shared.take::<i32>(), None);
    }
}
