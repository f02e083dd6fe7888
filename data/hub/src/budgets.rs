//! Size limits of cache files and environment files.

use tooltune_disk::budgets::Limit;
use tooltune_json::ValueBudget;

/// Maximum bytes of the token file. A token has about 40.
pub(crate) const TOKEN_BYTES: Limit = Limit::new("TOKEN_BYTES", 64 << 10);

/// Maximum bytes of a cached listing. A listing of ten thousand files is about 3 MB long.
pub(crate) const LISTING_BYTES: Limit = Limit::new("LISTING_BYTES", 256 << 20);

/// Maximum bytes of a cached ref, which is a commit hash of 40 bytes.
pub(crate) const REF_BYTES: Limit = Limit::new("REF_BYTES", 4 << 10);

/// Maximum bytes of a weights index or module list. The longest indexes are 4 MB long.
pub(crate) const INDEX_BYTES: Limit = Limit::new("INDEX_BYTES", 64 << 20);

/// Maximum bytes of a file uploaded inside a commit; larger ones go to the large-file storage. The
/// hub accepts about 10 MB.
pub(crate) const REGULAR_BYTES: Limit = Limit::new("REGULAR_BYTES", 32 << 20);

/// Maximum JSON values of a hub reply or a cached index. A listing of a thousand files has about
/// ten thousand values; the indexes of the largest models have a few hundred thousand.
pub(crate) const ANSWER_VALUES: ValueBudget = ValueBudget::new("ANSWER_VALUES", 1_000_000);

/// Maximum bytes of a model card that are read to detect its author.
pub(crate) const CARD_BYTES: u64 = 4 << 20;
