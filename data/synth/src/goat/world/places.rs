//! Towns, ships, ferry trips, inns, currencies, trails and huts.

use serde_json::json;

use super::Builder;
use super::names::NAMES;

const N_TOWNS: usize = 40;
const N_SHIPS: usize = 40;
const N_INNS: usize = 100;
const N_HUTS: usize = 22;
const N_TRAILS: usize = 40;

impl Builder {
    pub(super) fn add_places(&mut self) {
        self.add_towns();
        self.add_ships();
        self.add_trips();
        self.add_inns();
        self.add_trails();
        let currencies = NAMES.currencies.iter();
        let currencies = currencies.map(|currency| json!(currency)).collect();
        self.add("currencies", currencies);
    }

    fn add_towns(&mut self) {
        let regions = self.draw_texts(&NAMES.regions, N_TOWNS);
        let towns = self.names(&NAMES.town_starts, &NAMES.town_ends, "", N_TOWNS);
        let mayors = self.people(N_TOWNS);
        let rows = (0..N_TOWNS).map(|i| {
            json!({
                "town": towns[i],
                "region": regions[i],
                "people": self.random_between(9, 990) * 100,
                "mayor": mayors[i],
                "sky": self.pick_one(&NAMES.skies),
                "degrees": self.random_between(2, 31),
                "wind": self.random_between(3, 48),
            })
        });
        let rows = rows.collect();
        self.add("towns", rows);
    }

    fn add_ships(&mut self) {
        let ship_names = self.names(&NAMES.ship_starts, &NAMES.ship_ends, " ", N_SHIPS);
        let captains = self.people(N_SHIPS);
        let towns = self.column("towns", "town");
        let home_towns = self.draw_values(&towns, N_SHIPS);
        let rows = (0..N_SHIPS).map(|i| {
            json!({
                "ship_id": 101 + i,
                "name": ship_names[i],
                "built": self.random_between(1921, 1999),
                "seats": self.random_between(8, 90) * 5,
                "captain": captains[i],
                "home_town": home_towns[i],
            })
        });
        let rows = rows.collect();
        self.add("ships", rows);
    }

    fn add_trips(&mut self) {
        let towns = self.column("towns", "town");
        let ships = self.column("ships", "ship_id");
        let mut rows = Vec::new();
        for from_idx in 0..towns.len() {
            for _ in 0..self.random_between(2, 4) {
                let to_idx = (from_idx + self.random_between(1, towns.len() - 1)) % towns.len();
                let leaves = self.random_between(60, 260) * 5;
                let ship = self.random_between(0, ships.len() - 1);
                rows.push(json!({
                    "trip_id": 201 + rows.len(),
                    "from_town": towns[from_idx],
                    "to_town": towns[to_idx],
                    "ship_id": ships[ship],
                    "leaves": format!("{:02}:{:02}", leaves / 60, leaves % 60),
                    "minutes": self.random_between(21, 240),
                    "fare": self.random_between(9, 85),
                }));
            }
        }
        self.add("trips", rows);
    }

    fn add_inns(&mut self) {
        let inn_names = self.names(&NAMES.inn_starts, &NAMES.inn_ends, " ", N_INNS);
        let towns = self.column("towns", "town");
        let towns = self.draw_values(&towns, N_INNS);
        let mut reviews = Vec::new();
        let mut rows = Vec::new();
        for (i, name) in inn_names.iter().enumerate() {
            rows.push(json!({
                "inn_id": 401 + i,
                "name": name,
                "town": towns[i],
                "stars": self.random_between(1, 5),
                "rooms": self.random_between(4, 60),
                "price": self.random_between(28, 190),
                "host": self.person_name(),
            }));
            for _ in 0..self.random_between(1, 3) {
                reviews.push(json!({
                    "inn_id": 401 + i,
                    "guest": self.pick_one(&NAMES.first_names),
                    "score": self.random_between(1, 10),
                    "text": self.pick_one(&NAMES.remarks),
                }));
            }
        }
        self.add("inns", rows);
        self.add("inn_reviews", reviews);
    }

    fn add_trails(&mut self) {
        let hut_names = self.names(&NAMES.hut_starts, &NAMES.hut_ends, " ", N_HUTS);
        let huts = (0..N_HUTS).map(|i| {
            json!({
                "hut_id": 551 + i,
                "name": hut_names[i],
                "beds": self.random_between(6, 44),
                "warden": self.person_name(),
                "price": self.random_between(12, 48),
            })
        });
        let huts = huts.collect();
        self.add("huts", huts);
        let hut_ids = self.column("huts", "hut_id");
        let hut_ids = self.draw_values(&hut_ids, N_TRAILS);
        let regions = self.draw_texts(&NAMES.regions, N_TRAILS);
        let trail_names = self.names(&NAMES.trail_starts, &NAMES.trail_ends, " ", N_TRAILS);
        let (mut rows, mut reports) = (Vec::new(), Vec::new());
        for i in 0..N_TRAILS {
            rows.push(json!({
                "trail_id": 601 + i,
                "name": trail_names[i],
                "region": regions[i],
                "km": self.random_between(3, 34),
                "climb": self.random_between(4, 130) * 10,
                "hut_id": hut_ids[i],
            }));
            for _ in 0..self.random_between(1, 3) {
                reports.push(json!({
                    "trail_id": 601 + i,
                    "walker": self.pick_one(&NAMES.first_names),
                    "day": self.pick_one(&NAMES.days),
                    "state": self.pick_one(&NAMES.conditions),
                }));
            }
        }
        self.add("trails", rows);
        self.add("trail_reports", reports);
    }
}
