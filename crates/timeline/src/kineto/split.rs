//! Parallel reading of one run of data: the run is split where an element seems to start, read at the same time, and a chunk
//! counts only if the one before ended exactly at its start. So the result is that of reading in order, always.

use rayon::prelude::*;

use super::part::{Ending, Part};

/// Reads the elements of `data` from `start` on into `into`, in up to `pieces` chunks at a time.
pub fn elements(into: &mut Part, data: &[u8], start: usize, pieces: usize, base: u64) -> Ending {
    let cuts = cuts(data, start, pieces);
    if cuts.len() < 2 {
        return into.elements(data, start, usize::MAX, base);
    }
    let stop = |chunk: usize| cuts.get(chunk + 1).copied().unwrap_or(usize::MAX);
    let chunks: Vec<(Part, Ending)> = cuts
        .par_iter()
        .enumerate()
        .map(|(chunk, &from)| {
            let mut part = Part::default();
            let ending = part.elements(data, from, stop(chunk), base);
            (part, ending)
        })
        .collect();
    let mut at = Ending::Boundary(start);
    for (chunk, (part, ending)) in chunks.into_iter().enumerate() {
        let Ending::Boundary(from) = at else { break };
        if from == cuts[chunk] {
            into.append(part);
            at = ending;
        } else if from < stop(chunk) {
            at = into.elements(data, from, stop(chunk), base);
        }
    }
    at
}

/// Where chunks start: `start`, and then wherever an element seems to start near equal distances.
fn cuts(data: &[u8], start: usize, pieces: usize) -> Vec<usize> {
    let mut cuts = vec![start];
    let size = (data.len() - start) / pieces.max(1);
    for piece in 1..pieces {
        let near = start + piece * size;
        match element_start(&data[..data.len().min(near + size)], near) {
            Some(cut) if cut > *cuts.last().expect("starts with one") => cuts.push(cut),
            _ => {}
        }
    }
    cuts
}

/// The first `{` behind `}` and `,`: where an element of a list of objects starts, unless it is inside a string.
fn element_start(data: &[u8], from: usize) -> Option<usize> {
    let blank = |byte: &u8| *byte <= b' ';
    let mut at = from;
    while at < data.len() {
        at += data[at..].iter().position(|&byte| byte == b'}')? + 1;
        let comma = at + data[at..].iter().position(|byte| !blank(byte))?;
        if data[comma] == b',' {
            let brace = comma + 1 + data[comma + 1..].iter().position(|byte| !blank(byte))?;
            if data[brace] == b'{' {
                return Some(brace);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cut_inside_strings_or_nested_lists_do_not_change_the_result() {
        let event = r#"{"ph": "X", "cat": "cpu_op", "name": "a},{\"ph\"", "ts": 1, "dur": 2, "args": {"l": [{"x": 1}, {"y": 2}]}}"#;
        let list = vec![event; 50].join(",\n") + "] ";
        for pieces in 1..40 {
            let mut part = Part::default();
            let ending = elements(&mut part, list.as_bytes(), 0, pieces, 0);
            assert_eq!(
                (ending, part.rank.events.len()),
                (Ending::List(list.len() - 1), 50),
                "{pieces} pieces"
            );
            assert_eq!(part.rank.events.index, (0..50).collect::<Vec<u32>>());
        }
    }
}
