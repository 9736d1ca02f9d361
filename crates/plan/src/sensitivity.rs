//! What a little more of something would give, answered by planning again.

use std::fmt;

use base::Result;
use cluster::Cluster;
use ir::Graph;
use serde::Serialize;

use crate::{
    plan::Plan,
    settings::PlanSettings,
    step::plan_graph,
    summary::{NANOS_PER_MILLI, nanos},
};

const GIBIBYTE: u64 = 1 << 30;

/// How much faster links, and then devices, are made.
const LINKS: f64 = 2.0;
const DEVICE: f64 = 1.1;

/// What the best plan takes under other circumstances.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sensitivity {
    /// What is other.
    pub with: String,
    /// What the plan is then.
    pub label: String,
    /// Its predicted time, in milliseconds.
    pub step_ms: f64,
    /// How much less time it takes than the plan, as a share; less than 0 where it takes more.
    pub saves: f64,
}

impl fmt::Display for Sensitivity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { with, label, step_ms, saves } = self;
        let change = if *saves < 0.0 { "more" } else { "less" };
        write!(f, "with {with}: {}, {:.1} % {change}: {label}", nanos(*step_ms), saves.abs() * 100.0)
    }
}

/// What more memory, faster links and a faster device would give beside `plan`, which these settings gave.
pub fn sensitivities(
    graph: &Graph,
    plan: &Plan,
    cluster: &Cluster,
    settings: &PlanSettings,
) -> Result<Vec<Sensitivity>> {
    let again = |with: String, cluster: &Cluster, settings: &PlanSettings| -> Result<Sensitivity> {
        let other = plan_graph(graph, cluster, settings)?;
        let (before, after) = (plan.prediction.step_ns as f64, other.prediction.step_ns as f64);
        let saves = 1.0 - after / before;
        Ok(Sensitivity { with, label: other.label, step_ms: after / NANOS_PER_MILLI, saves })
    };
    let mut found = Vec::new();
    // Memory that no plan needs changes nothing.
    if let Some(limit) = settings.memory_limit(cluster).filter(|limit| is_near(plan, *limit)) {
        let more = PlanSettings { memory_limit: Some(limit + GIBIBYTE), ..settings.clone() };
        found.push(again("1 GiB more memory of a rank".into(), cluster, &more)?);
    }
    if plan.mesh().ranks() > 1 {
        found.push(again(format!("links {LINKS} times as fast"), &cluster.with_links(LINKS), settings)?);
    }
    let percent = (DEVICE - 1.0) * 100.0;
    found.push(again(format!("a device {percent:.0} % faster"), &cluster.with_device(DEVICE), settings)?);
    Ok(found)
}

/// Whether a limit keeps faster plans out: this one is near it, or one that was considered is over it.
fn is_near(plan: &Plan, limit: u64) -> bool {
    plan.prediction.peak_bytes + GIBIBYTE > limit || plan.runners_up.iter().any(|other| !other.fits)
}
