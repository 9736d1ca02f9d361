//! The choice of a call's route.

use std::collections::BTreeSet;

use base::Result;
use torch_sys::{Arg, Device, Library, Output, Schema, Version, dispatcher, proxy, shim};

use crate::{Role, Route, random::is_random_at, role};

/// What the routes of this process can do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// Whether strings pass the dispatcher without a leak (PyTorch 2.14 and newer).
    pub strings_by_dispatcher: bool,
    /// Whether the proxy executor reads element types, layouts and memory formats as they are written (PyTorch 2.12 and newer; 2.11
    /// takes the numbers of exported programs for its own, which are others).
    pub enumerations_by_proxy: bool,
    /// The device that programs run on.
    pub device: Device,
    /// Whether a device that is not the host draws random numbers at positions itself.
    pub draws: bool,
    /// The operations for which PyTorch has a C function of their own on the device, by their full names, of those that no other route of C
    /// takes, and on the host of those that write into tensors that they are given.
    pub shims: BTreeSet<String>,
}

impl Abilities {
    /// The abilities of a PyTorch release for programs on `device`.
    pub fn of(version: Version, device: Device) -> Self {
        Self {
            strings_by_dispatcher: version >= Version { major: 2, minor: 14 },
            enumerations_by_proxy: version >= Version { major: 2, minor: 12 },
            device,
            draws: false,
            shims: BTreeSet::new(),
        }
    }

    /// Looks up which of the operations have a C function of their own, by their schemas.
    pub fn find_shims(&mut self, library: &Library, schemas: &[String]) -> Result<()> {
        for text in schemas {
            let schema = Schema::parse(text)?;
            let is_faster = self.device.is_host() && shim::writes_into_given(&schema);
            if (is_faster || dispatcher::misread(&schema).is_some())
                && library.has_function(&schema, &self.device.kind)
            {
                self.shims.insert(schema.full_name());
            }
        }
        Ok(())
    }

    /// Whether an operation's own function takes less time to be called than by the dispatcher, which looks the operation up at each call.
    pub fn is_direct(&self, schema: &Schema) -> bool {
        shim::writes_into_given(schema) && self.shims.contains(&schema.full_name())
    }

    /// The fastest route that can take the call.
    pub fn route(&self, schema: &Schema, args: &[Arg], outputs: &[Output]) -> Route {
        if is_random_at(schema) && (self.device.is_host() || self.draws) {
            return Route::Own;
        }
        let is_taken = outputs.iter().any(|output| output.slots().next().is_some());
        if self.is_direct(schema) && !is_taken && shim::refusal(schema, args).is_none() {
            return Route::Shim;
        }
        let strings = dispatcher::has_string(args) && !self.strings_by_dispatcher;
        let dispatcher = !strings && dispatcher::refusal(schema, args).is_none();
        if dispatcher && !may_refuse_symbols(schema, args) {
            return Route::Dispatcher;
        }
        let enumeration = |arg: &Arg| matches!(arg, Arg::Dtype(_) | Arg::Layout(_) | Arg::MemoryFormat(_));
        if !self.enumerations_by_proxy && args.iter().any(enumeration) {
            return Route::Python;
        }
        // torch has proxy executors for a few kinds of devices only, and each replaces every device argument by its own device. The
        // processor's is always there, and takes tensors of all devices.
        let elsewhere = |arg: &Arg| matches!(arg, Arg::Device(device) if !device.is_host());
        if !args.iter().any(elsewhere) && proxy::node(schema, args, outputs).is_ok() {
            return Route::Proxy;
        }
        if dispatcher {
            return Route::Dispatcher;
        }
        let shim = self.shims.contains(&schema.full_name()) && shim::refusal(schema, args).is_none();
        if shim { Route::Shim } else { Route::Python }
    }
}

/// The dispatcher route passes `SymInt[]` as symbols, which kernels without symbolic shapes (structured ones) refuse when they
/// are called below autograd.
fn may_refuse_symbols(schema: &Schema, args: &[Arg]) -> bool {
    let lists = schema
        .arguments
        .iter()
        .zip(args)
        .any(|(argument, arg)| argument.symbolic && matches!(arg, Arg::Ints(_)));
    lists && role(schema) != Role::View && !aten::row(&schema.full_name()).is_some_and(|row| row.symbols)
}

#[cfg(test)]
mod tests {
    use super::*;
    use torch_sys::Slot;

    fn route(schema: &str, args: &[Arg]) -> Route {
        route_of(13, schema, args)
    }

    fn route_of(minor: u8, schema: &str, args: &[Arg]) -> Route {
        let abilities = Abilities::of(Version { major: 2, minor }, Device::host());
        abilities.route(&Schema::parse(schema).unwrap(), args, &[Output::Tensor(Slot(9))])
    }

    #[test]
    fn scalars_and_strings_go_by_proxy_and_the_rest_by_dispatcher() {
        let x = || Arg::Tensor(Slot(0));
        assert_eq!(route("aten::relu(Tensor self) -> Tensor", &[x()]), Route::Dispatcher);
        let add = "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor";
        assert_eq!(route(add, &[x(), x(), Arg::Int(1)]), Route::Proxy);
        let gelu = "aten::gelu(Tensor self, *, str approximate='none') -> Tensor";
        assert_eq!(route(gelu, &[x(), Arg::Str("none".to_owned())]), Route::Proxy);
    }

