//! Suggestions for misspelt names.

use crate::{Code, Diagnostic};

/// The name of `names` nearest to `wrong`, if one is near enough to be what was meant.
pub fn nearest<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let limit = (wrong.chars().count() / 3).max(2);
    names
        .into_iter()
        .map(|name| (edit_distance(wrong, name), name))
        .filter(|(distance, _)| *distance <= limit)
        .min()
        .map(|(_, name)| name)
}

/// A hint for an unknown name: the nearest known one, or all of them.
pub fn unknown_name_hint<'a>(wrong: &str, names: impl IntoIterator<Item = &'a str> + Clone) -> String {
    match nearest(wrong, names.clone()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => format!("known: {}", names.into_iter().collect::<Vec<_>>().join(", ")),
    }
}

/// A file whose content a reader refused with `message` at byte `offset`: the line, and for an unknown key the one that may have
/// been meant. The message is one of serde's: "unknown field `x`, expected one of `a`, `b`".
pub fn malformed(
    code: Code,
    what: &str,
    (text, file): (&str, &str),
    message: &str,
    offset: usize,
) -> Box<Diagnostic> {
    let line = 1 + text[..offset.min(text.len())].matches('\n').count();
    let diagnostic = Diagnostic::new(code, format!("not {what}: {message}")).at_line(file, line as u32, 0);
    let unknown = message.strip_prefix("unknown field `").and_then(|rest| rest.split('`').next());
    match unknown {
        Some(key) => {
            let known = message.rsplit("expected").next().unwrap_or_default().split('`').skip(1).step_by(2);
            diagnostic.hint(unknown_name_hint(key, known))
        }
        None => diagnostic,
    }
}

/// Levenshtein distance over characters.
fn edit_distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substitute = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substitute.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_found_and_a_foreign_one_is_not() {
        let names = ["objective", "lengths", "ranks"];
        assert_eq!(nearest("lenghts", names), Some("lengths"));
        assert_eq!(nearest("zzzzzzzz", names), None);
        assert_eq!(unknown_name_hint("x", ["alpha", "beta"]), "known: alpha, beta");
    }

    #[test]
    fn a_file_with_an_unknown_key_is_refused_with_its_line_and_the_key_that_was_meant() {
        let message = "unknown field `mesch`, expected one of `mesh`, `passes`";
        let refused =
            malformed(Code::BAD_TEXT, "a plan", ("version = 1\nmesch = 2\n", "plan.toml"), message, 12);
        assert_eq!(refused.message, format!("not a plan: {message}"));
        assert_eq!(refused.place.unwrap().line, 2);
        assert_eq!(refused.hint.unwrap(), "did you mean `mesh`?");
        let other = malformed(Code::BAD_TEXT, "a plan", ("not", "plan.toml"), "key with no value", 99);
        assert_eq!((other.place.unwrap().line, other.hint), (1, None));
    }
}
