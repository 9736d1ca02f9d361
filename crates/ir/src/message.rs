//! Graphs as MessagePack, the form in which they cross from Python and travel between ranks and to caches.
//!
//! A message is a map `{"version": 2, "graph": {...}}` whose keys are the names of the Rust fields. Every graph read is
//! verified. Reading allocates in proportion to the bytes that are there, never to a length that they claim.

use base::{Code, Diagnostic, Fingerprint, PrimaryMap, Result};
use serde::{Deserialize, Serialize};

use crate::{Graph, verify};

/// The version of the message format.
pub const MESSAGE_VERSION: u32 = 2;
/// The largest message that is read, in bytes: a graph of a million nodes is about half of it.
pub const MAX_MESSAGE_BYTES: usize = 512 << 20;

#[derive(Serialize)]
struct Written<'a> {
    version: u32,
    graph: &'a Graph,
}

#[derive(Deserialize)]
struct Read {
    version: u32,
    graph: Graph,
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

impl Graph {
    /// Reads and verifies a message. Fails with [`Code::TOO_LARGE`], [`Code::OTHER_VERSION`], [`Code::BAD_MESSAGE`] or
    /// [`Code::BAD_GRAPH`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        if bytes.len() > MAX_MESSAGE_BYTES {
            let message =
                format!("a graph message of {} bytes is over the limit of {MAX_MESSAGE_BYTES}", bytes.len());
            return Err(Diagnostic::new(Code::TOO_LARGE, message));
        }
        let read: Read = rmp_serde::from_slice(bytes).map_err(|error| undecodable(bytes, &error))?;
        if read.version != MESSAGE_VERSION {
            return Err(other_version(read.version));
        }
        verify(&read.graph)?;
        Ok(read.graph)
    }

    /// The graph as a message that [`from_bytes`](Self::from_bytes) reads.
    pub fn to_bytes(&self) -> Vec<u8> {
        let message = Written { version: MESSAGE_VERSION, graph: self };
        rmp_serde::to_vec_named(&message).expect("a graph has no map keys or lengths that MessagePack lacks")
    }

    /// The fingerprint of what a verified graph computes: of its [renumbered](Self::renumbered) form without places in the
    /// user's code, so that a comment added above the step changes nothing.
    pub fn fingerprint(&self) -> Fingerprint {
        let mut graph = self.renumbered();
        graph.places = PrimaryMap::new();
        for (_, node) in graph.nodes.iter_mut() {
            node.place = None;
        }
        Fingerprint::of(&graph.to_bytes())
    }
}

/// Why the bytes are no message: another version, if they say so, else what the decoder met.
fn undecodable(bytes: &[u8], error: &rmp_serde::decode::Error) -> Box<Diagnostic> {
    match rmp_serde::from_slice::<Version>(bytes) {
        Ok(Version { version }) if version != MESSAGE_VERSION => other_version(version),
        _ => {
            Diagnostic::new(Code::BAD_MESSAGE, "a graph message cannot be decoded").because(error.to_string())
        }
    }
}

fn other_version(version: u32) -> Box<Diagnostic> {
    let message =
        format!("a graph message has version {version}, and this Unisono reads version {MESSAGE_VERSION}");
    Diagnostic::new(Code::OTHER_VERSION, message)
        .hint("write it again with this version; clear the cache if it came from there")
}
