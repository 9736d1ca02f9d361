//! Captures, plans, machine descriptions and times of kernels of earlier runs, kept as files in a folder that the caller names.
//!
//! A kept file is used only where it is as it was written: a capture, a plan and times begin with the fingerprint of what follows. A folder
//! that cannot be written keeps nothing, which costs time and is no error.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use base::{Fingerprint, Fingerprinter, Result};
use cluster::Cluster;
use ir::Graph;
use plan::{Plan, PlanSettings, Telling, plan_telling};

/// Begins a file; the fingerprint of what is below the line follows.
const HEADER: &str = "# kept with fingerprint ";

/// The captures that a folder keeps: the oldest ones go.
const MOST_CAPTURES: usize = 64;

/// A larger capture is not kept.
const MOST_CAPTURE_BYTES: usize = 1 << 28;

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

/// What identifies a program, by its file; `None` if that cannot be read. It takes as long as to read tens of megabytes.
pub fn program(file: &Path) -> Option<Fingerprint> {
    fs::read(file).ok().map(|content| Fingerprint::of(&content))
}

/// The folder that an installation keeps things in.
pub struct Kept {
    /// The folder; it is created when something is kept.
    pub folder: PathBuf,
}

impl Kept {
    /// The plan for a captured graph, kept or new. `planner` is the [`program`] that plans: another one makes other plans. `telling` hears where a search is.
    pub fn plan(
        &self,
        planner: Fingerprint,
        graph: &Graph,
        cluster: &Cluster,
        settings: &PlanSettings,
        telling: Option<Telling<'_>>,
    ) -> Result<Plan> {
        let file = self.plan_file(planner, graph, cluster, settings);
        if let Some(plan) = read_plan(&file) {
            return Ok(plan);
        }
        let plan = plan_telling(graph, cluster, settings, telling, |_| {})?;
        keep(&file, &with_fingerprint(plan.text().as_bytes()));
        Ok(plan)
    }

    fn plan_file(
        &self,
        planner: Fingerprint,
        graph: &Graph,
        cluster: &Cluster,
        settings: &PlanSettings,
    ) -> PathBuf {
        let settings = toml::to_string(settings).expect("settings have no keys that TOML lacks");
        let mut key = Fingerprinter::new();
        key.part(settings.as_bytes());
        for fingerprint in [planner, graph.fingerprint(), cluster.fingerprint()] {
            key.part(&fingerprint.0.to_le_bytes());
        }
        self.folder.join("plans").join(format!("{}.toml", key.finish()))
    }

    /// The kept message of the capture with this key, which is a file name, if it is as it was written.
    pub fn capture(&self, key: &str) -> Option<Vec<u8>> {
        as_written(&fs::read(self.capture_file(key)).ok()?).map(<[u8]>::to_vec)
    }

    /// Keeps the message of a capture, and lets the oldest ones go.
    pub fn keep_capture(&self, key: &str, message: &[u8]) {
        if message.len() <= MOST_CAPTURE_BYTES {
            keep(&self.capture_file(key), &with_fingerprint(message));
            drop(drop_oldest(&self.captures(), MOST_CAPTURES));
        }
    }

    fn captures(&self) -> PathBuf {
        self.folder.join("captures")
    }

    fn capture_file(&self, key: &str) -> PathBuf {
        self.captures().join(key)
    }

    /// The kept description of a machine, if it can be read.
    pub fn machine(&self, measured: &Measured) -> Option<String> {
        let text = fs::read_to_string(self.machine_file(measured)).ok()?;
        Cluster::parse(&text, "the kept cluster description").is_ok().then_some(text)
    }

    /// Keeps the description of a machine.
    pub fn keep_machine(&self, measured: &Measured, text: &str) {
        keep(&self.machine_file(measured), text.as_bytes());
    }

    fn machine_file(&self, Measured { ranks, threads, identity }: &Measured) -> PathBuf {
        let identity = Fingerprint::of(identity.as_bytes());
        self.folder.join("machines").join(format!("{identity}-ranks-{ranks}-threads-{threads}.toml"))
    }
}

