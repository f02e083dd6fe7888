//! What files of the cache and of its environment may ask for.

use tooltune_rows::budgets::Limit;

/// The most bytes of the file that holds a token. Tokens have some 40.
pub(crate) const TOKEN_BYTES: Limit = Limit::new("TOKEN_BYTES", 64 << 10);

/// The most bytes of a listing in the cache. One of ten thousand files has some 3 MB.
pub(crate) const LISTING_BYTES: Limit = Limit::new("LISTING_BYTES", 256 << 20);

/// The most bytes of a name of a commit in the cache. It has 40.
pub(crate) const REF_BYTES: Limit = Limit::new("REF_BYTES", 4 << 10);

/// The most bytes of an index of weights or of a list of modules. The longest indexes have 4 MB.
pub(crate) const INDEX_BYTES: Limit = Limit::new("INDEX_BYTES", 64 << 20);

/// The most bytes of a file that is uploaded within a commit; larger ones go to the storage of
/// large files. The hub takes some 10 MB.
pub(crate) const REGULAR_BYTES: Limit = Limit::new("REGULAR_BYTES", 32 << 20);
