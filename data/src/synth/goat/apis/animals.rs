//! Animals of a park and their species; held out.

use super::super::api::{
    Api, By, Operation, Order, Role, Tool, aspect, at_most, field, needs, pick,
};
use super::super::kinds::{ANIMAL, ANIMAL_NAME, SPECIES, YEAR};

pub(in super::super) const BEAST_PARK: Tool = Tool {
    name: "BeastPark",
    category: "Animals",
    role: Role::HeldOut,
    apis: &[
        Api {
            name: "Find Animal",
            does: "Searches animals of the park by name.",
            returns: "List of animals with number and name.",
            parameters: &[needs("name", ANIMAL_NAME, "Name of the animal.")],
            operation: Operation::Search {
                table: "animals",
                column: "name",
            },
            list: "animals",
            shown: &["animal_id", "name"],
            picks: &[],
            fields: &[field("animal_id", ANIMAL, &["{name}"])],
            sub_queries: &["Find {name}.", "Search for {name}."],
            aspects: &[aspect(
                &["the animal number of {name}", "the number of {name}"],
                &[
                    "What is the animal number of {name}?",
                    "Which number does {name} have?",
                ],
                "[{name} has number {animal_id!}].",
            )],
        },
        Api {
            name: "Animal Info",
            does: "Record of one animal of the park.",
            returns: "Name, species, year of birth, weight and keeper of the animal.",
            parameters: &[needs("animal_id", ANIMAL, "Number of the animal.")],
            operation: Operation::Get {
                table: "animals",
                column: "animal_id",
            },
            list: "",
            shown: &["name", "species", "born", "weight", "keeper"],
            picks: &[],
            fields: &[
                field("species", SPECIES, &["the species of {animal_id}"]),
                field("born", YEAR, &["the birth year of {animal_id}"]),
            ],
            sub_queries: &["Get the record of {animal_id}.", "Look up {animal_id}."],
            aspects: &[
                aspect(
                    &[
                        "the keeper of {animal_id}",
                        "the name of the keeper of {animal_id}",
                    ],
                    &[
                        "Who is the keeper of {animal_id}?",
                        "Who looks after {animal_id}?",
                    ],
                    "The keeper of {name} is {keeper!}.",
                ),
                aspect(
                    &[
                        "the weight and birth year of {animal_id}",
                        "the birth year and weight of {animal_id}",
                    ],
                    &["How heavy is {animal_id} and when was it born?"],
                    "{name} weighs {weight!} kg and was born in {born!}.",
                ),
            ],
        },
        Api {
            name: "Species Facts",
            does: "Facts about a species.",
            returns: "Diet, lifespan and speed of the species.",
            parameters: &[needs("species", SPECIES, "Name of the species.")],
            operation: Operation::Get {
                table: "species",
                column: "species",
            },
            list: "",
            shown: &["species", "diet", "lifespan", "speed"],
            picks: &[],
            fields: &[],
            sub_queries: &["Get the facts about {species}.", "Look up {species}."],
            aspects: &[
                aspect(
                    &["the diet of {species}", "the food of {species}"],
                    &[
                        "What is the diet of {species}?",
                        "What food suits {species}?",
                    ],
                    "The {species} eats {diet!}.",
                ),
                aspect(
                    &[
                        "the lifespan and speed of {species}",
                        "the speed and lifespan of {species}",
                    ],
                    &["How fast is {species} and how long does it live?"],
                    "The {species} lives {lifespan!} years and runs {speed!} km/h.",
                ),
            ],
        },
        Api {
            name: "Animals Of Species",
            does: "Animals of the park that belong to a species.",
            returns: "List of animals with number, name and weight.",
            parameters: &[
                needs("species", SPECIES, "Name of the species."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::List {
                table: "animals",
                column: "species",
                order: Order::Rising("name"),
            },
            list: "animals",
            shown: &["animal_id", "name", "weight"],
            picks: &[
                pick(By::Max("weight"), &["heaviest"]),
                pick(By::Min("weight"), &["lightest"]),
            ],
            fields: &[field(
                "animal_id",
                ANIMAL,
                &["the {pick} animal of {species}"],
            )],
            sub_queries: &[
                "List the animals of {species}.",
                "Find animals of {species}.",
            ],
            aspects: &[aspect(
                &["the animals of {species}", "the park animals of {species}"],
                &[
                    "Which animals belong to {species}?",
                    "Which park animals are of {species}?",
                ],
                "The animals are [{name!} with {weight} kg].",
            )],
        },
        Api {
            name: "Feeding Times",
            does: "Feeding times of an animal.",
            returns: "List of feedings with time and food.",
            parameters: &[needs("animal_id", ANIMAL, "Number of the animal.")],
            operation: Operation::List {
                table: "feedings",
                column: "animal_id",
                order: Order::Rising("time"),
            },
            list: "feedings",
            shown: &["time", "food"],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Get the feeding times of {animal_id}.",
                "List feedings of {animal_id}.",
            ],
            aspects: &[aspect(
                &[
                    "the feeding times of {animal_id}",
                    "the feedings of {animal_id}",
                ],
                &[
                    "When is {animal_id} fed?",
                    "At what times does {animal_id} get food?",
                ],
                "It gets [{food} at {time!}].",
            )],
        },
    ],
};
