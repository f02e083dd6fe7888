//! Converts trajectories to rows, which are prepared like rows of any other format.

use std::collections::VecDeque;

use tooltune_apis::Trajectory;
use tooltune_rows::text::{DataError, Row};

use super::expansion::{Expansion, Ranking};

/// Iterator over the examples of trajectories as rows, from [`goat_rows`].
#[derive(Debug)]
pub struct GoatRows<'a, I> {
    trajectories: I,
    expansion: Expansion<'a>,
    ranking: Ranking<'a>,
    pending_rows: VecDeque<Row>,
}

/// Expands trajectories one at a time.
///
/// Only one trajectory is in memory. A trajectory that cannot be expanded yields one error, and
/// iteration continues with the next one.
pub fn goat_rows<'a, I, E>(
    trajectories: I,
    expansion: Expansion<'a>,
    ranking: Ranking<'a>,
) -> GoatRows<'a, I::IntoIter>
where
    I: IntoIterator<Item = Result<Trajectory, E>>,
    DataError: From<E>,
{
    GoatRows {
        trajectories: trajectories.into_iter(),
        expansion,
        ranking,
        pending_rows: VecDeque::new(),
    }
}

impl<I, E> Iterator for GoatRows<'_, I>
where
    I: Iterator<Item = Result<Trajectory, E>>,
    DataError: From<E>,
{
    type Item = Result<Row, DataError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.pending_rows.is_empty() {
            let examples = self
                .trajectories
                .next()?
                .map_err(DataError::from)
                .and_then(|trajectory| self.expansion.expand(&trajectory, &mut self.ranking));
            match examples {
                Ok(examples) => self
                    .pending_rows
                    .extend(examples.into_iter().map(Row::from)),
                Err(error) => return Some(Err(error)),
            }
        }
        self.pending_rows.pop_front().map(Ok)
    }
}
