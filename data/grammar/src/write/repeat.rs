//! Writes counted repetitions with few symbols. A count is split into groups of four, recursively,
//! as in llguidance's `GrammarBuilder`.

use llguidance::earley::SymIdx;

use super::Writer;
use crate::error::GrammarError;

const GROUP: usize = 4;

impl Writer<'_> {
    /// Any number of parts.
    pub(super) fn any_number(&mut self, part: SymIdx) -> Result<SymIdx, GrammarError> {
        let several = self.symbol("star");
        self.add_rule(several, Vec::new())?;
        self.add_rule(several, vec![several, part])?;
        Ok(several)
    }

    /// From `min` to `max` parts.
    pub(super) fn repeat(
        &mut self,
        part: SymIdx,
        min: usize,
        max: Option<usize>,
    ) -> Result<SymIdx, GrammarError> {
        let required = self.exactly(part, min)?;
        let further = match max {
            None => self.any_number(part)?,
            Some(max) => self.repeat_at_most(part, max.saturating_sub(min))?,
        };
        self.join(vec![required, further])
    }

    fn copies(&mut self, part: SymIdx, n: usize) -> Result<SymIdx, GrammarError> {
        self.join(vec![part; n])
    }

    fn exactly(&mut self, part: SymIdx, n: usize) -> Result<SymIdx, GrammarError> {
        if let Some(symbol) = self.exactly.get(&(part, n)) {
            return Ok(*symbol);
        }
        let symbol = if n > 2 * GROUP {
            let group = self.copies(part, GROUP)?;
            let groups = self.exactly(group, n / GROUP)?;
            let mut all = vec![part; n % GROUP];
            all.push(groups);
            self.join(all)?
        } else {
            self.copies(part, n)?
        };
        self.exactly.insert((part, n), symbol);
        Ok(symbol)
    }

    fn repeat_at_most(&mut self, part: SymIdx, n: usize) -> Result<SymIdx, GrammarError> {
        if let Some(symbol) = self.at_most.get(&(part, n)) {
            return Ok(*symbol);
        }
        let symbol = match n {
            0..12 => {
                let counts: Result<Vec<_>, _> = (0..=n).map(|n| self.copies(part, n)).collect();
                self.select(counts?)?
            }
            _ => {
                let group = self.copies(part, GROUP)?;
                // Either fewer groups and a remainder smaller than a group, or all groups and the
                // rest.
                let fewer = self.repeat_at_most(group, n / GROUP - 1)?;
                let below_a_group = self.repeat_at_most(part, GROUP - 1)?;
                let fewer = self.join(vec![fewer, below_a_group])?;
                let groups = self.exactly(group, n / GROUP)?;
                let rest = self.repeat_at_most(part, n % GROUP)?;
                let all = self.join(vec![groups, rest])?;
                self.select(vec![all, fewer])?
            }
        };
        self.at_most.insert((part, n), symbol);
        Ok(symbol)
    }
}
