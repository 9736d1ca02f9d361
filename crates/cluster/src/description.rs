//! The text form of a cluster.

use base::{Code, Diagnostic, Result};
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::{Cluster, Device, GroupTimes, InSteps, Interconnect, Kind, Links, Network, presets};

/// The version of the format that is written.
const VERSION: u32 = 1;

/// A cluster as it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Description {
    version: u32,
    device: Device,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    links: Option<Links>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    network: Option<Network>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    groups: Vec<GroupTimes>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    in_steps: Vec<InSteps>,
    /// Ranks with devices of several kinds, each a device with how many `ranks` have it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    devices: Vec<Table>,
}

/// How to get a description.
const HINT: &str =
    "`unisono profile` measures a machine, `unisono cluster h100:8x8` prints a preset to begin with";

/// What a file may name for everything that it does not say itself.
const PRESET: &str = "preset";

/// How many ranks have a kind of device.
const RANKS: &str = "ranks";

/// The header of a kind of device.
const DEVICES: &str = "[[devices]]";

impl Cluster {
    /// Reads a description. `file` is what diagnostics call it.
    pub fn parse(text: &str, file: &str) -> Result<Self> {
        let source = Source { text, file };
        let given: Table = toml::from_str(text).map_err(|error| {
            let at = error.span().map_or(0, |span| span.start);
            source.malformed(error.message(), at)
        })?;
        let complete = match given.get(PRESET) {
            None => given,
            Some(name) => {
                let name = name.as_str().unwrap_or_default();
                let preset =
                    presets::find(name).map_err(|error| error.at_line(file, source.line(PRESET), 0))?;
                let mut base = Table::try_from(described(&preset)).expect("a cluster is a table");
                base.insert("version".into(), i64::from(VERSION).into());
                merge(&mut base, given.into_iter().filter(|(key, _)| key != PRESET).collect());
                base
            }
        };
        let description: Description = complete.try_into().map_err(|error: toml::de::Error| {
            source.malformed(error.message(), source.of_message(error.message()))
        })?;
        source.checked(description)
    }

    /// What is meant by the name of a preset with its size, such as `h100:8x8`.
    pub fn preset(name: &str) -> Result<Self> {
        presets::find(name)
    }

    /// The description as text.
    pub fn text(&self) -> String {
        toml::to_string_pretty(&described(self)).expect("a cluster has no keys that TOML lacks")
    }
}

fn described(cluster: &Cluster) -> Description {
    let (links, network) = match &cluster.interconnect {
        Interconnect::Measured(links) => (Some(*links), None),
        Interconnect::Levels(network) => (None, Some(network.clone())),
    };
    let (groups, in_steps) = (cluster.groups.clone(), cluster.in_steps.clone());
    let device = cluster.kinds.first().map_or(&cluster.device, |kind| &kind.cluster.device).clone();
    let kind = |kind: &Kind| {
        let mut table = Table::try_from(&kind.cluster.device).expect("a device is a table");
        table.insert(RANKS.into(), i64::from(kind.ranks).into());
        table
    };
    let devices = cluster.kinds.iter().map(kind).collect();
    Description { version: VERSION, device, links, network, groups, in_steps, devices }
}

/// Puts values over those of the same name, tables into each other. Lists of tables that have names are tables by those names.
fn merge(base: &mut Table, over: Table) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(toml::Value::Table(within)), toml::Value::Table(value)) => merge(within, value),
            (Some(toml::Value::Array(known)), toml::Value::Array(values)) => merge_named(known, values),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

fn merge_named(known: &mut Vec<toml::Value>, values: Vec<toml::Value>) {
    for value in values {
        let same = known.iter_mut().find(|one| one.get("name") == value.get("name"));
        match (same, value) {
            (Some(toml::Value::Table(within)), toml::Value::Table(value)) => merge(within, value),
            (_, value) => known.push(value),
        }
    }
}

/// The text that a description is read from.
struct Source<'a> {
    text: &'a str,
    file: &'a str,
}

