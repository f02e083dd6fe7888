//! Dishes and what they are made of.

use super::super::api::{
    Api, By, Operation, Order, Restriction, Role, Tool, aspect, at_most, field, may, needs, pick,
};
use super::super::kinds::{DISH, DISH_NAME, INGREDIENT, MINUTES, MINUTES_BOUND};

pub(in super::super) const SPOON_CARD: Tool = Tool {
    name: "SpoonCard",
    category: "Food",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Find Dish",
            does: "Searches dishes by name.",
            returns: "List of dishes with number and name.",
            parameters: &[needs("name", DISH_NAME, "Name of the dish.")],
            operation: Operation::Search {
                table: "dishes",
                column: "name",
            },
            list: "dishes",
            shown: &["dish_id", "name"],
            picks: &[],
            fields: &[field("dish_id", DISH, &["{name}"])],
            sub_queries: &["Find {name}.", "Search for {name}."],
            aspects: &[aspect(
                &["the dish number of {name}", "the number of {name}"],
                &[
                    "What is the dish number of {name}?",
                    "Which number does {name} have?",
                ],
                "[{name} has number {dish_id!}].",
            )],
        },
        Api {
            name: "Dish Details",
            does: "Record of one dish.",
            returns: "Name, main ingredient, cooking minutes and calories of the dish.",
            parameters: &[needs("dish_id", DISH, "Number of the dish.")],
            operation: Operation::Get {
                table: "dishes",
                column: "dish_id",
            },
            list: "",
            shown: &["name", "main", "minutes", "calories"],
            picks: &[],
            fields: &[
                field(
                    "main",
                    INGREDIENT,
                    &[
                        "the main ingredient of {dish_id}",
                        "the main ingredient in {dish_id}",
                    ],
                ),
                field("minutes", MINUTES, &["the cooking time of {dish_id}"]),
            ],
            sub_queries: &[
                "Get the record of {dish_id}.",
                "Look up the details of {dish_id}.",
            ],
            aspects: &[
                aspect(
                    &[
                        "the main ingredient of {dish_id}",
                        "the main part of {dish_id}",
                    ],
                    &[
                        "What is the main ingredient of {dish_id}?",
                        "What is {dish_id} made of?",
                    ],
                    "The main ingredient of {name} is {main!}.",
                ),
                aspect(
                    &[
                        "the calories and cooking time of {dish_id}",
                        "the cooking time and calories of {dish_id}",
                    ],
                    &["How long does {dish_id} cook and how many calories has it?"],
                    "{name} takes {minutes!} minutes and has {calories!} calories.",
                ),
            ],
        },
        Api {
            name: "Similar Dishes",
            does: "Other dishes with the same main ingredient.",
            returns: "List of dishes with number, name and minutes.",
            parameters: &[
                needs("dish_id", DISH, "Number of the dish."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::Similar {
                table: "dishes",
                key: "dish_id",
                by: "main",
            },
            list: "dishes",
            shown: &["dish_id", "name", "minutes"],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Find dishes similar to {dish_id}.",
                "List dishes like {dish_id}.",
            ],
            aspects: &[aspect(
                &["dishes similar to {dish_id}", "other dishes like {dish_id}"],
                &[
                    "Which dishes are similar to {dish_id}?",
                    "What dishes are like {dish_id}?",
                ],
                "Similar dishes are [{name!}].",
            )],
        },
        Api {
            name: "Dishes With",
            does: "Dishes with a main ingredient.",
            returns: "List of dishes with number, name and minutes.",
            parameters: &[
                needs("ingredient", INGREDIENT, "Name of the ingredient."),
                may(
                    "max_minutes",
                    MINUTES_BOUND,
                    Restriction::AtMost("minutes"),
                    &[" that take at most {} minutes", " done within {} minutes"],
                ),
            ],
            operation: Operation::List {
                table: "dishes",
                column: "main",
                order: Order::Rising("name"),
            },
            list: "dishes",
            shown: &["dish_id", "name", "minutes"],
            picks: &[
                pick(By::Min("minutes"), &["quickest", "fastest"]),
                pick(By::Max("minutes"), &["slowest"]),
            ],
            fields: &[field(
                "dish_id",
                DISH,
                &["the {pick} dish with {ingredient}"],
            )],
            sub_queries: &[
                "List dishes with {ingredient}.",
                "Find dishes made of {ingredient}.",
            ],
            aspects: &[aspect(
                &["dishes with {ingredient}", "recipes that use {ingredient}"],
                &[
                    "Which dishes use {ingredient}?",
                    "What can I cook with {ingredient}?",
                ],
                "You can cook [{name!} in {minutes} minutes].",
            )],
        },
        Api {
            name: "Ingredient Info",
            does: "Facts about an ingredient.",
            returns: "Season, calories and price of the ingredient.",
            parameters: &[needs("ingredient", INGREDIENT, "Name of the ingredient.")],
            operation: Operation::Get {
                table: "ingredients",
                column: "ingredient",
            },
            list: "",
            shown: &["ingredient", "season", "calories", "price"],
            picks: &[],
            fields: &[],
            sub_queries: &["Get the facts about {ingredient}.", "Look up {ingredient}."],
            aspects: &[
                aspect(
                    &[
                        "the price and season of {ingredient}",
                        "the season and price of {ingredient}",
                    ],
                    &["When is the season of {ingredient} and what is the price?"],
                    "The season of {ingredient} is {season!}, the price {price!} marks.",
                ),
                aspect(
                    &[
                        "the calories of {ingredient}",
                        "the food value of {ingredient}",
                    ],
                    &["How many calories are there in {ingredient}?"],
                    "Of {ingredient}, 100 grams have {calories!} calories.",
                ),
            ],
        },
    ],
};
