//! Names that are alike as one pattern: `blocks.{0..31}.{down,up}.weight`.

use std::{collections::BTreeSet, hash::Hash};

use rustc_hash::FxHashMap;

/// What stands between two dots of a name.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Component {
    /// The number of a layer or the like.
    Number(u32),
    /// Everything else.
    Word(String),
}

/// The components that may stand in one place of a pattern.
pub type Set = BTreeSet<Component>;

/// The components of a name.
pub fn components(name: &str) -> Vec<Component> {
    name.split('.').map(component).collect()
}

/// A module's path with `*` for numbers, so that equal layers are one.
pub fn folded(path: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    path.split('.').map(|part| if is_number(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

fn component(text: &str) -> Component {
    match text.parse() {
        Ok(number) if u32::to_string(&number) == text => Component::Number(number),
        _ => Component::Word(text.to_owned()),
    }
}

/// Items that differ in one place only and have the same value become one, in the order in which they come first: numbers in a place before
/// words, and the last place first.
pub fn fold<V: Clone + Eq + Hash>(
    items: impl IntoIterator<Item = (Vec<Component>, V)>,
) -> Vec<(Vec<Set>, V)> {
    let alone = |component| Set::from([component]);
    let mut items: Vec<(Vec<Set>, V)> =
        items.into_iter().map(|(name, value)| (name.into_iter().map(alone).collect(), value)).collect();
    let places = items.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let is_number = |component: &Component| matches!(component, Component::Number(_));
    for numbers in [true, false] {
        for place in (0..places).rev() {
            items = fold_place(items, place, |set| set.iter().all(|one| is_number(one) == numbers));
        }
    }
    items
}

/// Items that are alike but for one place become one where that place suits.
fn fold_place<V: Clone + Eq + Hash>(
    items: Vec<(Vec<Set>, V)>,
    place: usize,
    suits: impl Fn(&Set) -> bool,
) -> Vec<(Vec<Set>, V)> {
    let mut known: FxHashMap<(Vec<Set>, V), usize> = FxHashMap::default();
    let mut folded: Vec<(Vec<Set>, V)> = Vec::new();
    for (mut name, value) in items {
        if !name.get(place).is_some_and(&suits) {
            folded.push((name, value));
            continue;
        }
        let here = std::mem::take(&mut name[place]);
        let next = folded.len();
        let at = *known.entry((name.clone(), value.clone())).or_insert(next);
        if at == next {
            name[place] = here;
            folded.push((name, value));
        } else {
            folded[at].0[place].extend(here);
        }
    }
    folded
}

/// The text of a pattern.
pub fn pattern(name: &[Set]) -> String {
    name.iter().map(set_text).collect::<Vec<_>>().join(".")
}

/// The text of what may stand in one place: itself, or all of them in braces.
pub fn set_text(set: &Set) -> String {
    let mut texts: Vec<String> = Vec::new();
    let mut run: Option<(u32, u32)> = None;
    let end = |run: Option<(u32, u32)>, texts: &mut Vec<String>| match run {
        Some((first, last)) if last >= first + 2 => texts.push(format!("{first}..{last}")),
        Some((first, last)) => texts.extend((first..=last).map(|number| number.to_string())),
        None => {}
    };
    for component in set {
        match (component, run) {
            (Component::Number(number), Some((first, last))) if *number == last + 1 => {
                run = Some((first, *number));
            }
            (Component::Number(number), _) => {
                end(run, &mut texts);
                run = Some((*number, *number));
            }
            (Component::Word(word), _) => {
                end(run.take(), &mut texts);
                texts.push(escaped(word));
            }
        }
    }
    end(run, &mut texts);
    if set.len() == 1 { texts.concat() } else { format!("{{{}}}", texts.join(",")) }
}

fn escaped(word: &str) -> String {
    let mut text = String::with_capacity(word.len());
    for letter in word.chars() {
        if matches!(letter, '\\' | '{' | '}' | ',' | ' ' | '#') {
            text.push('\\');
        }
        text.push(letter);
    }
    text
}

/// The names that a pattern stands for, at most `most`; what is wrong with it in a few words.
pub fn expanded(pattern: &str, most: usize) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut letters = pattern.chars();
    while let Some(letter) = letters.next() {
        let choices = match letter {
            '{' => choices(&mut letters, most)?,
            '}' => return Err(format!("`{pattern}` has a brace that was not opened")),
            '\\' => vec![escape(&mut letters)?.to_string()],
            other => vec![other.to_string()],
        };
        if names.len() * choices.len() > most {
            return Err(format!("`{pattern}` stands for too many names"));
        }
        names = names
            .iter()
            .flat_map(|name| choices.iter().map(move |choice| format!("{name}{choice}")))
            .collect();
    }
    Ok(names)
}

fn escape(letters: &mut std::str::Chars<'_>) -> Result<char, String> {
    letters.next().ok_or_else(|| "a name ends with `\\`".to_owned())
}

/// What stands in braces, behind the first one.
fn choices(letters: &mut std::str::Chars<'_>, most: usize) -> Result<Vec<String>, String> {
    let mut choices = Vec::new();
    let mut word = String::new();
    let mut is_literal = false;
    loop {
        let letter = letters.next().ok_or("a brace is not closed")?;
        match letter {
            ',' | '}' => {
                push_choice(&mut choices, std::mem::take(&mut word), is_literal, most)?;
                is_literal = false;
                if letter == '}' {
                    return Ok(choices);
                }
            }
            '\\' => {
                word.push(escape(letters)?);
                is_literal = true;
            }
            other => word.push(other),
        }
    }
}

fn push_choice(choices: &mut Vec<String>, word: String, is_literal: bool, most: usize) -> Result<(), String> {
    let range = word.split_once("..").filter(|_| !is_literal);
    let Some((first, last)) = range else {
        choices.push(word);
        return Ok(());
    };
    let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) else {
        return Err(format!("`{word}` is no range of numbers"));
    };
    if last < first || (last - first) as usize >= most {
        return Err(format!("`{word}` is a range of no or too many numbers"));
    }
    choices.extend((first..=last).map(|number| number.to_string()));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folded(names: &[&str]) -> Vec<String> {
        let items = names.iter().map(|name| (components(name), ()));
        fold(items).into_iter().map(|(name, ())| pattern(&name)).collect()
    }

    #[test]
    fn layers_and_their_weights_become_one_pattern() {
        let mut names = Vec::new();
        for layer in 0..12 {
            for weight in ["q", "k", "up"] {
                names.push(format!("blocks.{layer}.{weight}.weight"));
            }
        }
        names.push("head.weight".into());
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(folded(&names), ["blocks.{0..11}.{k,q,up}.weight", "head.weight"]);
        // A layer that is missing splits the range, for the weight where it is missing.
        let without: Vec<&str> = names.iter().copied().filter(|name| *name != "blocks.3.k.weight").collect();
        assert_eq!(
            folded(&without),
            ["blocks.{0..11}.{q,up}.weight", "blocks.{0..2,4..11}.k.weight", "head.weight"]
        );
    }

    #[test]
    fn patterns_stand_for_the_names_that_they_were_made_of() {
        let names = ["a.0.b", "a.1.b", "a.7.b", "a.007.b", "odd{,} #name.x", "odd{,} #name.y\\", "", "a..b"];
        let mut back: Vec<String> =
            folded(&names).iter().flat_map(|pattern| expanded(pattern, 100).unwrap()).collect();
        let mut names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        names.sort();
        back.sort();
        assert_eq!(back, names);
    }

    #[test]
    fn values_that_differ_are_not_folded() {
        let items = [("a.0", 1), ("a.1", 2), ("a.2", 1)].map(|(name, value)| (components(name), value));
        let folded: Vec<_> = fold(items).into_iter().map(|(name, value)| (pattern(&name), value)).collect();
        assert_eq!(folded, [("a.{0,2}".to_owned(), 1), ("a.1".to_owned(), 2)]);
    }

    #[test]
    fn what_is_no_pattern_is_said() {
        for wrong in
            ["a.{0..1", "a}", "a.{2..1}", "a.{0..4000000000}", "a.{x..2}", "a\\", "{0..9}{0..9}{0..9}"]
        {
            assert!(expanded(wrong, 100).is_err(), "{wrong}");
        }
    }
}
