//! Families about weather, animals and land.

use super::super::Split::{Dev, Test, Train};
use super::super::field::*;

const BIRD: Family = Family {
    name: "bird sighting",
    split: Train,
    flat: &[
        text(
            "species",
            &[
                "barn owl",
                "red kite",
                "kingfisher",
                "crane",
                "goldfinch",
                "osprey",
            ],
        )
        .say("We spotted a {}."),
        person("observer").say("It was seen by {}."),
        place("site").say("We were near {}."),
        int("count", 1, 60).say("We counted {} birds."),
        date("sighting date").say("The walk was on {}."),
        flag("ringed", "the bird was ringed", "the bird was not ringed"),
        choice("behaviour", &["feeding", "nesting", "flying"]),
        num("distance", 25, 900).unit("metres"),
    ],
    group: group(
        "equipment",
        &[
            text("optics", &["telescope", "binoculars", "camera"]),
            int("zoom", 8, 60),
            company("maker"),
        ],
    ),
    list: list(
        "habitats",
        &["reed bed", "meadow", "pine wood", "cliff", "pond"],
    ),
    items: items(
        "nests",
        "nest",
        &[
            text("tree", &["oak", "birch", "willow", "beech"]),
            int("eggs", 1, 7),
        ],
    ),
};

const WEATHER: Family = Family {
    name: "weather report",
    split: Train,
    flat: &[
        place("station").say("The readings come from {}."),
        num("temperature", 15, 340)
            .unit("degrees")
            .say("It is {} outside."),
        int("wind speed", 2, 110)
            .unit("km/h")
            .say("The wind blows at {}."),
        num("rainfall", 2, 480)
            .unit("mm")
            .say("So far {} of rain fell."),
        int("humidity", 20, 100).unit("percent"),
        flag(
            "storm warning",
            "a storm warning is out",
            "no storm warning is out",
        ),
        choice("sky", &["clear", "cloudy", "overcast"]),
        time("measuring time").say("The values were read at {}."),
    ],
    group: group(
        "tide",
        &[time("high water"), time("low water"), num("range", 8, 62)],
    ),
    list: list(
        "affected districts",
        &["harbour", "old town", "airport", "hills", "river bank"],
    ),
    items: items(
        "forecasts",
        "forecast",
        &[
            date("day"),
            int("high", 5, 36),
            choice("outlook", &["sunny", "rain", "fog"]),
        ],
    ),
};

const TRAIL: Family = Family {
    name: "hiking trail",
    split: Test,
    flat: &[
        text(
            "trail name",
            &[
                "Ridge Loop",
                "Badger Path",
                "Waterfall Way",
                "Old Quarry Walk",
            ],
        )
        .say("On the sign it says {}."),
        num("length", 15, 320)
            .unit("km")
            .say("From end to end it is {}."),
        int("climb", 40, 1800).unit("metres").say("You go up {}."),
        place("trailhead").say("You park in {}."),
        num("walking time", 11, 95)
            .unit("hours")
            .say("Plan {} for it."),
        int("benches", 1, 25).say("On the way there are {} benches."),
        flag("dogs allowed", "dogs are allowed", "dogs are not allowed"),
        choice("grade", &["gentle", "steady", "steep"]),
    ],
    group: group(
        "hut",
        &[
            text("name", &["Eagle Rest", "Stone Hut", "Larch House"]),
            int("bunks", 4, 60),
            person("warden"),
        ],
    ),
    list: list(
        "hazards",
        &["loose rock", "ticks", "ice", "cattle", "fast water"],
    ),
    items: items(
        "viewpoints",
        "viewpoint",
        &[
            text("name", &["Falcon Rock", "Table Top", "Chapel Hill"]),
            int("altitude", 200, 2400),
        ],
    ),
};

const FARM: Family = Family {
    name: "farm field",
    split: Train,
    flat: &[
        text(
            "crop",
            &["barley", "rapeseed", "sugar beet", "oats", "maize"],
        )
        .say("This year it grows {}."),
        num("area", 8, 320).unit("hectares").say("It covers {}."),
        person("farmer").say("It is worked by {}."),
        date("harvest date").say("The combine comes on {}."),
        int("yield", 2, 80).unit("tonnes").say("We expect {}."),
        flag("irrigated", "it is irrigated", "it is not irrigated"),
        choice("tillage", &["plough", "strip", "none"]),
        code("parcel", "FF"),
    ],
    group: group(
        "soil sample",
        &[
            num("acidity", 45, 79),
            int("nitrogen", 10, 90),
            date("sampling date"),
        ],
    ),
    list: list("pests", &["aphids", "slugs", "rust", "beetles", "mildew"]),
    items: items(
        "treatments",
        "treatment",
        &[
            text("product", &["compost", "lime", "manure", "potash"]),
            int("amount", 10, 900),
            date("date"),
        ],
    ),
};

const RIVER: Family = Family {
    name: "river gauge",
    split: Dev,
    flat: &[
        text("river", &["Avel", "Brunne", "Carrow", "Deva", "Isen"])
            .say("The gauge stands on the {}."),
        num("water level", 4, 89)
            .unit("metres")
            .say("The water stands at {}."),
        int("flow", 3, 900)
            .unit("m3/s")
            .say("The river carries {}."),
        place("nearest town").say("It is close to {}."),
        time("reading time").say("Someone looked at {}."),
        flag(
            "flood alert",
            "a flood alert is active",
            "no flood alert is active",
        ),
        choice("trend", &["rising", "steady", "falling"]),
    ],
    group: group(
        "keeper",
        &[
            person("name"),
            int("visits per week", 1, 7),
            address("home"),
        ],
    ),
    list: list("fish", &["trout", "pike", "perch", "eel", "salmon"]),
    items: items("readings", "reading", &[time("hour"), num("level", 4, 89)]),
};

pub(super) const DOMAIN: Domain = Domain {
    name: "nature",
    families: &[BIRD, WEATHER, TRAIL, FARM, RIVER],
};
