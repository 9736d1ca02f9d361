//! Calls through torch's dispatcher: arguments encoded as 64-bit words on a stack.
//!
//! A word owns what it points to, and the call takes it over: a tensor's handle, a list, a string, the cell of an optional.
//! So all but plain numbers are made anew for each call, and a slot's last use gives the slot's own handle away.
//!
//! Of libtorch's two functions this is the one without a version: words are made for the schema that the running libtorch has, so that an
//! adapter from the schema of an older one must not be looked for.

use std::{
    alloc::{GlobalAlloc, System},
    ffi::{CString, c_void},
};

use smallvec::SmallVec;

use crate::{
    Library, Schema, Slot, Slots, Type,
    library::Word,
    raw::{Failure, RawTensor},
    tensor::device_word,
    value::{Arg, Output},
};

/// The most arguments or returns that a call can have.
const WIDTH: usize = 48;
/// A width that most calls keep to.
const FEW: usize = 8;

/// How one word is made.
enum Operand {
    /// A number as it is; also 0 for `None`.
    Plain(Word),
    /// Another reference to the tensor in a slot.
    Share(Slot),
    /// The slot's own reference.
    Take(Slot),
    /// Something on the heap.
    Made(Made),
}

impl Operand {
    fn some(inner: Self) -> Self {
        Self::Made(Made::Some(Box::new(inner)))
    }

    fn list(items: impl Iterator<Item = Self>) -> Self {
        Self::Made(Made::List(items.collect()))
    }

    fn text(text: &str) -> Self {
        Self::Made(Made::Str(text.into()))
    }
}

/// What is made on the heap for each call.
enum Made {
    /// A cell with a word.
    Some(Box<Operand>),
    /// A list of words.
    List(Box<[Operand]>),
    /// A string.
    Str(Box<str>),
    /// A tensor that is not there, where an operation has no optional one.
    Undefined,
}

/// What a returned word owns.
enum Return {
    Tensor(Option<Slot>),
    Other(Other),
}

/// What is returned more rarely than a tensor.
enum Other {
    OptionalTensor(Option<Slot>),
    Tensors(Box<[Option<Slot>]>),
    Plain,
    Str,
}

/// A call through the dispatcher, ready to run. What a common call needs lies in it, so that a program is read from memory in order.
pub struct DispatcherCall {
    name: CString,
    overload: CString,
    operands: SmallVec<[Operand; 3]>,
    returns: SmallVec<[Return; 1]>,
}

/// Why the dispatcher route cannot take a call, if so.
pub fn refusal(schema: &Schema, args: &[Arg]) -> Option<String> {
    if schema.arguments.len() != args.len() {
        return Some(format!("{} arguments where the schema has {}", args.len(), schema.arguments.len()));
    }
    if args.len().max(schema.returns.len()) > WIDTH {
        return Some(format!("more than {WIDTH} arguments or returns"));
    }
    let argument = schema.arguments.iter().zip(args).find_map(|(argument, arg)| {
        refused(&argument.ty, arg).map(|why| format!("argument `{}`: {why}", argument.name))
    });
    argument.or_else(|| {
        let unknown =
            schema.returns.iter().find(|returned| return_kind(&returned.ty, &Output::Ignored).is_none());
        unknown.map(|returned| format!("a return of type {:?}", returned.ty)).or_else(|| misread(schema))
    })
}

/// Why libtorch would misread what the operation returns, if so: it takes the last return by the type of the first, the one before it by
/// the type of the second, and so on. All is well where the types read alike backwards.
pub fn misread(schema: &Schema) -> Option<String> {
    let types = || schema.returns.iter().map(|returned| &returned.ty);
    let wrong = types().zip(types().rev()).find(|(one, other)| one != other);
    wrong.map(|(one, other)| format!("libtorch would take a returned {other:?} for {one:?}"))
}

/// Whether a call's arguments include a string.
pub fn has_string(args: &[Arg]) -> bool {
    args.iter().any(|arg| matches!(arg, Arg::Str(_) | Arg::Strs(_)))
}

