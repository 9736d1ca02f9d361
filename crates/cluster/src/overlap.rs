//! What operations and collectives do to each other while they run at the same time.

use serde::{Deserialize, Serialize};

/// What an operation is limited by, on which it depends how much a collective beside it takes away.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Bound {
    /// Computing: products, convolutions, attention.
    Products,
    /// Reading and writing: all others.
    Bytes,
}

impl Bound {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Products, Self::Bytes];

    /// That of an operation that computes so much.
    pub fn of(flops: f64) -> Self {
        if flops > 0.0 { Self::Products } else { Self::Bytes }
    }

    /// Its name in descriptions.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Products => "products",
            Self::Bytes => "bytes",
        }
    }
}

/// How many times as long an operation and a collective take while they run beside each other; 1 for as long as alone.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slowdown {
    /// The operation.
    pub operation: f64,
    /// The collective.
    pub collective: f64,
}

/// Slowdowns by what operations are limited by, where they were measured apart.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Overlap {
    /// Of products, convolutions and attention.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub products: Option<Slowdown>,
    /// Of all other operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Slowdown>,
}

impl Overlap {
    pub(crate) const fn is_empty(&self) -> bool {
        self.products.is_none() && self.bytes.is_none()
    }

    /// Those that were measured apart, with their names.
    pub(crate) fn factors(&mut self) -> impl Iterator<Item = (String, &mut f64)> {
        let named = [(Bound::Products, &mut self.products), (Bound::Bytes, &mut self.bytes)];
        named.into_iter().filter_map(|(bound, slowdown)| Some((bound, slowdown.as_mut()?))).flat_map(
            |(bound, Slowdown { operation, collective })| {
                let name = |of: &str| format!("overlap.{}.{of}", bound.text());
                [(name("operation"), operation), (name("collective"), collective)]
            },
        )
    }
}
