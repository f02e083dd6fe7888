//! Families about learning and teaching.

use super::super::Split::{Dev, Test, Train};
use super::super::field::*;

const COURSE: Family = Family {
    name: "evening course",
    split: Train,
    flat: &[
        text(
            "subject",
            &[
                "pottery",
                "Spanish",
                "bookkeeping",
                "chess",
                "astronomy",
                "first aid",
            ],
        )
        .say("You will learn {}."),
        person("teacher").say("The evenings are taught by {}."),
        int("lessons", 4, 24).say("There are {} lessons."),
        num("fee", 455, 2900).unit("euros").say("Joining costs {}."),
        date("first day").say("It kicks off on {}."),
        flag(
            "certificate",
            "a certificate is given",
            "no certificate is given",
        ),
        choice("format", &["online", "classroom", "hybrid"]),
        code("course code", "EV"),
    ],
    group: group(
        "venue",
        &[
            text("building", &["Town Hall", "Old Mill", "North School"]),
            int("room number", 1, 60),
            place("district"),
        ],
    ),
    list: list(
        "topics",
        &[
            "basics", "history", "practice", "theory", "projects", "review",
        ],
    ),
    items: items(
        "sessions",
        "session",
        &[
            date("day"),
            text(
                "theme",
                &["overview", "workshop", "field trip", "exam prep"],
            ),
            int("minutes", 45, 180),
        ],
    ),
};

const LIBRARY: Family = Family {
    name: "library loan",
    split: Train,
    flat: &[
        text(
            "book title",
            &[
                "The Salt Road",
                "Night Gardens",
                "A Map of Rain",
                "Seven Doors",
                "Iron Winter",
            ],
        )
        .say("The borrowed book is {}."),
        person("borrower").say("The card belongs to {}."),
        code("shelf mark", "LB").say("It usually stands under {}."),
        date("due date").say("It has to be back by {}."),
        num("late fee", 3, 95)
            .unit("euros")
            .say("So far {} are owed."),
        int("renewals", 1, 5).say("It was extended {} times."),
        flag(
            "reserved",
            "someone has reserved it",
            "nobody has reserved it",
        ),
        choice("condition", &["new", "worn", "damaged"]),
    ],
    group: group(
        "branch",
        &[place("name"), time("opening time"), int("stock", 900, 9000)],
    ),
    list: list(
        "subjects",
        &["travel", "poetry", "biology", "crime", "cooking", "art"],
    ),
    items: items(
        "loans",
        "loan",
        &[
            text("title", &["Low Tide", "Glass Hill", "Red Ink", "Moth"]),
            int("weeks", 1, 6),
        ],
    ),
};

const SCHOOL_TRIP: Family = Family {
    name: "school trip",
    split: Train,
    flat: &[
        place("goal").say("The class is going to {}."),
        int("pupils", 12, 60).say("We travel with {} pupils."),
        date("travel day").say("We leave on {}."),
        num("price per child", 55, 480)
            .unit("euros")
            .say("Parents pay {} per child."),
        person("lead teacher").say("In charge is {}."),
        flag(
            "packed lunch",
            "a packed lunch is needed",
            "a packed lunch is not needed",
        ),
        choice("means of travel", &["coach", "rail", "boat"]),
    ],
    group: group(
        "hostel",
        &[
            text("name", &["Pine Lodge", "Seaview", "The Barn"]),
            int("beds", 20, 120),
            place("village"),
        ],
    ),
    list: list(
        "activities",
        &[
            "kayaking",
            "museum visit",
            "campfire",
            "night walk",
            "archery",
        ],
    ),
    items: items(
        "helpers",
        "helper",
        &[
            person("name"),
            code("phone", "555"),
            int("group size", 3, 12),
        ],
    ),
};

const SCHOLARSHIP: Family = Family {
    name: "scholarship",
    split: Dev,
    flat: &[
        text(
            "fund",
            &["Larsen Fund", "Bright Minds", "Harbour Trust", "Open Doors"],
        )
        .say("The money comes from the {}."),
        person("student").say("It was awarded to {}."),
        int("yearly amount", 800, 9000)
            .unit("euros")
            .say("Every year {} are paid."),
        num("grade average", 11, 39).say("The marks average {}."),
        date("deadline").say("Papers must arrive by {}."),
        flag("renewable", "it can be renewed", "it cannot be renewed"),
        choice("study level", &["bachelor", "master", "doctorate"]),
    ],
    group: group(
        "referee",
        &[person("name"), company("institute"), code("letter", "RF")],
    ),
    list: list(
        "documents",
        &["transcript", "essay", "passport", "budget", "portfolio"],
    ),
    items: items(
        "payments",
        "payment",
        &[date("date"), int("amount", 200, 3000)],
    ),
};

const EXAM: Family = Family {
    name: "written exam",
    split: Test,
    flat: &[
        text(
            "discipline",
            &["geometry", "optics", "grammar", "genetics", "statistics"],
        )
        .say("Candidates are tested in {}."),
        code("paper", "WX").say("The sheet is marked {}."),
        int("questions", 5, 60).say("There are {} questions to answer."),
        int("time allowed", 30, 240)
            .unit("minutes")
            .say("Candidates get {}."),
        num("pass mark", 455, 690).unit("percent"),
        person("examiner").say("The marking is done by {}."),
        flag(
            "calculator allowed",
            "a calculator is allowed",
            "a calculator is not allowed",
        ),
        choice("seating", &["alphabetical", "random", "free"]),
    ],
    group: group(
        "hall",
        &[
            text("name", &["Aula", "East Wing", "Gym", "Library"]),
            int("desks", 30, 300),
            time("opening time"),
        ],
    ),
    list: list(
        "permitted aids",
        &["ruler", "dictionary", "formula sheet", "compass", "notes"],
    ),
    items: items(
        "sections",
        "section",
        &[
            text("topic", &["proofs", "lenses", "verbs", "cells"]),
            int("marks", 5, 50),
        ],
    ),
};

pub(super) const DOMAIN: Domain = Domain {
    name: "education",
    families: &[COURSE, LIBRARY, SCHOOL_TRIP, SCHOLARSHIP, EXAM],
};
