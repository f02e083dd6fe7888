//! Families about cooking, eating and drinking.

use super::super::Split::{Test, Train};
use super::super::field::*;

const RESTAURANT: Family = Family {
    name: "restaurant",
    split: Train,
    flat: &[
        text(
            "name",
            &[
                "The Copper Pan",
                "Olive and Thyme",
                "Harbour Table",
                "Red Lantern",
                "Casa Verde",
                "The Quiet Fork",
            ],
        )
        .say("The place is called {}."),
        text(
            "cuisine",
            &["Italian", "Thai", "Lebanese", "Mexican", "Nordic", "Indian"],
        )
        .say("The kitchen is {}."),
        address("address").say("You find it at {}."),
        int("seats", 16, 140).say("It seats {} guests."),
        num("average bill", 125, 680)
            .unit("euros")
            .say("Guests spend {} on average."),
        flag("terrace", "there is a terrace", "there is no terrace"),
        choice("noise level", &["quiet", "lively", "loud"]),
        time("closing time").say("The kitchen closes at {}."),
    ],
    group: group(
        "chef",
        &[
            person("name"),
            int("years of experience", 3, 35),
            place("home town"),
        ],
    ),
    list: list(
        "specialities",
        &[
            "grilled trout",
            "lamb stew",
            "mushroom risotto",
            "fish soup",
            "plum tart",
            "flatbread",
        ],
    ),
    items: items(
        "dishes",
        "dish",
        &[
            text(
                "name",
                &[
                    "lentil soup",
                    "roast duck",
                    "beet salad",
                    "almond cake",
                    "crab noodles",
                ],
            ),
            num("price", 65, 320),
            choice("diet", &["meat", "fish", "vegan"]),
        ],
    ),
};

const RECIPE: Family = Family {
    name: "recipe",
    split: Train,
    flat: &[
        text(
            "title",
            &[
                "Winter Broth",
                "Lemon Barley",
                "Smoky Beans",
                "Apple Dumplings",
                "Green Curry",
                "Onion Pie",
            ],
        )
        .say("This one is known as {}."),
        int("servings", 2, 12).say("It feeds {} people."),
        int("cooking time", 10, 180)
            .unit("minutes")
            .say("It stays on the stove for {}."),
        int("oven temperature", 120, 250)
            .unit("degrees")
            .say("Heat the oven to {}."),
        choice("difficulty", &["easy", "medium", "hard"]),
        person("author").say("It was written down by {}."),
        flag("vegetarian", "it is vegetarian", "it is not vegetarian"),
    ],
    group: group(
        "nutrition",
        &[
            int("calories", 150, 900),
            num("protein", 25, 480),
            num("salt", 2, 35),
        ],
    ),
    list: list(
        "utensils",
        &[
            "saucepan",
            "whisk",
            "baking tray",
            "sieve",
            "grater",
            "rolling pin",
        ],
    ),
    items: items(
        "ingredients",
        "ingredient",
        &[
            text(
                "name",
                &["flour", "butter", "leeks", "cream", "rice", "carrots"],
            ),
            int("grams", 20, 900),
        ],
    ),
};

const BAKERY: Family = Family {
    name: "bakery order",
    split: Train,
    flat: &[
        code("order number", "BK").say("We wrote it down as {}."),
        person("customer").say("It was ordered by {}."),
        text(
            "cake flavour",
            &["chocolate", "carrot", "hazelnut", "vanilla", "poppy seed"],
        ),
        text(
            "inscription",
            &["Happy Birthday", "Well Done", "Welcome Home", "Good Luck"],
        )
        .say("The icing should read {}."),
        int("candles", 1, 90).say("Please put {} candles on top."),
        date("collection date").say("It will be picked up on {}."),
        flag(
            "gluten free",
            "the dough is gluten free",
            "the dough is not gluten free",
        ),
        num("total", 125, 980)
            .unit("euros")
            .say("All together it comes to {}."),
    ],
    group: group(
        "contact",
        &[
            person("name"),
            code("phone", "555"),
            choice("preferred channel", &["call", "text", "mail"]),
        ],
    ),
    list: list(
        "allergens",
        &["nuts", "milk", "eggs", "soy", "sesame", "wheat"],
    ),
    items: items(
        "lines",
        "line",
        &[
            text(
                "product",
                &["rye loaf", "croissant", "bun", "pretzel", "eclair"],
            ),
            int("quantity", 1, 60),
            num("unit price", 9, 65),
        ],
    ),
};

const WINE: Family = Family {
    name: "wine tasting",
    split: Test,
    flat: &[
        text(
            "estate",
            &[
                "Monte Alto",
                "Clos Perrin",
                "Weingut Halder",
                "Quinta Rosal",
                "Abbey Slope",
            ],
        )
        .say("The bottle comes from {}."),
        text("grape", &["Riesling", "Merlot", "Syrah", "Gamay", "Chenin"]).say("It is made of {}."),
        int("vintage", 1985, 2022).say("The year on the label is {}."),
        num("alcohol", 105, 155)
            .unit("percent")
            .say("On the label it says {}."),
        int("score", 60, 100)
            .unit("points")
            .say("The panel gave it {}."),
        choice("body", &["light", "medium", "full"]),
        flag("organic", "the wine is organic", "the wine is not organic"),
        person("taster").say("It was tasted by {}."),
    ],
    group: group(
        "cellar",
        &[
            place("village"),
            int("barrels", 10, 300),
            num("humidity", 605, 850),
        ],
    ),
    list: list(
        "aromas",
        &["cherry", "leather", "citrus", "smoke", "honey", "pepper"],
    ),
    items: items(
        "bottles",
        "bottle",
        &[
            code("lot", "WN"),
            int("year", 1990, 2022),
            num("price", 85, 990),
        ],
    ),
};

const FOOD_TRUCK: Family = Family {
    name: "food truck",
    split: Train,
    flat: &[
        text(
            "truck name",
            &[
                "Rolling Pita",
                "Taco Comet",
                "Noodle Wheels",
                "The Waffle Van",
                "Curry Stop",
            ],
        )
        .say("On its side is painted {}."),
        place("parking spot").say("Today it stands in {}."),
        person("owner").say("It belongs to {}."),
        int("portions per day", 40, 400).say("On a normal day it sells {} portions."),
        code("permit", "FT").say("The city registered it as {}."),
        flag(
            "takes cards",
            "cards are accepted",
            "cards are not accepted",
        ),
        choice("power source", &["gas", "battery", "generator"]),
    ],
    group: group(
        "next event",
        &[
            text("title", &["Street Feast", "Harvest Fair", "Night Market"]),
            date("date"),
            place("town"),
        ],
    ),
    list: list(
        "sauces",
        &["tahini", "salsa", "garlic", "mango", "peanut", "mustard"],
    ),
    items: items(
        "menu items",
        "menu item",
        &[
            text(
                "name",
                &["falafel", "quesadilla", "ramen", "waffle", "samosa"],
            ),
            num("price", 35, 145),
        ],
    ),
};

pub(super) const DOMAIN: Domain = Domain {
    name: "food",
    families: &[RESTAURANT, RECIPE, BAKERY, WINE, FOOD_TRUCK],
};
