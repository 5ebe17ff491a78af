//! Times of the record as people read and type them: UTC, and ages.

use std::time::Duration;

const DAY_MS: i64 = 86_400_000;

/// A moment that was typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// So long ago.
    Ago(Duration),
    /// Milliseconds since 1970.
    At(i64),
}

impl When {
    /// In milliseconds since 1970.
    pub fn ms(self, now_ms: i64) -> i64 {
        match self {
            Self::Ago(age) => now_ms.saturating_sub(i64::try_from(age.as_millis()).unwrap_or(i64::MAX)),
            Self::At(ms) => ms,
        }
    }
}

/// `30m`, `12h`, `7d`, `2w`; also what durations are elsewhere.
///
/// # Errors
/// A sentence.
pub fn age(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').map(|n| (n, 1)).or_else(|| text.strip_suffix('w').map(|n| (n, 7)));
    let ms = match days {
        Some((n, days)) if !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()) => {
            n.parse::<u64>().ok().and_then(|n| n.checked_mul(days * DAY_MS.unsigned_abs()))
        }
        _ => text.parse::<crate::base::Millis>().ok().map(|ms| ms.0),
    };
    ms.map(Duration::from_millis).ok_or_else(|| "an age such as 30m, 12h, 7d or 2w is expected".to_owned())
}

/// An age, or a time: `2026-03-01`, `2026-03-01T12:30`, `2026-03-01T12:30:05`, with or without `Z`.
///
/// # Errors
/// A sentence.
pub fn parse(text: &str) -> Result<When, String> {
    if let Ok(age) = age(text) {
        return Ok(When::Ago(age));
    }
    time(text).map(When::At).ok_or_else(|| {
        "an age such as 30m, 12h or 7d, or a time such as 2026-03-01 or 2026-03-01T12:30 (UTC) is expected".to_owned()
    })
}

fn time(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (date, clock) = text.split_once(['T', ' ']).unwrap_or((text, "00:00"));
    let number = |part: &str, digits: usize| {
        (part.len() == digits && part.bytes().all(|b| b.is_ascii_digit()))
            .then(|| part.parse::<i64>().ok())?
    };
    let mut parts = date.split('-');
    let (year, month, day) =
        (number(parts.next()?, 4)?, number(parts.next()?, 2)?, number(parts.next()?, 2)?);
    let mut clock = clock.split(':');
    let (hour, minute) = (number(clock.next()?, 2)?, number(clock.next()?, 2)?);
    let second = clock.next().map_or(Some(0), |part| number(part, 2))?;
    if parts.next().is_some() || clock.next().is_some() || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days(year, month, day);
    // A day that the month has not comes back as another.
    (civil(days) == (year, month, day)).then(|| ((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000)
}

/// Days since 1970-01-01 of a date of the proleptic Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years begin in March: the leap day is the last.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// The date of a day.
fn civil(days: i64) -> (i64, i64, i64) {
    let shifted = days + 719_468;
    let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + i64::from(month <= 2), month, day)
}

/// `2026-03-01 12:30:05.250 UTC`.
pub fn stamp(ms: i64) -> String {
    let (year, month, day) = civil(ms.div_euclid(DAY_MS));
    let of_day = ms.rem_euclid(DAY_MS);
    let (hour, minute) = (of_day / 3_600_000, of_day / 60_000 % 60);
    let (second, milli) = (of_day / 1000 % 60, of_day % 1000);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{milli:03} UTC")
}

/// How long ago, in one unit: `12s`, `5m`, `3h`, `9d`. A time that is still to come is `0s`: clocks are set back.
pub fn ago(ms: i64, now_ms: i64) -> String {
    let s = now_ms.saturating_sub(ms).max(0) / 1000;
    let (unit, name) = match s {
        ..120 => (1, "s"),
        120..7200 => (60, "m"),
        7200..172_800 => (3600, "h"),
        _ => (86_400, "d"),
    };
    format!("{}{name}", s / unit)
}

/// How long, to three digits or so: `46ms`, `1.23s`, `2m05s`, `3h07m`.
pub fn took(ms: i64) -> String {
    match ms.max(0) {
        ms @ ..1000 => format!("{ms}ms"),
        ms @ 1000..60_000 => format!("{}.{:02}s", ms / 1000, ms % 1000 / 10),
        ms @ 60_000..3_600_000 => format!("{}m{:02}s", ms / 60_000, ms / 1000 % 60),
        ms => format!("{}h{:02}m", ms / 3_600_000, ms / 60_000 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times() {
        assert_eq!(stamp(0), "1970-01-01 00:00:00.000 UTC");
        assert_eq!(stamp(951_782_400_123), "2000-02-29 00:00:00.123 UTC");
        assert_eq!(stamp(-1), "1969-12-31 23:59:59.999 UTC");
        assert_eq!(parse("2000-02-29T00:00Z"), Ok(When::At(951_782_400_000)));
        assert_eq!(parse("7d"), Ok(When::Ago(Duration::from_secs(604_800))));
        assert_eq!(parse("90s"), Ok(When::Ago(Duration::from_secs(90))));
        for wrong in [
            "",
            "d",
            "-3d",
            "2001-02-29",
            "2001-13-01",
            "2001-01-01T24:00",
            "2001-1-1",
            "99999999999999999999w",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
        let all = [0, 999, 1234, 61_000, 3_660_000, -5].map(took);
        assert_eq!(all, ["0ms", "999ms", "1.23s", "1m01s", "1h01m", "0ms"]);
        let all = [0, 119_000, 120_000, 7_200_000, 172_800_000].map(|ms| ago(0, ms));
        assert_eq!(all, ["0s", "119s", "2m", "2h", "2d"]);
        assert_eq!(ago(10_000, 0), "0s");
    }

    proptest! {
        #[test]
        fn a_time_comes_back(s in 0i64..253_402_300_799) {
            let text = stamp(s * 1000);
            prop_assert_eq!(parse(&text[..19]), Ok(When::At(s * 1000)));
        }

        #[test]
        fn any_number_is_shown(ms in any::<i64>(), now in any::<i64>()) {
            let _ = (stamp(ms / 2), ago(ms, now), took(ms));
        }
    }
}
