//! Base URLs, allowed hosts, and redirect targets.

use std::fmt;

use ureq::http::Uri;
use ureq::http::uri::Authority;

use super::error::HttpConfigError;

/// Scheme, host and port. A redirected request contains a secret only if all three are unchanged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Origin {
    is_tls: bool,
    /// Lower case, without a trailing dot.
    host: String,
    port: u16,
}

impl Origin {
    /// The origin of an absolute URL; `None` if the URL is not absolute or contains a user.
    pub fn from_url(url: &Uri) -> Option<Self> {
        let is_tls = match url.scheme_str()? {
            "https" => true,
            "http" => false,
            _ => return None,
        };
        let authority = url.authority()?;
        let (host, port) = host_and_port(authority)?;
        Some(Self {
            is_tls,
            host,
            port: port.unwrap_or(if is_tls { 443 } else { 80 }),
        })
    }

    /// Whether the host is this machine, for which no proxy is used.
    pub fn is_loopback(&self) -> bool {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let address = host.parse::<std::net::IpAddr>();
        host == "localhost" || address.is_ok_and(|address| address.is_loopback())
    }

    /// Whether redirecting to `other` would drop TLS.
    pub fn is_weakened_by(&self, other: &Self) -> bool {
        self.is_tls && !other.is_tls
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// The host in lower case, and the port if given; `None` if there is no host, the port is invalid,
/// or the URL contains a user.
fn host_and_port(authority: &Authority) -> Option<(String, Option<u16>)> {
    let host = authority.host().to_lowercase();
    let host = host.strip_suffix('.').unwrap_or(&host).to_owned();
    let port_text = &authority.as_str()[authority.host().len().min(authority.as_str().len())..];
    let is_plain =
        !authority.as_str().contains('@') && (port_text.is_empty() || port_text.starts_with(':'));
    let is_port_good = port_text.is_empty() || authority.port_u16().is_some();
    (is_plain && is_port_good && !host.is_empty()).then(|| (host, authority.port_u16()))
}

/// Returns an address that is safe to show. The part before an `@` may be a password, and the part
/// after `?` or `#` may be a key.
pub fn without_secrets(text: &str) -> String {
    let (address, query) = match text.find(['?', '#']) {
        Some(end) => text.split_at(end),
        None => (text, ""),
    };
    // A password may contain this character. Its beginning and end are then unknown.
    if query.contains('@') {
        return "***".to_owned();
    }
    let redacted_address = match address.rfind('@') {
        None => address.to_owned(),
        Some(end) => format!("***{}", &address[end..]),
    };
    match query.chars().next() {
        Some(mark) => format!("{redacted_address}{mark}***"),
        None => redacted_address,
    }
}

/// The base URL of an API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BaseUrl {
    text: String,
    origin: Origin,
}

impl BaseUrl {
    /// Parses a base URL; messages name `option`. A trailing slash is ignored.
    ///
    /// # Errors
    ///
    /// The text is not an absolute http or https URL, or has a user name, a query string or a
    /// fragment.
    pub(crate) fn parse(option: &'static str, text: &str) -> Result<Self, HttpConfigError> {
        let text = text.trim().trim_end_matches('/');
        let redacted = without_secrets(text);
        let bad_url = |reason| HttpConfigError::BadBaseUrl {
            option,
            given: redacted.clone(),
            reason,
        };
        if text.contains('@') {
            return Err(bad_url(
                "contains a user; pass keys in environment variables instead",
            ));
        }
        if text.contains(['?', '#']) {
            return Err(bad_url(
                "has a query string or a fragment, which is not allowed",
            ));
        }
        let url: Uri = text.parse().map_err(|_| bad_url("is not a URL"))?;
        let origin = Origin::from_url(&url)
            .ok_or_else(|| bad_url("is not an absolute URL with http or https"))?;
        Ok(Self {
            text: text.to_owned(),
            origin,
        })
    }

