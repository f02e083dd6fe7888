//! Families about jobs and meetings.

use super::super::Split::{Test, Train};
use super::super::field::*;

const JOB: Family = Family {
    name: "job opening",
    split: Train,
    flat: &[
        text(
            "position",
            &[
                "welder",
                "accountant",
                "nurse",
                "web designer",
                "forklift driver",
                "translator",
            ],
        )
        .say("We are looking for a {}."),
        company("employer").say("The job is with {}."),
        place("workplace").say("You would work in {}."),
        int("weekly hours", 10, 42).say("It is {} hours a week."),
        num("hourly wage", 125, 560)
            .unit("euros")
            .say("You earn {} an hour."),
        date("application deadline").say("Write to us before {}."),
        flag(
            "remote work",
            "remote work is possible",
            "remote work is not possible",
        ),
        choice("contract", &["permanent", "temporary", "freelance"]),
    ],
    group: group(
        "recruiter",
        &[
            person("name"),
            code("phone", "555"),
            int("open jobs", 1, 40),
        ],
    ),
    list: list(
        "required skills",
        &[
            "Excel",
            "first aid",
            "German",
            "welding",
            "driving licence",
            "SQL",
        ],
    ),
    items: items(
        "benefits",
        "benefit",
        &[
            text("name", &["bonus", "pension", "bike", "meals"]),
            int("value", 50, 900),
        ],
    ),
};

const MEETING: Family = Family {
    name: "team meeting",
    split: Train,
    flat: &[
        text(
            "subject",
            &[
                "budget",
                "hiring plan",
                "office move",
                "new logo",
                "safety audit",
            ],
        )
        .say("We will talk about the {}."),
        person("chair").say("It is run by {}."),
        date("meeting day").say("We meet on {}."),
        time("start time").say("We sit down at {}."),
        int("attendees", 3, 40).say("We expect {} people."),
        text("room name", &["Fjord", "Desert", "Harbour", "Summit"]).say("The room is {}."),
        flag("recorded", "it will be recorded", "it will not be recorded"),
        choice("urgency", &["low", "normal", "high"]),
    ],
    group: group(
        "minute taker",
        &[
            person("name"),
            code("extension", "EX"),
            choice("tool", &["paper", "laptop"]),
        ],
    ),
    list: list(
        "agenda points",
        &["welcome", "review", "forecast", "questions", "vote"],
    ),
    items: items(
        "tasks",
        "task",
        &[
            text(
                "title",
                &["call vendor", "draft memo", "book room", "check stock"],
            ),
            person("assignee"),
            date("due"),
        ],
    ),
};

const STAFF: Family = Family {
    name: "staff profile",
    split: Train,
    flat: &[
        person("full name").say("This is the file of {}."),
        text(
            "job title",
            &[
                "analyst",
                "foreman",
                "librarian",
                "paramedic",
                "stage manager",
            ],
        )
        .say("The post is {}."),
        date("hiring date").say("The contract began on {}."),
        code("staff number", "EM").say("The badge shows {}."),
        int("vacation days", 20, 35).say("There are {} days of leave each year."),
        flag(
            "part time",
            "the post is part time",
            "the post is not part time",
        ),
        choice("pay band", &["junior", "middle", "senior"]),
        place("base").say("The desk is in {}."),
    ],
    group: group(
        "emergency contact",
        &[
            person("name"),
            code("phone", "555"),
            choice("relation", &["parent", "partner", "sibling"]),
        ],
    ),
    list: list(
        "languages",
        &["English", "Hindi", "Turkish", "Swedish", "Greek"],
    ),
    items: items(
        "previous jobs",
        "previous job",
        &[company("employer"), int("years", 1, 15)],
    ),
};

const SHIFT: Family = Family {
    name: "work shift",
    split: Train,
    flat: &[
        person("worker").say("On duty is {}."),
        time("shift start").say("Work starts at {}."),
        time("shift end").say("They go home at {}."),
        int("break length", 15, 60)
            .unit("minutes")
            .say("They rest for {}."),
        text(
            "post",
            &["loading dock", "front desk", "paint line", "cold store"],
        )
        .say("They stand at the {}."),
        num("overtime", 3, 49)
            .unit("hours")
            .say("They stayed {} longer."),
        flag(
            "night shift",
            "it is a night shift",
            "it is not a night shift",
        ),
        choice("crew", &["red", "green", "blue"]),
    ],
    group: group(
        "foreman",
        &[
            person("name"),
            int("radio channel", 1, 16),
            text("area", &["yard", "hall", "gate"]),
        ],
    ),
    list: list(
        "safety gear",
        &["helmet", "gloves", "goggles", "vest", "boots"],
    ),
    items: items(
        "machines",
        "machine",
        &[
            text("name", &["press", "lathe", "mixer", "crane"]),
            int("running hours", 1, 12),
        ],
    ),
};

const TALK: Family = Family {
    name: "conference talk",
    split: Test,
    flat: &[
        text(
            "talk title",
            &[
                "Bridges that Sing",
                "Tiny Robots",
                "Maps for Bees",
                "Reading Old Ink",
            ],
        )
        .say("The programme lists {}."),
        person("speaker").say("It is given by {}."),
        company("affiliation").say("They come from {}."),
        text("hall", &["Blue Room", "Main Stage", "Cellar", "Studio Two"]).say("Go to the {}."),
        time("slot").say("Be there at {}."),
        int("audience", 15, 800).say("About {} people listened."),
        num("score", 21, 49).say("Visitors graded it {}."),
        flag(
            "video available",
            "a video is available",
            "no video is available",
        ),
        choice("track", &["science", "design", "business"]),
    ],
    group: group(
        "moderator",
        &[
            person("name"),
            place("home city"),
            int("talks hosted", 1, 30),
        ],
    ),
    list: list(
        "keywords",
        &["ethics", "sensors", "archives", "pollen", "steel"],
    ),
    items: items(
        "questions",
        "question",
        &[
            person("author"),
            choice("tone", &["friendly", "critical"]),
            int("minutes", 1, 9),
        ],
    ),
};

pub(super) const DOMAIN: Domain = Domain {
    name: "work",
    families: &[JOB, MEETING, STAFF, SHIFT, TALK],
};
