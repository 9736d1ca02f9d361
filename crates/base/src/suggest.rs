//! Suggestions for misspelt names.

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
}
