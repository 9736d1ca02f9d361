//! The choice of a call's route.

use torch_sys::{Arg, Output, Schema, Version, dispatcher, proxy};

use crate::Route;

/// What the routes of this process can do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Abilities {
    /// Whether strings pass the dispatcher without a leak (PyTorch 2.14 and newer).
    pub strings_by_dispatcher: bool,
    /// The kind of device that the proxy executor puts every device argument to.
    pub proxy_device: String,
}

impl Abilities {
    /// The abilities of a PyTorch release with a proxy executor for devices of the kind `device`.
    pub fn of(version: Version, device: &str) -> Self {
        Self {
            strings_by_dispatcher: version >= Version { major: 2, minor: 14 },
            proxy_device: device.to_owned(),
        }
    }

    /// The fastest route that can take the call.
    pub fn route(&self, schema: &Schema, args: &[Arg], outputs: &[Output]) -> Route {
        let strings = dispatcher::has_string(args) && !self.strings_by_dispatcher;
        if !strings && dispatcher::refusal(schema, args).is_none() {
            return Route::Dispatcher;
        }
        let elsewhere = |arg: &Arg| matches!(arg, Arg::Device(device) if device.kind != self.proxy_device);
        if !args.iter().any(elsewhere) && proxy::node(schema, args, outputs).is_ok() {
            return Route::Proxy;
        }
        Route::Python
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use torch_sys::{Device, Slot};

    fn route(schema: &str, args: &[Arg]) -> Route {
        let abilities = Abilities { strings_by_dispatcher: false, proxy_device: "cpu".to_owned() };
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
