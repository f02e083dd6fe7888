//! Finds the path template of a specification that matches an endpoint call written by a model.
//!
//! `get https://host/3/movie/597?language=en` is a call of `GET /movie/{movie_id}`. A leading
//! version such as `3` or `v1` is dropped only if the path does not match as written, because a
//! template may start with a placeholder.

/// Path templates such as `GET /movie/{movie_id}`, for matching calls.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct EndpointTemplates {
    templates: Vec<Template>,
}

/// The matched template and the values in the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndpointCall {
    /// Name of the template, as given.
    pub name: String,
    /// Values in the path or the query string by parameter name; unfilled placeholders are omitted.
    pub arguments: Vec<(String, String)>,
}

#[derive(Debug, Clone, PartialEq)]
struct Template {
    name: String,
    method: String,
    segments: Vec<String>,
}

impl EndpointTemplates {
    /// Builds templates from the names that are endpoints and skips the others.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let template = |name: &str| {
            let (method, target) = method_and_target(name)?;
            Some(Template {
                name: name.to_owned(),
                method,
                segments: split_target(target).0,
            })
        };
        Self {
            templates: names.into_iter().filter_map(template).collect(),
        }
    }

    /// The template that `call` matches, if any.
    ///
    /// White space, the case of the method, scheme, host, query string, fragment, a trailing slash
    /// and the names of placeholders are ignored. If several templates match, the first segment
    /// that is literal in only some of them decides: a template with the literal wins.
    pub fn resolve(&self, call: &str) -> Option<EndpointCall> {
        let (method, target) = method_and_target(call)?;
        let (segments, query) = split_target(target);
        let found = self.find_template(&method, &segments).or_else(|| {
            let (first, rest) = segments.split_first()?;
            is_version(first).then(|| self.find_template(&method, rest))?
        });
        let (template, matched) = found?;
        let from_path = template.segments.iter().zip(matched);
        let from_path = from_path.filter_map(|(pattern, value)| {
            let name = placeholder(pattern).filter(|_| placeholder(value).is_none())?;
            Some((name.to_owned(), percent_decode(value)))
        });
        let arguments = from_path.chain(query_arguments(query)).collect();
        Some(EndpointCall {
            name: template.name.clone(),
            arguments,
        })
    }

    fn find_template<'a>(
        &self,
        method: &str,
        segments: &'a [String],
    ) -> Option<(&Template, &'a [String])> {
        let fits = |template: &&Template| {
            let mut pairs = template.segments.iter().zip(segments);
            template.method == method
                && template.segments.len() == segments.len()
                && pairs.all(|(pattern, given)| placeholder(pattern).is_some() || pattern == given)
        };
        // The smallest list of "is a placeholder" flags belongs to the template with the earliest
        // literals.
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

/// Splits `get  /x` into `GET` and `/x`; `None` if the text is not an endpoint.
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

/// The path segments and the query string.
fn split_target(target: &str) -> (Vec<String>, &str) {
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

/// The name in `{name}`, `<name>` or `:name`; `None` if the segment is not a placeholder.
fn placeholder(segment: &str) -> Option<&str> {
    let between = |open, close| segment.strip_prefix(open)?.strip_suffix(close);
    between('{', '}')
        .or_else(|| between('<', '>'))
        .or_else(|| segment.strip_prefix(':'))
}

/// Matches `3`, `v1` or `v1.1`.
fn is_version(segment: &str) -> bool {
    let number = segment.strip_prefix(['v', 'V']).unwrap_or(segment);
    number.starts_with(|c: char| c.is_ascii_digit())
        && number.chars().all(|c| c.is_ascii_digit() || c == '.')
}

fn query_arguments(query: &str) -> impl Iterator<Item = (String, String)> {
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs.map(|(name, value)| {
        (
            percent_decode(name),
            percent_decode(&value.replace('+', " ")),
        )
    })
}

/// Decodes percent escapes such as `%20`; invalid escapes are unchanged.
pub(super) fn percent_decode(text: &str) -> String {
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
        templates().resolve(call).map(|endpoint| endpoint.name)
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
        let endpoint = templates()
            .resolve("GET /movie/5%2097?language=en&q=a+b&flag")
            .expect("fits");
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(
            endpoint.arguments,
            [
                pair("movie_id", "5 97"),
                pair("language", "en"),
                pair("q", "a b")
            ]
        );
        let endpoint = templates()
            .resolve("GET /movie/{id}/keywords")
            .expect("fits");
        assert!(endpoint.arguments.is_empty());
    }

    #[test]
    fn invalid_percent_codes_are_unchanged() {
        for (text, expected) in [
            ("%41b", "Ab"),
            ("100%", "100%"),
            ("%+1%g0", "%+1%g0"),
            ("%ff", "%ff"),
        ] {
            assert_eq!(percent_decode(text), expected);
        }
    }
}
