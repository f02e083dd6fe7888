//! Towns and the ferries between them.

use super::super::api::{
    Api, By, Operation, Order, Role, Tool, aspect, at_most, field, needs, pick,
};
use super::super::kinds::{AMOUNT, MINUTES, REGION, SHIP, SHIP_NAME, TOWN, TRIP, YEAR};

pub(in super::super) const TOWN_DESK: Tool = Tool {
    name: "TownDesk",
    category: "Places",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Town Info",
            does: "Facts about a town.",
            returns: "Region, population and mayor of the town.",
            parameters: &[needs("town", TOWN, "Name of the town.")],
            operation: Operation::Get {
                table: "towns",
                column: "town",
            },
            list: "",
            shown: &["town", "region", "people", "mayor"],
            picks: &[],
            fields: &[field(
                "region",
                REGION,
                &["the region of {town}", "the region around {town}"],
            )],
            sub_queries: &[
                "Get the facts about {town}.",
                "Look up the town record of {town}.",
            ],
            aspects: &[
                aspect(
                    &["the mayor of {town}", "the name of the mayor of {town}"],
                    &[
                        "Who is the mayor of {town}?",
                        "Who runs the town hall of {town}?",
                    ],
                    "The mayor of {town} is {mayor!}.",
                ),
                aspect(
                    &["the population of {town}", "the number of people in {town}"],
                    &[
                        "How many people live in {town}?",
                        "How big is the population of {town}?",
                    ],
                    "{town} has {people!} inhabitants.",
                ),
                aspect(
                    &[
                        "the mayor and population of {town}",
                        "the population and mayor of {town}",
                    ],
                    &[],
                    "{town} has {people!} inhabitants and its mayor is {mayor!}.",
                ),
            ],
        },
        Api {
            name: "Town Weather",
            does: "Current weather of a town.",
            returns: "Sky, temperature in degrees and wind in the town.",
            parameters: &[needs("town", TOWN, "Name of the town.")],
            operation: Operation::Get {
                table: "towns",
                column: "town",
            },
            list: "",
            shown: &["sky", "degrees", "wind"],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Get the weather in {town}.",
                "Check the current weather in {town}.",
            ],
            aspects: &[
                aspect(
                    &["the weather in {town}", "the current weather in {town}"],
                    &[
                        "How is the weather in {town}?",
                        "What is the weather like in {town}?",
                    ],
                    "It is {sky!} with {degrees!} degrees.",
                ),
                aspect(
                    &[
                        "the temperature and wind in {town}",
                        "the wind and temperature in {town}",
                    ],
                    &["How warm and windy is it in {town}?"],
                    "It has {degrees!} degrees and a wind of {wind!} km/h.",
                ),
            ],
        },
        Api {
            name: "Towns In Region",
            does: "Towns of a region, largest first.",
            returns: "List of towns with their population.",
            parameters: &[
                needs("region", REGION, "Name of the region."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::List {
                table: "towns",
                column: "region",
                order: Order::Falling("people"),
            },
            list: "towns",
            shown: &["town", "people"],
            picks: &[
                pick(By::Max("people"), &["largest", "biggest"]),
                pick(By::Min("people"), &["smallest"]),
            ],
            fields: &[field(
                "town",
                TOWN,
                &["the {pick} town in {region}", "the {pick} town of {region}"],
            )],
            sub_queries: &["List the towns in {region}.", "Find the towns of {region}."],
            aspects: &[aspect(
                &["the towns in {region}", "the list of towns in {region}"],
                &[
                    "Which towns are in {region}?",
                    "What towns does one find in {region}?",
                ],
                "The towns are [{town!} with {people} people].",
            )],
        },
    ],
};

