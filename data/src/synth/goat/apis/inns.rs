//! Inns and what their guests say.

use super::super::api::{
    Api, By, Operation, Order, Restriction, Role, Tool, aspect, at_most, field, may, needs, pick,
};
use super::super::kinds::{AMOUNT, INN, INN_NAME, PRICE_BOUND, TOWN};

pub(in super::super) const ROOM_KEY: Tool = Tool {
    name: "RoomKey",
    category: "Travel",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Find Inn",
            does: "Searches inns by name.",
            returns: "List of inns with number and name.",
            parameters: &[needs("name", INN_NAME, "Name of the inn.")],
            operation: Operation::Search {
                table: "inns",
                column: "name",
            },
            list: "inns",
            shown: &["inn_id", "name"],
            picks: &[],
            fields: &[field("inn_id", INN, &["{name}"])],
            sub_queries: &["Find {name}.", "Search for {name}."],
            aspects: &[aspect(
                &["the inn number of {name}", "the number of {name}"],
                &[
                    "What is the inn number of {name}?",
                    "Which number does {name} have?",
                ],
                "[{name} has number {inn_id!}].",
            )],
        },
        Api {
            name: "Inn Details",
            does: "Record of one inn.",
            returns: "Name, town, rooms, host and price of a night in the inn.",
            parameters: &[needs("inn_id", INN, "Number of the inn.")],
            operation: Operation::Get {
                table: "inns",
                column: "inn_id",
            },
            list: "",
            shown: &["name", "town", "rooms", "price", "host"],
            picks: &[],
            fields: &[
                field(
                    "town",
                    TOWN,
                    &["the town of {inn_id}", "the town where {inn_id} is"],
                ),
                field(
                    "price",
                    AMOUNT,
                    &["a night in {inn_id}", "the price of a night in {inn_id}"],
                ),
            ],
            sub_queries: &[
                "Get the record of {inn_id}.",
                "Look up the details of {inn_id}.",
            ],
            aspects: &[
                aspect(
                    &["the host of {inn_id}", "the name of the host of {inn_id}"],
                    &["Who is the host of {inn_id}?", "Who runs {inn_id}?"],
                    "The host of {name} is {host!}.",
                ),
                aspect(
                    &[
                        "the rooms and price of {inn_id}",
                        "the rooms and nightly price of {inn_id}",
                    ],
                    &["How many rooms does {inn_id} have and what is a night there?"],
                    "{name} has {rooms!} rooms at {price!} marks.",
                ),
            ],
        },
        Api {
            name: "Inns In Town",
            does: "Inns of a town.",
            returns: "List of inns with number, name, stars and price.",
            parameters: &[
                needs("town", TOWN, "Name of the town."),
                may(
                    "max_price",
                    PRICE_BOUND,
                    Restriction::AtMost("price"),
                    &[" for at most {} marks", " under {} marks"],
                ),
            ],
            operation: Operation::List {
                table: "inns",
                column: "town",
                order: Order::Rising("name"),
            },
            list: "inns",
            shown: &["inn_id", "name", "stars", "price"],
            picks: &[
                pick(By::Min("price"), &["cheapest"]),
                pick(By::Max("price"), &["most expensive", "dearest"]),
                pick(By::Max("stars"), &["best", "best rated"]),
            ],
            fields: &[field("inn_id", INN, &["the {pick} inn in {town}"])],
            sub_queries: &["List the inns in {town}.", "Find inns in {town}."],
            aspects: &[aspect(
                &["the inns in {town}", "places to stay in {town}"],
                &[
                    "Which inns are there in {town}?",
                    "Where can I stay in {town}?",
                ],
                "I found [{name!} for {price} marks].",
            )],
        },
        Api {
            name: "Inn Reviews",
            does: "Reviews of an inn by guests.",
            returns: "List of reviews with guest, score and text.",
            parameters: &[
                needs("inn_id", INN, "Number of the inn."),
                at_most(&[", at most {}", ", just {} of them"]),
            ],
            operation: Operation::List {
                table: "inn_reviews",
                column: "inn_id",
                order: Order::Falling("score"),
            },
            list: "reviews",
            shown: &["guest", "score", "text"],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Get the reviews of {inn_id}.",
                "List what guests say about {inn_id}.",
            ],
            aspects: &[aspect(
                &["the reviews of {inn_id}", "the guest reviews of {inn_id}"],
                &[
                    "What do guests say about {inn_id}?",
                    "How do guests rate {inn_id}?",
                ],
                "Guests say: [{guest} gave {score!} for {text!}].",
            )],
        },
        Api {
            name: "Similar Inns",
            does: "Other inns with as many stars.",
            returns: "List of inns with number, name and price.",
            parameters: &[
                needs("inn_id", INN, "Number of the inn."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::Similar {
                table: "inns",
                key: "inn_id",
                by: "stars",
            },
            list: "inns",
            shown: &["inn_id", "name", "price"],
            picks: &[],
            fields: &[],
            sub_queries: &["Find inns similar to {inn_id}.", "List inns like {inn_id}."],
            aspects: &[aspect(
                &["inns similar to {inn_id}", "other inns like {inn_id}"],
                &[
                    "Which inns are similar to {inn_id}?",
                    "What inns are like {inn_id}?",
                ],
                "Similar inns are [{name!}].",
            )],
        },
    ],
};
