//! Hiking trails and mountain huts.

use super::super::api::{
    Api, By, Operation, Order, Restriction, Role, Tool, aspect, at_most, field, may, needs, pick,
};
use super::super::kinds::{AMOUNT, HUT, LENGTH_BOUND, REGION, TRAIL, TRAIL_NAME};

pub(in super::super) const TRAIL_BOOK: Tool = Tool {
    name: "TrailBook",
    category: "Outdoors",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Find Trail",
            does: "Searches hiking trails by name.",
            returns: "List of trails with number and name.",
            parameters: &[needs("name", TRAIL_NAME, "Name of the trail.")],
            operation: Operation::Search {
                table: "trails",
                column: "name",
            },
            list: "trails",
            shown: &["trail_id", "name"],
            picks: &[],
            fields: &[field("trail_id", TRAIL, &["{name}"])],
            sub_queries: &["Find {name}.", "Search for {name}."],
            aspects: &[aspect(
                &["the trail number of {name}", "the number of {name}"],
                &[
                    "What is the trail number of {name}?",
                    "Which number does {name} have?",
                ],
                "[{name} has number {trail_id!}].",
            )],
        },
        Api {
            name: "Trail Details",
            does: "Record of one hiking trail.",
            returns: "Name, region, length, climb and hut number of the trail.",
            parameters: &[needs("trail_id", TRAIL, "Number of the trail.")],
            operation: Operation::Get {
                table: "trails",
                column: "trail_id",
            },
            list: "",
            shown: &["name", "region", "km", "climb", "hut_id"],
            picks: &[],
            fields: &[
                field(
                    "hut_id",
                    HUT,
                    &["the hut on {trail_id}", "the mountain hut along {trail_id}"],
                ),
                field("region", REGION, &["the region of {trail_id}"]),
            ],
            sub_queries: &[
                "Get the record of {trail_id}.",
                "Look up the details of {trail_id}.",
            ],
            aspects: &[aspect(
                &[
                    "the climb and length of {trail_id}",
                    "the length and climb of {trail_id}",
                ],
                &[
                    "How long and how steep is {trail_id}?",
                    "How many km and meters is {trail_id}?",
                ],
                "{name} is {km!} km long and climbs {climb!} meters.",
            )],
        },
        Api {
            name: "Trails In Region",
            does: "Hiking trails of a region, longest first.",
            returns: "List of trails with number, name and length.",
            parameters: &[
                needs("region", REGION, "Name of the region."),
                may(
                    "max_km",
                    LENGTH_BOUND,
                    Restriction::AtMost("km"),
                    &[" of at most {} km", " up to {} km"],
                ),
            ],
            operation: Operation::List {
                table: "trails",
                column: "region",
                order: Order::Falling("km"),
            },
            list: "trails",
            shown: &["trail_id", "name", "km"],
            picks: &[
                pick(By::Max("km"), &["longest"]),
                pick(By::Min("km"), &["shortest"]),
            ],
            fields: &[field(
                "trail_id",
                TRAIL,
                &[
                    "the {pick} trail in {region}",
                    "the {pick} hike in {region}",
                ],
            )],
            sub_queries: &[
                "List the trails in {region}.",
                "Find hiking trails in {region}.",
            ],
            aspects: &[aspect(
                &["the trails in {region}", "the hikes in {region}"],
                &[
                    "Which trails are in {region}?",
                    "Where can one hike in {region}?",
                ],
                "The trails are [{name!} of {km} km].",
            )],
        },
        Api {
            name: "Hut Info",
            does: "Record of one mountain hut.",
            returns: "Name, beds, warden and price of the hut.",
            parameters: &[needs("hut_id", HUT, "Number of the hut.")],
            operation: Operation::Get {
                table: "huts",
                column: "hut_id",
            },
            list: "",
            shown: &["name", "beds", "warden", "price"],
            picks: &[],
            fields: &[field(
                "price",
                AMOUNT,
                &["the price of a bed in {hut_id}", "a bed in {hut_id}"],
            )],
            sub_queries: &["Get the record of {hut_id}.", "Look up {hut_id}."],
            aspects: &[
                aspect(
                    &[
                        "the warden of {hut_id}",
                        "the name of the warden of {hut_id}",
                    ],
                    &[
                        "Who is the warden of {hut_id}?",
                        "Who looks after {hut_id}?",
                    ],
                    "The warden of {name} is {warden!}.",
                ),
                aspect(
                    &[
                        "the beds and price of {hut_id}",
                        "the price and number of beds of {hut_id}",
                    ],
                    &["How many beds does {hut_id} have and what do they cost?"],
                    "{name} has {beds!} beds at {price!} marks.",
                ),
            ],
        },
        Api {
            name: "Trail Reports",
            does: "Reports of walkers on a trail.",
            returns: "List of reports with walker, day and state of the trail.",
            parameters: &[
                needs("trail_id", TRAIL, "Number of the trail."),
                at_most(&[", at most {}", ", just {} of them"]),
            ],
            operation: Operation::List {
                table: "trail_reports",
                column: "trail_id",
                order: Order::Rising("walker"),
            },
            list: "reports",
            shown: &["walker", "day", "state"],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Get the reports on {trail_id}.",
                "List walker reports for {trail_id}.",
            ],
            aspects: &[aspect(
                &[
                    "the walker reports on {trail_id}",
                    "the state of {trail_id}",
                ],
                &[
                    "What do walkers say about {trail_id}?",
                    "In what state is {trail_id}?",
                ],
                "Walkers say: [{walker} found it {state!} on {day}].",
            )],
        },
    ],
};
