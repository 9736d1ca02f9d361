//! Calls of the C function that PyTorch has for one operation on one kind of device, such as `aoti_torch_cuda__fft_r2c`.
//!
//! They stand in the library of the device (`libtorch_cuda`), and take a returned number for what it is, where the other routes of C do not.
//! PyTorch writes them by a rule from the operation's schema (`torchgen/gen_aoti_c_shim.py`): each argument and each return is a few words, in the
//! order of the schema, returns by address; tensors that an operation writes its results into come first, and nothing is returned. A function's
//! words never change: where the schema has got more arguments, there is another with `_v2` behind its name, and the last one has them all.

use std::ffi::c_void;

use crate::{
    Library, Schema, Slot, Slots, Type,
    dispatcher::place,
    library::{Status, Word},
    raw::{Failure, RawTensor},
    value::{Arg, Output},
};

/// The most words that a call passes, numbers of floating point aside.
const WORDS: usize = 24;
/// The most numbers of floating point that a call passes: as many as there are registers for them on each processor.
const FLOATS: usize = 8;
/// The most returns.
const RETURNS: usize = 12;

/// Any of the functions. On x86-64 and AArch64 by the conventions of System V, floating point numbers and other words are passed
/// each in registers of their own, in order, and words beyond them on the stack, in order: what a function of fewer arguments does not look for is
/// not seen, and how the two kinds are mixed makes no difference while registers hold all of one kind.
#[rustfmt::skip]
type Function = unsafe extern "C" fn(
    f64, f64, f64, f64, f64, f64, f64, f64,
    Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word,
    Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word,
) -> Status;

/// Whether calls are made by those conventions here.
const CALLS: bool = cfg!(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")));

/// One argument.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Operand {
    /// An integer, a truth value, or the null of something that is not there.
    Word(Word),
    Float(f64),
    Tensor(Slot),
    /// A tensor by the address of its handle.
    Optional(Slot),
    /// A number by its address, as the word it is in memory.
    Cell(Word),
}

/// What a returned word is.
enum Return {
    /// A tensor, and where it goes.
    Tensor(Option<Slot>),
    /// A number, which nobody reads: the graph has it already.
    Number,
}

/// Why these calls cannot take an operation's arguments or returns, if so.
pub fn refusal(schema: &Schema, args: &[Arg]) -> Option<String> {
    if !CALLS {
        return Some("functions of one operation are not called on this system".to_owned());
    }
    if schema.arguments.len() != args.len() {
        return Some(format!("{} arguments where the schema has {}", args.len(), schema.arguments.len()));
    }
    if schema.mutates() && !writes_into_given(schema) {
        return Some(WRITES.to_owned());
    }
    let operands: Vec<_> =
        schema.arguments.iter().zip(args).map(|(argument, arg)| operand(&argument.ty, arg)).collect();
    let refused = operands.iter().position(Option::is_none).map(|at| &schema.arguments[at].name);
    if let Some(name) = refused {
        return Some(format!("argument `{name}` is not passed to a function of one operation"));
    }
    let floats = operands.iter().flatten().filter(|operand| matches!(operand, Operand::Float(_))).count();
    let returns = if schema.mutates() { &[] } else { &schema.returns[..] };
    let words = operands.len() - floats + returns.len();
    let known = |ty: &Type| matches!(ty, Type::Tensor | Type::Int | Type::Float | Type::Bool);
    if let Some(returned) = returns.iter().find(|returned| !known(&returned.ty)) {
        return Some(format!("a return of type {:?}", returned.ty));
    }
    (words > WORDS || floats > FLOATS || returns.len() > RETURNS)
        .then(|| "more arguments or returns than a call passes".to_owned())
}

/// The rule is another one where an operation changes what it reads.
const WRITES: &str = "it writes into its arguments";

