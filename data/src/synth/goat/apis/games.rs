//! Board games and their designers.

use super::super::api::{
    Api, By, Operation, Order, Role, Tool, aspect, at_most, field, needs, pick,
};
use super::super::kinds::{AMOUNT, DESIGNER, GAME, GAME_TITLE, MINUTES, THEME, TOWN, YEAR};

pub(in super::super) const GAME_SHELF: Tool = Tool {
    name: "GameShelf",
    category: "Games",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Find Game",
            does: "Searches board games by title.",
            returns: "List of games with number and title.",
            parameters: &[needs("title", GAME_TITLE, "Title of the game.")],
            operation: Operation::Search {
                table: "games",
                column: "title",
            },
            list: "games",
            shown: &["game_id", "title"],
            picks: &[],
            fields: &[field("game_id", GAME, &["{title}"])],
            sub_queries: &["Find {title}.", "Search for {title}."],
            aspects: &[aspect(
                &["the game number of {title}", "the number of {title}"],
                &[
                    "What is the game number of {title}?",
                    "Which number does {title} have?",
                ],
                "[{title} has number {game_id!}].",
            )],
        },
        Api {
            name: "Game Details",
            does: "Record of one board game.",
            returns: "Title, theme, year, minutes, price and designer number of the game.",
            parameters: &[needs("game_id", GAME, "Number of the game.")],
            operation: Operation::Get {
                table: "games",
                column: "game_id",
            },
            list: "",
            shown: &["title", "theme", "year", "minutes", "price", "designer_id"],
            picks: &[],
            fields: &[
                field(
                    "designer_id",
                    DESIGNER,
                    &["the designer of {game_id}", "whoever designed {game_id}"],
                ),
                field("price", AMOUNT, &["the price of {game_id}"]),
                field("minutes", MINUTES, &["the playing time of {game_id}"]),
                field("theme", THEME, &["the theme of {game_id}"]),
            ],
            sub_queries: &[
                "Get the record of {game_id}.",
                "Look up the details of {game_id}.",
            ],
            aspects: &[
                aspect(
                    &[
                        "the theme and year of {game_id}",
                        "the year and theme of {game_id}",
                    ],
                    &["What is {game_id} about and when did it come out?"],
                    "{title} is about {theme!} and came out in {year!}.",
                ),
                aspect(
                    &[
                        "the price and playing time of {game_id}",
                        "the playing time and price of {game_id}",
                    ],
                    &["How long does {game_id} take and what does it cost?"],
                    "{title} takes {minutes!} minutes and costs {price!} marks.",
                ),
            ],
        },
        Api {
            name: "Similar Games",
            does: "Other board games of the same theme.",
            returns: "List of games with number, title and year.",
            parameters: &[
                needs("game_id", GAME, "Number of the game."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::Similar {
                table: "games",
                key: "game_id",
                by: "theme",
            },
            list: "games",
            shown: &["game_id", "title", "year"],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Find games similar to {game_id}.",
                "List games like {game_id}.",
            ],
            aspects: &[aspect(
                &[
                    "board games similar to {game_id}",
                    "other games like {game_id}",
                ],
                &[
                    "Which board games are similar to {game_id}?",
                    "What games are like {game_id}?",
                ],
                "Similar games are [{title!}].",
            )],
        },
        Api {
            name: "Designer Info",
            does: "Record of one game designer.",
            returns: "Name, year of birth and town of the designer.",
            parameters: &[needs("designer_id", DESIGNER, "Number of the designer.")],
            operation: Operation::Get {
                table: "designers",
                column: "designer_id",
            },
            list: "",
            shown: &["name", "born", "town"],
            picks: &[],
            fields: &[
                field(
                    "town",
                    TOWN,
                    &[
                        "the town of {designer_id}",
                        "the town where {designer_id} lives",
                    ],
                ),
                field("born", YEAR, &["the birth year of {designer_id}"]),
            ],
            sub_queries: &["Get the record of {designer_id}.", "Look up {designer_id}."],
            aspects: &[
                aspect(
                    &[
                        "the birth year and name of {designer_id}",
                        "the name and birth year of {designer_id}",
                    ],
                    &["What are the name and birth year of {designer_id}?"],
                    "The designer is {name!}, born in {born!}.",
                ),
                aspect(
                    &[
                        "the home and name of {designer_id}",
                        "the name and home of {designer_id}",
                    ],
                    &["What is the name of {designer_id} and where is home?"],
                    "The designer is {name!} from {town!}.",
                ),
            ],
        },
        Api {
            name: "Designer Games",
            does: "Board games of a designer.",
            returns: "List of games with number, title and year.",
            parameters: &[
                needs("designer_id", DESIGNER, "Number of the designer."),
                at_most(&[", at most {}", ", only {} of them"]),
            ],
            operation: Operation::List {
                table: "games",
                column: "designer_id",
                order: Order::Rising("title"),
            },
            list: "games",
            shown: &["game_id", "title", "year"],
            picks: &[
                pick(By::Min("year"), &["oldest", "earliest"]),
                pick(By::Max("year"), &["newest", "latest"]),
            ],
            fields: &[field(
                "game_id",
                GAME,
                &[
                    "the {pick} game by {designer_id}",
                    "the {pick} game of {designer_id}",
                ],
            )],
            sub_queries: &[
                "List the games by {designer_id}.",
                "Find all games of {designer_id}.",
            ],
            aspects: &[aspect(
                &[
                    "the board games by {designer_id}",
                    "all games of {designer_id}",
                ],
                &[
                    "Which games did {designer_id} make?",
                    "What board games are by {designer_id}?",
                ],
                "The games are [{title!} of {year}].",
            )],
        },
        Api {
            name: "Games By Theme",
            does: "Board games of a theme, cheapest first.",
            returns: "List of games with number, title and price.",
            parameters: &[
                needs("theme", THEME, "Theme, such as farming."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::List {
                table: "games",
                column: "theme",
                order: Order::Rising("price"),
            },
            list: "games",
            shown: &["game_id", "title", "price"],
            picks: &[pick(By::Min("price"), &["cheapest", "least expensive"])],
            fields: &[field(
                "game_id",
                GAME,
                &["the {pick} board game about {theme}"],
            )],
            sub_queries: &[
                "List games about {theme}.",
                "Find games with the theme {theme}.",
            ],
            aspects: &[aspect(
                &["board games about {theme}", "games with the theme {theme}"],
                &[
                    "Which board games are about {theme}?",
                    "What games deal with {theme}?",
                ],
                "I found [{title!} for {price} marks].",
            )],
        },
    ],
};
