//! The table `[log]`.

use super::settings::settings;
use crate::enums::ReportTo;

settings! {
    /// Where metrics go.
    pub struct LogConfig {
        /// Outputs besides the terminal: "tensorboard" writes event files under `tb/`; "jsonl" is
        /// `metrics.jsonl`, which is always written.
        pub report_to: Vec<ReportTo> = vec![ReportTo::Tensorboard, ReportTo::Jsonl],
    }
}
