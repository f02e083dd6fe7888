//! Input limits. The comment of each constant gives its reason. docs/limits.md tells users which
//! input exceeds a limit, and what to do.

/// Maximum bytes that all operations of an OpenAPI specification may copy from it in total, because
/// a shared component is copied into each operation. GitHub's specification has a thousand
/// operations and copies a few megabytes.
pub const SPEC_BYTES: usize = 512 << 20;

/// Maximum number of schema nodes visited while references are followed for all operations of an
/// OpenAPI specification. Visiting all of them takes about ten seconds. Stripe's objects all
/// reference each other and need a few million.
pub const SPEC_PARTS: usize = 10_000_000;

/// Maximum length of a chain of `$ref`s. Public specifications have chains of two or three.
pub const REFERENCE_STEPS: usize = 100;

/// Maximum bytes of a parameter or response schema after its references are expanded. GitHub's
/// schemas average a tenth of this. In payment APIs every object contains the others, so expansion
/// without a limit would never end.
pub const SCHEMA_BYTES: usize = 64 << 10;
