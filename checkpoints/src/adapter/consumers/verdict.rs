//! The programs that load adapters, and what each makes of one.

use std::fmt;

/// Relative; scalings are computed in f32 by some programs.
pub(super) const SAME: f64 = 1e-6;

/// A program, or several alike, that loads adapters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumer {
    /// Hugging Face's peft, whose rules are the adapter's meaning.
    Peft,
    /// vLLM with `--enable-lora`.
    Vllm,
    /// llama.cpp after its own `convert_lora_to_gguf.py`.
    LlamaCpp,
    /// SGLang and TensorRT-LLM, whichever does worse: TensorRT-LLM knows rsLoRA, SGLang does not.
    SglangTrtLlm,
}

impl Consumer {
    /// In the order of [`super::CompatibilityRow::verdicts`].
    pub const ALL: [Consumer; 4] = [
        Consumer::Peft,
        Consumer::Vllm,
        Consumer::LlamaCpp,
        Consumer::SglangTrtLlm,
    ];

    /// The heading of its column.
    pub fn name(self) -> &'static str {
        match self {
            Consumer::Peft => "PEFT",
            Consumer::Vllm => "vLLM",
            Consumer::LlamaCpp => "llama.cpp (its converter)",
            Consumer::SglangTrtLlm => "SGLang / TensorRT-LLM",
        }
    }
}

/// What a program makes of an adapter, the better first.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Computes what was trained.
    Ok,
    /// Does so on a condition, such as an option of the server.
    OkWith(String),
    /// Loads, and multiplies modules by something else.
    WrongScale {
        /// How many modules.
        n_modules: usize,
        /// Least of what they are multiplied by, over what they were trained with.
        least: f64,
        /// Greatest.
        greatest: f64,
    },
    /// Loads without some modules.
    Ignores {
        /// How many.
        n_modules: usize,
    },
    /// Does not load.
    Refused(String),
}

impl Verdict {
    /// Whether the program computes what was trained, if its condition is met.
    pub fn is_ok(&self) -> bool {
        matches!(self, Verdict::Ok | Verdict::OkWith(_))
    }

    pub(super) fn severity(&self) -> usize {
        match self {
            Verdict::Ok => 0,
            Verdict::OkWith(_) => 1,
            Verdict::WrongScale { .. } => 2,
            Verdict::Ignores { .. } => 3,
            Verdict::Refused(_) => 4,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Ok => f.write_str("ok"),
            Verdict::OkWith(condition) => write!(f, "ok {condition}"),
            Verdict::WrongScale {
                least, greatest, ..
            } if (least - greatest).abs() <= SAME * greatest.abs() => {
                write!(f, "wrong scale: {}x", short(*least))
            }
            Verdict::WrongScale {
                least, greatest, ..
            } => write!(
                f,
                "wrong scale: {}x to {}x",
                short(*least),
                short(*greatest)
            ),
            Verdict::Ignores { n_modules } => write!(f, "ignores {n_modules} module(s)"),
            Verdict::Refused(problem) => write!(f, "refused: {problem}"),
        }
    }
}

/// Three significant digits.
fn short(number: f64) -> String {
    let digits = 2 - number.abs().max(1e-9).log10().floor() as i32;
    let text = format!("{number:.*}", digits.clamp(0, 9) as usize);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}