/// Whether an operation writes its results into tensors that it is given for that, behind all that it reads, as `aten::mm.out` does.
pub fn writes_into_given(schema: &Schema) -> bool {
    let read = schema.arguments.iter().take_while(|argument| !argument.written).count();
    let (read, given) = schema.arguments.split_at(read);
    !read.is_empty()
        && !given.is_empty()
        && given.iter().all(|argument| argument.written && argument.ty == Type::Tensor)
}

/// The positions of arguments in the order in which functions take them.
fn passed(schema: &Schema) -> impl Iterator<Item = usize> {
    let read = schema.arguments.iter().take_while(|argument| !argument.written).count();
    let (read, count) = if writes_into_given(schema) { (read, schema.arguments.len()) } else { (0, read) };
    (read..count).chain(0..read)
}

fn operand(ty: &Type, arg: &Arg) -> Option<Operand> {
    Some(match (ty, arg) {
        (Type::Tensor, Arg::Tensor(slot)) => Operand::Tensor(*slot),
        (Type::Int, Arg::Int(value)) => Operand::Word(*value as Word),
        (Type::Float | Type::Scalar, Arg::Float(value)) => Operand::Float(*value),
        (Type::Float, Arg::Int(value)) => Operand::Float(*value as f64),
        (Type::Bool, Arg::Bool(value)) => Operand::Word(Word::from(*value)),
        (Type::Optional(inner), arg) => match (inner.as_ref(), arg) {
            (Type::Tensor | Type::Int | Type::Float | Type::Bool, Arg::None) => Operand::Word(0),
            (Type::Tensor, Arg::Tensor(slot)) => Operand::Optional(*slot),
            (inner, arg) => match operand(inner, arg)? {
                Operand::Word(word) => Operand::Cell(word),
                Operand::Float(value) => Operand::Cell(value.to_bits()),
                _ => return None,
            },
        },
        _ => return None,
    })
}

/// The C types of a function's arguments and returns by the rule, for comparison with PyTorch's headers; none where these calls know no such type.
pub fn signature(schema: &Schema) -> Option<Vec<String>> {
    if schema.mutates() && !writes_into_given(schema) {
        return None;
    }
    let plain = |ty: &Type| {
        Some(match ty {
            Type::Tensor => "AtenTensorHandle",
            Type::Int => "int64_t",
            Type::Float | Type::Scalar => "double",
            Type::Bool => "int32_t",
            _ => return None,
        })
    };
    let taken = passed(schema).map(|position| match &schema.arguments[position].ty {
        Type::Optional(inner) => plain(inner).map(|name| format!("{name}*")),
        ty => plain(ty).map(str::to_owned),
    });
    let returns = if schema.mutates() { &[] } else { &schema.returns[..] };
    let returned = returns.iter().map(|returned| plain(&returned.ty).map(|name| format!("{name}*")));
    taken.chain(returned).collect()
}

impl Library {
    /// Whether this PyTorch has a function of its own for the operation on devices of a kind.
    pub fn has_function(&self, schema: &Schema, kind: &str) -> bool {
        self.function(schema, kind).is_some()
    }

    fn function(&self, schema: &Schema, kind: &str) -> Option<Function> {
        let mut name = format!("aoti_torch_{kind}_{}", schema.name.strip_prefix("aten::")?);
        if !schema.overload.is_empty() {
            name = format!("{name}_{}", schema.overload);
        }
        let mut found = self.address(&name)?;
        for version in 2.. {
            match self.address(&format!("{name}_v{version}")) {
                Some(later) => found = later,
                None => break,
            }
        }
        // SAFETY: a function of C by its name, and not null; what it is called with is for the caller.
        Some(unsafe { std::mem::transmute::<*mut c_void, Function>(found) })
    }

    fn address(&self, name: &str) -> Option<*mut c_void> {
        let all = self.all.as_ref()?;
        // SAFETY: only the address is taken.
        let symbol = unsafe { all.get::<*mut c_void>(format!("{name}\0").as_bytes()) }.ok()?;
        Some(symbol.into_raw()).filter(|address| !address.is_null())
    }
}

