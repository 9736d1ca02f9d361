//! Meshes and placements: how a tensor is distributed over ranks.

use std::{fmt, str::FromStr};

use base::{Code, Diagnostic, Result};

use crate::{Dims, TensorType};

/// How a partial value is reduced.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reduce {
    /// The value is the sum over ranks.
    Sum,
    /// The value is the root of the sum of squares over ranks: 2-norms of disjoint shards.
    Norm,
}

/// Where a tensor is along one mesh axis.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Placement {
    /// Every rank holds the global tensor.
    Replicate,
    /// Dimension `dim` is made of `blocks` equal blocks, and each rank holds a shard of every block, in order, see [`Chunks`].
    /// One block is ordinary sharding; a fused query-key-value dimension sharded by heads has three.
    Shard {
        /// The tensor dimension.
        dim: u8,
        /// The number of blocks; at least 1.
        blocks: u32,
        /// How many elements of a block each rank holds, as long as there are any; 0 for the usual number, which is the block's size over
        /// the number of ranks, rounded up.
        chunk: u32,
    },
    /// Every rank holds a tensor of the global shape; the value is their reduction.
    Partial(Reduce),
    /// Dimension `dim` is divided into groups by offsets that are known at run time only, and each rank holds the elements of some groups. How
    /// many these are is known at run time only too: shapes say how many there are where all groups are equally large, see [`expected`].
    Groups {
        /// The tensor dimension.
        dim: u8,
    },
}

impl Placement {
    /// Ordinary sharding of `dim`.
    pub const fn shard(dim: usize) -> Self {
        Self::Shard { dim: dim as u8, blocks: 1, chunk: 0 }
    }

    /// Whether each rank has the elements of some groups.
    pub const fn is_groups(self) -> bool {
        matches!(self, Self::Groups { .. })
    }

    /// The sharding of a dimension of `size` in `blocks` blocks, of each of which a rank holds `chunk` elements; none where the blocks do
    /// not divide the size, or the ranks would not hold all of it.
    pub fn in_chunks(dim: usize, blocks: u32, chunk: i64, size: i64, ranks: u32) -> Option<Self> {
        let usual = Chunks::new(size, blocks, 0, ranks)?;
        let chunk =
            if chunk == usual.chunk { 0 } else { u32::try_from(chunk).ok().filter(|chunk| *chunk > 0)? };
        Chunks::new(size, blocks, chunk, ranks)?;
        Some(Self::Shard { dim: u8::try_from(dim).ok()?, blocks, chunk })
    }

    /// The dimension of a tensor of `shape` that is sharded, and who holds what of it; none for what is not sharded, or cannot be.
    pub fn chunks(self, shape: &[i64], ranks: u32) -> Option<(usize, Chunks)> {
        let Self::Shard { dim, blocks, chunk } = self else { return None };
        let size = shape.get(usize::from(dim))?;
        Some((usize::from(dim), Chunks::new(*size, blocks, chunk, ranks)?))
    }

    /// Whether ranks hold shards of different sizes of a tensor of `shape`.
    pub fn is_uneven(self, shape: &[i64], ranks: u32) -> bool {
        self.chunks(shape, ranks).is_some_and(|(_, chunks)| !chunks.is_even())
    }
}

/// Who holds what of a sharded dimension: of each of its blocks the first rank the first `chunk` elements, the second the next, and so on.
/// The last ranks may hold less, or nothing. `torch.chunk` and `DTensor` deal out dimensions so.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chunks {
    /// The number of blocks.
    pub blocks: i64,
    /// The size of a block.
    pub block: i64,
    /// What the first rank holds of a block.
    pub chunk: i64,
    /// The number of ranks.
    pub ranks: i64,
}

impl Chunks {
    /// A dimension of `size` in `blocks` blocks over `ranks`, in chunks of the usual size where `chunk` is 0; none where the blocks do not
    /// divide the size, or the ranks would not hold all of it.
    pub fn new(size: i64, blocks: u32, chunk: u32, ranks: u32) -> Option<Self> {
        let (blocks, ranks) = (i64::from(blocks), i64::from(ranks));
        if size <= 0 || blocks <= 0 || ranks <= 0 || size % blocks != 0 {
            return None;
        }
        let block = size / blocks;
        let chunk = if chunk == 0 { (block + ranks - 1) / ranks } else { i64::from(chunk) };
        (chunk <= block && chunk.checked_mul(ranks)? >= block).then_some(Self { blocks, block, chunk, ranks })
    }

    /// Whether all ranks hold equally much.
    pub const fn is_even(&self) -> bool {
        self.chunk * self.ranks == self.block
    }

