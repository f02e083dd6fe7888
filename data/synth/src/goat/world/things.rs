//! Stars and planets, firms and jobs, dishes and ingredients, animals and species.

use serde_json::json;

use super::Builder;
use super::names::NAMES;

const N_STARS: usize = 40;
const N_FIRMS: usize = 38;
const N_DISHES: usize = 40;

impl Builder {
    pub(super) fn add_things(&mut self) {
        self.add_stars();
        self.add_firms();
        self.add_dishes();
        self.add_animals();
    }

    fn add_stars(&mut self) {
        let star_names = self.names(&NAMES.star_starts, &NAMES.star_ends, "", N_STARS);
        let figures = self.draw_texts(&NAMES.figures, N_STARS);
        let mut planet_names = self.names(&NAMES.planet_starts, &NAMES.planet_ends, "", 110);
        let (mut stars, mut planets) = (Vec::new(), Vec::new());
        for i in 0..N_STARS {
            stars.push(json!({
                "star_id": 1401 + i,
                "name": star_names[i],
                "figure": figures[i],
                "distance": self.random_between(5, 480),
                "color": self.pick_one(&NAMES.colors),
            }));
            let n_planets = self.random_between(2, 3).min(planet_names.len());
            for name in planet_names.split_off(planet_names.len() - n_planets) {
                planets.push(json!({
                    "planet_id": 1501 + planets.len(),
                    "star_id": 1401 + i,
                    "name": name,
                    "moons": self.random_between(0, 19),
                    "days": self.random_between(40, 900),
                    "found": self.random_between(1801, 1999),
                }));
            }
        }
        self.add("stars", stars);
        self.add("planets", planets);
    }

    fn add_firms(&mut self) {
        let firm_names = self.names(&NAMES.firm_starts, &NAMES.firm_ends, " ", N_FIRMS);
        let trades = self.draw_texts(&NAMES.trades, N_FIRMS);
        let towns = self.column("towns", "town");
        let towns = self.draw_values(&towns, N_FIRMS);
        let heads = self.people(N_FIRMS);
        let (mut firms, mut jobs) = (Vec::new(), Vec::new());
        for (i, name) in firm_names.iter().enumerate() {
            firms.push(json!({
                "firm_id": 1701 + i,
                "name": name,
                "trade": trades[i],
                "head": heads[i],
                "town": towns[i],
                "staff": self.random_between(7, 980),
            }));
            for _ in 0..self.random_between(2, 4) {
                jobs.push(json!({
                    "job_id": 1801 + jobs.len(),
                    "firm_id": 1701 + i,
                    "title": self.pick_one(&NAMES.jobs),
                    "pay": self.random_between(110, 520) * 10,
                    "hours": self.random_between(12, 42),
                }));
            }
        }
        self.add("firms", firms);
        self.add("jobs", jobs);
    }

    fn add_dishes(&mut self) {
        let ingredients = NAMES.ingredients.iter().map(|ingredient| {
            json!({
                "ingredient": ingredient,
                "season": self.pick_one(&NAMES.seasons),
                "calories": self.random_between(14, 420),
                "price": self.random_between(2, 19),
            })
        });
        let ingredients = ingredients.collect();
        self.add("ingredients", ingredients);
        let dish_names = self.names(&NAMES.dish_starts, &NAMES.dish_ends, " ", N_DISHES);
        let mains = self.column("ingredients", "ingredient");
        let mains = self.draw_values(&mains, N_DISHES);
        let dishes = (0..N_DISHES).map(|i| {
            json!({
                "dish_id": 1951 + i,
                "name": dish_names[i],
                "main": mains[i],
                "minutes": self.random_between(11, 150),
                "calories": self.random_between(120, 890),
            })
        });
        let dishes = dishes.collect();
        self.add("dishes", dishes);
    }

    fn add_animals(&mut self) {
        let species = NAMES.species.iter().map(|species| {
            json!({
                "species": species,
                "diet": self.pick_one(&NAMES.diets),
                "lifespan": self.random_between(4, 60),
                "speed": self.random_between(2, 75),
            })
        });
        let species = species.collect();
        self.add("species", species);
        let kinds = self.column("species", "species");
        let kinds = self.draw_values(&kinds, NAMES.animal_names.len());
        let (mut animals, mut feedings) = (Vec::new(), Vec::new());
        for (i, name) in NAMES.animal_names.iter().enumerate() {
            animals.push(json!({
                "animal_id": 2101 + i,
                "name": name,
                "species": kinds[i],
                "born": self.random_between(1975, 1999),
                "weight": self.random_between(2, 640),
                "keeper": self.person_name(),
            }));
            for _ in 0..self.random_between(1, 3) {
                feedings.push(json!({
                    "animal_id": 2101 + i,
                    "time": format!("{:02}:{}0", self.random_between(6, 20), self.random_between(0, 5)),
                    "food": self.pick_one(&NAMES.diets),
                }));
            }
        }
        self.add("animals", animals);
        self.add("feedings", feedings);
    }
}
