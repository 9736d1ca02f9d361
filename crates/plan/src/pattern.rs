//! Names that match patterns.

/// Whether `name` matches `pattern`, in which `*` stands for any text.
pub fn glob(pattern: &str, name: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or("");
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        assert!(glob("params.*", "params.a.b"));
        assert!(glob("*", "x"));
        assert!(glob("params.*.weight", "params.a.b.weight"));
        assert!(!glob("params.*.weight", "params.a.bias"));
        assert!(!glob("params.a", "params.ab"));
    }
}
