//! Access to the metrics of a report by name. Each name is the name of a field.

/// Defines `NAMES` and `value` of a report with a field per metric, which is an
/// [`Estimate`](crate::bootstrap::Estimate) or an `Option` of one.
///
/// `|report| report.overall` means that the fields are in the part `overall`.
macro_rules! named_estimates {
    ($report:ident, |$this:ident| $part:expr, [$($metric:ident),+ $(,)?]) => {
        impl $report {
            /// The names that [`Self::value`] accepts.
            pub const NAMES: [&'static str; [$(stringify!($metric)),+].len()] =
                [$(stringify!($metric)),+];

            /// The estimate of a metric; `None` if the name is unknown or the run has no such
            /// value.
            pub fn value(&self, name: &str) -> Option<$crate::bootstrap::Estimate> {
                let $this = self;
                $(if name == stringify!($metric) {
                    return $part.$metric.into();
                })+
                None
            }
        }
    };
}

/// Defines `NAMES`, `columns` and `from_columns` of a struct with one value of a type `T` per
/// metric.
macro_rules! named_columns {
    ($metrics:ident, [$($metric:ident),+ $(,)?]) => {
        impl<T: Copy> $metrics<T> {
            /// Names of the metrics, in the order of [`Self::columns`].
            pub const NAMES: [&'static str; [$(stringify!($metric)),+].len()] =
                [$(stringify!($metric)),+];

            /// The values in the order of [`Self::NAMES`].
            pub fn columns(&self) -> [T; [$(stringify!($metric)),+].len()] {
                [$(self.$metric),+]
            }

            pub(super) fn from_columns(columns: [T; [$(stringify!($metric)),+].len()]) -> Self {
                let [$($metric),+] = columns;
                Self { $($metric),+ }
            }
        }
    };
}

pub(crate) use {named_columns, named_estimates};
