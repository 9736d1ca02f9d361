//! Graphs as MessagePack: what is written is read, and nothing else does harm.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use unisono_ir::{Graph, InputId, testing::random_graph, verify};

#[test]
fn random_graphs_are_valid_and_come_back_from_bytes() {
    for seed in 0..200 {
        let graph = random_graph(seed, 40);
        verify(&graph).unwrap();
        let bytes = graph.to_bytes();
        assert_eq!(Graph::from_bytes(&bytes).unwrap().to_bytes(), bytes, "seed {seed}");
    }
}

#[test]
fn renumbering_is_canonical() {
    for seed in 0..200 {
        let renumbered = random_graph(seed, 40).renumbered();
        verify(&renumbered).unwrap();
        assert_eq!(renumbered.renumbered().to_bytes(), renumbered.to_bytes(), "seed {seed}");
        assert!(renumbered.order.iter().map(|id| id.0).eq(0..renumbered.nodes.len() as u32));
    }
}

#[test]
fn the_fingerprint_sees_content_but_neither_places_nor_ids() {
    let mut graph = random_graph(7, 40);
    let fingerprint = graph.fingerprint();
    assert_eq!(graph.renumbered().fingerprint(), fingerprint);
    let first = graph.order[0];
    graph.nodes[first].place = None;
    graph.places.iter_mut().for_each(|(_, place)| place.line += 1);
    assert_eq!(graph.fingerprint(), fingerprint);
    graph.returns.reverse();
    graph.returns.push(graph.inputs[InputId(0)].value);
    assert_ne!(graph.fingerprint(), fingerprint);
}

#[test]
fn mutated_bytes_are_read_or_refused() {
    let graphs: Vec<Vec<u8>> = (0..8).map(|seed| random_graph(seed, 12).to_bytes()).collect();
    base::testing::cases(2000, |u| {
        let mut bytes = u.choose(&graphs)?.clone();
        for _ in 0..u.int_in_range(1..=6)? {
            let at = u.choose_index(bytes.len())?;
            match u.int_in_range(0..=3)? {
                0 => bytes[at] = u.arbitrary()?,
                1 => bytes[at] ^= 1 << u.int_in_range(0..=7)?,
                2 => drop(bytes.splice(at..at, u.arbitrary::<[u8; 3]>()?)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        if let Ok(graph) = Graph::from_bytes(&bytes) {
            // Whatever is accepted can be worked with.
            assert!(!graph.renumbered().to_bytes().is_empty());
        }
        Ok(())
    });
}

/// A map that claims a list of four billion entries where `key` stands.
fn claiming(path: &[&str], length: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    for key in path {
        bytes.push(0x81);
        bytes.push(0xa0 | key.len() as u8);
        bytes.extend(key.as_bytes());
    }
    bytes.push(0xdd);
    bytes.extend(length.to_be_bytes());
    bytes
}

#[test]
fn a_claimed_length_allocates_nothing() {
    for path in [&["graph", "nodes"][..], &["graph", "order"], &["graph", "ops"]] {
        let refused = Graph::from_bytes(&claiming(path, u32::MAX)).unwrap_err();
        assert_eq!(refused.code, base::Code::BAD_MESSAGE);
    }
    let mut value = claiming(&["graph", "values"], 1);
    value.extend(claiming(&["type", "shape"], u32::MAX));
    assert_eq!(Graph::from_bytes(&value).unwrap_err().code, base::Code::BAD_MESSAGE);
}

#[test]
fn another_version_is_named() {
    let mut bytes = random_graph(1, 3).to_bytes();
    let at = bytes.windows(7).position(|window| window == b"version").unwrap() + 7;
    bytes[at] = 9;
    let refused = Graph::from_bytes(&bytes).unwrap_err();
    assert_eq!(refused.code, base::Code::OTHER_VERSION);
    // Another version may have another shape altogether.
    let foreign = [&[0x82, 0xa7][..], b"version", &[9, 0xa5], b"other", &[1]].concat();
    assert_eq!(Graph::from_bytes(&foreign).unwrap_err().code, base::Code::OTHER_VERSION);
}
