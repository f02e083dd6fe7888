//! Museums, their works and the painters; held out.

use super::super::api::{
    Api, By, Operation, Order, Role, Tool, aspect, at_most, field, needs, pick,
};
use super::super::kinds::{AMOUNT, MUSEUM, MUSEUM_NAME, PAINTER, TOWN, WORK, YEAR};

pub(in super::super) const ART_HALL: Tool = Tool {
    name: "ArtHall",
    category: "Culture",
    role: Role::HeldOut,
    apis: &[
        Api {
            name: "Find Museum",
            does: "Searches museums by name.",
            returns: "List of museums with number and name.",
            parameters: &[needs("name", MUSEUM_NAME, "Name of the museum.")],
            operation: Operation::Search {
                table: "museums",
                column: "name",
            },
            list: "museums",
            shown: &["museum_id", "name"],
            picks: &[],
            fields: &[field("museum_id", MUSEUM, &["{name}"])],
            sub_queries: &["Find {name}.", "Search for {name}."],
            aspects: &[aspect(
                &["the museum number of {name}", "the number of {name}"],
                &[
                    "What is the museum number of {name}?",
                    "Which number does {name} have?",
                ],
                "[{name} has number {museum_id!}].",
            )],
        },
        Api {
            name: "Museum Info",
            does: "Record of one museum.",
            returns: "Name, town, entrance fee and opening year of the museum.",
            parameters: &[needs("museum_id", MUSEUM, "Number of the museum.")],
            operation: Operation::Get {
                table: "museums",
                column: "museum_id",
            },
            list: "",
            shown: &["name", "town", "fee", "opened"],
            picks: &[],
            fields: &[
                field(
                    "town",
                    TOWN,
                    &["the town of {museum_id}", "the town where {museum_id} is"],
                ),
                field("fee", AMOUNT, &["the entrance fee of {museum_id}"]),
                field("opened", YEAR, &["the year {museum_id} opened"]),
            ],
            sub_queries: &["Get the record of {museum_id}.", "Look up {museum_id}."],
            aspects: &[aspect(
                &[
                    "the opening year and fee of {museum_id}",
                    "the fee and opening year of {museum_id}",
                ],
                &["What does {museum_id} cost and when did it open?"],
                "{name} costs {fee!} marks and opened in {opened!}.",
            )],
        },
        Api {
            name: "Museum Works",
            does: "Artworks of a museum.",
            returns: "List of artworks with number, title and year.",
            parameters: &[
                needs("museum_id", MUSEUM, "Number of the museum."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::List {
                table: "works",
                column: "museum_id",
                order: Order::Rising("title"),
            },
            list: "works",
            shown: &["work_id", "title", "year"],
            picks: &[
                pick(By::Min("year"), &["oldest"]),
                pick(By::Max("year"), &["newest", "latest"]),
            ],
            fields: &[field(
                "work_id",
                WORK,
                &["the {pick} artwork in {museum_id}"],
            )],
            sub_queries: &[
                "List the artworks in {museum_id}.",
                "Find the works of {museum_id}.",
            ],
            aspects: &[aspect(
                &[
                    "the artworks in {museum_id}",
                    "the works on show in {museum_id}",
                ],
                &[
                    "Which artworks are in {museum_id}?",
                    "What does {museum_id} show?",
                ],
                "The works are [{title!} of {year}].",
            )],
        },
        Api {
            name: "Work Details",
            does: "Record of one artwork.",
            returns: "Title, style, year and painter number of the artwork.",
            parameters: &[needs("work_id", WORK, "Number of the artwork.")],
            operation: Operation::Get {
                table: "works",
                column: "work_id",
            },
            list: "",
            shown: &["title", "style", "year", "painter_id"],
            picks: &[],
            fields: &[field(
                "painter_id",
                PAINTER,
                &["the painter of {work_id}", "whoever painted {work_id}"],
            )],
            sub_queries: &[
                "Get the record of {work_id}.",
                "Look up the details of {work_id}.",
            ],
            aspects: &[aspect(
                &[
                    "the year and style of {work_id}",
                    "the style and year of {work_id}",
                ],
                &["In what style and year is {work_id}?"],
                "{title} is a {style!} work of {year!}.",
            )],
        },
        Api {
            name: "Painter Info",
            does: "Record of one painter.",
            returns: "Name, year of birth and town of the painter.",
            parameters: &[needs("painter_id", PAINTER, "Number of the painter.")],
            operation: Operation::Get {
                table: "painters",
                column: "painter_id",
            },
            list: "",
            shown: &["name", "born", "town"],
            picks: &[],
            fields: &[
                field("town", TOWN, &["the town of {painter_id}"]),
                field("born", YEAR, &["the birth year of {painter_id}"]),
            ],
            sub_queries: &["Get the record of {painter_id}.", "Look up {painter_id}."],
            aspects: &[aspect(
                &[
                    "the birth year and name of {painter_id}",
                    "the name and birth year of {painter_id}",
                ],
                &["What are the name and birth year of {painter_id}?"],
                "The painter is {name!}, born in {born!}.",
            )],
        },
        Api {
            name: "Similar Works",
            does: "Other artworks of the same style.",
            returns: "List of artworks with number, title and year.",
            parameters: &[
                needs("work_id", WORK, "Number of the artwork."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::Similar {
                table: "works",
                key: "work_id",
                by: "style",
            },
            list: "works",
            shown: &["work_id", "title", "year"],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Find artworks similar to {work_id}.",
                "List works like {work_id}.",
            ],
            aspects: &[aspect(
                &[
                    "artworks similar to {work_id}",
                    "other works like {work_id}",
                ],
                &[
                    "Which artworks are similar to {work_id}?",
                    "What works are like {work_id}?",
                ],
                "Similar works are [{title!}].",
            )],
        },
    ],
};
