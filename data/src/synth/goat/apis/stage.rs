//! Plays, their actors, and where they are shown.

use super::super::api::{
    Api, By, Operation, Order, Role, Tool, aspect, at_most, field, needs, pick,
};
use super::super::kinds::{ACTOR, ACTOR_NAME, MINUTES, PLAY, PLAY_TITLE, TOWN, YEAR};

pub(in super::super) const STAGE_NIGHT: Tool = Tool {
    name: "StageNight",
    category: "Theatre",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Find Play",
            does: "Searches plays by title.",
            returns: "List of plays with number and title.",
            parameters: &[needs("title", PLAY_TITLE, "Title of the play.")],
            operation: Operation::Search {
                table: "plays",
                column: "title",
            },
            list: "plays",
            shown: &["play_id", "title"],
            picks: &[],
            fields: &[field("play_id", PLAY, &["{title}"])],
            sub_queries: &["Find {title}.", "Search for {title}."],
            aspects: &[aspect(
                &["the play number of {title}", "the number of {title}"],
                &[
                    "What is the play number of {title}?",
                    "Which number does {title} have?",
                ],
                "[{title} has number {play_id!}].",
            )],
        },
        Api {
            name: "Find Actor",
            does: "Searches actors by name.",
            returns: "List of actors with number and name.",
            parameters: &[needs("name", ACTOR_NAME, "Name of the actor.")],
            operation: Operation::Search {
                table: "actors",
                column: "name",
            },
            list: "actors",
            shown: &["actor_id", "name"],
            picks: &[],
            fields: &[field("actor_id", ACTOR, &["{name}"])],
            sub_queries: &["Find {name}.", "Search for {name}."],
            aspects: &[aspect(
                &["the actor number of {name}", "the number of {name}"],
                &[
                    "What is the actor number of {name}?",
                    "Which number does {name} have?",
                ],
                "[{name} has number {actor_id!}].",
            )],
        },
        Api {
            name: "Play Details",
            does: "Record of one play.",
            returns: "Title, writer, genre, year and minutes of the play.",
            parameters: &[needs("play_id", PLAY, "Number of the play.")],
            operation: Operation::Get {
                table: "plays",
                column: "play_id",
            },
            list: "",
            shown: &["title", "writer", "genre", "year", "minutes"],
            picks: &[],
            fields: &[field(
                "minutes",
                MINUTES,
                &["the running time of {play_id}", "the length of {play_id}"],
            )],
            sub_queries: &[
                "Get the record of {play_id}.",
                "Look up the details of {play_id}.",
            ],
            aspects: &[
                aspect(
                    &[
                        "the writer of {play_id}",
                        "the name of the writer of {play_id}",
                    ],
                    &["Who wrote {play_id}?", "Who is the writer of {play_id}?"],
                    "{title} was written by {writer!}.",
                ),
                aspect(
                    &[
                        "the year and genre of {play_id}",
                        "the genre and year of {play_id}",
                    ],
                    &["What genre and year is {play_id}?"],
                    "{title} is a {genre!} of {year!}.",
                ),
            ],
        },
        Api {
            name: "Play Cast",
            does: "Cast of one play.",
            returns: "List of actors with number, name and role.",
            parameters: &[
                needs("play_id", PLAY, "Number of the play."),
                at_most(&[", at most {}", ", only the first {}"]),
            ],
            operation: Operation::List {
                table: "cast",
                column: "play_id",
                order: Order::Rising("name"),
            },
            list: "cast",
            shown: &["actor_id", "name", "role"],
            picks: &[pick(By::First, &["first"]), pick(By::Last, &["last"])],
            fields: &[field(
                "actor_id",
                ACTOR,
                &[
                    "the {pick} actor listed for {play_id}",
                    "the {pick} cast member of {play_id}",
                ],
            )],
            sub_queries: &[
                "Get the cast of {play_id}.",
                "List the actors in {play_id}.",
            ],
            aspects: &[aspect(
                &["the cast of {play_id}", "the actors in {play_id}"],
                &["Who plays in {play_id}?", "Which actors are in {play_id}?"],
                "The cast is [{name!} as {role}].",
            )],
        },
        Api {
            name: "Actor Info",
            does: "Record of one actor.",
            returns: "Name, year of birth and town of the actor.",
            parameters: &[needs("actor_id", ACTOR, "Number of the actor.")],
            operation: Operation::Get {
                table: "actors",
                column: "actor_id",
            },
            list: "",
            shown: &["name", "born", "town"],
            picks: &[],
            fields: &[
                field(
                    "town",
                    TOWN,
                    &["the town of {actor_id}", "the town where {actor_id} lives"],
                ),
                field("born", YEAR, &["the birth year of {actor_id}"]),
            ],
            sub_queries: &[
                "Get the record of {actor_id}.",
                "Look up the biography of {actor_id}.",
            ],
            aspects: &[aspect(
                &[
                    "the biography of {actor_id}",
                    "the birth year and home of {actor_id}",
                ],
                &["When was {actor_id} born and where is home?"],
                "{name} was born in {born!} and lives in {town!}.",
            )],
        },
        Api {
            name: "Actor Plays",
            does: "Plays of an actor, newest first.",
            returns: "List of plays with number, title and year.",
            parameters: &[
                needs("actor_id", ACTOR, "Number of the actor."),
                at_most(&[", at most {}", ", only the latest {}"]),
            ],
            operation: Operation::List {
                table: "cast",
                column: "actor_id",
                order: Order::Falling("year"),
            },
            list: "plays",
            shown: &["play_id", "title", "year"],
            picks: &[pick(By::Max("year"), &["newest", "latest", "most recent"])],
            fields: &[field(
                "play_id",
                PLAY,
                &[
                    "the {pick} play with {actor_id}",
                    "the {pick} play of {actor_id}",
                ],
            )],
            sub_queries: &[
                "List the plays with {actor_id}.",
                "Find the plays of {actor_id}.",
            ],
            aspects: &[aspect(
                &["the plays with {actor_id}", "the stage roles of {actor_id}"],
                &[
                    "Which plays has {actor_id} been in?",
                    "In which plays does {actor_id} act?",
                ],
                "The plays are [{title!} of {year}].",
            )],
        },
        Api {
            name: "Shows In Town",
            does: "Plays on stage in a town.",
            returns: "List of shows with play number, title, day and ticket price.",
            parameters: &[
                needs("town", TOWN, "Name of the town."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::List {
                table: "shows",
                column: "town",
                order: Order::Rising("title"),
            },
            list: "shows",
            shown: &["play_id", "title", "day", "ticket"],
            picks: &[
                pick(By::Min("ticket"), &["cheapest"]),
                pick(By::Max("ticket"), &["most expensive"]),
            ],
            fields: &[field(
                "play_id",
                PLAY,
                &[
                    "the {pick} show in {town}",
                    "the {pick} play on stage in {town}",
                ],
            )],
            sub_queries: &[
                "List the shows in {town}.",
                "Find plays on stage in {town}.",
            ],
            aspects: &[aspect(
                &["the shows in {town}", "the plays on stage in {town}"],
                &[
                    "What is on stage in {town}?",
                    "Which shows are on in {town}?",
                ],
                "On stage are [{title!} on {day}].",
            )],
        },
    ],
};
