//! Kernels as one program of CUDA C.

use base::Result;
use ir::{Graph, NodeId};
use loops::{Access, Group, Kernel, Nest, Partition, Rounding, verify};

use crate::{
    draw::Draw,
    emit::{Emitted, Function, emit},
    form::Width,
    functions::definitions,
};

const HEAD: &str = "\
// Arithmetic is in single precision, each step rounded by itself: compile without contraction (`--fmad=false`).
";
const SCALED: &str = include_str!("scaled.h");
const PRELUDE: &str = include_str!("prelude.h");
/// What begins the part of it that is the same for all types.
const ACCESSES: &str = "\n// As many elements";
const HALF: &str = include_str!("half.h");
const DRAW: &str = include_str!("draw.h");
const JOINS: &str = include_str!("joins.h");

/// Kernels that are compiled together.
pub struct Source {
    /// The program.
    pub text: String,
    /// The kernels, or why one is none.
    pub kernels: Vec<std::result::Result<Emitted, String>>,
    /// The functions that draw.
    pub draws: Vec<Function>,
}

impl Source {
    /// The program of some kernels; equal ones are written twice. Fails where a kernel is not [valid](verify).
    pub fn of(kernels: &[Kernel], width: Width) -> Result<Self> {
        Self::with_draws(kernels, &[], width)
    }

    /// The same with random numbers.
    pub fn with_draws(kernels: &[Kernel], draws: &[Draw], width: Width) -> Result<Self> {
        let mut emitted = Vec::with_capacity(kernels.len());
        for (index, kernel) in kernels.iter().enumerate() {
            verify(kernel)?;
            emitted.push(emit(kernel, &format!("k{index}"), width));
        }
        let draws = draws.iter().enumerate().map(|(index, draw)| draw.emit(format!("d{index}")));
        let (texts, draws): (Vec<String>, Vec<Function>) = draws.unzip();
        let bodies = emitted.iter().flatten().map(|kernel| kernel.text.as_str());
        let bodies: Vec<&str> = bodies.chain(texts.iter().map(String::as_str)).collect();
        Ok(Self { text: whole(&bodies.join("\n")), kernels: emitted, draws })
    }
}

/// The fewest rows, and the longest for fewer, that fill a device: a row has one block.
const FEW_ROWS: usize = 32;
const LONG_ROW: usize = 1 << 14;
/// The fewest rows of a group that is worth a kernel for its rows alone.
const ROWS: usize = 512;

/// A graph's groups that are kernels on a device: those that move less than their operations. Of single operations PyTorch's own kernels move as
/// little, but for what gives rows and sums over rows, for which it has a kernel each, and for rows that it reads twice and a kernel once.
pub fn partition(graph: &Graph, rounding: Rounding) -> Partition {
    loops::partition_unless(graph, rounding, &|group: &Group| {
        let nest = Nest::of(&group.kernel);
        let reason = match group.saved.0 {
            _ if group.kernel.by_rows() && nest.rows() < FEW_ROWS && nest.inner > LONG_ROW => {
                "few rows, which are long"
            }
            0 if !is_worth_alone(graph, group, &nest) => "PyTorch's own kernel moves as little",
            _ if !has_form(&group.kernel) => "no form in CUDA C",
            _ => return None,
        };
        Some(reason.to_owned())
    })
}

/// Whether a kernel reads once what PyTorch reads twice: it writes points and adds rows up in one pass, or holds rows that PyTorch is slow at.
fn is_worth_alone(graph: &Graph, group: &Group, nest: &Nest) -> bool {
    let kernel = &group.kernel;
    let has = |access| kernel.operands.iter().any(|operand| operand.access == access);
    let is_slow = |node: &NodeId| {
        let formula = aten::row(graph.op_name(*node)).and_then(|row| row.formula);
        formula.is_some_and(|formula| formula.slow_rows)
    };
    let two_in_one = has(Access::Write) && has(Access::Add);
    let slow_rows = nest.rows() >= ROWS && group.nodes.iter().any(is_slow);
    let is_read_once =
        |emitted: Emitted| two_in_one && !emitted.reads_again || slow_rows && emitted.holds_rows;
    (two_in_one || slow_rows)
        && verify(kernel).is_ok()
        && emit(kernel, "k", Width::Wide).is_ok_and(is_read_once)
}

/// Whether a kernel that is valid has a form in CUDA C.
pub fn has_form(kernel: &Kernel) -> bool {
    verify(kernel).is_ok()
        && [Width::Wide, Width::Narrow].iter().all(|width| emit(kernel, "k", *width).is_ok())
}

/// The kernels with what they take of the rest.
fn whole(bodies: &str) -> String {
    let joins = if bodies.contains("joined") { JOINS } else { "" };
    let (before, accesses) = PRELUDE.split_at(PRELUDE.find(ACCESSES).unwrap_or(0));
    let half = if bodies.contains("half_bits") { HALF } else { "" };
    let drawn = if bodies.contains("at_position(") { DRAW } else { "" };
    let rest = [before, half, accesses, joins, drawn, "\n", bodies].concat();
    let functions = definitions(&rest);
    let scaled = if functions.contains("scaled(") { SCALED } else { "" };
    [HEAD, scaled, &functions, &rest].concat()
}