fn refused(ty: &Type, arg: &Arg) -> Option<String> {
    let fits = match (ty, arg) {
        (Type::Optional(_) | Type::Tensor, Arg::None)
        | (Type::Tensor, Arg::Tensor(_))
        | (Type::Int, Arg::Int(_) | Arg::Bool(_))
        | (Type::Float, Arg::Float(_) | Arg::Int(_))
        | (Type::Bool, Arg::Bool(_))
        | (Type::Str, Arg::Str(_))
        | (Type::Dtype, Arg::Dtype(_))
        | (Type::Layout, Arg::Layout(_))
        | (Type::MemoryFormat, Arg::MemoryFormat(_))
        | (Type::Device, Arg::Device(_)) => true,
        (Type::Optional(inner), arg) => return refused(inner, arg),
        (Type::List(inner), arg) => match (inner.as_ref(), arg) {
            (Type::Tensor, Arg::Tensors(_))
            | (Type::Int, Arg::Ints(_))
            | (Type::Bool, Arg::Bools(_))
            | (Type::Float, Arg::Floats(_) | Arg::Ints(_))
            | (Type::Str, Arg::Strs(_)) => true,
            (Type::Optional(of), Arg::OptionalTensors(_) | Arg::Tensors(_)) => **of == Type::Tensor,
            _ => false,
        },
        _ => false,
    };
    (!fits).then(|| format!("the dispatcher route does not pass {arg:?} as {ty:?}"))
}

fn return_kind(ty: &Type, output: &Output) -> Option<Return> {
    let slot = match output {
        Output::Tensor(slot) => Some(*slot),
        _ => None,
    };
    Some(match ty {
        Type::Tensor => Return::Tensor(slot),
        Type::Optional(inner) if **inner == Type::Tensor => Return::Other(Other::OptionalTensor(slot)),
        Type::List(inner) if **inner == Type::Tensor => match output {
            Output::Tensors(slots) => Return::Other(Other::Tensors(slots.clone().into())),
            _ => Return::Other(Other::Tensors(Box::new([]))),
        },
        Type::Int
        | Type::Float
        | Type::Bool
        | Type::Dtype
        | Type::Layout
        | Type::MemoryFormat
        | Type::Device => Return::Other(Other::Plain),
        Type::Str => Return::Other(Other::Str),
        _ => return None,
    })
}

/// Encodes arguments, giving each slot's handle away where `takes` says so.
struct Encoder<'a> {
    library: &'static Library,
    takes: &'a mut dyn FnMut(Slot) -> bool,
}

impl Encoder<'_> {
    fn operand(&mut self, ty: &Type, arg: &Arg) -> Result<Operand, Failure> {
        if let Some(why) = refused(ty, arg) {
            return Err(Failure(why));
        }
        let codes = &self.library.codes;
        Ok(match (ty, arg) {
            (Type::Tensor, Arg::None) => Operand::Made(Made::Undefined),
            (_, Arg::None) => Operand::Plain(0),
            (Type::Optional(inner), arg) => Operand::some(self.operand(inner, arg)?),
            (Type::List(_), Arg::Tensors(slots)) if !is_optional_list(ty) => {
                Operand::list(slots.iter().map(|slot| self.tensor(*slot)))
            }
            (_, Arg::Tensors(slots)) => {
                Operand::list(slots.iter().map(|slot| Operand::some(self.tensor(*slot))))
            }
            (_, Arg::OptionalTensors(slots)) => {
                let cell = |slot: &Option<Slot>| match slot {
                    Some(slot) => Operand::some(self.tensor(*slot)),
                    None => Operand::Plain(0),
                };
                Operand::list(slots.iter().map(cell))
            }
            (_, Arg::Tensor(slot)) => self.tensor(*slot),
            (Type::Float, Arg::Int(value)) => Operand::Plain((*value as f64).to_bits()),
            (_, Arg::Int(value)) => Operand::Plain(*value as u64),
            (_, Arg::Float(value)) => Operand::Plain(value.to_bits()),
            (_, Arg::Bool(value)) => Operand::Plain(u64::from(*value)),
            (_, Arg::Ints(values)) if *ty == Type::List(Box::new(Type::Float)) => {
                Operand::list(values.iter().map(|value| Operand::Plain((*value as f64).to_bits())))
            }
            (_, Arg::Ints(values)) => Operand::list(values.iter().map(|value| Operand::Plain(*value as u64))),
            (_, Arg::Floats(values)) => {
                Operand::list(values.iter().map(|value| Operand::Plain(value.to_bits())))
            }
            (_, Arg::Bools(values)) => {
                Operand::list(values.iter().map(|value| Operand::Plain(u64::from(*value))))
            }
            (_, Arg::Str(text)) => Operand::text(text),
            (_, Arg::Strs(texts)) => Operand::list(texts.iter().map(|text| Operand::text(text))),
            (_, Arg::Dtype(dtype)) => Operand::Plain(codes.dtype(*dtype) as u64),
            (_, Arg::Layout(layout)) => Operand::Plain(codes.layout(*layout) as u64),
            (_, Arg::MemoryFormat(format)) => Operand::Plain(codes.format(*format) as u64),
            (_, Arg::Device(device)) => Operand::Plain(device_word(self.library, device)?),
            (_, Arg::Opaque(what)) => return Err(Failure(format!("{what} cannot be passed"))),
        })
    }

    fn tensor(&mut self, slot: Slot) -> Operand {
        if (self.takes)(slot) { Operand::Take(slot) } else { Operand::Share(slot) }
    }
}

