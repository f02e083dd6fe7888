//! Names of HTTP endpoints, however a model spells them, to the templates of the API.
//!
//! RestBench's gold and a model's calls write `GET /movie/{id}`, `get https://host/3/movie/597?a=b`
//! or `GET /movie/597/`: all the same operation. A literal segment wins over a placeholder, or
//! `/movie/popular` would be the movie with the id "popular".
//! The decision to question: a name that fits no template is kept, cleaned, so that it can be seen
//! and counts as an invented name.

use crate::benchmarks::slot::is_blank;

/// The operations of an API as templates, such as `GET /movie/{movie_id}`.
#[derive(Debug, Clone, Default)]
pub struct Endpoints {
    templates: Vec<Template>,
}

#[derive(Debug, Clone)]
struct Template {
    name: String,
    method: String,
    segments: Vec<String>,
}

/// Methods that a name of an endpoint can begin with.
const METHODS: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];

impl Endpoints {
    /// Reads templates; one that is no endpoint (`METHOD /path`) only matches itself.
    pub fn new<S: AsRef<str>>(templates: impl IntoIterator<Item = S>) -> Self {
        let templates = templates.into_iter().map(|template| {
            let name = collapse_blanks(template.as_ref());
            let (method, path) = endpoint(&name).unwrap_or((String::new(), ""));
            Template {
                segments: segments(path).map(str::to_owned).collect(),
                method,
                name,
            }
        });
        Self {
            templates: templates.collect(),
        }
    }

    /// The template that a name means, or the cleaned name itself.
    ///
    /// Host, version (`/3`, `/v1`), query string, fragment and a slash at the end are dropped, the
    /// method is written large, and names of placeholders do not matter.
    pub fn normalize(&self, name: &str) -> String {
        let name = collapse_blanks(name);
        if self.templates.iter().any(|template| template.name == name) {
            return name;
        }
        let Some((method, path)) = endpoint(&name) else {
            return name;
        };
        let all: Vec<&str> = segments(path).collect();
        let found = self.find(&method, &all).or_else(|| {
            let (first, rest) = all.split_first()?;
            self.find(&method, rest).filter(|_| is_version(first))
        });
        match found {
            Some(template) => template.name.clone(),
            None => format!("{method} /{}", all.join("/")),
        }
    }

    fn find(&self, method: &str, segments: &[&str]) -> Option<&Template> {
        let fitting = self
            .templates
            .iter()
            .filter(|template| template.fits(method, segments));
        // Segment by segment from the left, a literal is more to the point than a placeholder.
        fitting.min_by_key(|template| template.placeholders().collect::<Vec<bool>>())
    }
}

impl Template {
    fn fits(&self, method: &str, segments: &[&str]) -> bool {
        let fits_one = |(own, given): (&String, &&str)| own == given || is_placeholder(own);
        self.method == method
            && self.segments.len() == segments.len()
            && self.segments.iter().zip(segments).all(fits_one)
    }

    fn placeholders(&self) -> impl Iterator<Item = bool> {
        self.segments.iter().map(|segment| is_placeholder(segment))
    }
}

/// Method, written large, and path of a name that is an endpoint.
fn endpoint(name: &str) -> Option<(String, &str)> {
    let (method, target) = name.split_once(' ')?;
    let method = method.to_ascii_uppercase();
    if !METHODS.contains(&method.as_str()) {
        return None;
    }
    let path = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |at| &rest[at..]),
        None => target,
    };
    let end = path.find(['?', '#']).unwrap_or(path.len());
    Some((method, &path[..end]))
}

fn segments(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|segment| !segment.is_empty())
}

fn is_placeholder(segment: &str) -> bool {
    let within = |open, close| segment.starts_with(open) && segment.ends_with(close);
    within('{', '}') || within('<', '>') || segment.starts_with(':')
}

fn is_version(segment: &str) -> bool {
    let number = segment.strip_prefix(['v', 'V']).unwrap_or(segment);
    number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// The text without blanks around it and with one space for each run of blanks in it.
///
/// Blanks are those of Python's `str.split`.
pub fn collapse_blanks(text: &str) -> String {
    let words: Vec<&str> = text
        .split(is_blank)
        .filter(|word| !word.is_empty())
        .collect();
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn harbour() -> Endpoints {
        Endpoints::new([
            "GET /berth/{berth_id}",
            "GET /berth/free",
            "GET /berth/{berth_id}/ships",
            "GET /berth/free/{day}",
            "DELETE /berth/{berth_id}",
            "GET /3/pilots",
            "Harbour/Tide Table",
        ])
    }

    #[test]
    fn an_endpoint_is_found_however_it_is_spelled() {
        let rows = [
            ("GET /berth/{berth_id}", "GET /berth/{berth_id}"),
            ("get /berth/12", "GET /berth/{berth_id}"),
            (
                "GET  https://port.example/v2/berth/12/?lang=de#top",
                "GET /berth/{berth_id}",
            ),
            (
                "GET http://port.example:8080/berth/12/ships/",
                "GET /berth/{berth_id}/ships",
            ),
            ("GET /berth/{id}/ships", "GET /berth/{berth_id}/ships"),
            ("GET /berth/:id", "GET /berth/{berth_id}"),
            ("DELETE /berth/12", "DELETE /berth/{berth_id}"),
            ("GET /pilots/../3", "GET /pilots/../3"),
            ("GET /3/pilots", "GET /3/pilots"),
        ];
        for (name, expected) in rows {
            assert_eq!(harbour().normalize(name), expected, "{name}");
        }
    }

    #[test]
    fn a_literal_wins_over_a_placeholder_and_a_placeholder_is_no_literal() {
        assert_eq!(harbour().normalize(" GET /berth/free "), "GET /berth/free");
        assert_eq!(
            harbour().normalize("GET /berth/free/3"),
            "GET /berth/free/{day}"
        );
        assert_eq!(
            harbour().normalize("GET /berth/free/ships"),
            "GET /berth/free/{day}"
        );
        assert_eq!(
            harbour().normalize("GET /{berth}/free"),
            "GET /{berth}/free"
        );
    }

    #[test]
    fn what_fits_no_template_is_only_cleaned() {
        let rows = [
            ("post /berth/12?x=1", "POST /berth/12"),
            ("GET https://port.example/tides/3/", "GET /tides/3"),
            ("GET /berths/12", "GET /berths/12"),
            ("Harbour/Tide  Table", "Harbour/Tide Table"),
            ("fetch /berth/12", "fetch /berth/12"),
            ("", ""),
        ];
        for (name, expected) in rows {
            assert_eq!(harbour().normalize(name), expected, "{name}");
        }
    }
}
