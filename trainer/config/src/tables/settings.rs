//! The macro that defines all tables: a struct with a default next to each field.

/// Defines a table of the config. Its fields are its keys, and the value after `=` is the default;
/// without one it is none, an empty list or an empty string.
/// The documentation comments are the descriptions of the JSON Schema and of docs/config.md, and
/// the ranges of `#[schemars(...)]` are checked when a config is read.
///
/// The schema has four keywords of our own. `x-kind` is the kind of a string: a `path` that must
/// exist, the `output` folder, a `day` or a `device`. `x-names` lists built-in names that are accepted
/// instead of a path. `x-bool` has the words for false and true in files of other trainers.
/// `x-on-resume` is `longer` for settings that may extend a run, and `safe` for settings and tables
/// that may change on resume, because they do not affect training numerics. A `default` of `null`
/// means that the default follows from other settings (see `derived.rs`).
macro_rules! settings {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty $(= $default:expr)?,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(
            Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        #[serde(default, deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_meta])* pub $field: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: settings!(@default $($default)?)),* }
            }
        }
    };
    (@default) => { Default::default() };
    (@default $default:expr) => { $default };
}
pub(super) use settings;
