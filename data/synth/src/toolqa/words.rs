//! Turns the names of keys into words: `flightNumber` is "flight number".

/// The words of a key, in lower case: parts between `_`, `-`, `.` and blanks, and between a lower-case
/// letter and a capital. Empty if the key has no letter or digit.
pub(super) fn words(key: &str) -> String {
    let mut words = String::new();
    let mut before = ' ';
    for c in key.chars() {
        if !c.is_alphanumeric() {
            before = ' ';
            continue;
        }
        let begins = before == ' ' || (c.is_uppercase() && !before.is_uppercase());
        if begins && !words.is_empty() {
            words.push(' ');
        }
        words.extend(c.to_lowercase());
        before = c;
    }
    words
}

/// The words of the keys on a path, such as "price total" of `price.total`.
pub(super) fn path_words(keys: &[String]) -> String {
    let words: Vec<String> = keys.iter().map(|key| words(key)).collect();
    words
        .iter()
        .filter(|word| !word.is_empty())
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(" ")
}

/// The noun for one record of a list, and for several: "flight" and "flights" of `flights`. The
/// records of a list whose name is not a plural are "record" and "records".
pub(super) fn nouns(list_key: &str) -> (String, String) {
    let plural = words(list_key);
    let singular = if let Some(stem) = plural.strip_suffix("ies") {
        format!("{stem}y")
    } else if ["sses", "xes", "ches", "shes"]
        .iter()
        .any(|end| plural.ends_with(end))
    {
        plural[..plural.len() - 2].to_owned()
    } else if plural.len() > 3 && plural.ends_with('s') && !plural.ends_with("ss") {
        plural[..plural.len() - 1].to_owned()
    } else {
        return ("record".to_owned(), "records".to_owned());
    };
    (singular, plural)
}

/// Whether the last word of a name means that its values identify something, so that they are
/// neither added nor ranked.
pub(super) fn names_an_identifier(words: &str) -> bool {
    const NAMES: [&str; 17] = [
        "id",
        "ids",
        "identifier",
        "key",
        "number",
        "no",
        "code",
        "zip",
        "postcode",
        "phone",
        "index",
        "latitude",
        "longitude",
        "lat",
        "lng",
        "lon",
        "timestamp",
    ];
    let last = words.rsplit(' ').next().unwrap_or_default();
    NAMES.contains(&last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_words() {
        for (key, expected) in [
            ("flight_number", "flight number"),
            ("flightNumber", "flight number"),
            ("HTTPStatus", "httpstatus"),
            ("min-total.price", "min total price"),
            ("prix_été", "prix été"),
            ("__", ""),
            ("", ""),
        ] {
            assert_eq!(words(key), expected, "{key}");
        }
        assert_eq!(
            path_words(&["price".into(), "total_eur".into()]),
            "price total eur"
        );
    }

    #[test]
    fn lists_have_nouns() {
        for (key, singular, plural) in [
            ("flights", "flight", "flights"),
            ("carRentals", "car rental", "car rentals"),
            ("companies", "company", "companies"),
            ("boxes", "box", "boxes"),
            ("result", "record", "records"),
            ("glass", "record", "records"),
            ("été", "record", "records"),
        ] {
            assert_eq!(
                nouns(key),
                (singular.to_owned(), plural.to_owned()),
                "{key}"
            );
        }
        assert!(names_an_identifier("flight number"));
        assert!(!names_an_identifier("price"));
    }
}
