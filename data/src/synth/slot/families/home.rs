//! Families about houses and what is in them.

use super::super::Split::{Test, Train};
use super::super::field::*;

const FLAT: Family = Family {
    name: "flat listing",
    split: Train,
    flat: &[
        address("location").say("The flat is at {}."),
        int("rooms", 1, 7).say("It has {} rooms."),
        num("floor area", 255, 1800)
            .unit("square metres")
            .say("It measures {}."),
        int("monthly rent", 420, 2600)
            .unit("euros")
            .say("Each month {} are due."),
        date("move in date").say("You can move in on {}."),
        flag("pets allowed", "pets are allowed", "pets are not allowed"),
        choice("heating", &["gas", "district", "heat pump"]),
        company("agency").say("It is offered by {}."),
    ],
    group: group(
        "landlord",
        &[person("name"), place("town"), code("phone", "555")],
    ),
    list: list(
        "features",
        &[
            "balcony",
            "lift",
            "cellar",
            "fireplace",
            "bathtub",
            "parking",
        ],
    ),
    items: items(
        "viewings",
        "viewing",
        &[date("day"), time("hour"), int("visitors", 1, 9)],
    ),
};

const REPAIR: Family = Family {
    name: "repair job",
    split: Train,
    flat: &[
        text(
            "broken part",
            &[
                "kitchen tap",
                "front door",
                "boiler",
                "roof gutter",
                "bedroom window",
            ],
        )
        .say("The trouble is with the {}."),
        code("job number", "RJ").say("The work order is {}."),
        person("technician").say("We are sending {}."),
        int("hours", 1, 12).say("It should take {} hours."),
        num("material cost", 85, 890)
            .unit("euros")
            .say("For parts we need {}."),
        flag(
            "under warranty",
            "it is under warranty",
            "it is not under warranty",
        ),
        choice("priority", &["routine", "soon", "emergency"]),
    ],
    group: group(
        "tenant",
        &[person("name"), int("flat number", 1, 90), time("best time")],
    ),
    list: list(
        "tools",
        &["wrench", "drill", "ladder", "sealant gun", "hammer", "saw"],
    ),
    items: items(
        "parts",
        "part",
        &[
            text("name", &["washer", "hinge", "valve", "bracket", "pane"]),
            int("count", 1, 12),
            num("price", 15, 450),
        ],
    ),
};

const APPLIANCE: Family = Family {
    name: "appliance",
    split: Train,
    flat: &[
        text(
            "product",
            &[
                "dishwasher",
                "washing machine",
                "fridge",
                "oven",
                "tumble dryer",
            ],
        )
        .say("It is a {}."),
        company("brand").say("It was built by {}."),
        code("serial number", "SN").say("On the back you can read {}."),
        int("energy use", 40, 480)
            .unit("kWh")
            .say("In a year it draws {}."),
        num("width", 445, 905).unit("cm"),
        flag("quiet mode", "it has a quiet mode", "it has no quiet mode"),
        choice("finish", &["white", "steel", "black"]),
    ],
    group: group(
        "warranty",
        &[int("years", 1, 10), company("provider"), date("end date")],
    ),
    list: list(
        "programmes",
        &["eco", "quick", "intensive", "delicate", "night"],
    ),
    items: items(
        "accessories",
        "accessory",
        &[
            text("name", &["hose", "rack", "filter", "tray"]),
            int("pieces", 1, 6),
        ],
    ),
};

const GARDEN: Family = Family {
    name: "garden plan",
    split: Train,
    flat: &[
        person("gardener").say("The beds are looked after by {}."),
        num("plot size", 125, 980)
            .unit("square metres")
            .say("There are {} to plant."),
        text(
            "main crop",
            &["tomatoes", "beans", "squash", "potatoes", "kale"],
        )
        .say("Most of it will be {}."),
        date("sowing date").say("The seeds go in on {}."),
        int("raised beds", 1, 12).say("We will build {} raised beds."),
        flag(
            "greenhouse",
            "a greenhouse is planned",
            "no greenhouse is planned",
        ),
        choice("soil", &["sandy", "loam", "clay"]),
    ],
    group: group(
        "water tank",
        &[
            int("litres", 100, 2000),
            text("material", &["plastic", "steel", "concrete"]),
            num("height", 8, 32),
        ],
    ),
    list: list(
        "herbs",
        &["basil", "thyme", "sage", "mint", "dill", "parsley"],
    ),
    items: items(
        "beds",
        "bed",
        &[
            text("plant", &["lettuce", "onions", "peas", "radish"]),
            int("rows", 1, 9),
            choice("sun", &["full", "partial", "shade"]),
        ],
    ),
};

const MOVING: Family = Family {
    name: "moving job",
    split: Test,
    flat: &[
        person("household").say("The boxes belong to {}."),
        address("old address").say("Loading happens at {}."),
        address("new address").say("Everything goes to {}."),
        int("boxes", 12, 160).say("We expect {} boxes."),
        num("volume", 85, 650)
            .unit("cubic metres")
            .say("The load takes up {}."),
        date("moving day").say("The van comes on {}."),
        flag("piano", "there is a piano", "there is no piano"),
        choice("van size", &["small", "large", "double"]),
    ],
    group: group(
        "crew",
        &[person("leader"), int("helpers", 2, 8), code("van", "MV")],
    ),
    list: list(
        "bulky goods",
        &[
            "sofa", "wardrobe", "aquarium", "desk", "mattress", "bookcase",
        ],
    ),
    items: items(
        "rooms",
        "room",
        &[
            text("name", &["kitchen", "study", "attic", "nursery"]),
            int("crates", 2, 40),
        ],
    ),
};

pub(super) const DOMAIN: Domain = Domain {
    name: "home",
    families: &[FLAT, REPAIR, APPLIANCE, GARDEN, MOVING],
};
