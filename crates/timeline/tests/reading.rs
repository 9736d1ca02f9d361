//! Reading of what traces look like in the wild: every odd thing is read, or named.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fmt::Write;

use base::{Code, Result};
use unisono_timeline::{Category, Lane, Names, Rank, kineto};

fn read(json: &str) -> Result<(Names, Rank)> {
    kineto::read_bytes(json.as_bytes().to_vec(), "trace.json")
}

fn names(json: &str) -> Vec<String> {
    let (names, rank) = read(json).unwrap();
    rank.events.name.iter().map(|&name| names.text(name).to_owned()).collect()
}

fn event(name: &str, ts: &str, dur: &str) -> String {
    format!(
        r#"{{"ph":"X","cat":"cpu_op","name":"{name}","pid":1,"tid":2,"ts":{ts},"dur":{dur},"args":{{"External id":5}}}}"#
    )
}

#[test]
fn an_object_and_a_root_list_hold_the_same_events() {
    let list = format!("[{},\n{}]", event("a", "1", "2"), event("b", "3", "4"));
    let object = format!(r#"{{"schemaVersion":1,"traceEvents":{list},"traceName":"x"}}"#);
    assert_eq!(names(&list), ["a", "b"]);
    assert_eq!(read(&list).unwrap().1.events, read(&object).unwrap().1.events);
}

#[test]
fn times_are_exact_nanoseconds_far_from_zero() {
    let (_, rank) = read(&format!("[{}]", event("a", "1694128201427784.123", "0.001"))).unwrap();
    assert_eq!((rank.events.start[0], rank.events.duration[0]), (1_694_128_201_427_784_123, 1));
    assert!(rank.meta.fractional_times);
}

#[test]
fn odd_values_are_read_for_what_they_mean() {
    let json = r#"[{"ph":"X","cat":"kernel","name":"k\u00e4se \"x\"","name":"last wins","pid":"0","tid":"stream 7","ts":1,"dur":2,
        "args":{"stream":"7","correlation":3,"memory bandwidth (GB/s)":NaN,"bytes":Infinity,"deep":[[{"a":{}}]]}},,
        {"ph":"X","cat":"cpu_op","name":"no time","pid":1,"tid":1,"ts":NaN,"dur":1},
        {"ph":"X","cat":"cpu_op","name":"no duration","pid":1,"tid":1,"ts":1,"dur":null}]"#;
    let (names, rank) = read(json).unwrap();
    assert_eq!(rank.events.len(), 1);
    let event = rank.events.get(0);
    assert_eq!((names.text(event.name), event.stream, event.correlation), ("last wins", 7, 3));
    assert_eq!(rank.tracks[event.track].process, Lane::Number(0));
    assert_eq!(rank.notes.len(), 1, "{:?}", rank.notes);
}

