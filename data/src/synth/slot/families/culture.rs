//! Families about art, music, film and books.

use super::super::Split::{Test, Train};
use super::super::field::*;

const CONCERT: Family = Family {
    name: "concert",
    split: Train,
    flat: &[
        text(
            "ensemble",
            &[
                "Velvet Owls",
                "Northside Choir",
                "Trio Arco",
                "The Paper Kites Club",
                "Brass Union",
            ],
        )
        .say("On stage are {}."),
        text(
            "venue",
            &[
                "Opera Cellar",
                "Dockside Hall",
                "Rose Theatre",
                "Skyline Arena",
            ],
        )
        .say("They play at the {}."),
        date("concert date").say("The night is {}."),
        time("opening time").say("People are let in from {}."),
        num("ticket price", 125, 890)
            .unit("euros")
            .say("Getting in costs {}."),
        int("capacity", 80, 9000).say("The house holds {} people."),
        flag("sold out", "it is sold out", "it is not sold out"),
        choice("seating", &["standing", "seated", "mixed"]),
    ],
    group: group(
        "promoter",
        &[company("name"), person("contact"), place("city")],
    ),
    list: list(
        "support acts",
        &["Mono Tree", "Silk Radio", "Lowlands", "Echo Park Trio"],
    ),
    items: items(
        "songs",
        "song",
        &[
            text(
                "title",
                &["Harbour Lights", "Stay Low", "Paper Sun", "Undertow"],
            ),
            int("seconds", 120, 480),
        ],
    ),
};

const EXHIBITION: Family = Family {
    name: "exhibition",
    split: Train,
    flat: &[
        text(
            "show title",
            &[
                "Lines of Sand",
                "Quiet Machines",
                "After the Flood",
                "Paper Cities",
            ],
        )
        .say("The show is called {}."),
        person("curator").say("It was put together by {}."),
        int("works shown", 12, 240).say("Visitors see {} works."),
        date("opening day").say("It opens on {}."),
        date("closing day").say("It ends on {}."),
        flag(
            "guided tours",
            "guided tours are offered",
            "guided tours are not offered",
        ),
        choice("medium", &["photography", "sculpture", "textile"]),
        num("entry fee", 35, 190).unit("euros"),
    ],
    group: group(
        "gallery",
        &[
            text("name", &["Kunsthof", "White Room", "Pier Nine"]),
            address("street"),
            int("halls", 1, 12),
        ],
    ),
    list: list(
        "sponsors",
        &["City Fund", "Lotus Bank", "Artlink", "Press Club"],
    ),
    items: items(
        "artworks",
        "artwork",
        &[
            text("title", &["Dune", "Gear", "Silt", "Grid"]),
            person("artist"),
            int("year", 1950, 2023),
        ],
    ),
};

const FILM: Family = Family {
    name: "film screening",
    split: Train,
    flat: &[
        text(
            "film",
            &[
                "The Last Ferry",
                "Blue Hour",
                "Cold Harvest",
                "Letters to Mina",
            ],
        )
        .say("They are showing {}."),
        person("director").say("It was shot by {}."),
        int("running time", 75, 190)
            .unit("minutes")
            .say("It lasts {}."),
        int("screen", 1, 12),
        time("start time").say("The lights go down at {}."),
        num("rating", 21, 98).say("Critics gave it {}."),
        flag("subtitles", "there are subtitles", "there are no subtitles"),
        choice("projection", &["digital", "film", "laser"]),
    ],
    group: group(
        "cinema",
        &[
            text("name", &["Lux", "Capitol", "Odeon", "Roxy"]),
            place("town"),
            int("seats", 60, 500),
        ],
    ),
    list: list(
        "genres",
        &["drama", "comedy", "thriller", "western", "documentary"],
    ),
    items: items(
        "cast members",
        "cast member",
        &[
            person("actor"),
            text("role", &["captain", "doctor", "thief", "teacher"]),
        ],
    ),
};

const BOOK: Family = Family {
    name: "book",
    split: Train,
    flat: &[
        text(
            "title",
            &[
                "Salt and Iron",
                "The Long Orchard",
                "Winter Maps",
                "A Small Harbour",
            ],
        )
        .say("The cover says {}."),
        person("writer").say("It is the work of {}."),
        int("pages", 90, 900).say("It runs to {} pages."),
        company("publisher").say("It appeared with {}."),
        int("publication year", 1950, 2023).say("It came out in {}."),
        flag("illustrated", "it is illustrated", "it is not illustrated"),
        choice("binding", &["hardcover", "paperback"]),
        num("shop price", 75, 450).unit("euros"),
    ],
    group: group(
        "translator",
        &[
            person("name"),
            text("language", &["Dutch", "Polish", "Korean", "Arabic"]),
            int("translations", 1, 60),
        ],
    ),
    list: list(
        "awards",
        &["Silver Quill", "Reader Prize", "Debut Medal", "Golden Page"],
    ),
    items: items(
        "chapters",
        "chapter",
        &[
            text("heading", &["Arrival", "The Storm", "Ashes", "Return"]),
            int("page", 1, 400),
        ],
    ),
};

const ARTEFACT: Family = Family {
    name: "museum object",
    split: Test,
    flat: &[
        code("inventory number", "MO").say("It is catalogued as {}."),
        text(
            "object type",
            &[
                "bronze mask",
                "clay jar",
                "oak chest",
                "silver coin",
                "glass bead",
            ],
        )
        .say("Experts call it a {}."),
        place("find spot").say("It was dug up in {}."),
        int("age", 120, 4000)
            .unit("years")
            .say("It is thought to be {} old."),
        num("height", 12, 980).unit("cm").say("It stands {} tall."),
        person("donor").say("The museum got it from {}."),
        flag("on display", "it is on display", "it is not on display"),
        choice("state", &["intact", "restored", "fragment"]),
    ],
    group: group(
        "showcase",
        &[
            int("room", 1, 40),
            text("theme", &["trade", "rituals", "daily life"]),
            num("humidity", 305, 550),
        ],
    ),
    list: list(
        "materials",
        &["bronze", "wood", "clay", "glass", "bone", "silver"],
    ),
    items: items(
        "past owners",
        "past owner",
        &[
            person("name"),
            int("acquisition year", 1700, 1990),
            place("residence"),
        ],
    ),
};

pub(super) const DOMAIN: Domain = Domain {
    name: "culture",
    families: &[CONCERT, EXHIBITION, FILM, BOOK, ARTEFACT],
};
