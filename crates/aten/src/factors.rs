//! Factors: the indices of an operation's iteration space, and what sharding each of them means.

use ir::{Placement, Reduce};
use smallvec::SmallVec;

use crate::{Call, Realise, Seed, Strategy, strategy::Slot};

/// What sharding a factor means for results that do not have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FactorKind {
    /// Every result has it.
    Parallel,
    /// Results without it are partial.
    Reduce(Reduce),
}

/// An index of an operation's iteration space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Factor {
    /// How many values it takes.
    pub size: i64,
    /// What sharding it means.
    pub kind: FactorKind,
    /// What becomes of the operation when it is sharded.
    pub realise: Realise,
    /// Whether it may be sharded inside blocks.
    pub blocks: bool,
}

/// For each dimension of a tensor the factor that it runs over; `None` where it cannot be sharded.
pub type DimMap = SmallVec<[Option<usize>; 4]>;

/// The iteration space of an operation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Factors {
    /// The indices.
    pub factors: Vec<Factor>,
    /// For each operand, the factor of each dimension.
    pub operands: Vec<DimMap>,
    /// For each result, the factor of each dimension.
    pub results: Vec<DimMap>,
}

impl Factors {
    /// An iteration space without factors: no dimension can be sharded.
    pub fn none(call: &Call<'_>) -> Self {
        let unsharded = |rank| SmallVec::from_elem(None, rank);
        Self {
            factors: Vec::new(),
            operands: (0..call.operands.len()).map(|i| unsharded(call.operand(i).rank())).collect(),
            results: (0..call.results.len()).map(|i| unsharded(call.result(i).rank())).collect(),
        }
    }

    /// An iteration space whose factors are those of `dims` that all operands and results have in the same size.
    pub fn shared(call: &Call<'_>, dims: impl IntoIterator<Item = usize>) -> Self {
        let mut space = Self::none(call);
        for dim in dims {
            let operands = (0..call.operands.len()).map(|i| call.operand(i));
            let types = operands.chain((0..call.results.len()).map(|i| call.result(i)));
            let mut sizes = types.map(|ty| ty.shape.get(dim));
            if let Some(Some(size)) = sizes.next()
                && sizes.all(|other| other == Some(size))
            {
                let factor = space.add(*size, FactorKind::Parallel);
                space.operands.iter_mut().chain(&mut space.results).for_each(|map| map[dim] = Some(factor));
            }
        }
        space
    }

    /// Adds a factor and returns its number.
    pub fn add(&mut self, size: i64, kind: FactorKind) -> usize {
        self.factors.push(Factor { size, kind, realise: Realise::Plain, blocks: true });
        self.factors.len() - 1
    }

    /// Adds a factor that is realised in a special way and not sharded inside blocks.
    pub fn add_special(&mut self, size: i64, kind: FactorKind, realise: Realise) -> usize {
        self.factors.push(Factor { size, kind, realise, blocks: false });
        self.factors.len() - 1
    }

    /// Lets dimension `dim` of an operand run over `factor`; none where there is no such dimension.
    pub fn operand(&mut self, operand: usize, dim: usize, factor: usize) -> Option<()> {
        *self.operands.get_mut(operand)?.get_mut(dim)? = Some(factor);
        Some(())
    }

    /// Lets dimension `dim` of a result run over `factor`; none where there is no such dimension.
    pub fn result(&mut self, result: usize, dim: usize, factor: usize) -> Option<()> {
        *self.results.get_mut(result)?.get_mut(dim)? = Some(factor);
        Some(())
    }

    /// Lets dimension `dim` of every result run over `factor`; none where one has no such dimension.
    pub fn all_results(&mut self, dim: usize, factor: usize) -> Option<()> {
        (0..self.results.len()).try_for_each(|result| self.result(result, dim, factor))
    }

    /// The strategy in which the factor of the seed's dimension is sharded. A dimension may have several elements for each value of its
    /// factor, such as heads of queries for each head of keys, which stay together.
    pub fn seeded(&self, call: &Call<'_>, seed: Seed, ranks: u32) -> Option<Strategy> {
        let (map, shape) = match seed.slot {
            Slot::Operand(operand) => (self.operands.get(operand)?, &call.operand(operand).shape),
            Slot::Result(result) => (self.results.get(result)?, &call.result(result).shape),
        };
        let number = (*map.get(seed.dim)?)?;
        let factor = self.factors[number];
        if seed.blocks > 1 && !factor.blocks {
            return None;
        }
        let width = |size: i64| (factor.size > 0 && size % factor.size == 0).then(|| size / factor.size);
        let (chunks, wide) = (seed.chunks(shape, ranks)?, width(*shape.get(seed.dim)?)?);
        if chunks.chunk % wide != 0 {
            return None;
        }
        let dim_of = |map: &DimMap| map.iter().position(|dim| *dim == Some(number));
        let shard = |shape: &[i64], dim: usize| {
            let size = *shape.get(dim)?;
            Placement::in_chunks(dim, seed.blocks, chunks.chunk / wide * width(size)?, size, ranks)
        };
        let without = match factor.kind {
            FactorKind::Parallel => Placement::Replicate,
            FactorKind::Reduce(reduce) => Placement::Partial(reduce),
        };
        debug_assert_eq!(self.operands.len(), call.operands.len(), "{}", call.name());
        let operands = self.operands.iter().enumerate().map(|(operand, map)| match dim_of(map) {
            Some(dim) => shard(&call.operand(operand).shape, dim),
            None => Some(Placement::Replicate),
        });
        let results = self.results.iter().enumerate().map(|(result, map)| match dim_of(map) {
            Some(dim) => shard(&call.result(result).shape, dim),
            None => Some(without),
        });
        Some(Strategy {
            operands: operands.collect::<Option<_>>()?,
            results: results.collect::<Option<_>>()?,
            realise: factor.realise,
        })
    }
}
