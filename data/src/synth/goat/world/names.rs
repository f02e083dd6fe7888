//! Parts from which the world's names are put together; all are invented. A table and nothing else.

pub(super) const TOWN_STARTS: &[&str] = &[
    "Brack", "Orm", "Til", "Varn", "Quil", "Drum", "Mire", "Sund", "Fenn", "Gors", "Jor", "Keld",
    "Nar", "Pell", "Rusk", "Wend",
];
pub(super) const TOWN_ENDS: &[&str] = &[
    "well", "stead", "low", "holt", "by", "rick", "fall", "mere", "ton", "dun", "gard", "ness",
];
pub(super) const REGIONS: &[&str] = &[
    "Ashvale",
    "Corrin",
    "Dunmark",
    "Eldmoor",
    "Fallowland",
    "Grimsea",
    "Halden",
    "Ivoria",
    "Jutmark",
    "Kestria",
];
pub(super) const FIRST_NAMES: &[&str] = &[
    "Tova", "Emil", "Runa", "Bram", "Ilse", "Odo", "Petra", "Nils", "Yara", "Milo", "Vesna",
    "Joss", "Karin", "Otto", "Senna", "Ulla", "Wim", "Zora", "Arlo", "Dina",
];
pub(super) const LAST_NAMES: &[&str] = &[
    "Brill", "Ostrow", "Quane", "Thackett", "Vellin", "Harrod", "Lindvar", "Morrick", "Pask",
    "Rudd", "Sorrel", "Tarn", "Umber", "Wexley", "Yorrick", "Crewe", "Dorn", "Falk",
];
pub(super) const SKIES: &[&str] = &["sunny", "cloudy", "rainy", "foggy", "windy", "snowy"];

pub(super) const SHIP_STARTS: &[&str] = &[
    "Grey", "Swift", "Golden", "North", "Salty", "Brave", "Little",
];
pub(super) const SHIP_ENDS: &[&str] = &[
    "Gull", "Heron", "Anchor", "Breeze", "Otter", "Tide", "Petrel",
];
pub(super) const INN_STARTS: &[&str] = &[
    "Copper", "Lazy", "Crooked", "Velvet", "Seven", "Old", "Merry", "Silent", "Royal", "Green",
];
pub(super) const INN_ENDS: &[&str] = &[
    "Owl", "Lantern", "Bridge", "Stag", "Barrel", "Chimney", "Candle", "Goose", "Mill", "Oak",
    "Pillow",
];
pub(super) const REMARKS: &[&str] = &[
    "quiet rooms",
    "good breakfast",
    "thin walls",
    "kind host",
    "soft beds",
    "cold showers",
    "great view",
    "slow service",
];

pub(super) const GAME_STARTS: &[&str] = &[
    "Castle", "Market", "Pirate", "Robot", "Dragon", "Garden", "Desert", "Winter",
];
pub(super) const GAME_ENDS: &[&str] = &[
    "Rush", "Builders", "Quarrel", "Harvest", "Council", "Riddle", "Express", "Auction",
];
pub(super) const THEMES: &[&str] = &[
    "trading", "farming", "racing", "mystery", "space", "war", "nature", "magic", "cooking",
    "trains",
];

pub(super) const PLAY_STARTS: &[&str] = &[
    "Broken", "Borrowed", "Last", "Hidden", "Paper", "Burning", "Stolen",
];
pub(super) const PLAY_ENDS: &[&str] = &[
    "Crown", "Letter", "Summer", "Promise", "Wedding", "Orchard", "Mirror",
];
pub(super) const GENRES: &[&str] = &["comedy", "tragedy", "farce", "musical", "drama"];
pub(super) const ROLES: &[&str] = &[
    "the judge",
    "the baker",
    "the widow",
    "the thief",
    "the queen",
    "the sailor",
    "the doctor",
    "the twin",
    "the ghost",
    "the clerk",
];
pub(super) const DAYS: &[&str] = &[
    "3 May", "9 May", "14 May", "22 May", "28 May", "2 June", "7 June", "11 June", "19 June",
    "25 June", "30 June",
];

pub(super) const CURRENCIES: &[(&str, &str, f64)] = &[
    ("VEL", "velling", 1.25),
    ("ORN", "orna", 0.4),
    ("TAK", "takka", 7.5),
    ("SIB", "siber", 2.0),
    ("KUM", "kumar", 0.85),
    ("DRU", "drukk", 3.2),
    ("PEN", "penta", 5.0),
    ("ZAL", "zallo", 0.16),
    ("MIR", "mirro", 12.5),
    ("HEK", "hekta", 0.64),
];