    #[test]
    fn lists_of_symbolic_integers_go_by_proxy_unless_they_are_empty() {
        let upsample =
            "aten::upsample_nearest1d(Tensor self, SymInt[1] output_size, float? scales=None) -> Tensor";
        let args = |sizes| [Arg::Tensor(Slot(0)), Arg::Ints(sizes), Arg::None];
        assert_eq!(route(upsample, &args(vec![4])), Route::Proxy);
        assert_eq!(route(upsample, &args(vec![])), Route::Dispatcher);
        let view = "aten::view(Tensor(a) self, SymInt[] size) -> Tensor(a)";
        assert_eq!(route(view, &[Arg::Tensor(Slot(0)), Arg::Ints(vec![4])]), Route::Dispatcher);
    }

    #[test]
    fn types_go_by_proxy_where_it_reads_them_as_they_are_written() {
        let full = "aten::full(SymInt[] size, Scalar v, *, ScalarType? dtype=None) -> Tensor";
        let args = |dtype| [Arg::Ints(vec![2]), Arg::Int(0), dtype];
        let float = Arg::Dtype(torch_sys::Dtype::Float32);
        assert_eq!(route_of(12, full, &args(float.clone())), Route::Proxy);
        assert_eq!(route_of(11, full, &args(float)), Route::Python);
        assert_eq!(route_of(11, full, &args(Arg::None)), Route::Proxy);
    }

    #[test]
    fn returns_whose_types_do_not_read_alike_backwards_do_not_go_by_dispatcher() {
        let x = || Arg::Tensor(Slot(0));
        let returning = |types: &str| {
            let schema = Schema::parse(&format!("aten::f(Tensor self) -> ({types})")).unwrap();
            let outputs = vec![Output::Ignored; schema.returns.len()];
            let abilities = Abilities::of(Version { major: 2, minor: 13 }, Device::host());
            abilities.route(&schema, &[x()], &outputs)
        };
        assert_eq!(returning("Tensor, Tensor, Tensor"), Route::Dispatcher);
        assert_eq!(returning("Tensor, int, Tensor"), Route::Dispatcher);
        assert_eq!(returning("Tensor, Tensor, int, Tensor"), Route::Python);
        // Flash attention's.
        assert_eq!(
            returning("Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor"),
            Route::Python
        );
    }

    #[test]
    fn an_operation_with_a_function_of_its_own_goes_by_it_where_no_other_route_takes_it() {
        let mut abilities = Abilities::of(Version { major: 2, minor: 13 }, Device::host());
        abilities.shims = ["aten::f", "aten::g", "aten::h"].map(str::to_owned).into();
        let route = |schema: &str, arg| {
            abilities.route(&Schema::parse(schema).unwrap(), &[arg], &[Output::Ignored, Output::Ignored])
        };
        let x = || Arg::Tensor(Slot(0));
        let by_function = if cfg!(target_os = "linux") { Route::Shim } else { Route::Python };
        assert_eq!(route("aten::f(Tensor self) -> (Tensor, SymInt)", x()), by_function);
        assert_eq!(route("aten::g(Tensor self) -> (Tensor, Tensor)", x()), Route::Dispatcher);
        assert_eq!(route("aten::h(str s) -> (Tensor, SymInt)", Arg::Str("s".to_owned())), Route::Python);
        assert_eq!(route("aten::other(Tensor self) -> (Tensor, SymInt)", x()), Route::Python);
    }

    #[test]
    fn a_tensor_that_is_not_there_goes_by_dispatcher() {
        assert_eq!(
            route("aten::f(Tensor self, Tensor seed) -> Tensor", &[Arg::Tensor(Slot(0)), Arg::None]),
            Route::Dispatcher
        );
    }

    #[test]
    fn the_proxy_takes_calls_on_every_device_unless_they_name_one() {
        let add = Schema::parse(
            "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1, Device? d) -> Tensor",
        );
        let here = Device { kind: "npu".to_owned(), index: Some(1) };
        let abilities = Abilities::of(Version { major: 2, minor: 13 }, here.clone());
        let args = |device| [Arg::Tensor(Slot(0)), Arg::Tensor(Slot(0)), Arg::Int(1), device];
        let route = |device| abilities.route(add.as_ref().unwrap(), &args(device), &[Output::Ignored]);
        assert_eq!(route(Arg::None), Route::Proxy);
        assert_eq!(route(Arg::Device(Device::host())), Route::Proxy);
        assert_eq!(route(Arg::Device(here)), Route::Python);
    }

    #[test]
    fn what_neither_passes_goes_by_python() {
        let mul = "aten::mul.Scalar(Tensor self, Scalar other) -> Tensor";
        let x = || Arg::Tensor(Slot(0));
        assert_eq!(route(mul, &[x(), Arg::Float(f64::INFINITY)]), Route::Python);
        let full = "aten::full(SymInt[] size, Scalar v, Device? d) -> Tensor";
        let cuda = Arg::Device(Device { kind: "cuda".to_owned(), index: Some(0) });
        assert_eq!(route(full, &[Arg::Ints(vec![2]), Arg::Int(0), cuda]), Route::Python);
        assert_eq!(route(full, &[Arg::Ints(vec![]), Arg::Int(0), Arg::None]), Route::Python);
    }
}
