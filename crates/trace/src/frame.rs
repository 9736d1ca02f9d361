//! The rows that analyses look at: those of one rank, on a clock that begins at 0, with launches joined to kernels.

use std::{cell::OnceCell, rc::Rc};

use rustc_hash::FxHashMap;
use timeline::{Class, NameId, Rank, Timeline};

use crate::{
    Mode,
    kind::{Kind, Kinds},
    stacks::Stacks,
    steps::Steps,
};

/// The row that is joined to a row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Link {
    /// The row has nothing to join by.
    None,
    /// The row has a correlation that no other row has.
    Lost,
    /// The joined row, as a row of the rank's table.
    Row(u32),
}

impl Link {
    /// The joined row.
    pub const fn row(self) -> Option<usize> {
        match self {
            Self::Row(row) => Some(row as usize),
            Self::None | Self::Lost => None,
        }
    }
}

/// The iteration of a row.
pub type Iteration = Option<i64>;

/// Which rows a frame keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Selection {
    /// In compatible mode, whether the last profiler step is kept.
    pub include_last_step: bool,
}

/// The rows of one rank. Positions are positions in these columns; rows are rows of `rank.events`.
pub struct Frame<'t> {
    /// All ranks' names and rows.
    pub timeline: &'t Timeline,
    /// The rank.
    pub rank: &'t Rank,
    /// By which definitions.
    pub mode: Mode,
    /// Row of each position.
    pub row: Vec<u32>,
    /// Begin of each row (of the table, not of the positions) in nanoseconds since the first event of all ranks.
    pub begin: Vec<i64>,
    /// Duration of each row of the table.
    pub duration: Vec<i64>,
    /// What each row of the table is joined to.
    pub link: Vec<Link>,
    /// Iteration of each row of the table.
    pub iteration: Vec<Iteration>,
    /// Whether each row of the table has a position.
    pub kept: Vec<bool>,
    /// Profiler steps.
    pub steps: Steps,
    /// Kinds of all names.
    pub kinds: Rc<Kinds>,
    /// Time 0 in the clock of the timeline, in nanoseconds.
    pub origin: i64,
    pub(crate) calls: OnceCell<Stacks>,
    forward: OnceCell<FxHashMap<i64, u32>>,
}

/// The frames of all ranks.
pub struct Frames<'t> {
    /// All ranks' names and rows.
    pub timeline: &'t Timeline,
    /// By which definitions.
    pub mode: Mode,
    /// One for each rank, in ascending order.
    pub ranks: Vec<Frame<'t>>,
    /// Time 0 of the frames in the clock of the timeline, in nanoseconds.
    pub origin: i64,
}

impl<'t> Frames<'t> {
    /// Of all ranks of `timeline`.
    pub fn new(timeline: &'t Timeline, mode: Mode, selection: Selection) -> Self {
        let kinds = Rc::new(Kind::of_all(&timeline.names, mode));
        let mut ranks: Vec<Frame<'t>> =
            timeline.ranks.iter().map(|rank| Frame::new(timeline, rank, mode, kinds.clone())).collect();
        let origin = ranks.iter().filter_map(|frame| frame.begin.iter().min().copied()).min().unwrap_or(0);
        for frame in &mut ranks {
            for begin in &mut frame.begin {
                *begin -= origin;
            }
            frame.origin = origin;
            frame.steps.shift(-origin);
        }
        let distinct = distinct_steps(timeline);
        if mode == Mode::Hta && distinct > 1 {
            for frame in &mut ranks {
                frame.drop_last_step(selection.include_last_step);
            }
        }
        Self { timeline, mode, ranks, origin }
    }

    /// Of all ranks by HTA's definitions, as its comparison of traces loads them: nothing is dropped.
    pub fn raw(timeline: &'t Timeline) -> Self {
        let kinds = Rc::new(Kind::of_all(&timeline.names, Mode::Hta));
        let of = |rank| Frame::new(timeline, rank, Mode::Hta, kinds.clone());
        Self { timeline, mode: Mode::Hta, ranks: timeline.ranks.iter().map(of).collect(), origin: 0 }
    }

    /// The frame of a rank.
    pub fn rank(&self, rank: u32) -> Option<&Frame<'t>> {
        self.ranks.iter().find(|frame| frame.rank.rank == rank)
    }
}

fn distinct_steps(timeline: &Timeline) -> usize {
    timeline.names.iter().filter(|name| name.contains("ProfilerStep")).count()
}