pub(super) const STAR_STARTS: &[&str] = &["Al", "Bel", "Cor", "Den", "Mir", "Sar", "Tau", "Zub"];
pub(super) const STAR_ENDS: &[&str] = &["dara", "nath", "vega", "phon", "rakis", "tulo"];
pub(super) const FIGURES: &[&str] = &[
    "Plough Horse",
    "Lame Wolf",
    "Fishhook",
    "Great Kettle",
    "Twin Swans",
    "Ladder",
    "Blind Archer",
    "Spindle",
    "Broken Wheel",
    "Night Heron",
];
pub(super) const COLORS: &[&str] = &["red", "blue", "white", "yellow", "orange"];
pub(super) const PLANET_STARTS: &[&str] = &[
    "Ark", "Bor", "Cel", "Dax", "Eri", "Fyn", "Gar", "Hul", "Ixo", "Jun",
];
pub(super) const PLANET_ENDS: &[&str] = &[
    "on", "ia", "us", "eth", "or", "ax", "une", "ila", "orn", "ego", "ym",
];

pub(super) const TRAIL_STARTS: &[&str] = &["Miller", "Raven", "Shepherd", "Cloud", "Bear", "Salt"];
pub(super) const TRAIL_ENDS: &[&str] = &["Ridge", "Loop", "Path", "Gorge", "Pass", "Steps", "Way"];
pub(super) const HUT_STARTS: &[&str] = &["High", "Pine", "Eagle", "Stone", "Wolf", "Snow"];
pub(super) const HUT_ENDS: &[&str] = &["Shelter", "Cabin", "Lodge", "Refuge"];
pub(super) const CONDITIONS: &[&str] = &[
    "muddy",
    "dry",
    "icy",
    "well marked",
    "overgrown",
    "bridge out",
];

pub(super) const FIRM_STARTS: &[&str] = &[
    "Norwick", "Halvard", "Ostrel", "Pindle", "Quarro", "Brindal", "Tessen", "Ulmar",
];
pub(super) const FIRM_ENDS: &[&str] = &["Works", "Partners", "Supply", "Group", "Brothers"];
pub(super) const TRADES: &[&str] = &[
    "printing", "shipping", "baking", "glass", "textiles", "software", "timber", "toys", "tools",
    "paper",
];
pub(super) const JOBS: &[&str] = &[
    "welder",
    "driver",
    "accountant",
    "designer",
    "cook",
    "guard",
    "analyst",
    "carpenter",
    "nurse",
    "translator",
    "mechanic",
    "packer",
];

pub(super) const DISH_STARTS: &[&str] = &[
    "Smoky", "Lemon", "Village", "Harvest", "Peppered", "Golden", "Farmer",
];
pub(super) const DISH_ENDS: &[&str] = &["Stew", "Pie", "Soup", "Salad", "Dumplings", "Bake"];
pub(super) const INGREDIENTS: &[&str] = &[
    "leeks",
    "barley",
    "trout",
    "beets",
    "lentils",
    "cabbage",
    "mushrooms",
    "plums",
    "spinach",
    "pumpkin",
    "turnips",
    "walnuts",
    "carrots",
    "beans",
];
pub(super) const SEASONS: &[&str] = &["spring", "summer", "autumn", "winter"];

pub(super) const MUSEUM_STARTS: &[&str] =
    &["Harbor", "Linden", "Marble", "Tower", "Canal", "Meadow"];
pub(super) const MUSEUM_ENDS: &[&str] = &["Gallery", "House", "Rooms", "Collection", "Pavilion"];
pub(super) const WORK_STARTS: &[&str] = &[
    "Woman", "Boats", "Child", "Horses", "Table", "Street", "Field", "Window", "Dancers",
];
pub(super) const WORK_ENDS: &[&str] = &[
    "at Dawn",
    "in Rain",
    "with Pears",
    "by the Sea",
    "in Blue",
    "at Noon",
    "in Snow",
    "with Lamp",
    "at Rest",
];
pub(super) const STYLES: &[&str] = &["realist", "cubist", "abstract", "romantic", "baroque"];

pub(super) const ANIMAL_NAMES: &[&str] = &[
    "Biscuit", "Pepper", "Mango", "Tango", "Juno", "Rolo", "Hazel", "Olive", "Pluto", "Sesame",
    "Ginger", "Nutmeg", "Bandit", "Clover", "Domino", "Echo", "Fudge", "Gizmo", "Indigo", "Jasper",
    "Kiwi", "Lotus", "Maple", "Nova", "Onyx", "Pickle", "Quartz", "Rusty", "Saffron", "Topaz",
    "Umbra", "Vesper", "Willow", "Xylo", "Yonder", "Zephyr", "Acorn", "Bramble", "Cricket",
    "Dusty", "Ember", "Fable", "Goldie", "Hopper", "Ivy", "Jelly", "Koda", "Lucky",
];
pub(super) const SPECIES: &[&str] = &[
    "red fox", "otter", "lynx", "ibex", "heron", "badger", "tapir", "gecko", "pelican", "yak",
    "ocelot", "wombat", "marmot", "crane", "bison", "puffin",
];
pub(super) const DIETS: &[&str] = &["fish", "grass", "meat", "insects", "fruit"];
