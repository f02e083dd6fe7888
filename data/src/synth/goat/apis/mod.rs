//! The tables of all APIs, one file for a few tools. Tables and nothing else.

mod animals;
mod art;
mod food;
mod games;
mod inns;
mod money;
mod places;
mod sky;
mod stage;
mod trails;
mod work;

use super::api::Tool;

/// All tools, the held-out ones last.
pub(super) const TOOLS: &[Tool] = &[
    places::TOWN_DESK,
    places::FERRY_LINE,
    inns::ROOM_KEY,
    games::GAME_SHELF,
    stage::STAGE_NIGHT,
    money::MONEY_MILL,
    money::CLOCK_BOX,
    sky::SKY_LEDGER,
    trails::TRAIL_BOOK,
    work::WORK_ROLL,
    food::SPOON_CARD,
    art::ART_HALL,
    animals::BEAST_PARK,
];
