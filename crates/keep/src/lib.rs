//! Plans and machine descriptions of earlier runs, kept as files in a folder that the caller names.
//!
//! A kept file is used only where it is as it was written: a plan begins with the fingerprint of its text. A folder that cannot be
//! written keeps nothing, which costs time and is no error.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use base::{Fingerprint, Fingerprinter, Result};
use cluster::Cluster;
use ir::Graph;
use plan::{Plan, PlanSettings, plan_graph};

/// Begins a kept plan; the fingerprint of the text below it follows.
const HEADER: &str = "# kept with fingerprint ";

/// What a description of a machine was measured with.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Measured {
    /// How many ranks.
    pub ranks: u32,
    /// Threads of each.
    pub threads: u32,
    /// All else that makes measurements differ: the processor, the version of PyTorch.
    pub identity: String,
}

/// The folder that an installation keeps things in.
pub struct Kept {
    /// The folder; it is created when something is kept.
    pub folder: PathBuf,
}

impl Kept {
    /// The plan for a captured graph, kept or new. `planner` is the file of the program that plans: another one makes other plans.
    pub fn plan(
        &self,
        planner: &Path,
        graph: &Graph,
        cluster: &Cluster,
        settings: &PlanSettings,
    ) -> Result<Plan> {
        let Ok(planner) = fs::read(planner) else { return plan_graph(graph, cluster, settings) };
        let file = self.plan_file(&planner, graph, cluster, settings);
        if let Some(plan) = read_plan(&file) {
            return Ok(plan);
        }
        let plan = plan_graph(graph, cluster, settings)?;
        let text = plan.text();
        keep(&file, &format!("{HEADER}{}\n{text}", Fingerprint::of(text.as_bytes())));
        Ok(plan)
    }

    fn plan_file(
        &self,
        planner: &[u8],
        graph: &Graph,
        cluster: &Cluster,
        settings: &PlanSettings,
    ) -> PathBuf {
        let settings = toml::to_string(settings).expect("settings have no keys that TOML lacks");
        let mut key = Fingerprinter::new();
        key.part(planner).part(settings.as_bytes());
        for fingerprint in [graph.fingerprint(), cluster.fingerprint()] {
            key.part(&fingerprint.0.to_le_bytes());
        }
        self.folder.join("plans").join(format!("{}.toml", key.finish()))
    }

    /// The kept description of a machine, if it can be read.
    pub fn machine(&self, measured: &Measured) -> Option<String> {
        let text = fs::read_to_string(self.machine_file(measured)).ok()?;
        Cluster::parse(&text, "the kept cluster description").is_ok().then_some(text)
    }

    /// Keeps the description of a machine.
    pub fn keep_machine(&self, measured: &Measured, text: &str) {
        keep(&self.machine_file(measured), text);
    }

    fn machine_file(&self, Measured { ranks, threads, identity }: &Measured) -> PathBuf {
        let identity = Fingerprint::of(identity.as_bytes());
        self.folder.join("machines").join(format!("{identity}-ranks-{ranks}-threads-{threads}.toml"))
    }
}

/// The kept plan, if it is as it was written.
fn read_plan(file: &Path) -> Option<Plan> {
    let kept = fs::read_to_string(file).ok()?;
    let (fingerprint, text) = kept.strip_prefix(HEADER)?.split_once('\n')?;
    let is_as_written = fingerprint.parse() == Ok(Fingerprint::of(text.as_bytes()));
    is_as_written.then(|| Plan::parse(text, "the kept plan").ok()).flatten()
}

/// Writes a file as one: who reads it meanwhile finds the old one or the new one.
fn keep(file: &Path, text: &str) {
    let unfinished = file.with_extension(format!("{}.part", std::process::id()));
    let written: io::Result<()> = fs::create_dir_all(file.parent().unwrap_or(Path::new("")))
        .and_then(|()| fs::write(&unfinished, text))
        .and_then(|()| fs::rename(&unfinished, file));
    if written.is_err() {
        drop(fs::remove_file(&unfinished));
    }
}

#[cfg(test)]
mod tests {
    use cluster::testing::{link, uniform};

    use super::*;