impl<'t> Frame<'t> {
    fn new(timeline: &'t Timeline, rank: &'t Rank, mode: Mode, kinds: Rc<Kinds>) -> Self {
        let (begin, duration) = times(rank, mode);
        let kept: Vec<bool> = match mode {
            Mode::Exact => vec![true; rank.events.len()],
            Mode::Hta => rank.events.category.iter().map(|category| !category.text().is_empty()).collect(),
        };
        let row = (0..rank.events.len() as u32).filter(|&row| kept[row as usize]).collect();
        let steps = Steps::of(timeline, rank, mode, &begin, &duration);
        let mut frame = Self {
            timeline,
            rank,
            mode,
            row,
            begin,
            duration,
            link: Vec::new(),
            iteration: Vec::new(),
            kept,
            steps,
            kinds,
            origin: 0,
            calls: OnceCell::new(),
            forward: OnceCell::new(),
        };
        frame.link = frame.links();
        frame.iteration = frame.iterations();
        frame
    }

    /// All positions' rows.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = usize> + Clone + '_ {
        self.row.iter().map(|&row| row as usize)
    }

    /// When the event of `row` ends.
    pub fn end(&self, row: usize) -> i64 {
        self.begin[row] + self.duration[row]
    }

    /// Begin and end of the event of `row`.
    pub fn interval(&self, row: usize) -> (i64, i64) {
        (self.begin[row], self.end(row))
    }

    /// The name of `row`.
    pub fn name(&self, row: usize) -> NameId {
        self.rank.events.name[row]
    }

    /// The name of `row` as text.
    pub fn text(&self, row: usize) -> &'t str {
        self.timeline.names.text(self.name(row))
    }

    /// What the device event of `row` does.
    pub fn kind(&self, row: usize) -> Kind {
        match (self.mode, self.class(row)) {
            (Mode::Exact, Class::Copy) => Kind::Memory,
            _ => self.kinds.of(self.name(row)),
        }
    }

    /// Whether the event of `row` communicates, in any library.
    pub fn communicates(&self, row: usize) -> bool {
        self.kinds.communicates(self.name(row))
    }

    /// The forward operator of each of autograd's sequence numbers; found once.
    pub fn forward(&self) -> &FxHashMap<i64, u32> {
        self.forward.get_or_init(|| {
            let mut forward = FxHashMap::default();
            for (row, sequence) in self.rank.sides.sequence.iter() {
                let is_backward = self.kinds.is_backward(self.name(row as usize));
                if sequence.number >= 0 && sequence.forward_thread <= 0 && !is_backward {
                    forward.entry(sequence.number).or_insert(row);
                }
            }
            forward
        })
    }

    /// The class of `row`.
    pub fn class(&self, row: usize) -> Class {
        self.rank.events.category[row].class()
    }

    /// The stream of `row`, -1 where there is none.
    pub fn stream(&self, row: usize) -> i64 {
        self.rank.events.stream[row]
    }

    /// Whether `row` is on a device. In compatible mode that is everything with a stream, waits included.
    pub fn on_device(&self, row: usize) -> bool {
        match self.mode {
            Mode::Exact => self.class(row).is_device_work(),
            Mode::Hta => self.stream(row) != -1,
        }
    }

    /// Whether `row` is joined as a device event rather than as a call.
    pub fn joins_as_device(&self, row: usize) -> bool {
        match self.mode {
            Mode::Exact => matches!(self.class(row), Class::Kernel | Class::Copy | Class::Sync),
            Mode::Hta => {
                (self.stream(row) >= 0 && self.rank.events.correlation[row] >= 0)
                    || matches!(self.text(row), "Event Sync" | "Context Sync")
            }
        }
    }

    /// Positions' rows on the device, in ascending order of their begin; equal begins in the order of positions.
    pub fn device_rows(&self) -> Vec<usize> {
        let mut rows: Vec<usize> = self.rows().filter(|&row| self.on_device(row)).collect();
        rows.sort_by_key(|&row| self.begin[row]);
        rows
    }

    /// Joins rows of equal correlation: each call to the last device event, each device event to the last call.
    fn links(&self) -> Vec<Link> {
        let correlations = &self.rank.events.correlation;
        let as_device = self.device_flags();
        let mut last = Correlations::new(correlations);
        for row in self.rows().filter(|&row| correlations[row] != -1) {
            last.slot(correlations[row])[usize::from(as_device[row])] = row as u32;
        }
        let mut links = vec![Link::None; correlations.len()];
        for row in self.rows().filter(|&row| correlations[row] != -1) {
            links[row] = match last.slot(correlations[row])[usize::from(!as_device[row])] {
                NOTHING => Link::Lost,
                // the index column starts at 0, which HTA takes for "no partner"
                partner if self.mode == Mode::Hta && self.rank.events.index[partner as usize] == 0 => {
                    Link::Lost
                }
                partner => Link::Row(partner),
            };
        }
        links
    }

    /// For every row of the table, whether it joins as a device event.
    fn device_flags(&self) -> Vec<bool> {
        let names = &self.timeline.names;
        let waits = [names.find("Event Sync"), names.find("Context Sync")];
        (0..self.rank.events.len())
            .map(|row| match self.mode {
                Mode::Exact => self.joins_as_device(row),
                Mode::Hta => {
                    (self.stream(row) >= 0 && self.rank.events.correlation[row] >= 0)
                        || waits.contains(&Some(self.name(row)))
                }
            })
            .collect()
    }

    fn iterations(&self) -> Vec<Iteration> {
        let mut cursor = self.steps.cursor();
        let mut iterations: Vec<Iteration> = vec![None; self.rank.events.len()];
        let is_device = |row: usize| match self.mode {
            Mode::Exact => self.on_device(row),
            Mode::Hta => self.stream(row) >= 0,
        };
        for row in self.rows().filter(|&row| !is_device(row)) {
            iterations[row] = cursor.at(self.begin[row]);
        }
        for row in self.rows().filter(|&row| is_device(row)) {
            // HTA leaves stream 0 without iteration: it tests for streams greater than 0
            if self.mode == Mode::Hta && self.stream(row) == 0 {
                continue;
            }
            iterations[row] = self.link[row].row().and_then(|row| iterations[row]);
        }
        iterations
    }

    /// Keeps calls that begin before the last step and the device events joined to them, device events first.
    fn drop_last_step(&mut self, include_last: bool) {
        let as_device = self.device_flags();
        let names = self.timeline.names.map(|name| name.contains("ProfilerStep"));
        let is_step = |row: usize| names[self.name(row).0 as usize];
        let calls = || self.rows().filter(|&row| !as_device[row]);
        let limit = calls().filter(|&row| is_step(row)).map(|row| self.begin[row]).max();
        let keeps = |row: &usize| include_last || limit.is_some_and(|limit| self.begin[*row] < limit);
        let kept_calls: Vec<u32> =
            if limit.is_none() { Vec::new() } else { calls().filter(keeps).map(|row| row as u32).collect() };
        let correlations = &self.rank.events.correlation;
        let mut copies: FxHashMap<i64, usize> = FxHashMap::default();
        for &row in &kept_calls {
            *copies.entry(correlations[row as usize]).or_default() += 1;
        }
        let mut rows = Vec::with_capacity(self.row.len());
        for row in self.rows().filter(|&row| as_device[row]) {
            let times = copies.get(&correlations[row]).copied().unwrap_or(0);
            rows.extend(std::iter::repeat_n(row as u32, times));
        }
        rows.extend(kept_calls);
        self.kept = vec![false; self.rank.events.len()];
        for &row in &rows {
            self.kept[row as usize] = true;
        }
        self.row = rows;
    }
}

