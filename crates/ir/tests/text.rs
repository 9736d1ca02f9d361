//! The text form: what is printed is read back, and mistakes are named with line and column.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use expect_test::{Expect, expect};
use unisono_ir::{Graph, testing::random_graph};

const GRAPH: &str = r#"unisono graph 2

op aten::mm(Tensor self, Tensor mat2) -> Tensor
op aten::max.dim(Tensor self, int dim, bool keepdim=False) -> (Tensor values, Tensor indices)
op aten::index.Tensor(Tensor self, Tensor?[] indices) -> Tensor
op aten::split_with_sizes(Tensor(a -> *) self, SymInt[] split_sizes, int dim=0) -> Tensor(a)[]
op aten::to.device(Tensor self, Device device, ScalarType dtype, MemoryFormat? memory_format=None) -> Tensor
op custom::odd(Tensor self, float[] scales, bool[] mask, str[] names, Layout layout, float eps) -> () rule "b _ ->"

input v0: f32[8, 4] = parameter "params.w"
input v1: f32[4, 8]{1, 4} cuda:1 = batch "batch.\"0\""

v2: f32[4, 4] = aten::mm(v1, v0) @p0 m0
part backward
(_, v3: i64[4]) = aten::max.dim(v2, -1, false)
v4: f32[4, 4] = aten::index.Tensor(v2, [none, v3]) @p1 m1 l0
part update
[v5: f32[4, 4], v6: f32[4, 4]] = aten::split_with_sizes(v0, [4, 4], 0)
part forward
v7: bf16[4, 4] cuda:0 = aten::to.device(v6, device(cuda:0), bf16, format(contiguous))
() = custom::odd(v7, floats[], [true, false], ["a\n", "\u{7}é"], layout(strided), 1e-8) @p0
() = custom::odd(v7, [0.5, nan, -inf], bools[], strs[], layout(strided), -0.0)

return v4, v0

update "params.w" = v0

place p0 "train.py":12:5
place p1 "a \"b\".py"

module m0 "blocks.0"
module m1 ""

label l0 "common_subexpressions: of v1"
"#;

#[test]
fn every_part_of_the_form_round_trips() {
    let graph = Graph::from_text("test", GRAPH).unwrap();
    assert_eq!(graph.to_string(), GRAPH);
    assert_eq!(Graph::from_bytes(&graph.to_bytes()).unwrap().to_string(), GRAPH);
}

