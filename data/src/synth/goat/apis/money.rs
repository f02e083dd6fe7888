//! Sums of money and of time: APIs that compute.

use super::super::api::{Api, Operation, Role, Tool, aspect, needs};
use super::super::functions::Function;
use super::super::kinds::{AMOUNT, CLOCK, CURRENCY, LATER_YEAR, MINUTES, PEOPLE, PERCENT, YEAR};

pub(in super::super) const MONEY_MILL: Tool = Tool {
    name: "MoneyMill",
    category: "Finance",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Convert Money",
            does: "Converts marks to a currency.",
            returns: "The converted amount.",
            parameters: &[
                needs("amount", AMOUNT, "Amount in marks."),
                needs("currency", CURRENCY, "Code of the currency, such as VEL."),
            ],
            operation: Operation::Compute(Function::Convert),
            list: "",
            shown: &[],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Convert {amount} to {currency}.",
                "Work out {amount} in {currency}.",
            ],
            aspects: &[aspect(
                &[
                    "{amount} in {currency}",
                    "the value of {amount} in {currency}",
                ],
                &[
                    "How much is {amount} in {currency}?",
                    "What is {amount} in {currency}?",
                ],
                "That is {converted!} {currency}.",
            )],
        },
        Api {
            name: "Add Tax",
            does: "Adds a percentage to an amount.",
            returns: "The total with tax.",
            parameters: &[
                needs("amount", AMOUNT, "Amount in marks."),
                needs("percent", PERCENT, "Tax in percent."),
            ],
            operation: Operation::Compute(Function::AddTax),
            list: "",
            shown: &[],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Add {percent} percent tax to {amount}.",
                "Compute {amount} plus {percent} percent.",
            ],
            aspects: &[aspect(
                &[
                    "{amount} with {percent} percent tax",
                    "{amount} plus {percent} percent tax",
                ],
                &[
                    "How much is {amount} with {percent} percent tax?",
                    "What does {amount} come to with {percent} percent tax?",
                ],
                "With tax it is {total!} marks.",
            )],
        },
        Api {
            name: "Split Bill",
            does: "Divides an amount among people.",
            returns: "The share of one person.",
            parameters: &[
                needs("amount", AMOUNT, "Amount in marks."),
                needs("people", PEOPLE, "Number of people."),
            ],
            operation: Operation::Compute(Function::Split),
            list: "",
            shown: &[],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Split {amount} among {people} people.",
                "Divide {amount} by {people}.",
            ],
            aspects: &[aspect(
                &[
                    "{amount} split among {people} people",
                    "{amount} shared by {people} people",
                ],
                &[
                    "How much does each of {people} people pay for {amount}?",
                    "What is the share if {people} people pay {amount} together?",
                ],
                "Each person pays {share!} marks.",
            )],
        },
        Api {
            name: "Currency Info",
            does: "Facts about a currency.",
            returns: "Name and rate of the currency.",
            parameters: &[needs(
                "currency",
                CURRENCY,
                "Code of the currency, such as VEL.",
            )],
            operation: Operation::Get {
                table: "currencies",
                column: "code",
            },
            list: "",
            shown: &["code", "name", "rate"],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Get the facts about {currency}.",
                "Look up the currency {currency}.",
            ],
            aspects: &[
                aspect(
                    &[
                        "the full name of {currency}",
                        "the name of the currency {currency}",
                    ],
                    &[
                        "What is the currency {currency} called?",
                        "What does {currency} stand for?",
                    ],
                    "{code} is the {name!}.",
                ),
                aspect(
                    &[
                        "the exchange rate of {currency}",
                        "the rate of the currency {currency}",
                    ],
                    &["What is the exchange rate of {currency}?"],
                    "The rate of {code} is {rate!}.",
                ),
            ],
        },
    ],
};

pub(in super::super) const CLOCK_BOX: Tool = Tool {
    name: "ClockBox",
    category: "Tools",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Arrival Time",
            does: "Adds minutes to a time of day.",
            returns: "The time at the end.",
            parameters: &[
                needs("start", CLOCK, "Time at the start, such as 09:25."),
                needs("minutes", MINUTES, "Minutes to add."),
            ],
            operation: Operation::Compute(Function::Arrive),
            list: "",
            shown: &[],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Add {minutes} to {start}.",
                "Work out the end of {minutes} from {start}.",
            ],
            aspects: &[aspect(
                &[
                    "the end time of {minutes} starting at {start}",
                    "the arrival time for {minutes} from {start}",
                ],
                &[
                    "What is the end time of {minutes} starting at {start}?",
                    "When does {minutes} end if it begins at {start}?",
                ],
                "It ends at {time!}.",
            )],
        },
        Api {
            name: "Hours And Minutes",
            does: "Turns minutes into hours and minutes.",
            returns: "Hours and remaining minutes.",
            parameters: &[needs("minutes", MINUTES, "Minutes in all.")],
            operation: Operation::Compute(Function::HoursAndMinutes),
            list: "",
            shown: &[],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Turn {minutes} into hours.",
                "Express {minutes} in hours and minutes.",
            ],
            aspects: &[aspect(
                &[
                    "{minutes} in hours and minutes",
                    "{minutes} written in hours",
                ],
                &[
                    "How many hours and minutes is {minutes}?",
                    "How many hours is {minutes}?",
                ],
                "That is {hours!} h {minutes!} min.",
            )],
        },
        Api {
            name: "Years Between",
            does: "Counts the years between two years.",
            returns: "The number of years.",
            parameters: &[
                needs("start_year", YEAR, "The earlier year."),
                needs("end_year", LATER_YEAR, "The later year."),
            ],
            operation: Operation::Compute(Function::YearsBetween),
            list: "",
            shown: &[],
            picks: &[],
            fields: &[],
            sub_queries: &[
                "Count the years from {start_year} to {end_year}.",
                "Work out the years between {start_year} and {end_year}.",
            ],
            aspects: &[aspect(
                &[
                    "the years from {start_year} to {end_year}",
                    "the number of years between {start_year} and {end_year}",
                ],
                &[
                    "How many years are there from {start_year} to {end_year}?",
                    "How many years lie between {start_year} and {end_year}?",
                ],
                "That is {years!} years.",
            )],
        },
    ],
};
