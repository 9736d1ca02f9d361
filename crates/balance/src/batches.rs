//! Micro-batches by rank.

use crate::{
    microbatch::{pack, stretch},
    problem::Problem,
};

/// By rank: its micro-batches.
pub(crate) type Batches = Vec<Vec<Vec<u32>>>;

/// An assignment and what found it.
pub(crate) struct Found {
    pub batches: Batches,
    pub algorithm: String,
}

/// Each rank's samples as one micro-batch, or as few as the cap allows.
pub(crate) fn pack_all(problem: &Problem, samples: Vec<Vec<u32>>) -> Batches {
    let mut batches: Batches = match problem.tokens_per_rank {
        None => samples.into_iter().map(|samples| vec![samples]).collect(),
        Some(cap) => samples.iter().map(|samples| pack(samples, &problem.lengths[0], cap)).collect(),
    };
    if problem.equal_micro_batches {
        even_out(&mut batches);
    }
    batches
}

/// The same number of micro-batches on all ranks.
pub(crate) fn even_out(batches: &mut Batches) {
    let most = batches.iter().map(Vec::len).max().unwrap_or(0);
    for rank in batches {
        stretch(rank, most);
    }
}