#[test]
fn numbers_blanks_and_comments_are_free() {
    let text = "# a test\nunisono graph 2 # one\nop aten::relu(Tensor self) -> Tensor\ninput  v70 :f32[ 2,3 ]=batch\"x\"\n\
                place p9 \"f\":3\n  v5: f32[2, 3] = aten::relu( v70 )@p9\nreturn v5 # the end\n";
    expect![[r#"
        unisono graph 2

        op aten::relu(Tensor self) -> Tensor

        input v0: f32[2, 3] = batch "x"

        v1: f32[2, 3] = aten::relu(v0) @p0

        return v1

        place p0 "f":3
    "#]]
    .assert_eq(&Graph::from_text("test", text).unwrap().to_string());
}

#[test]
fn random_graphs_round_trip_and_print_the_same_renumbered() {
    for seed in 0..300 {
        let graph = random_graph(seed, 40);
        let text = graph.to_string();
        let read = Graph::from_text("test", &text).unwrap();
        assert_eq!(read.to_bytes(), graph.renumbered().to_bytes(), "seed {seed}");
        assert_eq!(read.to_string(), text, "seed {seed}");
        assert_eq!(read.fingerprint(), graph.fingerprint(), "seed {seed}");
    }
}

#[test]
fn mutated_texts_are_read_or_refused() {
    let texts: Vec<String> =
        (0..8).map(|seed| random_graph(seed, 12).to_string()).chain([GRAPH.into()]).collect();
    let pieces = [
        "\"",
        "[",
        "]",
        "(",
        ")",
        "\n",
        "v0",
        "v9999999999",
        "-",
        "@",
        "p1",
        "#",
        "é",
        "\\u{",
        "{",
        "1e999",
        ",",
    ];
    base::testing::cases(2000, |u| {
        let mut text: Vec<char> = u.choose(&texts)?.chars().collect();
        for _ in 0..u.int_in_range(1..=4)? {
            let at = u.choose_index(text.len())?;
            match u.int_in_range(0..=3)? {
                0 => text[at] = u.arbitrary()?,
                1 => drop(text.splice(at..at, u.choose(&pieces)?.chars())),
                2 => drop(text.drain(at..(at + u.int_in_range(1..=20)?).min(text.len()))),
                _ => text.swap(at, 0),
            }
            text.push('\n');
        }
        let text: String = text.into_iter().collect();
        match Graph::from_text("test", &text) {
            // Whatever is accepted prints, and reads again as the same.
            Ok(graph) => {
                let printed = graph.to_string();
                assert_eq!(Graph::from_text("test", &printed).unwrap().to_string(), printed);
            }
            Err(diagnostic) => assert!(!diagnostic.to_string().is_empty()),
        }
        Ok(())
    });
}

/// What is said about `GRAPH` with each of `changes`, a text and what stands for it.
fn refused(changes: &[(&str, &str)], expected: &Expect) {
    let message = |(old, new): &(&str, &str)| {
        let changed = GRAPH.replacen(old, new, 1);
        assert_ne!(changed, GRAPH, "{old} is not in the graph");
        format!("{}\n", Graph::from_text("step.txt", &changed).unwrap_err())
    };
    expected.assert_eq(&changes.iter().map(message).collect::<String>());
}

#[test]
fn mistakes_in_statements_are_named() {
    refused(
        &[
            ("unisono graph 2", "unison graph 2"),
            ("graph 2", "graph 7"),
            ("op aten::mm", "op mm"),
            ("op aten::max.dim", "op aten::mm"),
            ("input v1", "inptu v1"),
            ("update \"params.w\"", "update \"param.w\""),
            ("place p1", "place p0"),
            ("return v4", "return v40"),
            ("aten::mm(v1, v0)", "aten::nm(v1, v0)"),
            ("parameter", "param"),
        ],
        &expect![[r#"
            error[U0011]: expected the header line, found `unison graph 2`
              at step.txt:1:1
              hint: a graph begins with the line `unisono graph 2`
            error[U0015]: a graph of version 7, and this Unisono reads version 2
              at step.txt:1
            error[U0011]: expected an operator, found `mm(Tensor self, Tensor m`
              at step.txt:3:4
              because `mm(Tensor self, Tensor mat2) -> Tensor` is no schema such as `aten::mm(Tensor self, Tensor mat2) -> Tensor`
            error[U0011]: the operator aten::mm is there already
              at step.txt:4:4
            error[U0011]: expected `v`, found `inptu v1: f32[4, 8]{1, 4`
              at step.txt:11:1
              hint: did you mean `input`?
            error[U0011]: there is no input named "param.w"
              at step.txt:26:8
              hint: did you mean `params.w`?
            error[U0011]: p0 is there already
              at step.txt:29:7
            error[U0011]: v40 is not defined
              at step.txt:24:8
              hint: definitions stand above uses
            error[U0011]: expected an operator of the table, found `aten::nm(v1, v0) @p0 m0`
              at step.txt:13:17
              hint: did you mean `aten::mm`?
            error[U0011]: expected a class of inputs, found `param "params.w"`
              at step.txt:10:23
              hint: known: parameter, buffer, optimizer, constant, batch, hyper
        "#]],
    );
}

#[test]
fn mistakes_in_nodes_are_named() {
    refused(
        &[
            ("mm(v1, v0)", "mm(v1 v0)"),
            ("mm(v1, v0)", "mm(v2, v0)"),
            ("v3: i64", "v2: i64"),
            ("v3: i64[4]", "v3: int64[4]"),
            ("[none, v3]", "[none, 3]"),
            ("\"a\\n\"", "\"a\\q\""),
            ("0.5, nan", "1e999, nan"),
            ("cuda:1", "gpu:x"),
            ("{1, 4}", "{1, 4, 4}"),
            ("f32[8, 4]", "f32[8, -4]"),
            ("@p0 m0", "@p7 m0"),
            ("@p1 m1", "@p1 x1"),
            ("part backward", "part backwards"),
            ("aten::max.dim(v2, -1, false)", "aten::max.dim(v2, -1)"),
        ],
        &expect![[r#"
            error[U0011]: expected `,` or `)`, found `v0) @p0 m0`
              at step.txt:13:29
            error[U0011]: v2 is not defined
              at step.txt:13:26
              hint: definitions stand above uses
            error[U0011]: v2 is defined twice
              at step.txt:15:47
            error[U0011]: expected an element type, found `int64[4]) = aten::max.di`
              at step.txt:15:9
              hint: did you mean `i64`?
            error[U0011]: expected an element of the same kind as the one before it, found `3]) @p1 m1 l0`
              at step.txt:16:47
            error[U0011]: an unknown escape
              at step.txt:21:51
              hint: known: \n \t \r \" \\ \u{HEX}
            error[U0011]: expected an argument, found `1e999, nan, -inf], bools`
              at step.txt:22:23
              hint: arguments: v0, none, 1, 0.5, nan, true, f32, "text", [1, 2], layout(..), format(..), device(..)
            error[U0011]: expected a device, found `gpu:x = batch "batch.\"0`
              at step.txt:11:27
              because `gpu:x` is none of cpu, meta, KIND:INDEX
            error[U0014]: v1: 3 strides for 2 dimensions
              at step.txt
            error[U0011]: sizes [8, -4] are negative or too large
              at step.txt:10:11
            error[U0011]: p7 is not in its table
              at step.txt:13:35
            error[U0011]: expected p0, m0, l0 or s0, found `x1 l0`
              at step.txt:16:56
            error[U0011]: expected a kind of part, found `backwards`
              at step.txt:14:6
              hint: did you mean `backward`?
            error[U0014]: n1 (aten::max.dim): 2 arguments, and its schema has 3
              at step.txt
        "#]],
    );
}