    /// Whether some rank holds nothing.
    pub const fn leaves_empty(&self) -> bool {
        self.chunk * (self.ranks - 1) >= self.block
    }

    /// How many ranks hold something.
    pub const fn holders(&self) -> i64 {
        (self.block + self.chunk - 1) / self.chunk
    }

    /// Where in each block the shard of the rank at `coordinate` begins, and how many elements it has there.
    pub fn part(&self, coordinate: u32) -> (i64, i64) {
        let start = (self.chunk * i64::from(coordinate)).min(self.block);
        (start, self.chunk.min(self.block - start))
    }

    /// The different sizes of the ranks' shards of a block.
    pub fn sizes(&self) -> Dims {
        // Of the whole chunks, of the one that is not whole, and of nothing.
        let rest = self.block % self.chunk;
        let others = (self.holders() < self.ranks).then_some(0);
        std::iter::once(self.chunk).chain((rest > 0).then_some(rest)).chain(others).collect()
    }

    /// The size of a block with which all ranks would hold equally much.
    pub const fn padded(&self) -> i64 {
        self.chunk * self.ranks
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Replicate => f.write_str("replicate"),
            Self::Shard { dim, blocks: 1, chunk: 0 } => write!(f, "shard({dim})"),
            Self::Shard { dim, blocks, chunk: 0 } => write!(f, "shard({dim}, {blocks})"),
            Self::Shard { dim, blocks, chunk } => write!(f, "shard({dim}, {blocks}, {chunk})"),
            Self::Partial(Reduce::Sum) => f.write_str("partial(sum)"),
            Self::Partial(Reduce::Norm) => f.write_str("partial(norm)"),
            Self::Groups { dim } => write!(f, "groups({dim})"),
        }
    }
}

impl FromStr for Placement {
    /// What is wrong, in a few words.
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is none of replicate, shard(DIM), shard(DIM, BLOCKS), shard(DIM, BLOCKS, CHUNK), partial(sum|norm), groups(DIM)"
            )
        };
        let (head, rest) = text.trim().split_once('(').unwrap_or((text.trim(), ")"));
        let arguments = rest.strip_suffix(')').ok_or_else(wrong)?;
        match (head.trim(), arguments.trim()) {
            ("replicate", "") => Ok(Self::Replicate),
            ("partial", "sum") => Ok(Self::Partial(Reduce::Sum)),
            ("partial", "norm") => Ok(Self::Partial(Reduce::Norm)),
            ("groups", dim) => Ok(Self::Groups { dim: dim.parse().map_err(|_| wrong())? }),
            ("shard", arguments) => {
                let (dim, rest) = arguments.split_once(',').unwrap_or((arguments, "1"));
                let (blocks, chunk) =
                    rest.split_once(',').map_or((rest, None), |(blocks, chunk)| (blocks, Some(chunk)));
                let number = |text: &str| {
                    text.trim().parse().ok().filter(|number: &u32| *number > 0).ok_or_else(wrong)
                };
                let dim = dim.trim().parse().map_err(|_| wrong())?;
                let chunk = chunk.map_or(Ok(0), number)?;
                Ok(Self::Shard { dim, blocks: number(blocks)?, chunk })
            }
            _ => Err(wrong()),
        }
    }
}

base::serialized_as_text!(Placement);

/// The local shape, on the first of `ranks` ranks along an axis, which holds the most, of a tensor of global `shape`.
pub fn local_shape(shape: &[i64], placement: Placement, ranks: u32) -> Dims {
    local_shape_at(shape, placement, ranks, 0)
}

/// The local shape on the rank at `coordinate`.
pub fn local_shape_at(shape: &[i64], placement: Placement, ranks: u32, coordinate: u32) -> Dims {
    let mut local: Dims = shape.into();
    if let Placement::Groups { dim } = placement {
        local[usize::from(dim)] = expected(shape[usize::from(dim)], ranks);
    } else if let Some((dim, chunks)) = placement.chunks(shape, ranks) {
        local[dim] = chunks.blocks * chunks.part(coordinate).1;
    }
    local
}

/// How many of `size` elements each of `ranks` holds where all groups are equally large. It is never 1, of which more would be known than of
/// other sizes: such a dimension may lie anywhere in memory, and repeats for others.
pub fn expected(size: i64, ranks: u32) -> i64 {
    let ranks = i64::from(ranks.max(1));
    ((size + ranks - 1) / ranks).max(2)
}

/// The bytes of the local tensor, on the first of `ranks` ranks along an axis, which holds the most, of a tensor of a global type.
pub fn local_bytes(ty: &TensorType, placement: Placement, ranks: u32) -> u64 {
    local_shape(&ty.shape, placement, ranks).iter().product::<i64>() as u64 * ty.dtype.bytes()
}

