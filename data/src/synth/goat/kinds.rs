//! The semantic types of parameters and outputs. A table and nothing else.

use super::api::{JsonType, Kind, Values};

pub(super) const TOWN: Kind = Kind::of("town.name", "towns", "town");
pub(super) const REGION: Kind = Kind::of("region.name", "towns", "region").say(&["{}"]);

pub(super) const SHIP: Kind = Kind::of("ship.id", "ships", "ship_id")
    .integer()
    .say(&["ship {}", "ship number {}"]);
pub(super) const SHIP_NAME: Kind =
    Kind::of("ship.name", "ships", "name").say(&["the ship {}", "the vessel {}"]);
pub(super) const TRIP: Kind = Kind::of("trip.id", "trips", "trip_id")
    .integer()
    .say(&["ferry trip {}", "crossing {}"]);

pub(super) const INN: Kind = Kind::of("inn.id", "inns", "inn_id")
    .integer()
    .say(&["inn {}", "inn number {}"]);
pub(super) const INN_NAME: Kind = Kind::of("inn.name", "inns", "name").say(&["the inn {}"]);

pub(super) const GAME: Kind = Kind::of("game.id", "games", "game_id")
    .integer()
    .say(&["board game {}", "game number {}"]);
pub(super) const GAME_TITLE: Kind =
    Kind::of("game.title", "games", "title").say(&["the board game {}", "the game {}"]);
pub(super) const DESIGNER: Kind = Kind::of("designer.id", "designers", "designer_id")
    .integer()
    .say(&["game designer {}", "designer number {}"]);
pub(super) const THEME: Kind = Kind::of("game.theme", "games", "theme");

pub(super) const PLAY: Kind = Kind::of("play.id", "plays", "play_id")
    .integer()
    .say(&["play {}", "play number {}"]);
pub(super) const PLAY_TITLE: Kind =
    Kind::of("play.title", "plays", "title").say(&["the play {}", "the stage play {}"]);
pub(super) const ACTOR: Kind = Kind::of("actor.id", "actors", "actor_id")
    .integer()
    .say(&["actor {}", "actor number {}"]);
pub(super) const ACTOR_NAME: Kind = Kind::of("actor.name", "actors", "name").say(&["the actor {}"]);

pub(super) const STAR: Kind = Kind::of("star.id", "stars", "star_id")
    .integer()
    .say(&["star {}", "star number {}"]);
pub(super) const STAR_NAME: Kind = Kind::of("star.name", "stars", "name").say(&["the star {}"]);
pub(super) const FIGURE: Kind =
    Kind::of("constellation.name", "stars", "figure").say(&["the constellation {}"]);
pub(super) const PLANET: Kind = Kind::of("planet.id", "planets", "planet_id")
    .integer()
    .say(&["planet {}", "planet number {}"]);

pub(super) const TRAIL: Kind = Kind::of("trail.id", "trails", "trail_id")
    .integer()
    .say(&["trail {}", "trail number {}"]);
pub(super) const TRAIL_NAME: Kind =
    Kind::of("trail.name", "trails", "name").say(&["the trail {}", "the hiking trail {}"]);
pub(super) const HUT: Kind = Kind::of("hut.id", "huts", "hut_id")
    .integer()
    .say(&["mountain hut {}", "hut number {}"]);

pub(super) const FIRM: Kind = Kind::of("firm.id", "firms", "firm_id")
    .integer()
    .say(&["firm {}", "firm number {}"]);
pub(super) const FIRM_NAME: Kind =
    Kind::of("firm.name", "firms", "name").say(&["the firm {}", "the company {}"]);
pub(super) const TRADE: Kind = Kind::of("firm.trade", "firms", "trade").say(&["the {} trade"]);
pub(super) const JOB: Kind = Kind::of("job.id", "jobs", "job_id")
    .integer()
    .say(&["job {}", "job offer {}"]);

pub(super) const DISH: Kind = Kind::of("dish.id", "dishes", "dish_id")
    .integer()
    .say(&["recipe {}", "dish number {}"]);
pub(super) const DISH_NAME: Kind =
    Kind::of("dish.name", "dishes", "name").say(&["the dish {}", "the recipe for {}"]);
pub(super) const INGREDIENT: Kind = Kind::of("ingredient.name", "ingredients", "ingredient");

pub(super) const MUSEUM: Kind = Kind::of("museum.id", "museums", "museum_id")
    .integer()
    .say(&["museum {}", "museum number {}"]);
pub(super) const MUSEUM_NAME: Kind =
    Kind::of("museum.name", "museums", "name").say(&["the museum {}"]);
pub(super) const WORK: Kind = Kind::of("artwork.id", "works", "work_id")
    .integer()
    .say(&["artwork {}", "painting {}"]);
pub(super) const PAINTER: Kind = Kind::of("painter.id", "painters", "painter_id")
    .integer()
    .say(&["painter {}", "painter number {}"]);

pub(super) const ANIMAL: Kind = Kind::of("animal.id", "animals", "animal_id")
    .integer()
    .say(&["zoo animal {}", "animal number {}"]);
pub(super) const ANIMAL_NAME: Kind =
    Kind::of("animal.name", "animals", "name").say(&["the zoo animal {}", "the animal {}"]);
pub(super) const SPECIES: Kind =
    Kind::of("species.name", "species", "species").say(&["the species {}"]);

pub(super) const CURRENCY: Kind = Kind::of("money.currency", "currencies", "code");
pub(super) const AMOUNT: Kind = Kind {
    json_type: JsonType::Number,
    ..Kind::range("money.amount", 11, 990).say(&["{} marks"])
};
pub(super) const PERCENT: Kind = Kind::range("money.percent", 3, 29);
pub(super) const PEOPLE: Kind = Kind::range("people.count", 2, 12);
pub(super) const MINUTES: Kind = Kind::range("time.minutes", 25, 400).say(&["{} minutes"]);
pub(super) const CLOCK: Kind = Kind {
    name: "time.clock",
    json_type: JsonType::Text,
    phrases: &["{}"],
    values: Values::Choice(&[
        "06:20", "07:15", "07:50", "08:05", "08:40", "09:10", "09:25", "10:15", "10:50", "11:05",
        "11:35", "12:20", "13:10", "13:45", "14:05", "14:55", "15:20", "16:10", "16:35", "17:25",
        "18:15", "18:50", "19:05", "19:40", "20:15", "20:45",
    ]),
};
pub(super) const YEAR: Kind = Kind::range("time.year", 1750, 1999);
pub(super) const LATER_YEAR: Kind = Kind::range("time.later_year", 2001, 2080);

pub(super) const LIMIT: Kind = Kind::range("list.limit", 2, 3);
pub(super) const PRICE_BOUND: Kind = Kind::range("bound.price", 60, 180);
pub(super) const LENGTH_BOUND: Kind = Kind::range("bound.km", 6, 25);
pub(super) const PAY_BOUND: Kind = Kind::range("bound.pay", 1500, 3500);
pub(super) const MINUTES_BOUND: Kind = Kind::range("bound.minutes", 20, 90);
