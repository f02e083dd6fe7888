//! Names that fields of every family share. A table and nothing else.

pub(super) const FIRST_NAMES: &[&str] = &[
    "Ada", "Amir", "Beate", "Bruno", "Carla", "Chen", "Dalia", "Edwin", "Elif", "Farid", "Greta",
    "Hana", "Ivo", "Jana", "Kofi", "Lena", "Luca", "Mara", "Nadia", "Nils", "Olga", "Omar",
    "Petra", "Rafael", "Rosa", "Samir", "Sofia", "Tara", "Tomas", "Uma", "Victor", "Wanda", "Yara",
    "Zoe",
];

pub(super) const LAST_NAMES: &[&str] = &[
    "Abbott", "Bauer", "Castillo", "Dietrich", "Eriksen", "Fontaine", "Goldberg", "Haddad", "Ito",
    "Jansen", "Kowalski", "Lindgren", "Moreau", "Novak", "Okafor", "Pereira", "Quinn", "Rossi",
    "Schmidt", "Tanaka", "Ueda", "Varga", "Weber", "Xavier", "Yilmaz", "Zeller", "Marsh", "Boyle",
];

pub(super) const PLACES: &[&str] = &[
    "Alderford",
    "Brackenhill",
    "Castleby",
    "Dunmere",
    "Eastwick",
    "Fernhollow",
    "Granton",
    "Harrowgate",
    "Inverlay",
    "Kestrel Bay",
    "Larkfield",
    "Millbrook",
    "Northam",
    "Oakridge",
    "Pinecrest",
    "Quarrytown",
    "Ravensea",
    "Stonebridge",
    "Thornbury",
    "Upper Vale",
    "Westhaven",
    "Yarrow",
    "Redcliff",
    "Port Linden",
    "Saltmarsh",
    "Whitford",
    "Glenbrook",
    "Copperfield",
];

pub(super) const STREETS: &[&str] = &[
    "Mill Lane",
    "Harbour Road",
    "Station Street",
    "Church Walk",
    "Elm Avenue",
    "Garden Row",
    "Market Square",
    "Orchard Close",
    "Park Crescent",
    "Quarry Road",
    "River Terrace",
    "School Lane",
    "Tannery Yard",
    "Union Street",
    "Windmill Hill",
    "Canal Street",
];

pub(super) const COMPANIES: &[&str] = &[
    "Brightwater",
    "Cobalt Works",
    "Dovetail Partners",
    "Evergreen Supply",
    "Foxglove Studio",
    "Grayson and Sons",
    "Hilltop Services",
    "Ironwood Group",
    "Juniper Labs",
    "Keystone Trading",
    "Lantern House",
    "Meridian Systems",
    "Northwind Logistics",
    "Otter Creek",
    "Pebble and Co",
    "Quill Press",
    "Rivet Industries",
    "Silver Birch",
    "Tidewater Union",
    "Umbra Design",
];

/// Sentences that belong to no schema; they state no value that a field could ask for.
pub(super) const ASIDES: &[&str] = &[
    "Nothing else was unusual.",
    "Thanks for checking this so quickly.",
    "We talked about it over coffee.",
    "The rest can wait until later.",
    "Please keep this for your records.",
    "Some of this may change.",
    "The weather was mild all week.",
    "Everyone seemed pleased with it.",
    "More will follow soon.",
    "Let me know if anything is unclear.",
    "The earlier notes were lost.",
    "It took longer than expected to find out.",
];
