//! What of forward is made again in backward, what is on the host until then, and which state is there: the second stage of the search, on one rank's
//! graph of each of several first ones.

use std::collections::BTreeSet;

use base::Result;
use ir::{Graph, RankGraph};
use passes::Pieces;

use crate::{
    choices::Choice,
    forward::Forward,
    host_state::States,
    plan::Prediction,
    run::{Expected, Found, Offloading, Recomputation, Request, Run},
    stays::Ways,
};

/// How often the state that is on the host is halved.
const PARTS: u32 = 4;

/// Of what forward leaves in pipeline stages one part in so many stays when all runs again that can.
const STAYS: u64 = 8;

/// How much longer than what another mesh promises solutions take, in percent, that are not tried in less memory: some of less memory take less time.
const FAR: i64 = 10;

/// How many times all that forward leaves counts at most where even less has to be held, for what it takes to hold less.
const MOST_AGAIN: f64 = 2.0;

/// Of programs of at most so many operations, micro-batches counted, it takes little to find out what of forward to run again.
const QUICKLY_RUN_AGAIN: usize = 1 << 13;

/// How a choice that is over the limit after the passes is made again for a lower one.
#[derive(Clone, Copy)]
pub struct Corrections {
    /// How often.
    most: usize,
    /// How many times more than the time before the limit is lowered by what is left over it.
    growth: u64,
    /// How often a limit is tried between one under which a choice keeps what was asked for and one under which none did.
    raises: usize,
}

impl Corrections {
    /// What is counted is what one rank holds.
    pub const OF_RANKS: Self = Self { most: 4, growth: 1, raises: 0 };
    /// What is held less in a pipeline is less of what its fullest stage holds, by a part that is not known.
    pub const OF_STAGES: Self = Self { most: 6, growth: 2, raises: 2 };
}

