//! Calls of endpoints as models write them, mapped onto the templates of a specification.
//!
//! `get https://host/3/movie/597?language=en` is a call of `GET /movie/{movie_id}`.
//! The decision to question: a leading version such as `3` or `v1` is passed over only where the
//! path does not fit as it stands, for a template may begin with a placeholder.

/// Templates such as `GET /movie/{movie_id}`, to find the one that a call means.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EndpointTemplates {
    templates: Vec<Template>,
}

/// The template that a call means, and what the call says beyond it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointCall {
    /// The template's name, as given.
    pub name: String,
    /// Values that stand in the path or the query string, by parameter name; a placeholder that
    /// is still a placeholder gives none.
    pub arguments: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq)]
struct Template {
    name: String,
    method: String,
    segments: Vec<String>,
}

impl EndpointTemplates {
    /// Takes the names that are endpoints; others are passed over.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let template = |name: &str| {
            let (method, target) = method_and_target(name)?;
            Some(Template {
                name: name.to_owned(),
                method,
                segments: segments(target).0,
            })
        };
        Self {
            templates: names.into_iter().filter_map(template).collect(),
        }
    }

    /// The template that `call` means, if any does.
    ///
    /// Blanks, the case of the method, scheme, host, query string, fragment, a trailing slash and
    /// the names of placeholders do not matter. Of several templates that fit, the one whose
    /// literal segments come first wins.
    pub fn resolve(&self, call: &str) -> Option<EndpointCall> {
        let (method, target) = method_and_target(call)?;
        let (segments, query) = segments(target);
        let found = self.find(&method, &segments).or_else(|| {
            let (first, rest) = segments.split_first()?;
            is_version(first).then(|| self.find(&method, rest))?
        });
        let (template, matched) = found?;
        let from_path = template.segments.iter().zip(matched);
        let from_path = from_path.filter_map(|(pattern, value)| {
            let name = placeholder(pattern).filter(|_| placeholder(value).is_none())?;
            Some((name.to_owned(), decoded(value)))
        });
        let arguments = from_path.chain(query_arguments(query)).collect();
        Some(EndpointCall {
            name: template.name.clone(),
            arguments,
        })
    }

    fn find<'a>(&self, method: &str, segments: &'a [String]) -> Option<(&Template, &'a [String])> {
        let fits = |template: &&Template| {
            let mut pairs = template.segments.iter().zip(segments);
            template.method == method
                && template.segments.len() == segments.len()
                && pairs.all(|(pattern, given)| placeholder(pattern).is_some() || pattern == given)
        };
        // Of keys such as [literal, placeholder] the smallest has its literals first.
        let rank = |template: &&Template| -> Vec<bool> {
            let patterns = template.segments.iter();
            patterns
                .map(|pattern| placeholder(pattern).is_some())
                .collect()
        };
        let best = self.templates.iter().filter(fits).min_by_key(rank)?;
        Some((best, segments))
    }
}

/// Splits `get  /x` into `GET` and `/x`; nothing if the text is no endpoint.
fn method_and_target(text: &str) -> Option<(String, &str)> {
    const METHODS: [&str; 8] = [
        "GET", "PUT", "POST", "DELETE", "OPTIONS", "HEAD", "PATCH", "TRACE",
    ];
    let (method, target) = text.trim().split_once(char::is_whitespace)?;
    let method = method.to_uppercase();
    let target = target.trim();
    let is_path = target.starts_with('/') || target.contains("://");
    (METHODS.contains(&method.as_str()) && is_path).then_some((method, target))
}

/// The segments of the path, and the query string.
fn segments(target: &str) -> (Vec<String>, &str) {
    let path = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("", |start| &rest[start..]),
        None => target,
    };
    let path = path.split('#').next().unwrap_or("");
    let (path, query) = path.split_once('?').unwrap_or((path, ""));
    let path = path.trim().trim_matches('/');
    let parts = path.split('/').filter(|_| !path.is_empty());
    (parts.map(str::to_owned).collect(), query)
}

/// The name within `{name}`, `<name>` or `:name`; nothing if the segment is no placeholder.
fn placeholder(segment: &str) -> Option<&str> {
    let within = |open, close| segment.strip_prefix(open)?.strip_suffix(close);
    within('{', '}')
        .or_else(|| within('<', '>'))
        .or_else(|| segment.strip_prefix(':'))
}

/// `3`, `v1` or `v1.1`.
fn is_version(segment: &str) -> bool {
    let number = segment.strip_prefix(['v', 'V']).unwrap_or(segment);
    number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || c == '.')
}

fn query_arguments(query: &str) -> impl Iterator<Item = (String, String)> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| (decoded(name), decoded(&value.replace('+', " "))))
}

/// Replaces `%20` and the like; what is no such code stays as it is.
pub(super) fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let code = after
            .get(..2)
            .filter(|code| code.iter().all(u8::is_ascii_hexdigit));
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        let code = code.and_then(|code| u8::from_str_radix(code, 16).ok());
        match (first, code) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            _ => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn templates() -> EndpointTemplates {
        EndpointTemplates::new([
            "GET /movie/{movie_id}",
            "GET /movie/{movie_id}/keywords",
            "GET /movie/popular",
            "GET /search/movie",
            "POST /users/{user_id}/playlists",
            "GET /person/{person_id}/movie_credits",
            "GET /",
            "not an endpoint",
        ])
    }

    fn name(call: &str) -> Option<String> {
        templates().resolve(call).map(|found| found.name)
    }

    #[test]
    fn hosts_versions_blanks_and_placeholder_names_do_not_matter() {
        for (call, expected) in [
            ("GET /movie/{movie_id}", "GET /movie/{movie_id}"),
            (
                "get https://api.example.org/3/movie/597?language=en",
                "GET /movie/{movie_id}",
            ),
            (" GET  /movie/popular/ ", "GET /movie/popular"),
            (
                "GET /movie/popular/keywords",
                "GET /movie/{movie_id}/keywords",
            ),
            (
                "GET /person/{movie_id}/movie_credits",
                "GET /person/{person_id}/movie_credits",
            ),
            (
                "POST /v1/users/ann/playlists#top",
                "POST /users/{user_id}/playlists",
            ),
            ("GET /movie/:id", "GET /movie/{movie_id}"),
            ("GET http://host", "GET /"),
        ] {
            assert_eq!(name(call).as_deref(), Some(expected), "{call}");
        }
        for call in [
            "POST /movie/597",
            "GET /track/1",
            "/movie/597",
            "GET movie",
            "",
            "FETCH /movie/1",
        ] {
            assert_eq!(name(call), None, "{call}");
        }
    }

    #[test]
    fn values_in_path_and_query_are_arguments() {
        let found = templates()
            .resolve("GET /movie/5%2097?language=en&q=a+b&flag")
            .expect("fits");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            found.arguments,
            [
                pair("movie_id", "5 97"),
                pair("language", "en"),
                pair("q", "a b")
            ]
        );
        let found = templates()
            .resolve("GET /movie/{id}/keywords")
            .expect("fits");
        assert!(found.arguments.is_empty());
    }

    #[test]
    fn codes_that_are_none_stay_as_they_are() {
        for (text, expected) in [
            ("%41b", "Ab"),
            ("100%", "100%"),
            ("%+1%g0", "%+1%g0"),
            ("%ff", "%ff"),
        ] {
            assert_eq!(decoded(text), expected);
        }
    }
}
