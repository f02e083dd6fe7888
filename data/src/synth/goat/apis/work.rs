//! Firms and their jobs.

use super::super::api::{
    Api, By, Operation, Order, Restriction, Role, Tool, aspect, at_most, field, may, needs, pick,
};
use super::super::kinds::{AMOUNT, FIRM, FIRM_NAME, JOB, PAY_BOUND, TOWN, TRADE};

pub(in super::super) const WORK_ROLL: Tool = Tool {
    name: "WorkRoll",
    category: "Business",
    role: Role::Seen,
    apis: &[
        Api {
            name: "Find Firm",
            does: "Searches firms by name.",
            returns: "List of firms with number and name.",
            parameters: &[needs("name", FIRM_NAME, "Name of the firm.")],
            operation: Operation::Search {
                table: "firms",
                column: "name",
            },
            list: "firms",
            shown: &["firm_id", "name"],
            picks: &[],
            fields: &[field("firm_id", FIRM, &["{name}"])],
            sub_queries: &["Find {name}.", "Search for {name}."],
            aspects: &[aspect(
                &["the firm number of {name}", "the number of {name}"],
                &[
                    "What is the firm number of {name}?",
                    "Which number does {name} have?",
                ],
                "[{name} has number {firm_id!}].",
            )],
        },
        Api {
            name: "Firm Profile",
            does: "Record of one firm.",
            returns: "Name, trade, head, town and staff of the firm.",
            parameters: &[needs("firm_id", FIRM, "Number of the firm.")],
            operation: Operation::Get {
                table: "firms",
                column: "firm_id",
            },
            list: "",
            shown: &["name", "trade", "head", "town", "staff"],
            picks: &[],
            fields: &[
                field(
                    "town",
                    TOWN,
                    &["the town of {firm_id}", "the town where {firm_id} sits"],
                ),
                field("trade", TRADE, &["the trade of {firm_id}"]),
            ],
            sub_queries: &[
                "Get the profile of {firm_id}.",
                "Look up the record of {firm_id}.",
            ],
            aspects: &[
                aspect(
                    &["the head of {firm_id}", "the name of the boss of {firm_id}"],
                    &["Who is the head of {firm_id}?", "Who leads {firm_id}?"],
                    "{name} is led by {head!}.",
                ),
                aspect(
                    &["the staff of {firm_id}", "the number of staff of {firm_id}"],
                    &[
                        "How many people work for {firm_id}?",
                        "How large is the staff of {firm_id}?",
                    ],
                    "{name} has a staff of {staff!}.",
                ),
            ],
        },
        Api {
            name: "Firm Jobs",
            does: "Open jobs of a firm.",
            returns: "List of jobs with number, title and pay.",
            parameters: &[
                needs("firm_id", FIRM, "Number of the firm."),
                may(
                    "min_pay",
                    PAY_BOUND,
                    Restriction::AtLeast("pay"),
                    &[
                        " paying at least {} marks",
                        " with a pay of {} marks or more",
                    ],
                ),
            ],
            operation: Operation::List {
                table: "jobs",
                column: "firm_id",
                order: Order::Rising("title"),
            },
            list: "jobs",
            shown: &["job_id", "title", "pay"],
            picks: &[
                pick(By::Max("pay"), &["best paid"]),
                pick(By::Min("pay"), &["worst paid", "lowest paid"]),
            ],
            fields: &[field("job_id", JOB, &["the {pick} job at {firm_id}"])],
            sub_queries: &[
                "List the jobs at {firm_id}.",
                "Find open jobs at {firm_id}.",
            ],
            aspects: &[aspect(
                &["the open jobs at {firm_id}", "the job offers of {firm_id}"],
                &[
                    "Which jobs are open at {firm_id}?",
                    "What jobs does {firm_id} offer?",
                ],
                "The jobs are [{title!} for {pay} marks].",
            )],
        },
        Api {
            name: "Job Details",
            does: "Record of one job.",
            returns: "Title, firm number, pay and weekly hours of the job.",
            parameters: &[needs("job_id", JOB, "Number of the job.")],
            operation: Operation::Get {
                table: "jobs",
                column: "job_id",
            },
            list: "",
            shown: &["title", "firm_id", "pay", "hours"],
            picks: &[],
            fields: &[
                field(
                    "firm_id",
                    FIRM,
                    &["the firm offering {job_id}", "the firm behind {job_id}"],
                ),
                field("pay", AMOUNT, &["the pay of {job_id}"]),
            ],
            sub_queries: &[
                "Get the record of {job_id}.",
                "Look up the details of {job_id}.",
            ],
            aspects: &[aspect(
                &[
                    "the weekly hours and pay of {job_id}",
                    "the pay and weekly hours of {job_id}",
                ],
                &["How many hours is {job_id} and what does it pay?"],
                "The {title} works {hours!} hours for {pay!} marks.",
            )],
        },
        Api {
            name: "Firms In Trade",
            does: "Firms of a trade.",
            returns: "List of firms with number, name and staff.",
            parameters: &[
                needs("trade", TRADE, "Name of the trade, such as printing."),
                at_most(&[", at most {}", ", no more than {}"]),
            ],
            operation: Operation::List {
                table: "firms",
                column: "trade",
                order: Order::Rising("name"),
            },
            list: "firms",
            shown: &["firm_id", "name", "staff"],
            picks: &[
                pick(By::Max("staff"), &["largest", "biggest"]),
                pick(By::Min("staff"), &["smallest"]),
            ],
            fields: &[field("firm_id", FIRM, &["the {pick} firm in {trade}"])],
            sub_queries: &["List the firms in {trade}.", "Find firms of {trade}."],
            aspects: &[aspect(
                &["the firms in {trade}", "the firms of {trade}"],
                &[
                    "Which firms are in {trade}?",
                    "What firms belong to {trade}?",
                ],
                "The firms are [{name!} with a staff of {staff}].",
            )],
        },
    ],
};
