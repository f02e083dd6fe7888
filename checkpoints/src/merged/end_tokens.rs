//! Maps end-of-turn tokens to GGUF keys.

/// The end-of-turn tokens, by GGUF key. llama.cpp stops at each of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EndTokens {
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`.
    pub eot: Option<u32>,
    /// `eom_token_id`.
    pub eom: Option<u32>,
    /// Stop tokens that have no key.
    pub without_key: Vec<u32>,
}

impl EndTokens {
    /// Assigns the stop tokens `stop_ids` to keys; `eos` is the tokenizer's end-of-text token.
    ///
    /// If `eos` is not a stop token, it has no key, because llama.cpp would stop at it. llama.cpp
    /// guesses an absent `eot_token_id` from token strings, so this key is written even if there is
    /// only one stop token.
    pub fn assign(eos: Option<u32>, stop_ids: &[u32]) -> Self {
        let first = stop_ids.first().copied();
        let eos = match eos {
            Some(eos) if first.is_none() || stop_ids.contains(&eos) => Some(eos),
            _ => first,
        };
        let mut remaining: Vec<u32> = Vec::new();
        for id in stop_ids {
            if Some(*id) != eos && !remaining.contains(id) {
                remaining.push(*id);
            }
        }
        let mut remaining = remaining.into_iter();
        Self {
            eos,
            eot: remaining.next().or(eos),
            eom: remaining.next(),
            without_key: remaining.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stop_token_has_a_key_or_is_named() {
        let keys = |eos, stop_ids: &[u32]| {
            let EndTokens {
                eos,
                eot,
                eom,
                without_key,
            } = EndTokens::assign(eos, stop_ids);
            ([eos, eot, eom], without_key)
        };
        assert_eq!(keys(Some(2), &[2]), ([Some(2), Some(2), None], vec![]));
        assert_eq!(keys(Some(2), &[2, 0]), ([Some(2), Some(0), None], vec![]));
        assert_eq!(
            keys(Some(2), &[0, 2, 7]),
            ([Some(2), Some(0), Some(7)], vec![])
        );
        assert_eq!(
            keys(Some(2), &[2, 0, 7, 9, 0, 8]),
            ([Some(2), Some(0), Some(7)], vec![9, 8])
        );
        // The end-of-text token of some tokenizers does not end a turn.
        assert_eq!(keys(Some(0), &[2, 7]), ([Some(2), Some(7), None], vec![]));
        assert_eq!(keys(None, &[2]), ([Some(2), Some(2), None], vec![]));
        assert_eq!(keys(Some(0), &[]), ([Some(0), Some(0), None], vec![]));
        assert_eq!(keys(None, &[]), ([None, None, None], vec![]));
    }
}