impl Run<'_> {
    /// What may be done with what forward leaves so that a memory limit is kept.
    pub fn ways(&self) -> Ways {
        let Request { recompute, offload, cluster, .. } = self.request;
        let host = offload.map_or(cluster.device.host_bandwidth.is_some(), Offloading::of_activations);
        Ways { again: *recompute != Some(Recomputation::None), host }
    }

    /// Whether anything may.
    pub fn may_hold_less(&self) -> bool {
        let Ways { again, host } = self.ways();
        again || host || self.may_have_state_on_host()
    }

    /// Whether a candidate could keep the memory limit if forward ran again: what is made in forward is at most what that can save.
    pub fn could_fit(&self, found: &Found) -> bool {
        self.request.memory_limit.is_none_or(|limit| self.least_bytes(found) <= limit)
    }

    /// What a candidate holds at its peak beside what is made in forward, and what is made and read at once. Where several
    /// micro-batches are under way the latter is sums of gradients, which stay, and so does some of what is made in forward.
    pub fn least_bytes(&self, found: &Found) -> u64 {
        let Prediction { peak_bytes, activation_bytes, temporary_bytes, .. } = found.prediction;
        let saved = if self.under_way() > 1 {
            activation_bytes - activation_bytes / STAYS
        } else {
            activation_bytes + temporary_bytes
        };
        peak_bytes.saturating_sub(saved)
    }

    /// About what a candidate takes once it keeps the memory limit.
    pub fn expected_ns(&self, found: &Found) -> i64 {
        self.expected(found, found.least_ns, found.prediction.peak_bytes)
    }

    /// The same for one that takes and holds so much before anything runs again, and is like `found` otherwise.
    fn expected(&self, found: &Found, least_ns: i64, peak_bytes: u64) -> i64 {
        let Prediction { activation_bytes, compute_ns, .. } = found.prediction;
        least_ns.saturating_add(again_ns(compute_ns, self.excess(peak_bytes), activation_bytes))
    }

    /// What a candidate is expected to be within the memory limit: what it is where it keeps it, and otherwise what it becomes once it holds less,
    /// if that can be enough.
    pub fn promised(&self, found: &Found) -> Option<Prediction> {
        let limit = self.request.memory_limit.unwrap_or(u64::MAX);
        let Found { prediction, .. } = *found;
        if prediction.peak_bytes <= limit {
            return Some(prediction);
        }
        let may_do = self.may_hold_less() && self.could_fit(found);
        may_do.then(|| Prediction { step_ns: self.expected_ns(found), peak_bytes: limit, ..prediction })
    }

    /// The candidates that promise to keep the memory limit, each with what it is then expected to take, the fastest first; of those that are
    /// near each other one.
    pub fn promising<'f>(&self, found: &'f [Found]) -> Vec<(i64, &'f Found)> {
        let promised = |one: &'f Found| Some((self.promised(one)?.step_ns, one));
        let mut promising: Vec<(i64, &Found)> = found.iter().filter_map(promised).collect();
        promising.sort_by_key(|(step, one)| (*step, one.prediction.peak_bytes));
        promising.dedup_by(|(_, one), (_, before)| one.is_near(before));
        promising
    }

    /// Takes a candidate into account.
    pub fn note_expected(&self, found: &Found) {
        let expected = self.expected_of(found);
        self.least_expected_ns.set(self.least_expected_ns.get().min(expected.step_ns));
        if self.best_expected.get().is_none_or(|known| expected.step_ns < known.step_ns) {
            self.best_expected.set(Some(expected));
        }
    }

    /// What a candidate is expected to take once it keeps the memory limit, and what less memory would save it.
    pub fn expected_of(&self, found: &Found) -> Expected {
        Expected { step_ns: self.expected_ns(found), byte_price: self.byte_price_of(found) }
    }

    /// What one byte less would save a candidate that runs forward again to keep the memory limit, in picoseconds: by how much
    /// [what it is expected to take](Self::expected_ns) grows with its peak; where all that forward leaves is not enough, as if it just were.
    pub fn byte_price_of(&self, found: &Found) -> f64 {
        let Prediction { peak_bytes, activation_bytes, compute_ns, .. } = found.prediction;
        let excess = self.excess(peak_bytes) as f64;
        let activations = excess.max(activation_bytes as f64).max(1.0);
        compute_ns as f64 * 1e3 / 2.0 * (excess / activations) / activations
    }

    /// Whether another candidate is expected to take less than any of these would if collectives held nothing: whatever copies of state cost, none of
    /// them gets better.
    pub fn is_beaten(&self, found: &[Found]) -> bool {
        self.least_without_copies(found).is_some_and(|least| least >= self.least_expected_ns.get())
    }

    /// The same by what is promised on another mesh. That says nothing of what memory costs here: it is asked of what is found at the price it has there.
    pub fn is_beaten_elsewhere(&self, found: &[Found]) -> bool {
        let promised = self.request.elsewhere.map_or(i64::MAX, |best| best.step_ns);
        self.least_without_copies(found).is_some_and(|least| least >= promised)
    }

    /// The least that any of these is expected to take if collectives held nothing.
    fn least_without_copies(&self, found: &[Found]) -> Option<i64> {
        let without_copies = |one: &Found| {
            let Prediction { peak_bytes, collective_bytes, .. } = one.prediction;
            self.expected(one, one.least_ns, peak_bytes - collective_bytes)
        };
        found.iter().map(without_copies).min()
    }

    /// Whether all of these take longer than what is known, or much longer than what another mesh promises, and more so the less they hold.
    pub fn is_slower(&self, found: &[Found]) -> bool {
        let Request { known_ns, elsewhere, .. } = *self.request;
        let promised = elsewhere.map(|best| best.step_ns.saturating_mul(100 + FAR) / 100);
        let known = known_ns.into_iter().chain(promised).min();
        known.is_some_and(|known| found.iter().all(|one| one.least_ns >= known))
    }

    /// About what a candidate takes once it keeps the memory limit that stands between two others: `saved` of the way from one to the other in time,
    /// and `held` in memory.
    pub fn expected_between(&self, (from, to): (&Found, &Found), saved: f64, held: f64) -> i64 {
        let between = |start: f64, end: f64, way: f64| (end - start).mul_add(way, start);
        let least_ns = between(from.least_ns as f64, to.least_ns as f64, saved);
        let peak_bytes = between(from.prediction.peak_bytes as f64, to.prediction.peak_bytes as f64, held);
        self.expected(from, least_ns as i64, peak_bytes as u64)
    }

    /// Whether a candidate will most likely keep the memory limit once parts of forward run again: most of what forward leaves would do.
    pub fn is_in_reach(&self, found: &Found) -> bool {
        let Prediction { peak_bytes, activation_bytes, .. } = found.prediction;
        self.may_hold_less() && self.excess(peak_bytes) <= activation_bytes / 4 * 3
    }

    /// Whether all that can be made again, or be on the host, has to. Of a pipeline it is decided when the program is cut into stages.
    pub fn is_full(&self) -> bool {
        let Request { recompute, offload, mesh, .. } = self.request;
        let asked = *recompute == Some(Recomputation::Full) || *offload == Some(Offloading::Full);
        asked && mesh.stages() == 1
    }

    /// The candidates with what of their forward is to be made again, or on the host: all of it where that is asked for, or what those over the memory
    /// limit need that could be faster than the best within it.
    pub fn holding_less(&self, canonical: &Graph, found: &[Found]) -> Result<Vec<Found>> {
        let limit = self.request.memory_limit;
        let (full, is_asked) = (self.is_full(), self.is_full() || self.has_state_on_host());
        if !self.may_hold_less() || limit.is_none() && !is_asked {
            return Ok(Vec::new());
        }
        let may_fit = |one: &Found| self.could_fit(one) || self.could_fit_without_state(one);
        let could_fit = |one: &&Found| is_asked || !one.fits(limit) && may_fit(one);
        let mut fastest: Vec<&Found> = found.iter().filter(could_fit).collect();
        fastest.sort_by_key(|one| (self.expected_ns(one), one.prediction.peak_bytes));
        fastest.dedup_by(|one, before| self.extent.is_thrifty && one.is_near(before));
        let within = found.iter().filter(|one| one.fits(limit)).map(|one| one.prediction.step_ns);
        let mut least = within.chain(self.request.known_ns).min();
        let mut again = Vec::new();
        let tried = self.extent.recomputed;
        let mut lightest = fastest.split_off(fastest.len().min(tried));
        lightest.sort_by_key(|one| (self.least_bytes(one), one.least_ns));
        let operations = canonical.order.len() * self.request.mesh.micro_batches() as usize;
        lightest.truncate(if operations > QUICKLY_RUN_AGAIN { 0 } else { tried });
        for (number, one) in fastest.into_iter().chain(lightest).enumerate() {
            // Where the fastest keep the limit, the lightest are not needed.
            if number >= tried && least.is_some() {
                break;
            }
            // Running again only takes time; in a large search what it is expected to take will do.
            let takes = if self.extent.is_thrifty { self.expected_ns(one) } else { one.least_ns };
            if !is_asked && least.is_some_and(|least| takes >= least) {
                continue;
            }
            let local = self.local(canonical, &one.assignments)?;
            if let Some(made) = self.recomputed(&local, one, full)? {
                if made.fits(limit) {
                    least = Some(least.unwrap_or(i64::MAX).min(made.prediction.step_ns));
                }
                again.push(made);
            }
        }
        Ok(again)
    }

    /// The candidate with what of its forward has to be made again, or on the host, for it to keep the memory limit, or all of it; none where nothing
    /// can be.
    fn recomputed(&self, graph: &RankGraph, found: &Found, full: bool) -> Result<Option<Found>> {
        let settled = self.settled(graph)?;
        // With a link to the host also without it: counting knows less of what is waited for than the simulator does.
        let ways = self.ways();
        let without = (ways.host && ways.again && !full).then_some(Ways::AGAIN);
        let forwards = [Some(ways), without].into_iter().flatten();
        let mut forwards: Vec<Forward> =
            forwards.map(|ways| Forward::new(&settled, self.machine, ways)).collect();
        let states = if self.may_have_state_on_host() { States::of(&settled) } else { States::default() };
        let all = if self.has_state_on_host() { self.all_state(&states) } else { Pieces::default() };
        let mut best: Option<Found> = None;
        let mut least_bytes = u64::MAX;
        let limit = self.request.memory_limit;
        // A candidate over the limit came with the smallest buckets: larger ones may do now.
        for passes in self.ladder() {
            let passes = passes::Settings { host_state: all.clone(), ..passes };
            let (mut fits, mut bytes) = (false, u64::MAX);
            for forward in &forwards {
                let Some(made) = self.recomputed_under(&passes, (&settled, forward), found, full)? else {
                    continue;
                };
                fits |= made.fits(limit);
                bytes = bytes.min(made.prediction.peak_bytes);
                // Where nothing waits for the host, to do without it takes no less.
                let is_enough = self.extent.is_thrifty && fits && made.prediction.exposed_copies_ns == 0;
                if best.as_ref().is_none_or(|best| made.fitness(limit) < best.fitness(limit)) {
                    best = Some(made);
                }
                if is_enough {
                    break;
                }
            }
            if all.is_empty() {
                let known = (found, best.as_ref());
                let with_state = self.with_less_state(&passes, (&settled, &states), &mut forwards, known)?;
                fits |= with_state.as_ref().is_some_and(|one| one.fits(limit));
                bytes = with_state.as_ref().map_or(bytes, |one| bytes.min(one.prediction.peak_bytes));
                best = best.into_iter().chain(with_state).min_by_key(|one| one.fitness(limit));
            }
            // Where smaller buckets hold no less, even smaller ones do not either.
            let is_in_vain = !fits && bytes >= least_bytes;
            if found.prediction.collectives == 0 || !self.extent.all_rungs && (fits || is_in_vain) {
                break;
            }
            least_bytes = bytes;
        }
        best.map(|best| self.ahead(&settled, &states, best)).transpose()
    }

    /// The candidate with state on the host, with as much as the memory limit asks for, and with less of it and parts of forward made again, or
    /// there as well. None where it cannot be, or would take longer than what is known.
    fn with_less_state(
        &self,
        passes: &passes::Settings,
        (settled, states): (&RankGraph, &States),
        forwards: &mut [Forward],
        (found, known): (&Found, Option<&Found>),
    ) -> Result<Option<Found>> {
        let limit = self.request.memory_limit;
        let mut tried = self.with_state_on_host(passes, (settled, states), found, known)?;
        let (Some(last), Some(forward)) = (tried.last(), forwards.first_mut()) else { return Ok(None) };
        // With all of forward made again that can be, so much of the state is left to go.
        let least = known.map_or(0, |known| self.excess(known.prediction.peak_bytes)) / 8 * 9;
        let most = last.prediction.host_state_bytes;
        let parts = u32::from(last.fits(limit))..PARTS;
        let mut amounts: BTreeSet<u64> =
            parts.map(|part| most >> part).filter(|bytes| *bytes > least).collect();
        amounts.insert(least.min(most));
        for bytes in amounts.into_iter().filter(|bytes| *bytes > 0) {
            let (pieces, taken) = states.pieces(bytes, self.room_on_host());
            let passes = passes::Settings { host_state: pieces, ..passes.clone() };
            forward.take_on_host(taken);
            tried.extend(self.recomputed_under(&passes, (settled, forward), found, false)?);
        }
        forward.take_on_host(0);
        Ok(tried.into_iter().min_by_key(|one| one.fitness(limit)))
    }

    /// The same under given settings of the passes.
    fn recomputed_under(
        &self,
        passes: &passes::Settings,
        (settled, forward): (&RankGraph, &Forward),
        found: &Found,
        full: bool,
    ) -> Result<Option<Found>> {
        let known = if *passes == found.passes { found.prediction } else { self.scheduled(settled, passes)? };
        let made = |choice: &Choice| -> Result<Option<(Prediction, passes::Settings)>> {
            let (recompute, offload) = (forward.positions(choice), choice.stays.clone());
            let passes = passes::Settings { recompute, offload, ..passes.clone() };
            let Prediction { model_ns, bound_ns, .. } = found.prediction;
            let prediction = self.scheduled(settled, &passes)?;
            // Operations that begin at other times are rounded otherwise.
            let difference = prediction.compute_ns - known.compute_ns;
            let recomputed_ns = if passes.recompute.is_empty() { 0 } else { difference };
            Ok(Some((Prediction { recomputed_ns, model_ns, bound_ns, ..prediction }, passes)))
        };
        let made = if full {
            let choice = forward.full(self.full_ways());
            let choice = choice.or_else(|| (!passes.host_state.is_empty()).then(|| forward.nothing()));
            choice.map_or(Ok(None), |choice| made(&choice))
        } else if !passes.host_state.is_empty() && known.fits(self.request.memory_limit) {
            made(&forward.nothing())
        } else {
            corrected(forward, (self.request.memory_limit, Corrections::OF_RANKS), known.peak_bytes, made)
        };
        let with = |(prediction, passes): (Prediction, passes::Settings)| {
            let least_ns = prediction.step_ns;
            Found { assignments: found.assignments.clone(), passes, prediction, least_ns }
        };
        Ok(made?.map(with))
    }

    /// What is done with all that it can be done with.
    fn full_ways(&self) -> Ways {
        Ways {
            again: self.request.recompute == Some(Recomputation::Full),
            host: self.request.offload == Some(Offloading::Full),
        }
    }
}