/// A call of such a function, ready to run.
pub struct ShimCall {
    function: Function,
    operands: Box<[Operand]>,
    returns: Box<[Return]>,
}

impl ShimCall {
    /// The call of the function that this PyTorch has for `schema` on devices of a kind.
    pub fn new(
        library: &'static Library,
        kind: &str,
        schema: &Schema,
        args: &[Arg],
        outputs: &[Output],
    ) -> Result<Self, Failure> {
        if let Some(why) = refusal(schema, args) {
            return Err(Failure(why));
        }
        if schema.mutates() && outputs.iter().any(|output| output.slots().next().is_some()) {
            return Err(Failure("what is written is not returned".to_owned()));
        }
        if outputs.len() != schema.returns.len() {
            return Err(Failure("outputs that are not as many as the schema's".to_owned()));
        }
        let function = library
            .function(schema, kind)
            .ok_or_else(|| Failure(format!("this PyTorch has no function of it for {kind}")))?;
        let operands = passed(schema).filter_map(|at| operand(&schema.arguments[at].ty, &args[at])).collect();
        let outputs = if schema.mutates() { &[] } else { outputs };
        let returns = schema.returns.iter().zip(outputs).map(|(returned, output)| match returned.ty {
            Type::Tensor => Return::Tensor(output.slots().next()),
            _ => Return::Number,
        });
        Ok(Self { function, operands, returns: returns.collect() })
    }

    /// Runs the call over `slots`.
    pub fn run(&self, slots: &mut Slots) -> Result<(), Failure> {
        let mut passed = Passed { words: [0; WORDS], floats: [0.0; FLOATS] };
        let mut handles = [std::ptr::null_mut::<c_void>(); WORDS];
        let mut returned: [Word; RETURNS] = [0; RETURNS];
        let (mut words, mut floats) = (passed.words.iter_mut(), passed.floats.iter_mut());
        for (operand, handle) in self.operands.iter().zip(&mut handles) {
            let word = match operand {
                Operand::Float(value) => {
                    *floats.next().ok_or_else(too_many)? = *value;
                    continue;
                }
                Operand::Word(word) => *word,
                Operand::Tensor(slot) => slots.raw(*slot)? as Word,
                Operand::Optional(slot) => {
                    *handle = slots.raw(*slot)?;
                    std::ptr::from_mut(handle) as Word
                }
                Operand::Cell(word) => std::ptr::from_ref(word) as Word,
            };
            *words.next().ok_or_else(too_many)? = word;
        }
        for cell in returned.iter_mut().take(self.returns.len()) {
            *words.next().ok_or_else(too_many)? = std::ptr::from_mut(cell) as Word;
        }
        // SAFETY: words and numbers are those that the function takes by PyTorch's rule for the schema that it has registered under this name (promised to
        // `Library::load`), in the order in which its conventions look for them; handles are alive, addresses are of places that outlive the
        // call, and each return has a place of its own.
        let status = unsafe { passed.call(self.function) };
        slots.library.check(status)?;
        for (word, kind) in returned.iter().zip(&self.returns) {
            if let Return::Tensor(slot) = kind {
                // SAFETY: a successful call has left an owned handle.
                unsafe { place(*word as RawTensor, *slot, slots) };
            }
        }
        Ok(())
    }
}

#[cold]
fn too_many() -> Failure {
    Failure("more arguments than a call passes".to_owned())
}

/// What is passed, each kind in order.
struct Passed {
    words: [Word; WORDS],
    floats: [f64; FLOATS],
}

