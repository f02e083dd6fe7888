//! Families about money.

use super::super::Split::{Dev, Test, Train};
use super::super::field::*;

const INVOICE: Family = Family {
    name: "invoice",
    split: Train,
    flat: &[
        code("invoice number", "INV").say("Please quote {} when paying."),
        company("supplier").say("The bill was sent by {}."),
        company("client").say("It is addressed to {}."),
        num("net amount", 205, 9800)
            .unit("euros")
            .say("Before tax it is {}."),
        int("payment term", 7, 60)
            .unit("days")
            .say("You have {} to pay."),
        date("issue date").say("It was written on {}."),
        flag("paid", "it has been paid", "it has not been paid"),
        choice("currency", &["EUR", "USD", "GBP"]),
    ],
    group: group(
        "bank",
        &[company("name"), code("account", "AC"), place("branch")],
    ),
    list: list(
        "attachments",
        &["timesheet", "receipt", "contract", "delivery note"],
    ),
    items: items(
        "positions",
        "position",
        &[
            text(
                "article",
                &["paper", "toner", "desk lamp", "cable", "folder"],
            ),
            int("quantity", 1, 80),
            num("unit price", 15, 790),
        ],
    ),
};

const TRANSFER: Family = Family {
    name: "bank transfer",
    split: Train,
    flat: &[
        person("payer").say("The money was sent by {}."),
        person("payee").say("It goes to {}."),
        num("sum", 55, 9900).unit("euros").say("The amount is {}."),
        code("reference", "TR").say("The slip mentions {}."),
        date("value date").say("It is booked on {}."),
        flag("instant", "it is instant", "it is not instant"),
        choice("purpose", &["rent", "salary", "gift"]),
    ],
    group: group(
        "receiving bank",
        &[company("name"), place("city"), code("routing code", "RC")],
    ),
    list: list(
        "warnings",
        &["new payee", "large sum", "foreign account", "odd hour"],
    ),
    items: items(
        "fees",
        "fee",
        &[
            text("name", &["handling", "exchange", "express"]),
            num("amount", 5, 190),
        ],
    ),
};

const EXPENSE: Family = Family {
    name: "expense claim",
    split: Train,
    flat: &[
        person("employee").say("The claim was handed in by {}."),
        text(
            "occasion",
            &["trade fair", "client visit", "training", "site check"],
        )
        .say("The money was spent on a {}."),
        num("claimed total", 155, 4900)
            .unit("euros")
            .say("The receipts add up to {}."),
        int("nights", 1, 14).say("It covers {} nights."),
        place("destination").say("The trip went to {}."),
        flag("approved", "it was approved", "it was not approved"),
        choice("department", &["sales", "design", "legal"]),
        date("submission date"),
    ],
    group: group(
        "manager",
        &[
            person("name"),
            int("office", 100, 490),
            choice("decision", &["pending", "granted"]),
        ],
    ),
    list: list(
        "receipts",
        &["hotel", "taxi", "dinner", "train ticket", "parking"],
    ),
    items: items(
        "expenses",
        "expense",
        &[
            text("category", &["meals", "lodging", "transport", "supplies"]),
            num("cost", 45, 890),
        ],
    ),
};

const LOAN: Family = Family {
    name: "loan offer",
    split: Train,
    flat: &[
        company("lender").say("The offer was made by {}."),
        int("principal", 1000, 90000)
            .unit("euros")
            .say("You would borrow {}."),
        num("interest rate", 11, 99)
            .unit("percent")
            .say("The rate is fixed at {}."),
        int("months", 12, 240).say("It is paid back over {} months."),
        person("applicant").say("It was asked for by {}."),
        flag(
            "early repayment",
            "early repayment is free",
            "early repayment is not free",
        ),
        choice("security", &["house", "car", "none"]),
    ],
    group: group(
        "adviser",
        &[
            person("name"),
            place("location"),
            code("direct line", "555"),
        ],
    ),
    list: list(
        "conditions",
        &["payslip", "guarantor", "insurance", "residence permit"],
    ),
    items: items(
        "instalments",
        "instalment",
        &[date("due date"), num("amount", 405, 9000)],
    ),
};

const CLAIM: Family = Family {
    name: "insurance claim",
    split: Test,
    flat: &[
        code("policy", "PO").say("The contract behind it is {}."),
        person("policyholder").say("The insured person is {}."),
        text(
            "damage",
            &[
                "burst pipe",
                "broken windscreen",
                "stolen bicycle",
                "hail damage",
            ],
        )
        .say("They reported a {}."),
        num("estimate", 855, 9700)
            .unit("euros")
            .say("The loss is put at {}."),
        date("incident date").say("It happened on {}."),
        int("photos", 1, 20).say("They sent {} photos."),
        flag(
            "police informed",
            "the police were informed",
            "the police were not informed",
        ),
        choice("decision", &["open", "settled", "rejected"]),
    ],
    group: group(
        "adjuster",
        &[person("name"), place("region"), int("open files", 2, 90)],
    ),
    list: list(
        "covered risks",
        &["fire", "storm", "theft", "flood", "glass"],
    ),
    items: items(
        "damaged goods",
        "damaged good",
        &[
            text("object", &["carpet", "camera", "door", "lamp"]),
            num("value", 105, 1900),
        ],
    ),
};

const PENSION: Family = Family {
    name: "savings plan",
    split: Dev,
    flat: &[
        person("saver").say("The plan is held by {}."),
        num("monthly deposit", 205, 980)
            .unit("euros")
            .say("Each month {} go in."),
        int("term", 5, 40).unit("years").say("It runs for {}."),
        code("plan number", "SP").say("It is kept under {}."),
        company("provider").say("It is managed by {}."),
        flag("tax free", "it is tax free", "it is not tax free"),
        choice("risk class", &["cautious", "balanced", "bold"]),
    ],
    group: group(
        "beneficiary",
        &[
            person("name"),
            choice("relation", &["spouse", "child", "friend"]),
            date("birthday"),
        ],
    ),
    list: list(
        "investments",
        &["bonds", "shares", "gold", "property", "cash"],
    ),
    items: items(
        "deposits",
        "deposit",
        &[date("date"), num("amount", 205, 2900)],
    ),
};

pub(super) const DOMAIN: Domain = Domain {
    name: "finance",
    families: &[INVOICE, TRANSFER, EXPENSE, LOAN, CLAIM, PENSION],
};
