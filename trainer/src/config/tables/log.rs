//! The table `[log]`.

use super::settings::settings;
use crate::config::enums::ReportTo;

settings! {
    /// Where metrics go.
    pub struct LogConfig {
        /// The places besides the terminal: "tensorboard" writes event files under `tb/`, "jsonl"
        /// is `metrics.jsonl`, which is written in any case.
        pub report_to: Vec<ReportTo> = vec![ReportTo::Tensorboard, ReportTo::Jsonl],
    }
}
