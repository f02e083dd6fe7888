//! The tables: ten domains of five families each.
//!
//! In every domain one family belongs to the test split and, in every other domain, one to the
//! development split. A model is thus tested on keys, sentences and values of families that it
//! never saw, in domains that it did.

mod culture;
mod education;
mod finance;
mod food;
mod health;
mod home;
mod nature;
mod software;
mod transport;
mod work;

use super::Split;
use super::field::{Domain, Family};

pub(super) const DOMAINS: [Domain; 10] = [
    transport::DOMAIN,
    food::DOMAIN,
    health::DOMAIN,
    home::DOMAIN,
    education::DOMAIN,
    software::DOMAIN,
    finance::DOMAIN,
    culture::DOMAIN,
    nature::DOMAIN,
    work::DOMAIN,
];

/// The families of one split, in the order of the tables.
pub(super) fn of_split(split: Split) -> Vec<&'static Family> {
    let all = DOMAINS.iter().flat_map(|domain| domain.families);
    all.filter(|family| family.split == split).collect()
}
