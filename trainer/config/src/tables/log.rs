//! The table `[log]`.

use super::settings::settings;
use crate::enums::ReportTo;

settings! {
    /// Where metrics are written.
    pub struct LogConfig {
        /// Outputs in addition to the terminal: "tensorboard" writes event files to `tb/`; "jsonl"
        /// is `metrics.jsonl`, which is always written.
        pub report_to: Vec<ReportTo> = vec![ReportTo::Tensorboard, ReportTo::Jsonl],
    }
}
