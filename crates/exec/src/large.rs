//! Large results in memory that is [kept](torch_sys::Keeping) when they end: which ones.

use fixedbitset::FixedBitSet;
use torch_sys::{LARGE, Schema, Slot};

use crate::{
    ProgramSpec,
    kernels::is_kernel,
    steps::{Forms, steps_of},
};

/// The same program with large results in memory that is kept, as far as operations write into what they are given, and nobody else gets
/// the tensor.
pub(crate) fn keep_large_results(mut spec: ProgramSpec, schemas: &[Schema]) -> ProgramSpec {
    let forms = Forms::new(schemas);
    let steps = steps_of(&spec, schemas, &forms);
    let is_large = |slot: u32| {
        let info = steps.values[slot as usize];
        info.bytes >= LARGE && info.dense && info.alike.is_some()
    };
    if !(0..spec.slots).any(is_large) {
        return spec;
    }
    let lifetimes = memory::Lifetimes::of(&steps);
    let mut leaving = FixedBitSet::with_capacity(spec.slots as usize);
    let held = steps.steps.iter().filter(|step| step.holds).flat_map(|step| step.reads.iter().copied());
    let returned = spec.returns.iter().filter(|slot| !spec.inner.contains(slot)).map(|slot| slot.0);
    leaving.extend(held.chain(returned).map(|value| lifetimes.root(value) as usize));
    let writes = spec
        .calls
        .iter()
        .zip(&steps.steps)
        .filter(|(call, step)| step.into || is_kernel(&schemas[call.op as usize]));
    let made = writes.flat_map(|(_, step)| step.makes.iter().copied());
    let kept = made.filter(|made| is_large(*made) && !leaving.contains(*made as usize));
    let mut kept: Vec<Slot> = kept.map(Slot).collect();
    kept.sort_unstable();
    spec.kept = kept;
    spec
}

#[cfg(test)]
mod tests {
    use base::Bytes;
    use expect_test::expect;
    use ir::Graph;
    use torch_sys::{Device, Version};

    use crate::{Abilities, BUFFERS, Groups, fuse, lower, rewrite, spec_of};

    const OPS: &str = "unisono graph 2\n\
        op aten::mm(Tensor self, Tensor mat2) -> Tensor\n\
        op aten::silu(Tensor self) -> Tensor\n\
        op aten::mul.Tensor(Tensor self, Tensor other) -> Tensor\n\
        op aten::t(Tensor(a) self) -> Tensor(a)\n\
        op mine::f(Tensor x) -> Tensor\n\
        input v0: f32[4096, 4096] = batch \"x\"\n\
        v1: f32[4096, 4096] = aten::mm(v0, v0)\n";

    /// The body of the program, of which only other programs get returns at these positions.
    fn body(text: &str, inner: &[usize], buffers: Bytes) -> String {
        let graph = Graph::from_text("test", &format!("{OPS}{text}")).unwrap();
        let spec = spec_of(&graph, &Groups::new(), &Device::host()).unwrap();
        let mut spec = fuse(&spec, &graph, &loops::partition(&graph, loops::Rounding::AtStores));
        spec.schemas
            .push("aten::mm.out(Tensor self, Tensor mat2, *, Tensor(a!) out) -> Tensor(a!)".to_owned());
        spec.keep_within(inner);
        let abilities = Abilities::of(Version { major: 2, minor: 13 }, Device::host());
        let program = lower(&rewrite(&spec, &abilities, buffers).unwrap(), &abilities).unwrap();
        program.to_string().split_once("body:\n").unwrap().1.to_owned()
    }

    const CHAIN: &str = "v2: f32[4096, 4096] = aten::mm(v1, v0)\nreturn v2\n";

    #[test]
    fn a_large_result_that_nobody_else_gets_is_written_into_kept_memory() {
        expect![[r"
              %1 = kept float32 [4096, 4096]
              _ = aten::mm.out(%0, %0, %1) by dispatcher
              %2 = aten::mm(%1, %0) by dispatcher; release %1 %0
            return %2
        "]]
        .assert_eq(&body(CHAIN, &[], BUFFERS));
        expect![[r"
              %1 = kept float32 [4096, 4096]
              _ = aten::mm.out(%0, %0, %1) by dispatcher
              %2 = kept float32 [4096, 4096]
              _ = aten::mm.out(%1, %0, %2) by dispatcher; release %1 %0
            return %2
        "]]
        .assert_eq(&body(CHAIN, &[0], BUFFERS));
    }

    #[test]
    fn under_a_memory_limit_nothing_is_kept() {
        assert!(!body(CHAIN, &[0], Bytes(BUFFERS.0 - 1)).contains("kept"));
    }

    #[test]
    fn what_leaves_the_program_by_whatever_name_does_not_lie_in_kept_memory() {
        let view = "v2: f32[4096, 4096]{1, 4096} = aten::t(v1)\nreturn v2\n";
        assert!(!body(view, &[], BUFFERS).contains("kept"));
        assert!(body(view, &[0], BUFFERS).contains("kept"));
        let twice = "v2: f32[4096, 4096] = aten::mm(v1, v0)\nreturn v2, v2\n";
        assert_eq!(body(twice, &[1], BUFFERS), body(twice, &[], BUFFERS));
        let held = "v2: f32[4096, 4096] = mine::f(v1)\nreturn v2\n";
        assert!(!body(held, &[], BUFFERS).contains("kept"));
    }

    #[test]
    fn a_kernel_writes_what_leaves_over_nothing_that_is_kept() {
        let kernel = "v2: f32[4096, 4096] = aten::silu(v1)\nv3: f32[4096, 4096] = aten::mul.Tensor(v2, v0)\nreturn v3\n";
        assert!(body(kernel, &[], BUFFERS).contains("%3 = kernel 0(%1 %0); release"));
        assert!(body(kernel, &[0], BUFFERS).contains("%3 = kernel 0(%1 %0) over %1; release"));
    }
}
