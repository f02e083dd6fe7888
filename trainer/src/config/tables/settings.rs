//! The macro that all tables are written with: a struct whose fields have their defaults beside
//! them.

/// Defines a table of the config. Its fields are its keys, and what stands behind `=` is the value
/// of a key that is not typed; where nothing does, that is none, an empty list or an empty text.
/// The documentation comments are the descriptions of the JSON Schema and of docs/config.md, and
/// the ranges of `#[schemars(...)]` are checked when a config is read.
///
/// Of the keywords that the schema takes beside its own, `x-kind` says what a text is: a `path`
/// that must be there, the `output` folder, a `day` or a `device`; `x-names` are those of what is built
/// in and stands for no path; `x-bool` has the words that
/// other trainers write as false and true, and `x-on-resume` is `longer` where a run may be extended, and `safe` where a setting or table
/// changes no number of the training itself, so that a run may be resumed with another value. A
/// `null` as `default` says that the default follows from other settings (see `derived.rs`).
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
