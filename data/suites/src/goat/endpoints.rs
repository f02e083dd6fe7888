//! Maps names of HTTP endpoints, however a model spells them, onto the templates of the API.
//!
//! RestBench's gold and a model's calls write `GET /movie/{id}`, `get https://host/3/movie/597?a=b`
//! or `GET /movie/597/`: all the same operation. A literal segment wins over a placeholder, or
//! `/movie/popular` would be the movie with the id "popular".
//! The decision to question: a name that fits no template is kept, cleaned, so that it can be seen
//! and counts as an invented name.

use tooltune_rows::python::is_blank;
use tooltune_rows::tools::EndpointTemplates;

/// The operations of an API as templates, such as `GET /movie/{movie_id}`.
#[derive(Debug, Clone, Default)]
pub struct Endpoints {
    templates: EndpointTemplates,
}

/// Methods that the name of an endpoint can begin with.
const METHODS: [&str; 8] = [
    "GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE",
];

impl Endpoints {
    /// Takes the names of an API's operations; those that are no endpoint need no template.
    pub fn new<S: AsRef<str>>(templates: impl IntoIterator<Item = S>) -> Self {
        let names: Vec<String> = templates
            .into_iter()
            .map(|template| collapse_blanks(template.as_ref()))
            .collect();
        Self {
            templates: EndpointTemplates::new(names.iter().map(String::as_str)),
        }
    }

    /// The template that a name means, or the cleaned name itself.
    ///
    /// Host, version (`/3`, `/v1`), query string, fragment and a slash at the end are dropped, the
    /// method is written large, and names of placeholders do not matter.
    pub fn normalize(&self, name: &str) -> String {
        let name = collapse_blanks(name);
        match self.templates.resolve(&name) {
            Some(call) => call.name,
            None => cleaned(&name).unwrap_or(name),
        }
    }
}

/// An endpoint that no template knows: `METHOD /path`, or nothing if the name is no endpoint.
fn cleaned(name: &str) -> Option<String> {
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
            ("GET https://port.example", "GET /"),
            ("", ""),
        ];
        for (name, expected) in rows {
            assert_eq!(harbour().normalize(name), expected, "{name}");
        }
    }
}