const NOTHING: u32 = u32::MAX;

/// The last call and the last device event of each correlation.
enum Correlations {
    /// Indexed by the distance from the least correlation.
    Dense(i64, Vec<[u32; 2]>),
    /// For correlations that are far apart.
    Sparse(FxHashMap<i64, [u32; 2]>),
}

impl Correlations {
    fn new(correlations: &[i64]) -> Self {
        let known = || correlations.iter().copied().filter(|&correlation| correlation != -1);
        let (Some(least), Some(greatest)) = (known().min(), known().max()) else {
            return Self::Sparse(FxHashMap::default());
        };
        match greatest.checked_sub(least) {
            Some(range) if (range as usize) < 4 * correlations.len() + 1024 => {
                Self::Dense(least, vec![[NOTHING; 2]; range as usize + 1])
            }
            _ => Self::Sparse(FxHashMap::default()),
        }
    }

    fn slot(&mut self, correlation: i64) -> &mut [u32; 2] {
        match self {
            Self::Dense(least, slots) => &mut slots[(correlation - *least) as usize],
            Self::Sparse(slots) => slots.entry(correlation).or_insert([NOTHING; 2]),
        }
    }
}

/// Begin and duration of every row. HTA cuts events of fractional traces down to whole microseconds.
fn times(rank: &Rank, mode: Mode) -> (Vec<i64>, Vec<i64>) {
    let events = &rank.events;
    if mode == Mode::Exact || !rank.meta.fractional_times {
        return (events.start.clone(), events.duration.clone());
    }
    // in floating point, as HTA does it: its rounding errors move some events across a microsecond
    let as_float = |nanos: i64| nanos.div_euclid(1000) as f64 + nanos.rem_euclid(1000) as f64 / 1000.0;
    (0..events.len())
        .map(|row| {
            let (start, duration) = (as_float(events.start[row]), as_float(events.duration[row]));
            let (begin, end) = (start.ceil() as i64, (start + duration).floor() as i64);
            (begin * 1000, (end - begin) * 1000)
        })
        .unzip()
}