pub(in super::super) const FERRY_LINE: Tool = Tool {
    name: "FerryLine",
    category: "Travel",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Find Ship",
            does: "Searches ships by name.",
            returns: "List of ships with number and name.",
            parameters: &[needs("name", SHIP_NAME, "Name of the ship.")],
            operation: Operation::Search {
                table: "ships",
                column: "name",
            },
            list: "ships",
            shown: &["ship_id", "name"],
            picks: &[],
            fields: &[field("ship_id", SHIP, &["{name}"])],
            sub_queries: &["Find {name}.", "Search for {name}."],
            aspects: &[aspect(
                &["the ship number of {name}", "the number of {name}"],
                &[
                    "What is the ship number of {name}?",
                    "Which number does {name} have?",
                ],
                "[{name} has number {ship_id!}].",
            )],
        },
        Api {
            name: "Ship Details",
            does: "Record of one ship.",
            returns: "Name, year built, seats, captain and home town of the ship.",
            parameters: &[needs("ship_id", SHIP, "Number of the ship.")],
            operation: Operation::Get {
                table: "ships",
                column: "ship_id",
            },
            list: "",
            shown: &["name", "built", "seats", "captain", "home_town"],
            picks: &[],
            fields: &[
                field(
                    "home_town",
                    TOWN,
                    &["the home port of {ship_id}", "the home town of {ship_id}"],
                ),
                field("built", YEAR, &["the year {ship_id} was built"]),
            ],
            sub_queries: &[
                "Get the record of {ship_id}.",
                "Look up the details of {ship_id}.",
            ],
            aspects: &[
                aspect(
                    &[
                        "the captain of {ship_id}",
                        "the name of the captain of {ship_id}",
                    ],
                    &[
                        "Who is the captain of {ship_id}?",
                        "Who commands {ship_id}?",
                    ],
                    "The captain of {name} is {captain!}.",
                ),
                aspect(
                    &[
                        "the seats and build year of {ship_id}",
                        "the build year and seats of {ship_id}",
                    ],
                    &["How many seats does {ship_id} have and when was it built?"],
                    "{name} has {seats!} seats and was built in {built!}.",
                ),
            ],
        },
        Api {
            name: "Departures",
            does: "Ferries that leave a town, earliest first.",
            returns: "List of ferry trips with destination, time and fare.",
            parameters: &[
                needs("town", TOWN, "Town of departure."),
                at_most(&[", at most {}", ", only the next {}"]),
            ],
            operation: Operation::List {
                table: "trips",
                column: "from_town",
                order: Order::Rising("leaves"),
            },
            list: "departures",
            shown: &["trip_id", "to_town", "leaves", "fare"],
            picks: &[
                pick(By::First, &["first", "earliest"]),
                pick(By::Last, &["last", "latest"]),
                pick(By::Min("fare"), &["cheapest"]),
            ],
            fields: &[field(
                "trip_id",
                TRIP,
                &[
                    "the {pick} ferry from {town}",
                    "the {pick} ferry leaving {town}",
                ],
            )],
            sub_queries: &[
                "List the ferries from {town}.",
                "Find departures from {town}.",
            ],
            aspects: &[aspect(
                &[
                    "the ferries from {town}",
                    "the ferry departures from {town}",
                ],
                &[
                    "Which ferries leave {town}?",
                    "When do ferries leave {town}?",
                ],
                "Ferries leave [at {leaves!} to {to_town}].",
            )],
        },
        Api {
            name: "Trip Details",
            does: "Record of one ferry trip.",
            returns: "Ship number, departure time, minutes and fare of the trip.",
            parameters: &[needs("trip_id", TRIP, "Number of the trip.")],
            operation: Operation::Get {
                table: "trips",
                column: "trip_id",
            },
            list: "",
            shown: &[
                "from_town",
                "to_town",
                "ship_id",
                "leaves",
                "minutes",
                "fare",
            ],
            picks: &[],
            fields: &[
                field(
                    "ship_id",
                    SHIP,
                    &["the ship of {trip_id}", "the ship that sails {trip_id}"],
                ),
                field("fare", AMOUNT, &["the fare of {trip_id}"]),
                field("minutes", MINUTES, &["the crossing time of {trip_id}"]),
            ],
            sub_queries: &["Get the details of {trip_id}.", "Check {trip_id}."],
            aspects: &[
                aspect(
                    &[
                        "the duration and fare of {trip_id}",
                        "the fare and duration of {trip_id}",
                    ],
                    &["How long does {trip_id} take and what does it cost?"],
                    "It takes {minutes!} minutes and costs {fare!} marks.",
                ),
                aspect(
                    &["the route of {trip_id}", "the start and end of {trip_id}"],
                    &["From where to where does {trip_id} go?"],
                    "It goes from {from_town!} to {to_town!}.",
                ),
            ],
        },
    ],
};
