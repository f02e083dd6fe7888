//! `strftime_now`: formats a time like C's and Python's `strftime`, with English names.

use time::OffsetDateTime;

const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Formats `moment`. The error is the unknown directive.
pub(super) fn strftime(moment: OffsetDateTime, format: &str) -> Result<String, char> {
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('-') => {
                let directive = characters.next().unwrap_or('%');
                let padded = directive_text(moment, directive)?;
                let bare = padded.trim_start_matches(['0', ' ']);
                text.push_str(if bare.is_empty() { "0" } else { bare });
            }
            Some(directive) => text.push_str(&directive_text(moment, directive)?),
            None => text.push('%'),
        }
    }
    Ok(text)
}

fn directive_text(moment: OffsetDateTime, directive: char) -> Result<String, char> {
    let day_name = DAYS[usize::from(moment.weekday().number_days_from_monday())];
    let month_name = MONTHS[usize::from(u8::from(moment.month()) - 1)];
    let hour_of_12 = (moment.hour() + 11) % 12 + 1;
    Ok(match directive {
        'A' => day_name.to_owned(),
        'a' => day_name[..3].to_owned(),
        'B' => month_name.to_owned(),
        'b' | 'h' => month_name[..3].to_owned(),
        'd' => format!("{:02}", moment.day()),
        'e' => format!("{:2}", moment.day()),
        'm' => format!("{:02}", u8::from(moment.month())),
        'Y' => moment.year().to_string(),
        'y' => format!("{:02}", moment.year().rem_euclid(100)),
        'H' => format!("{:02}", moment.hour()),
        'I' => format!("{hour_of_12:02}"),
        'M' => format!("{:02}", moment.minute()),
        'S' => format!("{:02}", moment.second()),
        'f' => format!("{:06}", moment.microsecond()),
        'p' => if moment.hour() < 12 { "AM" } else { "PM" }.to_owned(),
        'j' => format!("{:03}", moment.ordinal()),
        'u' => moment.weekday().number_from_monday().to_string(),
        'w' => moment.weekday().number_days_from_sunday().to_string(),
        's' => moment.unix_timestamp().to_string(),
        'F' => strftime(moment, "%Y-%m-%d")?,
        'T' => strftime(moment, "%H:%M:%S")?,
        'R' => strftime(moment, "%H:%M")?,
        'D' => strftime(moment, "%m/%d/%y")?,
        'n' => "\n".to_owned(),
        't' => "\t".to_owned(),
        '%' => "%".to_owned(),
        unknown => return Err(unknown),
    })
}