impl Kept {
    /// The kept message of what groups of operations take, if it is as it was written. `compiler` is the file of the program that compiles
    /// kernels: those of another one take other times.
    pub fn times(&self, compiler: &Path, measured: &Measured) -> Option<Vec<u8>> {
        as_written(&fs::read(self.times_file(compiler, measured)?).ok()?).map(<[u8]>::to_vec)
    }

    /// Keeps what groups of operations take.
    pub fn keep_times(&self, compiler: &Path, measured: &Measured, message: &[u8]) {
        if let Some(file) = self.times_file(compiler, measured) {
            keep(&file, &with_fingerprint(message));
        }
    }

    fn times_file(&self, compiler: &Path, measured: &Measured) -> Option<PathBuf> {
        let Measured { ranks, threads, identity } = measured;
        let mut key = Fingerprinter::new();
        key.part(&fs::read(compiler).ok()?).part(identity.as_bytes());
        Some(self.folder.join("kernels").join(format!("{}-ranks-{ranks}-threads-{threads}", key.finish())))
    }
}

/// The kept plan, if it is as it was written.
fn read_plan(file: &Path) -> Option<Plan> {
    let kept = fs::read(file).ok()?;
    Plan::parse(std::str::from_utf8(as_written(&kept)?).ok()?, "the kept plan").ok()
}

/// A content below the line that says its fingerprint.
fn with_fingerprint(content: &[u8]) -> Vec<u8> {
    [format!("{HEADER}{}\n", Fingerprint::of(content)).as_bytes(), content].concat()
}

/// The content of a file that [`with_fingerprint`] made, if nothing has changed it.
fn as_written(kept: &[u8]) -> Option<&[u8]> {
    let kept = kept.strip_prefix(HEADER.as_bytes())?;
    let (line, content) = kept.split_at(kept.iter().position(|&byte| byte == b'\n')?);
    let fingerprint = std::str::from_utf8(line).ok()?.parse();
    (fingerprint == Ok(Fingerprint::of(&content[1..]))).then_some(&content[1..])
}

/// Writes a file as one: who reads it meanwhile finds the old one or the new one.
fn keep(file: &Path, content: &[u8]) {
    let unfinished = file.with_extension(format!("{}.part", std::process::id()));
    let written: io::Result<()> = fs::create_dir_all(file.parent().unwrap_or(Path::new("")))
        .and_then(|()| fs::write(&unfinished, content))
        .and_then(|()| fs::rename(&unfinished, file));
    if written.is_err() {
        drop(fs::remove_file(&unfinished));
    }
}

