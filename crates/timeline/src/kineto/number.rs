//! Numbers of traces: microseconds with decimals as exact integer nanoseconds, and integers.

/// A time or duration as a trace writes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Micros {
    /// Nanoseconds, rounded to nearest (a half away from zero).
    pub nanos: i64,
    /// Whether it was written as an integer.
    pub integer: bool,
}

/// Microseconds in decimal notation. `None` for what is no finite number, or does not fit.
#[inline]
pub fn micros(text: &[u8]) -> Option<Micros> {
    let (negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        _ => (false, text),
    };
    let whole_digits = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    if whole_digits == 0 || whole_digits > 16 {
        return exotic(text);
    }
    let whole = digits[..whole_digits].iter().fold(0_i64, |value, &byte| value * 10 + i64::from(byte - b'0'));
    let (nanos, integer) = match digits.get(whole_digits) {
        None => (whole.checked_mul(1000)?, true),
        Some(b'.') => (whole.checked_mul(1000)? + fraction(&digits[whole_digits + 1..], text)?, false),
        Some(_) => return exotic(text),
    };
    Some(Micros { nanos: if negative { -nanos } else { nanos }, integer })
}

/// Thousandths of what stands behind the decimal point.
#[inline]
fn fraction(digits: &[u8], text: &[u8]) -> Option<i64> {
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        // an exponent: rare enough for the slow way, which gives the whole number
        return exotic(text).map(|micros| micros.nanos.abs() - whole_part(text) * 1000);
    }
    let mut nanos = 0;
    for place in 0..3 {
        nanos = nanos * 10 + digits.get(place).map_or(0, |&byte| i64::from(byte - b'0'));
    }
    Some(nanos + i64::from(digits.get(3).is_some_and(|&byte| byte >= b'5')))
}

fn whole_part(text: &[u8]) -> i64 {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    digits
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .fold(0, |value, &byte| value * 10 + i64::from(byte - b'0'))
}

/// Everything with an exponent or more digits than a time has, through floating point.
#[cold]
fn exotic(text: &[u8]) -> Option<Micros> {
    let value: f64 = std::str::from_utf8(text).ok()?.parse().ok()?;
    let nanos = (value * 1000.0).round();
    let integer = text.iter().all(|byte| byte.is_ascii_digit() || *byte == b'-');
    (nanos.is_finite() && nanos.abs() < 9.0e18).then_some(Micros { nanos: nanos as i64, integer })
}

/// An integer; decimals are dropped. `None` for what is no number, or does not fit.
#[inline]
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text.first()? {
        b'-' => (true, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return exotic_integer(text);
    }
    let value = digits.iter().fold(0_i64, |value, &byte| value * 10 + i64::from(byte - b'0'));
    Some(if negative { -value } else { value })
}

#[cold]
fn exotic_integer(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(value) = text.parse::<i64>() {
        return Some(value);
    }
    // addresses and hashes beyond i64 keep their bits
    if let Ok(value) = text.parse::<u64>() {
        return Some(value as i64);
    }
    let value: f64 = text.parse().ok()?;
    (value.is_finite() && value.abs() < 9.0e18).then_some(value as i64)
}

/// A floating-point number; `None` for what is no finite number.
pub fn float(text: &[u8]) -> Option<f64> {
    std::str::from_utf8(text).ok()?.parse().ok().filter(|value: &f64| value.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nanos(text: &str) -> Option<i64> {
        micros(text.as_bytes()).map(|micros| micros.nanos)
    }

    #[test]
    fn microseconds_become_exact_nanoseconds() {
        assert_eq!(nanos("4368959248368.068"), Some(4_368_959_248_368_068));
        assert_eq!(nanos("1694128201427784"), Some(1_694_128_201_427_784_000));
        assert_eq!(nanos("0.0005"), Some(1));
        assert_eq!(nanos("0.00049999"), Some(0));
        assert_eq!(nanos("-1.5"), Some(-1500));
        assert_eq!(nanos("68.0"), Some(68_000));
        assert_eq!(nanos("1.5e3"), Some(1_500_000));
        assert_eq!(nanos("2e2"), Some(200_000));
        assert_eq!(nanos("-2.5e1"), Some(-25_000));
    }

    #[test]
    fn what_is_no_time_is_none() {
        for text in
            ["NaN", "Infinity", "-Infinity", "null", "true", "", "-", ".", "1.2.3", "99999999999999999999"]
        {
            assert_eq!(nanos(text), None, "{text}");
        }
    }

    #[test]
    fn integers_keep_their_bits_up_to_64() {
        assert_eq!(integer(b"18446744073709551615"), Some(-1));
        assert_eq!(integer(b"7.0"), Some(7));
        assert_eq!(integer(b"-12"), Some(-12));
        assert_eq!(integer(b"x"), None);
    }
}
