//! Families about moving people and goods.

use super::super::Split::{Dev, Test, Train};
use super::super::field::*;

const FERRY: Family = Family {
    name: "ferry crossing",
    split: Train,
    flat: &[
        text(
            "vessel",
            &[
                "Blue Heron",
                "Northern Star",
                "Isle Runner",
                "Grey Seal",
                "Sea Lark",
                "Morning Tide",
            ],
        )
        .say("It sails on the {}."),
        place("departure port").say("The boat leaves from {}."),
        place("arrival port").say("Passengers go ashore in {}."),
        time("boarding time").say("Boarding opens at {}."),
        int("car spaces", 20, 180).say("There is room for {} cars."),
        num("fare", 65, 420).unit("euros").say("A ticket costs {}."),
        flag(
            "heated deck",
            "the deck is heated",
            "the deck is not heated",
        ),
        choice("sea state", &["calm", "moderate", "rough"]).say("The sea is {} today."),
    ],
    group: group(
        "operator",
        &[company("name"), place("office"), int("fleet size", 2, 30)],
    ),
    list: list(
        "onboard services",
        &["cafe", "shop", "lounge", "play area", "cabins", "laundry"],
    ),
    items: items(
        "vehicles",
        "vehicle",
        &[
            text("type", &["van", "truck", "camper", "car", "coach"]),
            int("axles", 2, 5),
            code("plate", "KV"),
        ],
    ),
};

const BUS: Family = Family {
    name: "bus line",
    split: Train,
    flat: &[
        code("line number", "B").say("The line runs as {}."),
        place("first stop").say("It starts in {}."),
        place("terminus").say("The last stop is {}."),
        int("interval", 5, 60)
            .unit("minutes")
            .say("A bus comes every {}."),
        num("route length", 35, 480)
            .unit("km")
            .say("The whole route covers {}."),
        flag(
            "low floor",
            "the buses have a low floor",
            "the buses have no low floor",
        ),
        choice("fuel", &["diesel", "electric", "hydrogen"]).say("The buses are {}."),
    ],
    group: group(
        "depot",
        &[place("town"), int("bays", 6, 60), person("supervisor")],
    ),
    list: list(
        "holidays without service",
        &[
            "New Year",
            "Easter Monday",
            "May Day",
            "Midsummer",
            "Christmas",
        ],
    ),
    items: items(
        "stops",
        "stop",
        &[
            place("name"),
            int("zone", 1, 9),
            choice("shelter", &["open", "roofed"]),
        ],
    ),
};

const PARCEL: Family = Family {
    name: "parcel delivery",
    split: Train,
    flat: &[
        code("tracking number", "PX").say("The parcel can be followed under {}."),
        person("recipient").say("It is meant for {}."),
        address("delivery address").say("The driver should go to {}."),
        num("weight", 3, 240).unit("kg").say("It weighs {}."),
        date("pickup date").say("It was collected on {}."),
        flag(
            "signature required",
            "a signature is required",
            "no signature is required",
        ),
        choice("speed", &["economy", "standard", "express"]),
    ],
    group: group(
        "sender",
        &[company("name"), place("city"), address("street")],
    ),
    list: list(
        "handling marks",
        &[
            "fragile",
            "this side up",
            "keep dry",
            "heavy",
            "no stacking",
        ],
    ),
    items: items(
        "scans",
        "scan",
        &[
            place("location"),
            time("time"),
            choice("result", &["accepted", "sorted", "loaded"]),
        ],
    ),
};

const RENTAL: Family = Family {
    name: "car rental",
    split: Dev,
    flat: &[
        text(
            "model",
            &[
                "Corvo 3",
                "Lumen Estate",
                "Pico City",
                "Terra X",
                "Vela Sport",
            ],
        )
        .say("The customer drives a {}."),
        code("booking reference", "CR").say("The desk filed it under {}."),
        date("return date").say("The car comes back on {}."),
        int("daily limit", 100, 500)
            .unit("km")
            .say("Each day {} are included."),
        num("deposit", 1005, 4995).unit("euros"),
        flag(
            "child seat",
            "a child seat is included",
            "a child seat is not included",
        ),
        choice("gearbox", &["manual", "automatic"]),
    ],
    group: group(
        "driver",
        &[person("name"), int("age", 21, 78), code("licence", "DL")],
    ),
    list: list(
        "extras",
        &[
            "roof box",
            "snow chains",
            "bike rack",
            "dash camera",
            "ski rack",
        ],
    ),
    items: items(
        "charges",
        "charge",
        &[
            text("reason", &["fuel", "cleaning", "late return", "toll"]),
            num("amount", 55, 900),
        ],
    ),
};

const TRAIN: Family = Family {
    name: "train journey",
    split: Test,
    flat: &[
        code("service", "IC").say("The train runs as {}."),
        place("origin").say("It sets off from {}."),
        place("destination").say("Its final station is {}."),
        int("platform", 1, 24),
        int("delay", 1, 75)
            .unit("minutes")
            .say("It is running {} late."),
        time("arrival time").say("It should get in at {}."),
        num("ticket price", 85, 1490)
            .unit("euros")
            .say("A seat costs {}."),
        flag(
            "wifi on board",
            "there is wifi on board",
            "there is no wifi on board",
        ),
        choice("travel class", &["first", "second"]),
    ],
    group: group(
        "conductor",
        &[person("name"), code("badge", "CN"), place("home station")],
    ),
    list: list(
        "connections",
        &[
            "coastal tram",
            "airport shuttle",
            "night coach",
            "valley railway",
            "river boat",
        ],
    ),
    items: items(
        "carriages",
        "carriage",
        &[
            int("number", 1, 14),
            int("seats", 40, 96),
            choice("kind", &["quiet", "family", "dining"]),
        ],
    ),
};

pub(super) const DOMAIN: Domain = Domain {
    name: "transport",
    families: &[FERRY, BUS, PARCEL, RENTAL, TRAIN],
};