#[test]
fn rank_and_groups_come_from_the_metadata_wherever_it_stands() {
    let info = r#""distributedInfo":{"backend":"gloo","rank":3,"world_size":8,"pg_config":[{"pg_name":"0","pg_desc":"d","ranks":[0,3]}]}"#;
    for json in [format!(r#"{{{info},"traceEvents":[]}}"#), format!(r#"{{"traceEvents":[],{info}}}"#)] {
        let (_, rank) = read(&json).unwrap();
        assert_eq!(
            (rank.rank, rank.meta.world_size, rank.meta.groups[0].ranks.clone()),
            (3, Some(8), vec![0, 3])
        );
    }
}

#[test]
fn a_trace_that_was_cut_anywhere_keeps_what_is_whole_and_says_so() {
    let events: Vec<String> = (0..20).map(|i| event(&format!("e{i}"), &i.to_string(), "1")).collect();
    let json = format!(r#"{{"schemaVersion":1,"traceEvents":[{}]}}"#, events.join(", "));
    let begin = json.find('[').unwrap() + 1;
    for cut in begin..json.len() {
        let (_, rank) = read(&json[..cut]).unwrap();
        let whole = events.iter().scan(begin, |at, event| {
            *at += event.len() + 2;
            Some(*at - 2)
        });
        assert_eq!(rank.events.len(), whole.filter(|&end| end <= cut).count(), "cut at {cut}");
        assert_eq!(rank.notes[0].code, Code::TRACE_TRUNCATED, "cut at {cut}");
    }
}

#[test]
fn damage_in_the_middle_costs_the_damaged_event_only() {
    let json =
        format!("[{}, {{\"ph\":\"X\" \"name\" oops}}, {}]", event("a", "1", "1"), event("b", "2", "1"));
    let (names, rank) = read(&json).unwrap();
    let found: Vec<&str> = rank.events.name.iter().map(|&name| names.text(name)).collect();
    assert_eq!(found, ["a", "b"]);
    assert_eq!(rank.notes[0].code, Code::TRACE_DAMAGED);
}

#[test]
fn what_is_no_trace_is_refused_with_the_reason() {
    for json in
        ["", "  ", "hello", "{}", r#"{"a":1}"#, r#"{"traceEvents":3}"#, "[[1,2,3],[4,5,6]]", "\u{1}\u{2}"]
    {
        let error = read(json).unwrap_err();
        assert_eq!(error.code, Code::NOT_A_TRACE, "{json}");
        assert!(error.cause.is_some() && error.hint.is_some());
    }
}

#[test]
fn categories_of_all_devices_and_versions_are_known() {
    let of = |text: &str| Category::of(text.as_bytes());
    assert_eq!(
        (of("Kernel"), of("gpu_memcpy"), of("mtia_ccp_events")),
        (Category::OldKernel, Category::GpuMemcpy, Category::MtiaCcp)
    );
}

/// A list of events with every kind of value, made from random choices.
fn random_list(u: &mut arbtest::arbitrary::Unstructured<'_>) -> arbtest::arbitrary::Result<String> {
    let mut list = String::from("[");
    for number in 0..u.int_in_range(0..=12)? {
        let name = ["plain", "with } { and , ", r#"quo\"te\\"#, "", "\u{fc}"][u.choose_index(5)?];
        let args = [
            "{}",
            r#"{"Input Dims":[[1,2],[]],"a":"}, {"}"#,
            r#"{"Python id":3,"Python parent id":null}"#,
            "null",
        ];
        let space = ["", " ", "\n   ", "\t\r\n"][u.choose_index(4)?];
        if number > 0 {
            write!(list, "{space},{space}").unwrap();
        }
        write!(
            list,
            r#"{{{space}"ph": "X","cat":"cpu_op","name":"{name}","pid":{},"tid":"t{}",{space}"ts":{}.{:03},"dur":{},"args":{}}}"#,
            u.int_in_range(-1..=3)?,
            u.int_in_range(0..=2)?,
            u.int_in_range(0..=1_000_000)?,
            u.int_in_range(0..=999)?,
            u.int_in_range(-5..=100)?,
            args[u.choose_index(4)?],
        )
        .unwrap();
    }
    list += "]";
    Ok(list)
}

#[test]
fn windows_and_chunks_of_any_size_give_the_same_table() {
    base::testing::cases(500, |u| {
        let list = random_list(u)?;
        let (names, rank) = read(&list).unwrap();
        let (window, pieces) = (u.int_in_range(1..=200)?, u.int_in_range(1..=9)?);
        let (other_names, other) = kineto::read_in_pieces(list.as_bytes(), window, pieces).unwrap();
        assert_eq!(names.iter().collect::<Vec<_>>(), other_names.iter().collect::<Vec<_>>());
        assert_eq!((&rank.events, &rank.sides, &rank.meta), (&other.events, &other.sides, &other.meta));
        Ok(())
    });
}

#[test]
fn no_damage_makes_the_reader_panic_or_hang() {
    base::testing::cases(500, |u| {
        let mut bytes = random_list(u)?.into_bytes();
        for _ in 0..u.int_in_range(1..=6)? {
            let at = u.choose_index(bytes.len())?;
            match u.int_in_range(0..=3)? {
                0 => bytes[at] = u.arbitrary()?,
                1 => drop(bytes.drain(at..)),
                2 => bytes.insert(at, u.arbitrary()?),
                _ => bytes[at] = *u.choose(b"{}[],:\"\\0")?,
            }
            if bytes.is_empty() {
                break;
            }
        }
        let _ = kineto::read_in_pieces(&bytes, u.int_in_range(1..=300)?, u.int_in_range(1..=5)?);
        let _ = kineto::read_bytes(bytes, "trace.json");
        Ok(())
    });
}