fn is_optional_list(ty: &Type) -> bool {
    matches!(ty, Type::List(inner) if matches!(**inner, Type::Optional(_)))
}

impl DispatcherCall {
    /// Prepares a call; `takes` is asked once for each use of a slot, in order, whether the use gives the slot's own
    /// handle away (which only the last one may).
    pub fn new(
        library: &'static Library,
        schema: &Schema,
        args: &[Arg],
        outputs: &[Output],
        takes: &mut dyn FnMut(Slot) -> bool,
    ) -> Result<Self, Failure> {
        if let Some(why) = refusal(schema, args) {
            return Err(Failure(why));
        }
        if outputs.len() != schema.returns.len() {
            return Err(Failure(format!(
                "{} outputs where the schema has {}",
                outputs.len(),
                schema.returns.len()
            )));
        }
        let mut encoder = Encoder { library, takes };
        let arguments = schema.arguments.iter().zip(args);
        let operands =
            arguments.map(|(argument, arg)| encoder.operand(&argument.ty, arg)).collect::<Result<_, _>>()?;
        let returns = schema.returns.iter().zip(outputs);
        let returns = returns.filter_map(|(returned, output)| return_kind(&returned.ty, output)).collect();
        let text = |text: &str| CString::new(text).map_err(|_| Failure("a name with a zero byte".to_owned()));
        Ok(Self { name: text(&schema.name)?, overload: text(&schema.overload)?, operands, returns })
    }

    /// Runs the call over `slots`.
    ///
    /// Short, because libtorch leaves little of this code in the caches between two calls: what most calls consist of (numbers, tensors) is
    /// done here, all else elsewhere.
    #[inline]
    pub fn run(&self, slots: &mut Slots) -> Result<(), Failure> {
        if self.operands.len().max(self.returns.len()) > FEW {
            return self.run_wide(slots);
        }
        self.run_on(slots, &mut [0; FEW])
    }

    #[cold]
    fn run_wide(&self, slots: &mut Slots) -> Result<(), Failure> {
        self.run_on(slots, &mut [0; WIDTH])
    }

    #[inline]
    fn run_on(&self, slots: &mut Slots, stack: &mut [Word]) -> Result<(), Failure> {
        let library = slots.library;
        for (word, operand) in stack.iter_mut().zip(&self.operands) {
            *word = encode(operand, slots)?;
        }
        // SAFETY: the words were encoded for the schema that libtorch has under this name (promised to `Library::load`),
        // and the stack is wide enough for arguments and returns.
        let status = unsafe {
            (library.symbols.call_dispatcher)(self.name.as_ptr(), self.overload.as_ptr(), stack.as_mut_ptr())
        };
        library.check(status)?;
        for (word, kind) in stack.iter().zip(&self.returns) {
            // SAFETY: a successful call has left one word of this kind, now owned here.
            unsafe {
                match kind {
                    Return::Tensor(slot) => place(*word as RawTensor, *slot, slots),
                    Return::Other(other) => receive(*word, other, slots)?,
                }
            }
        }
        Ok(())
    }
}

#[inline]
fn encode(operand: &Operand, slots: &mut Slots) -> Result<Word, Failure> {
    Ok(match operand {
        Operand::Plain(word) => *word,
        Operand::Take(slot) => slots.take_raw(*slot)? as Word,
        Operand::Share(slot) => slots.share_raw(*slot)? as Word,
        Operand::Made(made) => make(made, slots)?,
    })
}

