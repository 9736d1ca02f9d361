//! What tests of commands share.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use cluster::{
    Cluster, Link,
    testing::{link, uniform},
};

/// A folder of files for one test, removed at its end.
pub struct Files(pub PathBuf);

impl Files {
    /// With a step and a cluster.
    pub fn new(test: &str, graph: &str, cluster: &Cluster) -> Self {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
        std::fs::create_dir_all(&folder).unwrap();
        let files = Self(folder);
        files.write("step.txt", graph).write("cluster.toml", &cluster.text());
        files
    }

    /// Writes a file.
    pub fn write(&self, name: &str, text: &str) -> &Self {
        std::fs::write(self.0.join(name), text).unwrap();
        self
    }

    /// The exit status, stdout and stderr of a command line.
    pub fn run(&self, line: &str) -> (i32, String, String) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_unisono"));
        let output = command.args(line.split(' ')).current_dir(&self.0).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A machine so slow that every split of work pays.
pub fn slow(link: Link) -> Cluster {
    let mut cluster = uniform(1e8, 1e8, link);
    cluster.device.operation_ns = 10.0;
    cluster
}

/// A link of a latency in nanoseconds that sends 10 GB/s.
pub const fn fast(latency_ns: f64) -> Link {
    link(latency_ns, 1e10)
}
