//! Games and their designers, plays and their actors, museums, painters and their works.

use serde_json::{Value, json};

use super::Builder;
use super::names::NAMES;

const N_DESIGNERS: usize = 22;
const N_GAMES: usize = 60;
const N_ACTORS: usize = 40;
const N_PLAYS: usize = 44;
const N_MUSEUMS: usize = 28;
const N_PAINTERS: usize = 26;
const N_WORKS: usize = 78;

impl Builder {
    pub(super) fn add_culture(&mut self) {
        self.add_people("designers", "designer_id", 701, N_DESIGNERS);
        self.add_games();
        self.add_people("actors", "actor_id", 741, N_ACTORS);
        self.add_plays();
        self.add_people("painters", "painter_id", 791, N_PAINTERS);
        self.add_works();
    }

    fn add_people(&mut self, table: &'static str, key: &str, first_id: usize, n: usize) {
        let people = self.people(n);
        let towns = self.column("towns", "town");
        let towns = self.draw_values(&towns, n);
        let rows = people
            .iter()
            .zip(&towns)
            .enumerate()
            .map(|(i, (name, town))| {
                json!({
                    key: first_id + i,
                    "name": name,
                    "born": self.random_between(1921, 1996),
                    "town": town,
                })
            });
        let rows = rows.collect();
        self.add(table, rows);
    }

    fn add_games(&mut self) {
        let titles = self.names(&NAMES.game_starts, &NAMES.game_ends, " ", N_GAMES);
        let designers = self.column("designers", "designer_id");
        let designers = self.draw_values(&designers, N_GAMES);
        let themes = self.draw_texts(&NAMES.themes, N_GAMES);
        let rows = (0..N_GAMES).map(|i| {
            json!({
                "game_id": 1001 + i,
                "title": titles[i],
                "theme": themes[i],
                "year": self.random_between(1970, 2024),
                "minutes": self.random_between(21, 190),
                "price": self.random_between(14, 95),
                "designer_id": designers[i],
            })
        });
        let rows = rows.collect();
        self.add("games", rows);
    }

    fn add_plays(&mut self) {
        let titles = self.names(&NAMES.play_starts, &NAMES.play_ends, " ", N_PLAYS);
        let actors: Vec<(Value, Value)> = {
            let ids = self.column("actors", "actor_id");
            ids.into_iter().zip(self.column("actors", "name")).collect()
        };
        let (mut plays, mut cast) = (Vec::new(), Vec::new());
        for (i, title) in titles.iter().enumerate() {
            let year = self.random_between(1950, 2023);
            plays.push(json!({
                "play_id": 1101 + i,
                "title": title,
                "writer": self.person_name(),
                "genre": self.pick_one(&NAMES.genres),
                "year": year,
                "minutes": self.random_between(61, 199),
            }));
            let mut order: Vec<usize> = (0..actors.len()).collect();
            self.random.shuffle(&mut order);
            let n_cast = self.random_between(2, 4);
            for actor_idx in order.into_iter().take(n_cast) {
                let (actor_id, name) = &actors[actor_idx];
                cast.push(json!({
                    "play_id": 1101 + i,
                    "title": title,
                    "year": year,
                    "actor_id": actor_id,
                    "name": name,
                    "role": self.pick_one(&NAMES.roles),
                }));
            }
        }
        self.add("plays", plays);
        self.add("cast", cast);
        self.add_shows(&titles);
    }

    fn add_shows(&mut self, titles: &[String]) {
        let towns = self.column("towns", "town");
        let mut rows = Vec::new();
        for town in &towns {
            let mut order: Vec<usize> = (0..titles.len()).collect();
            self.random.shuffle(&mut order);
            let n_shows = self.random_between(2, 3);
            for play_idx in order.into_iter().take(n_shows) {
                rows.push(json!({
                    "town": town,
                    "play_id": 1101 + play_idx,
                    "title": titles[play_idx],
                    "day": self.pick_one(&NAMES.days),
                    "ticket": self.random_between(11, 75),
                }));
            }
        }
        self.add("shows", rows);
    }

    fn add_works(&mut self) {
        let museum_names = self.names(&NAMES.museum_starts, &NAMES.museum_ends, " ", N_MUSEUMS);
        let towns = self.column("towns", "town");
        let towns = self.draw_values(&towns, N_MUSEUMS);
        let museums = (0..N_MUSEUMS).map(|i| {
            json!({
                "museum_id": 1201 + i,
                "name": museum_names[i],
                "town": towns[i],
                "fee": self.random_between(3, 29),
                "opened": self.random_between(1801, 1999),
            })
        });
        let museums = museums.collect();
        self.add("museums", museums);
        let museum_ids = self.column("museums", "museum_id");
        let museum_ids = self.draw_values(&museum_ids, N_WORKS);
        let painters = self.column("painters", "painter_id");
        let painters = self.draw_values(&painters, N_WORKS);
        let titles = self.names(&NAMES.work_starts, &NAMES.work_ends, " ", N_WORKS);
        let works = (0..N_WORKS).map(|i| {
            json!({
                "work_id": 1301 + i,
                "title": titles[i],
                "style": self.pick_one(&NAMES.styles),
                "year": self.random_between(1940, 2020),
                "museum_id": museum_ids[i],
                "painter_id": painters[i],
            })
        });
        let works = works.collect();
        self.add("works", works);
    }
}