impl Source<'_> {
    fn checked(&self, description: Description) -> Result<Cluster> {
        let Description { version, device, links, network, groups, in_steps, devices } = description;
        if version != VERSION {
            return self.wrong(("version", &format!("{version}, not {VERSION}")));
        }
        if let Some(wrong) = device.wrong() {
            return self.wrong(wrong);
        }
        let interconnect = match (links, network) {
            (Some(links), None) => Interconnect::Measured(links),
            (None, Some(network)) => Interconnect::Levels(network),
            (Some(_), Some(_)) => return self.wrong(("links", "beside a `network`, of which one is enough")),
            (None, None) => return self.wrong(("links", "missing, and no `network` either")),
        };
        let wrong = match &interconnect {
            Interconnect::Measured(links) => links.wrong(),
            Interconnect::Levels(network) => network.wrong(),
        };
        if let Some(wrong) = wrong {
            return self.wrong(wrong);
        }
        let network = match &interconnect {
            Interconnect::Measured(_) => None,
            Interconnect::Levels(network) => Some(network),
        };
        let of_groups = groups.iter().map(|group| (&group.shape[..], group.wrong(network)));
        self.each_shape_once("[[groups]]", of_groups)?;
        let of_steps = in_steps.iter().map(|seen| (&seen.shape[..], seen.wrong(network)));
        self.each_shape_once("[[in_steps]]", of_steps)?;
        let alone = Cluster { device, kinds: Vec::new(), interconnect, groups, in_steps };
        if devices.is_empty() { Ok(alone) } else { self.of_kinds(devices, &alone) }
    }

    /// Refuses tables by shapes of groups of which one is wrong, or there twice.
    fn each_shape_once<'s>(
        &self,
        header: &str,
        tables: impl Iterator<Item = (&'s [u32], Option<(&'static str, &'static str)>)>,
    ) -> Result<()> {
        let mut known: Vec<&[u32]> = Vec::new();
        for (number, (shape, wrong)) in tables.enumerate() {
            let again = known.contains(&shape).then_some(("shape", "there twice"));
            if let Some(wrong) = again.or(wrong) {
                return self.wrong_in(header, number, wrong);
            }
            known.push(shape);
        }
        Ok(())
    }

    /// A cluster with the kinds of devices that are said.
    fn of_kinds(&self, devices: Vec<Table>, alone: &Cluster) -> Result<Cluster> {
        let kinds = devices.into_iter().enumerate();
        let kinds: Vec<(u32, Device)> =
            kinds.map(|(number, device)| self.kind(number, device, &alone.device)).collect::<Result<_>>()?;
        let last = kinds.len() - 1;
        let ranks: u64 = kinds.iter().map(|(ranks, _)| u64::from(*ranks)).sum();
        match alone.ranks() {
            Some(all) if u64::from(all) == ranks => Ok(Cluster::of_kinds(kinds, alone)),
            Some(all) => self.wrong_in(
                DEVICES,
                last,
                (RANKS, &format!("{ranks} of all devices, but {all} of the network")),
            ),
            None => self.wrong(("devices", "of several kinds without a `network` of levels")),
        }
    }

    /// One kind: a preset's device or that of the description, with the values that differ.
    fn kind(&self, number: usize, mut said: Table, device: &Device) -> Result<(u32, Device)> {
        let ranks = said.remove(RANKS).and_then(|ranks| u32::try_from(ranks.as_integer()?).ok());
        let Some(ranks) = ranks.filter(|ranks| *ranks > 0) else {
            return self.wrong_in(
                DEVICES,
                number,
                (RANKS, "missing, or no number of ranks with that device"),
            );
        };
        let base = match said.remove(PRESET) {
            None if said.contains_key("name") => None,
            None => Some(device.clone()),
            Some(name) => {
                let line = self.line_in(DEVICES, number, PRESET);
                let preset = presets::find(name.as_str().unwrap_or_default());
                Some(preset.map_err(|error| error.at_line(self.file, line, 0))?.device)
            }
        };
        let table = base.map(|base| Table::try_from(&base).expect("a device is a table"));
        let mut table = table.unwrap_or_default();
        merge(&mut table, said);
        let device: Device = table.try_into().map_err(|error: toml::de::Error| {
            let of_table = self.start_of(DEVICES, number);
            let rest = Source { text: &self.text[of_table..], file: self.file };
            self.malformed(error.message(), of_table + rest.of_message(error.message()))
        })?;
        match device.wrong() {
            Some(wrong) => self.wrong_in(DEVICES, number, wrong),
            None => Ok((ranks, device)),
        }
    }

    /// An impossible value of a key.
    fn wrong<T>(&self, (key, what): (&str, &str)) -> Result<T> {
        self.wrong_at(self.line(key), (key, what))
    }

    /// An impossible value of a key in one of several tables with the same header.
    fn wrong_in<T>(&self, header: &str, number: usize, wrong: (&str, &str)) -> Result<T> {
        self.wrong_at(self.line_in(header, number, wrong.0), wrong)
    }

    /// Where a table begins of several with the same header.
    fn start_of(&self, header: &str, number: usize) -> usize {
        self.text.match_indices(header).nth(number).map_or(0, |(at, _)| at)
    }

    /// The line of a key in such a table; that of its header where it is not there.
    fn line_in(&self, header: &str, number: usize, key: &str) -> u32 {
        let start = self.start_of(header, number);
        let end =
            self.text[start..].match_indices("\n[").next().map_or(self.text.len(), |(at, _)| start + at);
        let table = Source { text: &self.text[start..end], file: self.file };
        let before = self.text[..start].matches('\n').count() as u32;
        before + table.line(key).max(1)
    }

    fn wrong_at<T>(&self, line: u32, (key, what): (&str, &str)) -> Result<T> {
        Err(Diagnostic::new(Code::BAD_CLUSTER, format!("`{key}` of a cluster description is {what}"))
            .at_line(self.file, line, 0)
            .hint(HINT))
    }

    fn malformed(&self, message: &str, at: usize) -> Box<Diagnostic> {
        let what = "a cluster description";
        // Of what follows, the table, the line says more.
        let message = message.lines().next().unwrap_or_default();
        let diagnostic = base::malformed(Code::BAD_CLUSTER, what, (self.text, self.file), message, at);
        if diagnostic.hint.is_some() { diagnostic } else { diagnostic.hint(HINT) }
    }

    /// Where the first name stands that a message of serde quotes.
    fn of_message(&self, message: &str) -> usize {
        message.split('`').nth(1).and_then(|key| self.position(key)).unwrap_or(0)
    }

    /// The line of the first key of that name; 0 where there is none.
    fn line(&self, key: &str) -> u32 {
        self.position(key).map_or(0, |at| 1 + self.text[..at].matches('\n').count() as u32)
    }

    fn position(&self, key: &str) -> Option<usize> {
        let starts = self.text.match_indices(key).map(|(at, _)| at);
        let is_word = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        starts.into_iter().find(|at| {
            let before = self.text[..*at].chars().next_back();
            let after = self.text[at + key.len()..].chars().next();
            !key.is_empty() && !is_word(before) && !is_word(after)
        })
    }
}