impl Passed {
    /// # Safety
    /// They are what the function takes.
    #[rustfmt::skip]
    unsafe fn call(&self, function: Function) -> Status {
        let (f, w) = (&self.floats, &self.words);
        // SAFETY: handed on to the caller.
        unsafe {
            function(
                f[0], f[1], f[2], f[3], f[4], f[5], f[6], f[7],
                w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11],
                w[12], w[13], w[14], w[15], w[16], w[17], w[18], w[19], w[20], w[21], w[22], w[23],
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: &str = "aten::f(Tensor q, Tensor? bias, float p, bool causal, int n, *, float? scale=None, int? w=None) -> (Tensor, SymInt, bool)";

    fn args() -> [Arg; 7] {
        let (q, bias) = (Arg::Tensor(Slot(0)), Arg::Tensor(Slot(1)));
        [q, bias, Arg::Float(0.5), Arg::Bool(true), Arg::Int(-3), Arg::Float(0.25), Arg::None]
    }

    #[test]
    fn numbers_are_passed_as_they_are_and_what_may_be_missing_by_address() {
        let schema = Schema::parse(MIXED).unwrap();
        assert_eq!(refusal(&schema, &args()).is_none(), CALLS);
        let operands = schema.arguments.iter().zip(args()).map(|(argument, arg)| operand(&argument.ty, &arg));
        let expected = [
            Operand::Tensor(Slot(0)),
            Operand::Optional(Slot(1)),
            Operand::Float(0.5),
            Operand::Word(1),
            Operand::Word(-3_i64 as Word),
            Operand::Cell(0.25_f64.to_bits()),
            Operand::Word(0),
        ];
        assert!(operands.eq(expected.map(Some)));
        let types = "AtenTensorHandle AtenTensorHandle* double int32_t int64_t double* int64_t* AtenTensorHandle* int64_t* int32_t*";
        assert_eq!(signature(&schema).unwrap().join(" "), types);
    }

    #[test]
    fn lists_strings_writing_and_tensors_that_must_be_there_and_are_not_are_refused() {
        for (schema, arg) in [
            ("aten::f(Tensor[] xs) -> Tensor", Arg::Tensors(vec![Slot(0)])),
            ("aten::f(str s) -> Tensor", Arg::Str("none".to_owned())),
            ("aten::f_(Tensor(a!) x) -> Tensor(a!)", Arg::Tensor(Slot(0))),
            ("aten::f(Tensor x) -> Tensor", Arg::None),
            ("aten::f(Tensor x) -> Tensor[]", Arg::Tensor(Slot(0))),
        ] {
            assert!(refusal(&Schema::parse(schema).unwrap(), &[arg]).is_some(), "{schema}");
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn a_function_finds_what_it_takes_however_floats_and_words_are_mixed() {
        #[rustfmt::skip]
        extern "C" fn mixed(
            a: Word, p: f64, b: i32, c: Word, scale: *const f64, d: i64, q: f64, e: Word, f: Word, g: Word, h: i32, out: *mut i64, flag: *mut i32,
        ) -> Status {
            // SAFETY: the addresses are those that are passed below.
            unsafe {
                let words = [a, c, e, f, g].iter().enumerate().map(|(at, word)| (at as i64 + 1) * *word as i64).sum::<i64>();
                out.write(words + i64::from(b) + d + (p * 4.0 + q * 2.0 + *scale * 8.0) as i64);
                flag.write(h);
            }
            7
        }
        let (scale, mut out, mut flag) = (0.125_f64, 0_i64, 0_i32);
        let mut passed = Passed { words: [u64::MAX; WORDS], floats: [f64::NAN; FLOATS] };
        let addresses = [&raw const scale as Word, &raw mut out as Word, &raw mut flag as Word];
        passed.words[..11].copy_from_slice(&[
            1,
            -5_i64 as Word,
            2,
            addresses[0],
            -9_i64 as Word,
            3,
            4,
            5,
            1,
            addresses[1],
            addresses[2],
        ]);
        passed.floats[..2].copy_from_slice(&[0.25, 0.5]);
        // SAFETY: the function takes what is passed.
        let status = unsafe {
            let function = std::mem::transmute::<*const c_void, Function>(mixed as *const c_void);
            passed.call(function)
        };
        assert_eq!((status, out, flag), (7, 1 + 2 * 2 + 3 * 3 + 4 * 4 + 5 * 5 - 5 - 9 + 1 + 1 + 1, 1));
    }
}