    /// The URL of a path below the base; the path begins with a slash.
    pub(crate) fn join(&self, path: &str) -> String {
        format!("{}{path}", self.text)
    }

    /// Scheme, host and port.
    pub(crate) fn origin(&self) -> &Origin {
        &self.origin
    }
}

/// The allowed hosts; an entry without a port allows every port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AllowedHosts {
    entries: Vec<(String, Option<u16>)>,
}

impl AllowedHosts {
    /// Parses the list; an empty one allows only the base URL's host and port.
    ///
    /// # Errors
    ///
    /// An entry is not a host, or a list that is not empty lacks the base URL's host.
    pub(crate) fn parse(hosts: &[String], base: &BaseUrl) -> Result<Self, HttpConfigError> {
        let origin = base.origin();
        if hosts.is_empty() {
            let entries = vec![(origin.host.clone(), Some(origin.port))];
            return Ok(Self { entries });
        }
        let entry = |text: &String| {
            let authority: Option<Authority> = text.trim().parse().ok();
            let entry = authority.as_ref().and_then(host_and_port);
            let entry = entry.filter(|(host, _)| !host.contains('*'));
            entry.ok_or_else(|| HttpConfigError::BadHost {
                entry: without_secrets(text),
            })
        };
        let allowed = Self {
            entries: hosts.iter().map(entry).collect::<Result<_, _>>()?,
        };
        if !allowed.allows(origin) {
            return Err(HttpConfigError::HostNotAllowed {
                host: origin.to_string(),
                allowed: hosts
                    .iter()
                    .map(|host| without_secrets(host))
                    .collect::<Vec<_>>()
                    .join(", "),
            });
        }
        Ok(allowed)
    }

    /// Whether this host is allowed.
    pub(crate) fn allows(&self, origin: &Origin) -> bool {
        let fits = |(host, port): &(String, Option<u16>)| {
            *host == origin.host && port.is_none_or(|port| port == origin.port)
        };
        self.entries.iter().any(fits)
    }
}

/// The URL that the `Location` of a reply from `current` refers to; `None` if it is invalid.
///
/// # Source
///
/// RFC 3986, section 5.2.
pub fn redirect_target(current: &Uri, location: &str) -> Option<Uri> {
    let location = location.trim().split('#').next()?;
    let (scheme, authority) = (current.scheme_str()?, current.authority()?);
    let before_path = location.split(['/', '?']).next().unwrap_or("");
    if before_path.contains(':') {
        return location.parse().ok();
    }
    if location.starts_with("//") {
        return format!("{scheme}:{location}").parse().ok();
    }
    let (path, query) = match location.split_once('?') {
        Some((path, query)) => (path, format!("?{query}")),
        None => (location, String::new()),
    };
    let path = match path {
        "" => current.path().to_owned(),
        _ if path.starts_with('/') => resolve_dot_segments(path),
        _ => {
            let folder = current
                .path()
                .rfind('/')
                .map_or("", |end| &current.path()[..=end]);
            resolve_dot_segments(&format!("{folder}{path}"))
        }
    };
    format!("{scheme}://{authority}{path}{query}").parse().ok()
}

