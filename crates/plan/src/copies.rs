//! Copy sets: in which placement a value with several uses is kept, and which further placements of it are made.

use ir::{MeshAxis, Placement, Reduce, Reshard, TensorType, reshard_steps};
use smallvec::SmallVec;

/// One choice for a value in one part of the step: the placement in which it arrives, and further ones that are made from it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CopySet {
    /// The placement in which it arrives.
    pub source: Placement,
    /// Further placements.
    pub extras: SmallVec<[Placement; 2]>,
}

impl CopySet {
    /// Whether a use that requires `placement` is served without a collective: it is in the set, or a slice of a replicated copy.
    pub fn serves(&self, placement: Placement) -> bool {
        std::iter::once(&self.source).chain(&self.extras).any(|held| follows(*held, placement))
    }
}

/// Whether `to` follows from `from` without communication.
pub fn follows(from: Placement, to: Placement) -> bool {
    use Placement::{Groups, Partial, Replicate, Shard};
    from == to
        || from == Replicate
            && matches!(to, Shard { .. } | Partial(Reduce::Sum | Reduce::Norm) | Groups { .. })
        || matches!((from, to), (Groups { .. }, Partial(Reduce::Sum)))
}

/// The copy sets of a value of type `ty` that comes in one of `sources` and is required in `required`, in a fixed order.
///
/// At most two further placements are made; one that follows from another without communication is not counted.
pub fn copy_sets(
    ty: &TensorType,
    sources: &[Placement],
    required: &[Placement],
    axis: &MeshAxis,
) -> Vec<CopySet> {
    let mut sets = Vec::new();
    for source in sources {
        let useful: Vec<Placement> = required
            .iter()
            .copied()
            .chain([Placement::Replicate])
            .filter(|to| !follows(*source, *to) && !matches!(to, Placement::Partial(_)))
            .filter(|to| reshard_steps(ty, Reshard { from: *source, to: *to }, axis).is_some())
            .collect();
        let mut distinct: Vec<Placement> = Vec::new();
        for placement in useful {
            if !distinct.contains(&placement) {
                distinct.push(placement);
            }
        }
        push(&mut sets, *source, &[]);
        for (position, first) in distinct.iter().enumerate() {
            push(&mut sets, *source, &[*first]);
            for second in &distinct[position + 1..] {
                if *first != Placement::Replicate && *second != Placement::Replicate {
                    push(&mut sets, *source, &[*first, *second]);
                }
            }
        }
    }
    sets
}

fn push(sets: &mut Vec<CopySet>, source: Placement, extras: &[Placement]) {
    sets.push(CopySet { source, extras: extras.into() });
}