/// About what it takes to hold so much less of what forward leaves, of a step whose operations take so long: to make all of it again takes about
/// a quarter of that, and little of it is dear, because what is cheap for its memory is made again first. Where more than all of it is too much,
/// the step is expected to take up to twice as long.
pub fn again_ns(computed_ns: i64, excess: u64, activation_bytes: u64) -> i64 {
    let share = (excess as f64 / activation_bytes.max(1) as f64).min(MOST_AGAIN);
    (computed_ns as f64 / 4.0 * share * share) as i64
}

/// The best of what choices become that hold less and less, until one keeps the limit or so many were tried, the first one by as much less as
/// `peak` is over the limit.
/// What is counted leaves out what the passes add, and that several micro-batches are under way in a pipeline.
pub fn corrected<T>(
    forward: &Forward,
    (limit, corrections): (Option<u64>, Corrections),
    peak: u64,
    mut made: impl FnMut(&Choice) -> Result<Option<(Prediction, T)>>,
) -> Result<Option<(Prediction, T)>> {
    let excess = |peak: u64| limit.map_or(0, |limit| peak.saturating_sub(limit));
    let all = forward.nothing().most.bytes;
    let (mut target, mut failed, mut kept) = (all.saturating_sub(excess(peak)), all, None);
    let mut best: Option<(Prediction, T)> = None;
    let (mut times, mut raises) = (1, corrections.raises);
    for _ in 0..corrections.most + corrections.raises {
        let Some(choice) = forward.within(target) else { break };
        let Some(one) = made(&choice)? else { break };
        let over = excess(one.0.peak_bytes);
        if best.as_ref().is_none_or(|(best, _)| one.0.fitness(limit) < best.fitness(limit)) {
            best = Some(one);
        }
        let least = match kept {
            _ if over == 0 => target,
            Some(least) => {
                failed = target;
                least
            }
            None if choice.most.bytes > target => break,
            None => {
                failed = target;
                target = target.saturating_sub(over.saturating_mul(times));
                times *= corrections.growth;
                continue;
            }
        };
        kept = Some(least);
        // Closer than this they differ in small results alone.
        if raises == 0 || failed.saturating_sub(least) <= all / 32 {
            break;
        }
        raises -= 1;
        target = least + (failed - least) / 2;
    }
    Ok(best)
}
