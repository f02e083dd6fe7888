//! The options of `data import mathqa`.

use std::ops::RangeInclusive;
use std::path::PathBuf;

use clap::Args;

/// Options that only `data import mathqa` accepts.
#[derive(Debug, Clone, PartialEq, Eq, Args)]
pub struct MathQaArgs {
    /// For mathqa: also write the rows for training to this JSON Lines file, with the prompt of the
    /// suite nestful: {"prompt", "completion"}.
    #[arg(long, value_name = "FILE")]
    pub prompt_completion: Option<PathBuf>,
    /// For mathqa: also write the specifications of all 40 functions to this JSON Lines file.
    #[arg(long, value_name = "FILE")]
    pub tools_output: Option<PathBuf>,
    /// For mathqa: number of tools per row, a number or MIN..MAX [default: 7..21]. They
    /// are the called tools, the tools of the prompt's examples, and random ones.
    #[arg(long, value_name = "RANGE", value_parser = tool_range)]
    pub tools_per_row: Option<RangeInclusive<usize>>,
    /// For mathqa: maximum number of characters of a prompt, which limits the random tools
    /// [default: 16000, about 4,000 tokens].
    #[arg(long, value_name = "N")]
    pub max_prompt_chars: Option<usize>,
    /// For mathqa: seed of the random tools and of the order of tools [default: 17].
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// For mathqa: model family of the prompt, as in eval.nestful.family [default: json_list]. With
    /// toolace, calls have no labels, so their references have no result.
    #[arg(long)]
    pub family: Option<String>,
    /// For mathqa: number of examples in the prompt, as in eval.nestful.n_examples [default: 3].
    #[arg(long, value_name = "N")]
    pub n_examples: Option<usize>,
}

impl MathQaArgs {
    /// The first option that is given.
    pub fn first_given(&self) -> Option<&'static str> {
        let options = [
            ("--prompt-completion", self.prompt_completion.is_some()),
            ("--tools-output", self.tools_output.is_some()),
            ("--tools-per-row", self.tools_per_row.is_some()),
            ("--max-prompt-chars", self.max_prompt_chars.is_some()),
            ("--seed", self.seed.is_some()),
            ("--family", self.family.is_some()),
            ("--n-examples", self.n_examples.is_some()),
        ];
        let mut set = options.into_iter().filter(|(_, is_set)| *is_set);
        set.next().map(|(name, _)| name)
    }
}

/// Parses `7..21`, or one number.
fn tool_range(text: &str) -> Result<RangeInclusive<usize>, String> {
    let number = |text: &str| {
        let number = text.parse::<usize>();
        number.map_err(|_| format!("{text:?} is not a number; write for example 7..21"))
    };
    let (min, max) = text.split_once("..").unwrap_or((text, text));
    let range = number(min)?..=number(max.trim_start_matches('='))?;
    if range.is_empty() || *range.start() == 0 {
        return Err("the first number must be at least 1 and at most the second".to_owned());
    }
    Ok(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_tools_has_both_ends_or_is_one_number() {
        assert_eq!(tool_range("7..21"), Ok(7..=21));
        assert_eq!(tool_range("7..=21"), Ok(7..=21));
        assert_eq!(tool_range("9"), Ok(9..=9));
        for (text, expected) in [
            ("", "\"\" is not a number"),
            ("7..", "\"\" is not a number"),
            ("-1..3", "\"-1\" is not a number"),
            ("21..7", "at most the second"),
            ("0..7", "at least 1"),
            ("7-21", "\"7-21\" is not a number"),
        ] {
            let refused = tool_range(text).unwrap_err();
            assert!(refused.contains(expected), "{text}: {refused}");
        }
    }
}