    const GRAPH: &str = "unisono graph 2\n\
        op aten::relu(Tensor self) -> Tensor\n\
        input v0: f32[4] = batch \"batch.0\"\n\
        v1: f32[4] = aten::relu(v0)\n\
        return v1\n";
    fn machine() -> Cluster {
        uniform(1e11, 1e10, link(1_000.0, 1e9))
    }

    fn kept(name: &str) -> Kept {
        let folder = std::env::temp_dir().join(format!("unisono-kept-{name}-{}", std::process::id()));
        drop(fs::remove_dir_all(&folder));
        Kept { folder }
    }

    /// The plan of [`GRAPH`] on `ranks`, by a planner whose program is the file `planner`.
    fn planned(kept: &Kept, planner: &Path, ranks: u32) -> Plan {
        let settings =
            PlanSettings { mesh: [("a".to_owned(), ranks)].into_iter().collect(), ..PlanSettings::default() };
        let graph = Graph::from_text("step", GRAPH).unwrap();
        kept.plan(planner, &graph, &machine(), &settings).unwrap()
    }

    fn plans(kept: &Kept) -> Vec<PathBuf> {
        fs::read_dir(kept.folder.join("plans")).unwrap().map(|file| file.unwrap().path()).collect()
    }

    #[test]
    fn a_plan_is_kept_for_each_planner_and_setting() {
        let kept = kept("plans");
        let planner = kept.folder.join("planner");
        fs::create_dir_all(&kept.folder).unwrap();
        fs::write(&planner, "one").unwrap();
        let first = planned(&kept, &planner, 2);
        assert_eq!((planned(&kept, &planner, 2), plans(&kept).len()), (first, 1));
        planned(&kept, &planner, 4);
        assert_eq!(plans(&kept).len(), 2);
        fs::write(&planner, "two").unwrap();
        planned(&kept, &planner, 2);
        assert_eq!(plans(&kept).len(), 3);
        fs::remove_dir_all(&kept.folder).unwrap();
    }

    #[test]
    fn a_kept_plan_is_read_only_as_it_was_written() {
        let kept = kept("damage");
        let planner = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let first = planned(&kept, &planner, 2);
        let file = plans(&kept).pop().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let other = text.replace("step_ns = ", "step_ns = 1");
        assert_ne!(text, other);
        fs::write(&file, other).unwrap();
        assert!(read_plan(&file).is_none());
        assert_eq!(planned(&kept, &planner, 2), first);
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "it is written anew");
        fs::remove_dir_all(&kept.folder).unwrap();
    }

    #[test]
    fn a_kept_plan_is_what_is_read() {
        let kept = kept("read");
        let planner = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let mut plan = planned(&kept, &planner, 2);
        plan.label = "kept".to_owned();
        let (file, text) = (plans(&kept).pop().unwrap(), plan.text());
        keep(&file, &format!("{HEADER}{}\n{text}", Fingerprint::of(text.as_bytes())));
        assert_eq!(planned(&kept, &planner, 2).label, "kept");
        fs::remove_dir_all(&kept.folder).unwrap();
    }

    fn measured() -> Measured {
        Measured { ranks: 4, threads: 1, identity: "a processor".to_owned() }
    }

    #[test]
    fn a_machine_is_kept_for_what_it_was_measured_with_and_only_where_it_can_be_read() {
        let kept = kept("machine");
        assert_eq!(kept.machine(&measured()), None);
        let text = machine().text();
        kept.keep_machine(&measured(), &text);
        assert_eq!(kept.machine(&measured()), Some(text));
        for other in [
            Measured { ranks: 2, ..measured() },
            Measured { threads: 2, ..measured() },
            Measured { identity: "another".to_owned(), ..measured() },
        ] {
            assert_eq!(kept.machine(&other), None, "{other:?}");
        }
        kept.keep_machine(&measured(), "version = 0");
        assert_eq!(kept.machine(&measured()), None);
        fs::remove_dir_all(&kept.folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_keeps_nothing() {
        let file = std::env::temp_dir().join(format!("unisono-kept-file-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        let kept = Kept { folder: file.clone() };
        kept.keep_machine(&measured(), &machine().text());
        assert_eq!((kept.machine(&measured()), planned(&kept, &file, 2).mesh["a"]), (None, 2));
        fs::remove_file(&file).unwrap();
    }
}
