//! The programs that load adapters, and their verdicts.

use std::fmt;

/// Relative tolerance for scalings, because some programs compute them in f32.
pub(super) const SCALING_TOLERANCE: f64 = 1e-6;

/// A program that loads adapters, or several programs with the same rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consumer {
    /// Hugging Face PEFT, whose rules define the adapter's meaning.
    Peft,
    /// vLLM with `--enable-lora`.
    Vllm,
    /// llama.cpp after its own `convert_lora_to_gguf.py`.
    LlamaCpp,
    /// SGLang and TensorRT-LLM. The worse of their verdicts is shown: TensorRT-LLM supports rsLoRA,
    /// SGLang does not.
    SglangTrtLlm,
}

impl Consumer {
    /// All programs, in the order of [`super::CompatibilityRow::verdicts`].
    pub const ALL: [Consumer; 4] = [
        Consumer::Peft,
        Consumer::Vllm,
        Consumer::LlamaCpp,
        Consumer::SglangTrtLlm,
    ];

    /// The column heading.
    pub fn name(self) -> &'static str {
        match self {
            Consumer::Peft => "PEFT",
            Consumer::Vllm => "vLLM",
            Consumer::LlamaCpp => "llama.cpp (its converter)",
            Consumer::SglangTrtLlm => "SGLang / TensorRT-LLM",
        }
    }
}

/// How a program loads an adapter, ordered from best to worst.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict {
    /// Computes the trained function.
    Ok,
    /// Computes the trained function under a condition, such as a server option.
    OkWith(String),
    /// Loads, but applies different scalings.
    WrongScale {
        /// The number of affected modules.
        n_modules: usize,
        /// The smallest ratio of applied to trained scaling.
        least: f64,
        /// The largest ratio.
        greatest: f64,
    },
    /// Loads without some modules.
    Ignores {
        /// The number of ignored modules.
        n_modules: usize,
    },
    /// Does not load. The string is the reason.
    Refused(String),
}

impl Verdict {
    /// Whether the program computes the trained function, if its condition is met.
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
            } if (least - greatest).abs() <= SCALING_TOLERANCE * greatest.abs() => {
                write!(f, "wrong scale: {}x", format_number(*least))
            }
            Verdict::WrongScale {
                least, greatest, ..
            } => write!(
                f,
                "wrong scale: {}x to {}x",
                format_number(*least),
                format_number(*greatest)
            ),
            Verdict::Ignores { n_modules } => write!(f, "ignores {n_modules} module(s)"),
            Verdict::Refused(problem) => write!(f, "refused: {problem}"),
        }
    }
}

/// Formats with three significant digits.
fn format_number(number: f64) -> String {
    let digits = 2 - number.abs().max(1e-9).log10().floor() as i32;
    let text = format!("{number:.*}", digits.clamp(0, 9) as usize);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}
