//! What a recorded step says, as a timeline: the table that simulator and trace reader fill too.

use base::Nanos;
use timeline::{Category, Event, Events, Lane, NameId, Names, Rank, Timeline, Track, TrackId};

use crate::Program;

/// When an instruction ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Record {
    /// Index into the program's body.
    pub instruction: u32,
    /// Start, from the start of the step.
    pub start: Nanos,
    /// How long the call took; a collective goes on after that.
    pub duration: Nanos,
}

/// The timeline of one recorded step of `program` on `rank`: an annotation around the step and an operator for each instruction.
pub fn timeline_of(program: &Program, records: &[Record], rank: u32) -> Timeline {
    let mut names = Names::new();
    let mut made = Rank::new(rank);
    let track = made.tracks.push(Track {
        process: Lane::Number(i64::from(rank)),
        thread: Lane::Number(0),
        name: names.intern("executor"),
    });
    let end = records.last().map_or(Nanos(0), |last| Nanos(last.start.0 + last.duration.0));
    let step = names.intern("ProfilerStep#0");
    push(&mut made.events, track, Category::UserAnnotation, step, Nanos(0), end);
    for record in records {
        let name = names.intern(&program.name(&program.body[record.instruction as usize]));
        push(&mut made.events, track, Category::CpuOp, name, record.start, record.duration);
    }
    let mut timeline = Timeline::default();
    timeline.add(names, made);
    timeline
}

fn push(
    events: &mut Events,
    track: TrackId,
    category: Category,
    name: NameId,
    start: Nanos,
    duration: Nanos,
) {
    let index = events.len() as u32;
    let (stream, correlation, external) = (-1, -1, -1);
    events.push(Event { start, duration, name, category, track, index, stream, correlation, external });
}
