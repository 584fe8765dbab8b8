//! Dates for templates: the common directives of `strftime`, in UTC and in English.

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
const DAYS: [&str; 7] =
    ["Thursday", "Friday", "Saturday", "Sunday", "Monday", "Tuesday", "Wednesday"];
const SECONDS_A_DAY: i64 = 86_400;

/// A moment taken apart.
struct Moment {
    year: i64,
    /// From 0.
    month: usize,
    /// From 1.
    day: i64,
    /// From 0.
    day_of_year: i64,
    weekday: &'static str,
    second_of_day: i64,
}

/// Formats seconds since 1970. A directive that is not known stays as it is.
pub(super) fn format_utc(seconds: i64, format: &str) -> String {
    let moment = Moment::new(seconds);
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('-') => match chars.next() {
                Some(directive) => {
                    let padded = moment.directive(directive);
                    let trimmed = padded.trim_start_matches(['0', ' ']);
                    out.push_str(if trimmed.is_empty() { "0" } else { trimmed });
                }
                None => out.push_str("%-"),
            },
            Some(directive) => out.push_str(&moment.directive(directive)),
            None => out.push('%'),
        }
    }
    out
}

impl Moment {
    fn new(seconds: i64) -> Self {
        let days = seconds.div_euclid(SECONDS_A_DAY);
        let (year, day_of_year) = year_and_day(days);
        let (month, day) = month_and_day(day_of_year, is_leap(year));
        Self {
            year,
            month,
            day,
            day_of_year,
            weekday: DAYS[days.rem_euclid(7) as usize],
            second_of_day: seconds.rem_euclid(SECONDS_A_DAY),
        }
    }

    fn directive(&self, directive: char) -> String {
        let (hour, second) = (self.second_of_day / 3600, self.second_of_day % 60);
        match directive {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year.rem_euclid(100)),
            'm' => format!("{:02}", self.month + 1),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'j' => format!("{:03}", self.day_of_year + 1),
            'B' => MONTHS[self.month].to_owned(),
            'b' | 'h' => MONTHS[self.month][..3].to_owned(),
            'A' => self.weekday.to_owned(),
            'a' => self.weekday[..3].to_owned(),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{:02}", self.second_of_day / 60 % 60),
            'S' => format!("{second:02}"),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month + 1, self.day),
            'Z' => "UTC".to_owned(),
            '%' => "%".to_owned(),
            other => format!("%{other}"),
        }
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days from the first of January of year 1 to that of `year`.
fn days_before(year: i64) -> i64 {
    let past = year - 1;
    past * 365 + past.div_euclid(4) - past.div_euclid(100) + past.div_euclid(400)
}

fn year_and_day(days_since_1970: i64) -> (i64, i64) {
    let days = days_since_1970 + days_before(1970);
    // 400 years have 146,097 days: the estimate is off by one at most, in either direction.
    let mut year = (days * 400).div_euclid(146_097) + 1;
    while days < days_before(year) {
        year -= 1;
    }
    while days >= days_before(year + 1) {
        year += 1;
    }
    (year, days - days_before(year))
}

fn month_and_day(day_of_year: i64, leap: bool) -> (usize, i64) {
    let lengths = [31, 28 + i64::from(leap), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut day = day_of_year;
    for (month, length) in lengths.into_iter().enumerate() {
        if day < length {
            return (month, day + 1);
        }
        day -= length;
    }
    (11, 31)
}
