//! The date that templates see.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use time::{Date, Month, OffsetDateTime, Time};

/// A calendar date; a template that also prints the time prints midnight.
///
/// Llama 3's templates begin each prompt with the date, so the same rows give different tokens
/// tomorrow. A run therefore keeps its start date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateDate(Date);

impl TemplateDate {
    /// Today in the local time zone, or in UTC if the time zone is unknown.
    pub fn today() -> Self {
        let now = OffsetDateTime::now_local().unwrap_or_else(|_| OffsetDateTime::now_utc());
        Self(now.date())
    }

    pub(super) fn midnight(self) -> OffsetDateTime {
        self.0.with_time(Time::MIDNIGHT).assume_utc()
    }
}

impl fmt::Display for TemplateDate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

impl FromStr for TemplateDate {
    type Err = NoDate;

    /// # Errors
    ///
    /// The text is not a date like `2026-01-31`.
    fn from_str(text: &str) -> Result<Self, NoDate> {
        let is_written_so = text.len() == 10
            && text.bytes().enumerate().all(|(i, byte)| match i {
                4 | 7 => byte == b'-',
                _ => byte.is_ascii_digit(),
            });
        if !is_written_so {
            return Err(NoDate);
        }
        let number = |digits: &str| digits.parse::<u16>().map_err(|_| NoDate);
        let month = Month::try_from(number(&text[5..7])? as u8).map_err(|_| NoDate)?;
        let year = i32::from(number(&text[..4])?);
        let date = Date::from_calendar_date(year, month, number(&text[8..])? as u8);
        date.map(Self).map_err(|_| NoDate)
    }
}

impl Serialize for TemplateDate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TemplateDate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let no_date = |NoDate| D::Error::custom(format!("{text:?} is not a date like 2026-01-31"));
        text.parse().map_err(no_date)
    }
}

/// A string is not a calendar date.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoDate;

#[cfg(test)]
mod tests {
    use super::{NoDate, TemplateDate};

    #[test]
    fn dates_survive_a_round_trip() {
        for text in ["2026-01-31", "2024-02-29", "0001-12-09"] {
            assert_eq!(
                text.parse::<TemplateDate>().map(|date| date.to_string()),
                Ok(text.to_owned())
            );
        }
        let today = TemplateDate::today();
        assert_eq!(today.to_string().parse(), Ok(today));
    }

    #[test]
    fn invalid_dates_are_rejected() {
        let texts = [
            "",
            "2026-1-31",
            "2026-02-30",
            "2026-13-01",
            "2026/01/31",
            "31-01-2026",
            "2026-01-3é",
            "+026-01-31",
        ];
        for text in texts {
            assert_eq!(text.parse::<TemplateDate>(), Err(NoDate), "{text}");
        }
    }
}