/// Removes the files of a folder that were written first, so that no more than `most` are left.
fn drop_oldest(folder: &Path, most: usize) -> io::Result<()> {
    let mut files = fs::read_dir(folder)?
        .map(|file| file.and_then(|file| Ok((file.metadata()?.modified()?, file.path()))))
        .collect::<io::Result<Vec<_>>>()?;
    files.sort();
    files.iter().take(files.len().saturating_sub(most)).try_for_each(|(_, file)| fs::remove_file(file))
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

    /// The plan of [`GRAPH`] on `ranks`, by a planner whose program is `planner`.
    fn planned(kept: &Kept, planner: &str, ranks: u32) -> Plan {
        let settings =
            PlanSettings { mesh: [("a".to_owned(), ranks)].into_iter().collect(), ..PlanSettings::default() };
        let graph = Graph::from_text("step", GRAPH).unwrap();
        kept.plan(Fingerprint::of(planner.as_bytes()), &graph, &machine(), &settings, None).unwrap()
    }

    fn plans(kept: &Kept) -> Vec<PathBuf> {
        fs::read_dir(kept.folder.join("plans")).unwrap().map(|file| file.unwrap().path()).collect()
    }

    #[test]
    fn a_plan_is_kept_for_each_planner_and_setting() {
        let kept = kept("plans");
        let first = planned(&kept, "one", 2);
        assert_eq!((planned(&kept, "one", 2), plans(&kept).len()), (first, 1));
        planned(&kept, "one", 4);
        assert_eq!(plans(&kept).len(), 2);
        planned(&kept, "two", 2);
        assert_eq!(plans(&kept).len(), 3);
        fs::remove_dir_all(&kept.folder).unwrap();
    }

    #[test]
    fn a_program_is_known_by_what_is_in_its_file() {
        let kept = kept("program");
        let file = kept.folder.join("program");
        assert_eq!(program(&file), None);
        fs::create_dir_all(&kept.folder).unwrap();
        let of = |content: &str| {
            fs::write(&file, content).unwrap();
            program(&file).unwrap()
        };
        assert_eq!(of("one"), of("one"));
        assert_ne!(of("one"), of("two"));
        fs::remove_dir_all(&kept.folder).unwrap();
    }

    #[test]
    fn a_kept_plan_is_read_only_as_it_was_written() {
        let kept = kept("damage");
        let first = planned(&kept, "one", 2);
        let file = plans(&kept).pop().unwrap();
        let text = fs::read_to_string(&file).unwrap();
        let other = text.replace("step_ns = ", "step_ns = 1");
        assert_ne!(text, other);
        fs::write(&file, other).unwrap();
        assert!(read_plan(&file).is_none());
        assert_eq!(planned(&kept, "one", 2), first);
        assert_eq!(fs::read_to_string(&file).unwrap(), text, "it is written anew");
        fs::remove_dir_all(&kept.folder).unwrap();
    }

    #[test]
    fn a_kept_plan_is_what_is_read() {
        let kept = kept("read");
        let mut plan = planned(&kept, "one", 2);
        plan.label = "kept".to_owned();
        let (file, text) = (plans(&kept).pop().unwrap(), plan.text());
        keep(&file, &with_fingerprint(text.as_bytes()));
        assert_eq!(planned(&kept, "one", 2).label, "kept");
        fs::remove_dir_all(&kept.folder).unwrap();
    }

    #[test]
    fn a_capture_is_read_only_as_it_was_written() {
        let kept = kept("capture");
        assert_eq!(kept.capture("one"), None);
        kept.keep_capture("one", b"a\nmessage");
        assert_eq!(kept.capture("one").as_deref(), Some(&b"a\nmessage"[..]));
        let file = kept.capture_file("one");
        let written = fs::read(&file).unwrap();
        for end in 0..written.len() {
            fs::write(&file, &written[..end]).unwrap();
            assert_eq!(kept.capture("one"), None, "{end} bytes are left");
        }
        fs::remove_dir_all(&kept.folder).unwrap();
    }

    #[test]
    fn the_oldest_captures_go() {
        let kept = kept("oldest");
        let name = |number: usize| format!("{number:03}");
        for number in 0..MOST_CAPTURES + 2 {
            kept.keep_capture(&name(number), b"");
            let file = fs::File::options().append(true).open(kept.capture_file(&name(number))).unwrap();
            file.set_modified(std::time::UNIX_EPOCH + std::time::Duration::from_secs(number as u64)).unwrap();
        }
        let is_kept = |number| kept.capture(&name(number)).is_some();
        assert_eq!(
            (is_kept(0), is_kept(1), is_kept(2), is_kept(MOST_CAPTURES + 1)),
            (false, false, true, true)
        );
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
    fn times_are_kept_for_the_program_that_compiles_and_read_only_as_they_were_written() {
        let kept = kept("times");
        let compiler = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lib.rs");
        kept.keep_times(&compiler, &measured(), b"times");
        assert_eq!(kept.times(&compiler, &measured()).as_deref(), Some(&b"times"[..]));
        assert_eq!(kept.times(&other, &measured()), None);
        let file = kept.times_file(&compiler, &measured()).unwrap();
        fs::write(&file, "damaged").unwrap();
        assert_eq!(kept.times(&compiler, &measured()), None);
        fs::remove_dir_all(&kept.folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_keeps_nothing() {
        let file = std::env::temp_dir().join(format!("unisono-kept-file-{}", std::process::id()));
        fs::write(&file, "").unwrap();
        let kept = Kept { folder: file.clone() };
        kept.keep_machine(&measured(), &machine().text());
        assert_eq!((kept.machine(&measured()), planned(&kept, "one", 2).mesh["a"]), (None, 2));
        fs::remove_file(&file).unwrap();
    }
}
