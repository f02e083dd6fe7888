//! Computes the wait before the next attempt, and waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use time::{Date, Month, OffsetDateTime, Time};

/// Waits that double up to a maximum.
#[derive(Debug, Clone, Copy)]
pub(super) struct Backoff {
    pub(super) first: Duration,
    pub(super) longest: Duration,
}

impl Backoff {
    /// The wait after `n_failed` failed attempts, from 1.
    pub(super) fn wait_after(&self, n_failed: usize) -> Duration {
        let n_doublings = u32::try_from(n_failed.saturating_sub(1)).unwrap_or(u32::MAX);
        let factor = 2_u32.saturating_pow(n_doublings);
        self.first.saturating_mul(factor).min(self.longest)
    }
}

/// The wait before the next attempt: the wait that the server requests, but at least the doubling
/// wait. A server that requests a wait of 0 is therefore not retried at once.
pub(super) fn next_wait(
    backoff: &Backoff,
    n_failed: usize,
    requested_wait: Option<Duration>,
) -> Duration {
    let own_wait = backoff.wait_after(n_failed);
    requested_wait.map_or(own_wait, |requested_wait| requested_wait.max(own_wait))
}

/// Waits until the time is over or `is_stopped` is set; returns whether the whole time passed.
pub(super) fn wait(pause: Duration, is_stopped: &AtomicBool) -> bool {
    const SLICE: Duration = Duration::from_millis(50);
    let start = Instant::now();
    loop {
        if is_stopped.load(Ordering::Relaxed) {
            return false;
        }
        let remaining_time = pause.saturating_sub(start.elapsed());
        if remaining_time.is_zero() {
            return true;
        }
        std::thread::sleep(remaining_time.min(SLICE));
    }
}

/// The wait that `Retry-After` requests, in seconds or until a date; `None` if it is neither.
///
/// # Source
///
/// RFC 9110, section 10.2.3. LLM servers also send fractions of seconds.
pub(super) fn retry_after(text: &str, now: SystemTime) -> Option<Duration> {
    const YEAR: f64 = 366.0 * 86_400.0;
    let text = text.trim();
    if let Ok(secs) = text.parse::<f64>() {
        let secs = (secs >= 0.0).then_some(secs)?;
        return Some(Duration::from_secs_f64(secs.min(YEAR)));
    }
    let secs = (parse_date(text)? - OffsetDateTime::from(now)).as_seconds_f64();
    Some(Duration::from_secs_f64(secs.clamp(0.0, YEAR)))
}

/// Parses a date such as `Sun, 06 Nov 1994 08:49:37 GMT`.
fn parse_date(text: &str) -> Option<OffsetDateTime> {
    const MONTHS: [&str; 12] = [
        "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
    ];
    let (_, after_weekday) = text.split_once(", ")?;
    let fields: Vec<&str> = after_weekday.split(' ').collect();
    let &[day, month, year, clock, "GMT"] = fields.as_slice() else {
        return None;
    };
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    let month = Month::try_from(u8::try_from(month).ok()?).ok()?;
    let day = Date::from_calendar_date(year.parse().ok()?, month, day.parse().ok()?).ok()?;
    let clock: Vec<u8> = clock.split(':').map_while(|n| n.parse().ok()).collect();
    let &[hour, minute, second] = clock.as_slice() else {
        return None;
    };
    let time = Time::from_hms(hour, minute, second).ok()?;
    Some(day.with_time(time).assume_utc())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_maximum() {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            longest: Duration::from_secs(1),
        };
        let waits =
            [1, 2, 3, 4, 5, 1_000_000, usize::MAX].map(|n| backoff.wait_after(n).as_millis());
        assert_eq!(waits, [100, 200, 400, 800, 1000, 1000, 1000]);
    }

    #[test]
    fn a_requested_wait_of_zero_does_not_shorten_the_wait() {
        let backoff = Backoff {
            first: Duration::from_secs(1),
            longest: Duration::from_secs(30),
        };
        let secs = |n_failed, requested_secs: Option<u64>| {
            next_wait(&backoff, n_failed, requested_secs.map(Duration::from_secs)).as_secs()
        };
        assert_eq!([1, 2, 3, 4].map(|n| secs(n, Some(0))), [1, 2, 4, 8]);
        assert_eq!((secs(1, Some(7)), secs(3, None)), (7, 4));
    }

    #[test]
    fn a_wait_ends_when_the_work_is_stopped() {
        let start = Instant::now();
        assert!(wait(Duration::from_millis(60), &AtomicBool::new(false)));
        assert!(start.elapsed() >= Duration::from_millis(60));
        // Without the flag, this wait would never end.
        assert!(!wait(Duration::MAX, &AtomicBool::new(true)));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        for (text, expected) in [
            ("3", Some(3.0)),
            (" 0.25 ", Some(0.25)),
            ("0", Some(0.0)),
            ("1e300", Some(366.0 * 86_400.0)),
            ("Sun, 06 Nov 1994 08:49:47 GMT", Some(10.0)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(0.0)),
            ("Sat, 05 Nov 1994 08:49:37 GMT", Some(0.0)),
            ("-1", None),
            ("NaN", None),
            ("soon", None),
            ("", None),
            ("Sun, 36 Nov 1994 08:49:37 GMT", None),
            ("Sun, 06 Nov 1994 08:49 GMT", None),
        ] {
            let wait = retry_after(text, now).map(|wait| wait.as_secs_f64());
            assert_eq!(wait, expected, "{text}");
        }
    }
}
