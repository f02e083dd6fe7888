//! Families about health and exercise.

use super::super::Split::{Dev, Test, Train};
use super::super::field::*;

const CLINIC: Family = Family {
    name: "clinic visit",
    split: Train,
    flat: &[
        person("patient").say("We saw {} at the clinic."),
        date("visit date").say("They came in on {}."),
        text(
            "complaint",
            &[
                "sore throat",
                "back pain",
                "headache",
                "knee swelling",
                "skin rash",
            ],
        )
        .say("The reason for coming was {}."),
        int("pulse", 55, 120)
            .unit("beats")
            .say("We counted {} per minute."),
        num("body temperature", 361, 399)
            .unit("degrees")
            .say("The thermometer showed {}."),
        flag(
            "follow up",
            "a follow up is needed",
            "no follow up is needed",
        ),
        choice("urgency", &["low", "medium", "high"]),
        int("room", 1, 40),
    ],
    group: group(
        "doctor",
        &[
            person("name"),
            text(
                "field",
                &["dermatology", "cardiology", "orthopaedics", "neurology"],
            ),
            code("extension", "EX"),
        ],
    ),
    list: list(
        "symptoms",
        &["cough", "fever", "fatigue", "nausea", "dizziness", "chills"],
    ),
    items: items(
        "measurements",
        "measurement",
        &[
            text("name", &["height", "weight", "oxygen", "glucose"]),
            num("value", 405, 1850),
        ],
    ),
};

const PRESCRIPTION: Family = Family {
    name: "prescription",
    split: Train,
    flat: &[
        text(
            "medicine",
            &["Calmatol", "Respira", "Dermagel", "Solvex", "Nocturin"],
        )
        .say("The doctor chose {}."),
        person("patient name").say("It is made out to {}."),
        int("dose", 5, 500)
            .unit("mg")
            .say("Each time {} are taken."),
        int("duration", 3, 60)
            .unit("days")
            .say("The course lasts {}."),
        code("slip number", "RX"),
        flag(
            "refill allowed",
            "a refill is allowed",
            "a refill is not allowed",
        ),
        choice("form", &["tablet", "syrup", "cream"]),
        date("expiry date").say("After {} it is no longer valid."),
    ],
    group: group(
        "pharmacy",
        &[company("name"), address("street"), time("closing time")],
    ),
    list: list(
        "side effects",
        &["drowsiness", "dry mouth", "itching", "thirst", "insomnia"],
    ),
    items: items(
        "doses",
        "dose entry",
        &[
            time("time"),
            int("amount", 1, 4),
            choice("meal timing", &["before", "during", "after"]),
        ],
    ),
};

const GYM: Family = Family {
    name: "gym class",
    split: Train,
    flat: &[
        text(
            "class name",
            &[
                "Core Flow",
                "Spin Storm",
                "Aqua Fit",
                "Iron Hour",
                "Deep Stretch",
            ],
        )
        .say("The session is listed as {}."),
        person("trainer").say("It is led by {}."),
        int("free places", 1, 30).say("There are still {} places."),
        time("start").say("It begins at {}."),
        int("length", 20, 90)
            .unit("minutes")
            .say("It goes on for {}."),
        flag(
            "beginners welcome",
            "beginners are welcome",
            "beginners are not welcome",
        ),
        choice("level", &["starter", "advanced", "expert"]),
    ],
    group: group(
        "studio",
        &[
            text("name", &["Mirror Hall", "Pool Deck", "Loft", "Basement"]),
            int("floor", 1, 5),
            num("area", 405, 2400),
        ],
    ),
    list: list(
        "things to bring",
        &["towel", "mat", "water", "gloves", "swim cap"],
    ),
    items: items(
        "exercises",
        "exercise",
        &[
            text("name", &["squats", "planks", "lunges", "rows", "jumps"]),
            int("repeats", 5, 40),
        ],
    ),
};

const DENTAL: Family = Family {
    name: "dental checkup",
    split: Dev,
    flat: &[
        person("client").say("In the chair today was {}."),
        int("teeth examined", 20, 32).say("We looked at {} teeth."),
        int("cavities", 1, 6).say("We found {} cavities."),
        date("next appointment").say("The next slot is on {}."),
        num("cost", 255, 2990).unit("euros").say("The bill is {}."),
        flag("x ray taken", "an x ray was taken", "no x ray was taken"),
        choice("gum health", &["good", "fair", "poor"]),
    ],
    group: group(
        "dentist",
        &[
            person("name"),
            place("practice"),
            int("patients per day", 6, 30),
        ],
    ),
    list: list(
        "treatments",
        &["cleaning", "filling", "polish", "sealant", "whitening"],
    ),
    items: items(
        "findings",
        "finding",
        &[
            int("tooth", 1, 32),
            text("issue", &["crack", "plaque", "decay", "wear"]),
        ],
    ),
};

const BLOOD: Family = Family {
    name: "blood test",
    split: Test,
    flat: &[
        code("sample", "BL").say("The tube is labelled {}."),
        person("donor").say("The blood was taken from {}."),
        num("iron", 85, 320)
            .unit("units")
            .say("Iron came out at {}."),
        int("platelets", 130, 420).say("The counter showed {} platelets."),
        time("draw time").say("The needle went in at {}."),
        company("laboratory").say("It was analysed by {}."),
        flag(
            "fasting",
            "the donor was fasting",
            "the donor was not fasting",
        ),
        choice("blood group", &["A", "B", "AB"]),
    ],
    group: group(
        "nurse",
        &[person("name"), int("ward", 1, 20), code("pager", "PG")],
    ),
    list: list(
        "requested panels",
        &["lipids", "liver", "thyroid", "kidney", "vitamins"],
    ),
    items: items(
        "results",
        "result",
        &[
            text("marker", &["sodium", "calcium", "albumin", "ferritin"]),
            num("level", 15, 1450),
            choice("rating", &["low", "normal", "high"]),
        ],
    ),
};

pub(super) const DOMAIN: Domain = Domain {
    name: "health",
    families: &[CLINIC, PRESCRIPTION, GYM, DENTAL, BLOOD],
};
