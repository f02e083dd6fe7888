//! Stars and their planets.

use super::super::api::{
    Api, By, Operation, Order, Role, Tool, aspect, at_most, field, needs, pick,
};
use super::super::kinds::{FIGURE, PLANET, STAR, STAR_NAME, YEAR};

pub(in super::super) const SKY_LEDGER: Tool = Tool {
    name: "SkyLedger",
    category: "Science",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Find Star",
            does: "Searches stars by name.",
            returns: "List of stars with number and name.",
            parameters: &[needs("name", STAR_NAME, "Name of the star.")],
            operation: Operation::Search {
                table: "stars",
                column: "name",
            },
            list: "stars",
            shown: &["star_id", "name"],
            picks: &[],
            fields: &[field("star_id", STAR, &["{name}"])],
            sub_queries: &["Find {name}.", "Search for {name}."],
            aspects: &[aspect(
                &["the star number of {name}", "the number of {name}"],
                &[
                    "What is the star number of {name}?",
                    "Which number does {name} have?",
                ],
                "[{name} has number {star_id!}].",
            )],
        },
        Api {
            name: "Star Details",
            does: "Record of one star.",
            returns: "Name, constellation, distance and color of the star.",
            parameters: &[needs("star_id", STAR, "Number of the star.")],
            operation: Operation::Get {
                table: "stars",
                column: "star_id",
            },
            list: "",
            shown: &["name", "figure", "distance", "color"],
            picks: &[],
            fields: &[field(
                "figure",
                FIGURE,
                &[
                    "the constellation of {star_id}",
                    "the constellation that holds {star_id}",
                ],
            )],
            sub_queries: &[
                "Get the record of {star_id}.",
                "Look up the details of {star_id}.",
            ],
            aspects: &[
                aspect(
                    &[
                        "the color and distance of {star_id}",
                        "the distance and color of {star_id}",
                    ],
                    &["How far away is {star_id} and what color does it have?"],
                    "{name} is {color!} and {distance!} light years away.",
                ),
                aspect(
                    &[
                        "the constellation of {star_id}",
                        "the name of the constellation of {star_id}",
                    ],
                    &["In which constellation is {star_id}?"],
                    "{name} is in the {figure!}.",
                ),
            ],
        },
        Api {
            name: "Stars In Figure",
            does: "Stars of a constellation.",
            returns: "List of stars with number, name and distance.",
            parameters: &[
                needs("figure", FIGURE, "Name of the constellation."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::List {
                table: "stars",
                column: "figure",
                order: Order::Rising("name"),
            },
            list: "stars",
            shown: &["star_id", "name", "distance"],
            picks: &[
                pick(By::Min("distance"), &["nearest", "closest"]),
                pick(By::Max("distance"), &["farthest", "most distant"]),
            ],
            fields: &[field("star_id", STAR, &["the {pick} star in {figure}"])],
            sub_queries: &["List the stars in {figure}.", "Find the stars of {figure}."],
            aspects: &[aspect(
                &["the stars in {figure}", "the stars of {figure}"],
                &[
                    "Which stars are in {figure}?",
                    "What stars make up {figure}?",
                ],
                "The stars are [{name!} at {distance} light years].",
            )],
        },
        Api {
            name: "Star Planets",
            does: "Planets of a star, innermost first.",
            returns: "List of planets with number, name and moons.",
            parameters: &[
                needs("star_id", STAR, "Number of the star."),
                at_most(&[", at most {}", ", only the inner {}"]),
            ],
            operation: Operation::List {
                table: "planets",
                column: "star_id",
                order: Order::Rising("days"),
            },
            list: "planets",
            shown: &["planet_id", "name", "moons"],
            picks: &[
                pick(By::First, &["innermost", "first"]),
                pick(By::Last, &["outermost", "last"]),
            ],
            fields: &[field(
                "planet_id",
                PLANET,
                &[
                    "the {pick} planet of {star_id}",
                    "the {pick} planet around {star_id}",
                ],
            )],
            sub_queries: &[
                "List the planets of {star_id}.",
                "Find the planets around {star_id}.",
            ],
            aspects: &[aspect(
                &["the planets of {star_id}", "the planets around {star_id}"],
                &[
                    "Which planets does {star_id} have?",
                    "What planets orbit {star_id}?",
                ],
                "The planets are [{name!} with {moons} moons].",
            )],
        },
        Api {
            name: "Planet Details",
            does: "Record of one planet.",
            returns: "Name, days in a year, moons and year of discovery of the planet.",
            parameters: &[needs("planet_id", PLANET, "Number of the planet.")],
            operation: Operation::Get {
                table: "planets",
                column: "planet_id",
            },
            list: "",
            shown: &["name", "days", "moons", "found"],
            picks: &[],
            fields: &[field(
                "found",
                YEAR,
                &["the year {planet_id} was discovered"],
            )],
            sub_queries: &[
                "Get the record of {planet_id}.",
                "Look up the details of {planet_id}.",
            ],
            aspects: &[
                aspect(
                    &[
                        "the discovery year of {planet_id}",
                        "the year of discovery of {planet_id}",
                    ],
                    &[
                        "When was {planet_id} discovered?",
                        "When did people find {planet_id}?",
                    ],
                    "{name} was discovered in {found!}.",
                ),
                aspect(
                    &[
                        "the moons and year length of {planet_id}",
                        "the number of moons and year length of {planet_id}",
                    ],
                    &["How many moons does {planet_id} have and how long is its year?"],
                    "{name} has {moons!} moons and a year of {days!} days.",
                ),
            ],
        },
    ],
};
