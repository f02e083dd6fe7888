//! Families about computers and those who run them.

use super::super::Split::{Test, Train};
use super::super::field::*;

const RELEASE: Family = Family {
    name: "software release",
    split: Train,
    flat: &[
        text(
            "project",
            &[
                "Falcon",
                "Papertrail",
                "Gridlock",
                "Nimbus",
                "Sextant",
                "Mosaic",
            ],
        )
        .say("The program is {}."),
        text("version", &["1.4.2", "2.0.1", "0.9.8", "3.1.0", "5.2.7"])
            .say("It carries the version {}."),
        date("release date").say("It went out on {}."),
        person("maintainer").say("It was signed by {}."),
        int("fixed bugs", 3, 90).say("It closes {} bugs."),
        num("download size", 15, 890)
            .unit("MB")
            .say("The archive has {}."),
        flag(
            "breaking changes",
            "it has breaking changes",
            "it has no breaking changes",
        ),
        choice("channel", &["stable", "beta", "nightly"]),
    ],
    group: group(
        "build",
        &[
            code("job", "CI"),
            int("duration", 40, 900),
            text("compiler", &["clang", "gcc", "rustc"]),
        ],
    ),
    list: list(
        "platforms",
        &["Linux", "Windows", "macOS", "Android", "FreeBSD"],
    ),
    items: items(
        "changes",
        "change",
        &[
            code("ticket", "CH"),
            choice("type", &["fix", "feature", "docs"]),
            person("author"),
        ],
    ),
};

const BUG: Family = Family {
    name: "bug report",
    split: Train,
    flat: &[
        code("issue", "BUG").say("It is filed as {}."),
        text(
            "component",
            &[
                "login page",
                "search bar",
                "printer queue",
                "payment form",
                "map view",
            ],
        )
        .say("It happens in the {}."),
        person("reporter").say("The report came from {}."),
        int("affected users", 2, 5000).say("It hits {} users."),
        flag(
            "reproducible",
            "it can be reproduced",
            "it cannot be reproduced",
        ),
        choice("severity", &["minor", "major", "critical"]),
        date("discovery date").say("It was noticed on {}."),
        text(
            "error message",
            &[
                "connection reset",
                "null pointer",
                "disk full",
                "access denied",
            ],
        )
        .say("The screen says {}."),
    ],
    group: group(
        "environment",
        &[
            text("system", &["Ubuntu", "Fedora", "Debian"]),
            int("memory", 2, 128),
            text("browser", &["Firefox", "Chrome", "Safari"]),
        ],
    ),
    list: list(
        "labels",
        &["regression", "security", "crash", "layout", "speed"],
    ),
    items: items(
        "comments",
        "comment",
        &[person("author"), date("date"), int("votes", 1, 60)],
    ),
};

const SERVER: Family = Family {
    name: "server",
    split: Train,
    flat: &[
        text(
            "hostname",
            &["atlas", "borealis", "cygnus", "draco", "helios"],
        )
        .say("The machine answers to {}."),
        int("cores", 4, 128).say("It has {} cores."),
        num("load", 1, 240).say("The load stands at {}."),
        int("uptime", 1, 700)
            .unit("days")
            .say("It has been up for {}."),
        place("data centre").say("It is housed in {}."),
        flag(
            "encrypted disks",
            "the disks are encrypted",
            "the disks are not encrypted",
        ),
        choice("status", &["healthy", "degraded", "offline"]),
        code("rack", "RK"),
    ],
    group: group(
        "administrator",
        &[person("name"), company("employer"), time("duty start")],
    ),
    list: list(
        "services",
        &["nginx", "redis", "postgres", "grafana", "postfix"],
    ),
    items: items(
        "disks",
        "disk",
        &[
            code("bay", "D"),
            int("capacity", 250, 8000),
            choice("health", &["good", "aging", "failed"]),
        ],
    ),
};

const TICKET: Family = Family {
    name: "support ticket",
    split: Test,
    flat: &[
        code("case", "ST").say("You can quote {}."),
        person("caller").say("The call came from {}."),
        text(
            "device",
            &["laptop", "tablet", "router", "scanner", "headset"],
        )
        .say("The trouble is with a {}."),
        int("waiting time", 2, 90)
            .unit("minutes")
            .say("They were on hold for {}."),
        company("account").say("They work for {}."),
        num("satisfaction", 11, 49).say("They rated us {}."),
        flag(
            "escalated",
            "the case was escalated",
            "the case was not escalated",
        ),
        choice("queue", &["hardware", "network", "billing"]),
        date("opening date").say("The first call was on {}."),
    ],
    group: group(
        "agent",
        &[
            person("name"),
            int("desk", 1, 80),
            choice("shift", &["early", "late"]),
        ],
    ),
    list: list(
        "steps tried",
        &["restart", "new cable", "reset", "update", "reinstall"],
    ),
    items: items(
        "replies",
        "reply",
        &[
            person("sender"),
            time("sending time"),
            int("words", 10, 300),
        ],
    ),
};

const BACKUP: Family = Family {
    name: "backup job",
    split: Train,
    flat: &[
        text(
            "job name",
            &[
                "nightly full",
                "hourly mail",
                "weekly photos",
                "monthly ledger",
            ],
        )
        .say("It is scheduled as {}."),
        num("data volume", 12, 980).unit("GB").say("It copied {}."),
        int("files", 300, 90000).say("It touched {} files."),
        time("end time").say("It was done at {}."),
        int("errors", 1, 40).say("It met {} errors."),
        flag(
            "verified",
            "the copy was verified",
            "the copy was not verified",
        ),
        choice("mode", &["full", "incremental"]),
    ],
    group: group(
        "target",
        &[
            text("device", &["tape", "bucket", "disk array"]),
            place("site"),
            int("free space", 10, 900),
        ],
    ),
    list: list(
        "excluded folders",
        &["cache", "trash", "downloads", "temp", "videos"],
    ),
    items: items(
        "volumes",
        "volume",
        &[
            text("label", &["alpha", "beta", "gamma", "delta"]),
            num("size", 11, 490),
        ],
    ),
};

pub(super) const DOMAIN: Domain = Domain {
    name: "software",
    families: &[RELEASE, BUG, SERVER, TICKET, BACKUP],
};
