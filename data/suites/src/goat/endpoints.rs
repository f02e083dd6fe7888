//! Maps the names of HTTP endpoints, in any spelling, to the API's templates.
//!
//! RestBench's gold answers and a model's calls may write `GET /movie/{id}`, `get
//! https://host/3/movie/597?a=b` or `GET /movie/597/` for the same operation. A literal segment
//! takes precedence over a placeholder. Otherwise `/movie/popular` would be the movie with the id
//! "popular".
//!
//! A name that matches no template is kept in normalized form, so that it counts as an invented
//! name.

use tooltune_apis::EndpointTemplates;
use tooltune_json::blank::is_blank;

/// The operations of an API as templates, such as `GET /movie/{movie_id}`.
#[derive(Debug, Clone, Default)]
pub struct Endpoints {
    templates: EndpointTemplates,
}

/// Methods that can start the name of an endpoint.
const METHODS: [&str; 8] = [
    "GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE",
];

impl Endpoints {
    /// Creates the templates from operation names; names that are not endpoints are ignored.
    pub fn new<S: AsRef<str>>(templates: impl IntoIterator<Item = S>) -> Self {
        let names: Vec<String> = templates
            .into_iter()
            .map(|template| collapse_blanks(template.as_ref()))
            .collect();
        Self {
            templates: EndpointTemplates::new(names.iter().map(String::as_str)),
        }
    }

    /// The template that matches a name, or the normalized name itself.
    ///
    /// Host, version (`/3`, `/v1`), query string, fragment and trailing slash are removed, the
    /// method is upper-cased, and names of placeholders are ignored.
    pub fn normalize(&self, name: &str) -> String {
        let name = collapse_blanks(name);
        match self.templates.resolve(&name) {
            Some(call) => call.name,
            None => normalize_endpoint(&name).unwrap_or(name),
        }
    }
}

/// An endpoint that matches no template, in normalized form (`METHOD /path`); `None` if the name is
/// not an endpoint.
fn normalize_endpoint(name: &str) -> Option<String> {
    let (method, target) = name.split_once(' ')?;
    let method = method.to_uppercase();
    if !METHODS.contains(&method.as_str()) {
        return None;
    }
    let path = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target.strip_prefix('/').map(|_| target)?,
    };
    let path = path
        .split(['?', '#'])
        .next()
        .unwrap_or(path)
        .trim_end_matches('/');
    Some(format!("{method} /{}", path.trim_start_matches('/')))
}

/// Trims a text and replaces each run of whitespace by one space.
///
/// Whitespace is defined as in Python's `str.split`.
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

    fn harbour_endpoints() -> Endpoints {
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
    fn an_endpoint_is_found_in_any_spelling() {
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
            assert_eq!(harbour_endpoints().normalize(name), expected, "{name}");
        }
    }

    #[test]
    fn a_literal_segment_wins_over_a_placeholder() {
        assert_eq!(
            harbour_endpoints().normalize(" GET /berth/free "),
            "GET /berth/free"
        );
        assert_eq!(
            harbour_endpoints().normalize("GET /berth/free/3"),
            "GET /berth/free/{day}"
        );
        assert_eq!(
            harbour_endpoints().normalize("GET /berth/free/ships"),
            "GET /berth/free/{day}"
        );
        assert_eq!(
            harbour_endpoints().normalize("GET /{berth}/free"),
            "GET /{berth}/free"
        );
    }

    #[test]
    fn a_name_that_matches_no_template_is_only_normalized() {
        let rows = [
            ("post /berth/12?x=1", "POST /berth/12"),
            ("GET https://port.example/tides/3/", "GET /tides/3"),
            ("GET /berths/12", "GET /berths/12"),
            ("Harbour/Tide  Table", "Harbour/Tide Table"),
            ("fetch /berth/12", "fetch /berth/12"),
            ("GET https://port.example", "GET /"),
            ("", ""),
        ];
        for (name, expected) in rows {
            assert_eq!(harbour_endpoints().normalize(name), expected, "{name}");
        }
    }
}
