//! The family tables: ten domains of five families each, in one TOML file per domain.
//!
//! In every domain one family belongs to the test split, and in half of the domains one belongs to
//! the development split. A model is thus tested on unseen keys, sentences and values in seen
//! domains.
//!
//! # Adding a family
//!
//! ```toml
//! [[family]]
//! name = "swimming course"                          # a noun
//! split = "train"                                   # or "dev" or "test"
//! fields = [                                        # seven or more, one of them a flag
//!   { name = "lessons", kind.int = [4, 24], say = "There are {} lessons." },
//!   { name = "pool length", kind.tenths = [125, 500], unit = "metres" },
//!   { name = "teacher", kind = "person" },
//!   { name = "heated", kind.flag = ["the pool is heated", "the pool is not heated"] },
//! ]
//!
//! [family.group]                                    # a nested object
//! name = "certificate"
//! fields = [{ name = "holder", kind = "person" }]   # three
//!
//! [family.list]                                     # an array of strings
//! name = "strokes"                                  # a plural
//! values = ["crawl", "butterfly", "backstroke"]     # three or more
//!
//! [family.items]                                    # an array of objects
//! plural = "lockers"
//! singular = "locker"
//! fields = [{ name = "key", kind.code = "LK" }]     # two or more
//! ```
//!
//! A field has one name in plain words; its keys in every style and its labels in the text are
//! derived from the name. Its kind is `"person"`, `"place"`, `"address"`, `"company"`, `"date"` or
//! `"time"`, or one of the following:
//!
//! | kind | value |
//! |---|---|
//! | `kind.text = ["a", "b"]` | one of these strings |
//! | `kind.choice = ["a", "b"]` | one of these strings, and the schema allows no others |
//! | `kind.code = "BK"` | the prefix, a hyphen and three digits |
//! | `kind.int = [4, 24]` | an integer in this inclusive range |
//! | `kind.tenths = [45, 120]` | a number from 4.5 to 12.0 that is not an integer |
//! | `kind.flag = ["it is", "it is not"]` | a boolean, stated by one of these clauses |
//!
//! `unit` is a word after a number. `say` is a sentence with `{}` for the value; it does not
//! contain the name.

use std::sync::LazyLock;

use super::Split;
use super::field::{Domain, Family};
use crate::table::{TableFile, file};

pub(super) const FILES: [TableFile; 10] = [
    file(
        "slot/families/transport.toml",
        include_str!("transport.toml"),
    ),
    file("slot/families/food.toml", include_str!("food.toml")),
    file("slot/families/health.toml", include_str!("health.toml")),
    file("slot/families/home.toml", include_str!("home.toml")),
    file(
        "slot/families/education.toml",
        include_str!("education.toml"),
    ),
    file("slot/families/software.toml", include_str!("software.toml")),
    file("slot/families/finance.toml", include_str!("finance.toml")),
    file("slot/families/culture.toml", include_str!("culture.toml")),
    file("slot/families/nature.toml", include_str!("nature.toml")),
    file("slot/families/work.toml", include_str!("work.toml")),
];

/// All domains, in file order.
pub(super) static DOMAINS: LazyLock<Vec<Domain>> =
    LazyLock::new(|| FILES.iter().map(TableFile::read).collect());

/// The families of a split, in table order.
pub(super) fn families_in_split(split: Split) -> Vec<&'static Family> {
    let all_families = DOMAINS.iter().flat_map(|domain| &domain.families);
    all_families
        .filter(|family| family.split == split)
        .collect()
}