/// What lies along an axis.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AxisKind {
    /// Ranks, which run at the same time.
    #[default]
    Ranks,
    /// Micro-batches, which every rank runs one after the other: what is sharded along it exists in one iteration at a time, and what is
    /// partial is added up.
    Time,
    /// Stages of a pipeline: ranks that run at the same time, each its part of the program. No tensor is sharded along it.
    Stage,
}

/// The name of the axis of pipeline stages.
pub const STAGES: &str = "stages";

/// The name of the axis of micro-batches, which no axis of ranks may have.
pub const MICRO_BATCHES: &str = "micro_batches";

/// One named axis of a mesh.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MeshAxis {
    /// The axis's name, as pins and plans use it.
    pub name: String,
    /// How many ranks, micro-batches or stages lie along it.
    pub size: u32,
    /// Which of them.
    pub kind: AxisKind,
}

impl MeshAxis {
    /// An axis of ranks; of pipeline stages if it is called so.
    pub fn ranks(name: impl Into<String>, size: u32) -> Self {
        let name = name.into();
        let kind = if name == STAGES { AxisKind::Stage } else { AxisKind::Ranks };
        Self { name, size, kind }
    }

    /// The axis of micro-batches.
    pub fn micro_batches(count: u32) -> Self {
        Self { name: MICRO_BATCHES.into(), size: count, kind: AxisKind::Time }
    }

    /// How many ranks lie along it: of micro-batches all on one.
    pub const fn rank_count(&self) -> u32 {
        match self.kind {
            AxisKind::Ranks | AxisKind::Stage => self.size,
            AxisKind::Time => 1,
        }
    }
}

/// Named axes with sizes; ranks are numbered in row-major order, the last axis fastest. An axis of micro-batches comes last.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Mesh {
    /// The axes, outermost first.
    pub axes: Vec<MeshAxis>,
}

impl Mesh {
    /// How many ranks there are.
    pub fn ranks(&self) -> u32 {
        self.axes.iter().map(MeshAxis::rank_count).product()
    }

    /// The axis of micro-batches, if there is one.
    pub fn time_axis(&self) -> Option<&MeshAxis> {
        self.axes.iter().find(|axis| axis.kind == AxisKind::Time)
    }

    /// The axis of pipeline stages, if there is one, and where it is among the axes.
    pub fn stage_axis(&self) -> Option<(usize, &MeshAxis)> {
        self.axes.iter().enumerate().find(|(_, axis)| axis.kind == AxisKind::Stage)
    }

    /// The axes that tensors are sharded along, the outermost first.
    pub fn sharding_axes(&self) -> impl Iterator<Item = &MeshAxis> {
        self.axes.iter().filter(|axis| axis.kind != AxisKind::Stage)
    }

    /// Whether ranks along the axis called `name` may hold shards of different sizes: not where axes within it are to divide these, because
    /// what is decided along an axis holds for all ranks of those outside it.
    pub fn may_be_uneven(&self, name: &str) -> bool {
        let within = self.axes.iter().rev().take_while(|axis| axis.name != name);
        within.filter(|axis| axis.kind != AxisKind::Stage).all(|axis| axis.size == 1)
            && self.axis(name).is_some_and(|axis| axis.kind == AxisKind::Ranks)
    }

    /// How many pipeline stages there are.
    pub fn stages(&self) -> u32 {
        self.stage_axis().map_or(1, |(_, axis)| axis.size)
    }

    /// How many micro-batches a rank computes one after the other.
    pub fn micro_batches(&self) -> u32 {
        self.time_axis().map_or(1, |axis| axis.size)
    }

    /// The axes with their sizes, as users write them: `data=2,tensor=4`.
    pub fn text(&self) -> String {
        let axes: Vec<String> = self.axes.iter().map(|axis| format!("{}={}", axis.name, axis.size)).collect();
        axes.join(",")
    }

    /// Whether one rank does everything at once.
    pub fn is_trivial(&self) -> bool {
        self.axes.iter().all(|axis| axis.size == 1)
    }

    /// A mesh of one axis.
    pub fn along(name: impl Into<String>, size: u32) -> Self {
        Self { axes: vec![MeshAxis::ranks(name, size)] }
    }

