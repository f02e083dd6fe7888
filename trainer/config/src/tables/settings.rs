//! The macro that defines all tables: each is a struct with the default after each field.

/// Defines a table of the config. Its fields are its keys, and the value after `=` is the default.
/// Without `=`, the default is `Default::default()`: `None`, an empty list or an empty string. The
/// doc comments are the descriptions in the JSON Schema and in docs/config.md. The ranges in
/// `#[schemars(...)]` are checked when a config is read.
///
/// The schema has keywords of our own, which `tooltune schema` leaves out:
///
/// - `x-kind` is the kind of a string: a `path` that must exist, the `output` folder, a `day` or a
///   `device`. `x-names` lists built-in names that are accepted instead of a path.
/// - `x-on-resume` is `longer` for settings that may extend a run, and `safe` for settings and tables
///   that may change on resume, because they do not affect training numerics.
/// - `x-only-with` lists the settings of the same table without which this setting has no effect.
///   Each has the values that are required, or `true` for any value. `x-example` is a valid value
///   for tests, if a random string is not valid.
/// - `x-elsewhere` has the names in other trainers, for `init --from`; `[]` means none. In a table
///   marked `x-shared`, other trainers use the same names unless this keyword has others. A name
///   whose values differ by more than words has a rule in `foreign/TRAINER.toml` instead.
/// - `x-words` maps other trainers' words to the values here. `x-bool` has the two words here that
///   stand for false and true in other trainers.
/// - `x-also` lists other spellings for error messages, each with an optional remark after `; `.
///
/// A `default` of `null` means that the default follows from other settings (see `derived.rs`).
macro_rules! settings {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $($(#[$field_meta:meta])* pub $field:ident: $type:ty $(= $default:expr)?,)*
        }
    ) => {
        #[derive(
            Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema,
        )]
        #[serde(default, deny_unknown_fields)]
        $(#[$meta])*
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