#[cold]
fn make(made: &Made, slots: &mut Slots) -> Result<Word, Failure> {
    let library = slots.library;
    let s = &library.symbols;
    Ok(match made {
        Made::Some(inner) => {
            let word = encode(inner, slots)?;
            let cell = new_cell(library)?;
            // SAFETY: the cell is a fresh word on the heap.
            unsafe { cell.write(word) };
            cell as Word
        }
        Made::List(items) => {
            let mut list = std::ptr::null_mut();
            // SAFETY: one new list is written.
            library.check(unsafe { (s.new_list)(items.len(), &raw mut list) })?;
            for item in items {
                let word = encode(item, slots)?;
                // SAFETY: the list is alive and takes the word over.
                library.check(unsafe { (s.list_push)(list, word) })?;
            }
            list as Word
        }
        Made::Str(text) => {
            let mut string = std::ptr::null_mut();
            // SAFETY: pointer and length are those of the text; one new string is written.
            library.check(unsafe { (s.new_string)(text.as_ptr().cast(), text.len(), &raw mut string) })?;
            string as Word
        }
        Made::Undefined => {
            let mut handle = std::ptr::null_mut();
            // SAFETY: one new reference, to no tensor, is written.
            library.check(unsafe { (s.new_empty_handle)(&raw mut handle) })?;
            handle as Word
        }
    })
}

/// A heap word that libtorch can free. Where it offers no function for that (before 2.13) it frees with C++ `delete`, which
/// is `free` with the C libraries in use.
fn new_cell(library: &Library) -> Result<*mut Word, Failure> {
    let mut cell = std::ptr::null_mut();
    match library.symbols.new_cell {
        // SAFETY: one pointer to a fresh word is written.
        Some(new_cell) => library.check(unsafe { new_cell(&raw mut cell) })?,
        // SAFETY: the layout has a size above zero.
        None => cell = unsafe { System.alloc(std::alloc::Layout::new::<Word>()) }.cast(),
    }
    if cell.is_null() { Err(Failure("out of memory".to_owned())) } else { Ok(cell) }
}

/// # Safety
/// `word` is an owned word of the kind `kind`.
#[cold]
unsafe fn receive(word: Word, kind: &Other, slots: &mut Slots) -> Result<(), Failure> {
    let library = slots.library;
    let s = &library.symbols;
    // SAFETY: the word owns what its kind says, and each is given back once or put into the table.
    unsafe {
        match kind {
            Other::Plain => {}
            Other::OptionalTensor(slot) => {
                let cell = word as *mut Word;
                if !cell.is_null() {
                    place(cell.read() as RawTensor, *slot, slots);
                    match s.delete_cell {
                        Some(delete_cell) => library.check(delete_cell(cell))?,
                        None => System.dealloc(cell.cast(), std::alloc::Layout::new::<Word>()),
                    }
                }
            }
            Other::Tensors(targets) => receive_list(word as *mut c_void, targets, slots)?,
            Other::Str => library.check((s.delete_string)(word as *mut c_void))?,
        }
    }
    Ok(())
}

/// # Safety
/// `list` is an owned list of tensor handles.
unsafe fn receive_list(
    list: *mut c_void,
    targets: &[Option<Slot>],
    slots: &mut Slots,
) -> Result<(), Failure> {
    let library = slots.library;
    let s = &library.symbols;
    let mut size = 0;
    // SAFETY: the list is alive until it is deleted; each element is taken over once.
    unsafe {
        library.check((s.list_size)(list, &raw mut size))?;
        for index in 0..size {
            let mut word = 0;
            library.check((s.list_get)(list, index, &raw mut word))?;
            place(word as RawTensor, targets.get(index).copied().flatten(), slots);
        }
        library.check((s.delete_list)(list))
    }
}

/// # Safety
/// `raw` is null or an owned handle.
#[inline]
pub(crate) unsafe fn place(raw: RawTensor, slot: Option<Slot>, slots: &mut Slots) {
    // SAFETY: the handle goes into the table or is given back.
    unsafe {
        match slot {
            Some(slot) => slots.put_raw(slot, raw),
            None if raw.is_null() => {}
            None => drop((slots.library.symbols.delete_tensor)(raw)),
        }
    }
}