    /// Checks that every axis has a name of its own and at least one rank.
    pub fn check(&self) -> Result<()> {
        let bad = |what: String| {
            let hint = "name axes with at least one rank each, such as {\"data\": 2, \"tensor\": 4}";
            Err(Diagnostic::new(Code::BAD_MESH, what).hint(hint))
        };
        if self.axes.is_empty() {
            return bad("a mesh without an axis".into());
        }
        for (number, axis) in self.axes.iter().enumerate() {
            if axis.size == 0 && axis.kind == AxisKind::Time {
                let message = "a step in 0 micro-batches".to_owned();
                return Err(
                    Diagnostic::new(Code::BAD_MESH, message).hint("use 1, which is the whole batch at once")
                );
            }
            if axis.size == 0 {
                return bad(format!("a mesh axis `{}` of 0 ranks", axis.name));
            }
            if self.axes[..number].iter().any(|other| other.name == axis.name) {
                return bad(format!("two mesh axes are called `{}`", axis.name));
            }
        }
        match self.axes.iter().try_fold(1_u32, |product, axis| product.checked_mul(axis.rank_count())) {
            Some(_) => Ok(()),
            None => bad("a mesh of more ranks than can be counted".into()),
        }
    }

    /// The axis called `name`.
    pub fn axis(&self, name: &str) -> Option<&MeshAxis> {
        self.axes.iter().find(|axis| axis.name == name)
    }

    /// How many ranks lie along the axis called `name`; 1 where there is none.
    pub fn size_of(&self, name: &str) -> u32 {
        self.axis(name).map_or(1, MeshAxis::rank_count)
    }

    /// How far apart in number the neighbours along the axis called `name` are: the ranks of the axes inside it.
    pub fn stride_of(&self, name: &str) -> u32 {
        let inside = self.axes.iter().rev().take_while(|axis| axis.name != name);
        inside.map(MeshAxis::rank_count).product()
    }

    /// The position of `rank` along the axis number `axis`.
    pub fn coordinate(&self, rank: u32, axis: usize) -> u32 {
        let inner: u32 = self.axes[axis + 1..].iter().map(MeshAxis::rank_count).product();
        rank / inner % self.axes[axis].rank_count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placements_round_trip_through_text() {
        for text in [
            "replicate",
            "shard(0)",
            "shard(2, 3)",
            "shard(0, 1, 64)",
            "partial(sum)",
            "partial(norm)",
            "groups(1)",
        ] {
            assert_eq!(text.parse::<Placement>().unwrap().to_string(), text);
        }
        for wrong in [
            "",
            "shard",
            "shard(x)",
            "shard(0, 0)",
            "partial(mean)",
            "groups",
            "replicate(1)",
            "shard(1",
            "shard(0, 1, 0)",
        ] {
            assert!(wrong.parse::<Placement>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_dimension_is_dealt_out_as_torch_chunk_does() {
        let sizes = |size, blocks, chunk, ranks| {
            let chunks = Chunks::new(size, blocks, chunk, ranks)?;
            Some((0..ranks).map(|rank| chunks.part(rank).1).collect::<Vec<_>>())
        };
        assert_eq!(sizes(8, 1, 0, 4), Some(vec![2, 2, 2, 2]));
        assert_eq!(sizes(7, 1, 0, 3), Some(vec![3, 3, 1]));
        assert_eq!(sizes(5, 1, 0, 4), Some(vec![2, 2, 1, 0]));
        assert_eq!(sizes(1, 1, 0, 3), Some(vec![1, 0, 0]));
        assert_eq!(sizes(768, 1, 256, 4), Some(vec![256, 256, 256, 0]));
        assert_eq!(sizes(75, 3, 0, 8), Some(vec![4, 4, 4, 4, 4, 4, 1, 0]));
        for (size, blocks, chunk, ranks) in [(0, 1, 0, 2), (7, 2, 0, 2), (7, 1, 2, 3), (7, 1, 8, 3)] {
            assert_eq!(sizes(size, blocks, chunk, ranks), None);
        }
    }

    #[test]
    fn chunks_of_the_usual_size_are_not_written_down() {
        let placed = |chunk| Placement::in_chunks(0, 1, chunk, 768, 4).map(|placement| placement.to_string());
        assert_eq!(placed(192).as_deref(), Some("shard(0)"));
        assert_eq!(placed(256).as_deref(), Some("shard(0, 1, 256)"));
        assert_eq!(placed(100), None);
    }

    #[test]
    fn the_last_axis_of_a_mesh_counts_fastest() {
        let mut mesh = Mesh { axes: vec![MeshAxis::ranks("a", 2), MeshAxis::ranks("b", 3)] };
        assert_eq!((mesh.ranks(), mesh.coordinate(4, 0), mesh.coordinate(4, 1)), (6, 1, 1));
        assert_eq!((mesh.stride_of("a"), mesh.stride_of("b")), (3, 1));
        mesh.axes.push(MeshAxis::micro_batches(4));
        assert_eq!((mesh.ranks(), mesh.coordinate(4, 0), mesh.coordinate(4, 2)), (6, 1, 0));
    }
}