fn resolve_dot_segments(path: &str) -> String {
    let mut kept_segments: Vec<&str> = Vec::new();
    let mut segments = path.split('/').skip(1).peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        match segment {
            "." => {}
            ".." => {
                kept_segments.pop();
            }
            _ => {
                kept_segments.push(segment);
                continue;
            }
        }
        if is_last {
            kept_segments.push("");
        }
    }
    format!("/{}", kept_segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_url_has_only_scheme_host_and_path() {
        let parse = |text| BaseUrl::parse("base_url", text);
        let base = parse(" https://API.example.org./v1/ ").expect("a URL");
        assert_eq!(base.join("/x"), "https://API.example.org./v1/x");
        assert_eq!(base.origin().to_string(), "api.example.org:443");
        for (text, expected) in [
            ("", "is not"),
            ("api.example.org", "not an absolute URL"),
            ("/v1", "not an absolute URL"),
            ("ftp://host/", "not an absolute URL with http or https"),
            ("https://", "is not"),
            ("https://host:99999/", "is not"),
            ("https://a b/", "is not a URL"),
            ("https://host/v1?key=1", "has a query string"),
            ("https://host/v1#x", "fragment"),
            ("https://me:hunter2@host/v1", "contains a user"),
            ("https://me:hun?ter2hunter2@host/v1", "contains a user"),
            (
                "https://host/v1?api-key=hunter2",
                "base_url \"https://host/v1?***\" has a query string",
            ),
            ("https://host/v1#hunter2", "https://host/v1#***"),
            ("https://host/v1?a=b@hunter2", "contains a user"),
            ("me:hunter2@host", "\"***@host\" contains a user"),
        ] {
            let message = parse(text).expect_err(expected).to_string();
            assert!(message.contains(expected), "{text}: {message}");
            assert!(!message.contains("hunter2"), "{message}");
        }
    }

    #[test]
    fn only_listed_hosts_are_allowed() {
        let base = BaseUrl::parse("base_url", "https://api.example.org/v1").expect("a URL");
        let origin =
            |text: &str| Origin::from_url(&text.parse().expect("a URL")).expect("absolute");
        let base_only = AllowedHosts::parse(&[], &base).expect("the base's own");
        assert!(base_only.allows(&origin("https://API.example.org:443/x")));
        assert!(!base_only.allows(&origin("https://api.example.org:8443/x")));
        assert!(!base_only.allows(&origin("https://api.example.org.evil.net/")));
        let list = ["API.example.org", "cdn.example.org:8080", "[::1]"].map(str::to_owned);
        let list = AllowedHosts::parse(&list, &base).expect("three hosts");
        assert!(list.allows(&origin("https://api.example.org:8443/")));
        assert!(list.allows(&origin("http://cdn.example.org:8080/")));
        assert!(list.allows(&origin("http://[::1]:90/")) && origin("http://[::1]/").is_loopback());
        assert!(!list.allows(&origin("http://cdn.example.org/")));
        assert!(!list.allows(&origin("https://evil.net/api.example.org")));
        for (entry, expected) in [
            (
                "other.org",
                "has the host api.example.org:443, which is not in allowed_hosts (other.org)",
            ),
            ("https://api.example.org", "is not a host"),
            ("*.example.org", "is not a host"),
            ("user@api.example.org", "is not a host"),
            ("", "is not a host"),
        ] {
            let refusal = AllowedHosts::parse(&[entry.to_owned()], &base);
            let message = refusal.expect_err(expected).to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn redirects_follow_rfc_3986() {
        let current: Uri = "https://host:8443/a/b/c?q=1".parse().expect("a URL");
        for (location, expected) in [
            ("/x?y=2#z", "https://host:8443/x?y=2"),
            ("d", "https://host:8443/a/b/d"),
            ("../d/./e", "https://host:8443/a/d/e"),
            ("../../../..", "https://host:8443/"),
            (".", "https://host:8443/a/b/"),
            ("?z=1", "https://host:8443/a/b/c?z=1"),
            ("//other/x", "https://other/x"),
            ("http://other/x", "http://other/x"),
        ] {
            let target = redirect_target(&current, location).expect(location);
            assert_eq!(target.to_string(), expected, "{location}");
        }
        let foreign = redirect_target(&current, "file:///etc/passwd");
        assert_eq!(
            foreign.as_ref().and_then(Origin::from_url),
            None,
            "{foreign:?}"
        );
        assert_eq!(
            redirect_target(&current, "javascript:alert(1)")
                .as_ref()
                .and_then(Origin::from_url),
            None
        );
        assert_eq!(redirect_target(&current, "http://a b/"), None);
        let user = redirect_target(&current, "http://host@evil.net/").expect("a URL");
        assert_eq!(Origin::from_url(&user), None);
    }
}
