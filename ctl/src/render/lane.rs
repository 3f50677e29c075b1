//! Renders the report of a lane for people. Pure.

use std::io::{self, Write};

use harness_protocol::lane::{LaneReport, Limiter};
use harness_protocol::time::Timestamp;
use harness_protocol::waiting_words;

use crate::render::bar::bar;
use crate::render::quote::inline;
use crate::render::run::short;
use crate::render::style::Look;
use crate::render::table::{Cell, Table};
use crate::render::text::{cut_painted, first_line, one_line};
use crate::render::units::{clock, count, span};

/// Most holders in a report.
const MOST_HOLDERS: usize = 100;

/// Writes the block of one lane.
pub(crate) fn write(out: &mut dyn Write, look: Look, lane: &LaneReport, now: Timestamp) -> io::Result<()> {
    let mut lines = summary(look, lane, now);
    if !lane.holders.is_empty() {
        lines.extend(holders(&[lane], now).lines(look, "  "));
    }
    if let Some(more) = Some(untold(lane)).filter(|more| *more > 0) {
        lines.push(format!("  … and {} more", count(more, "permit")));
    }
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// The lines about a lane, without its holders. On a terminal no line is wider than the terminal.
pub(crate) fn summary(look: Look, lane: &LaneReport, now: Timestamp) -> Vec<String> {
    let paint = look.paint;
    let mut lines = vec![format!("{}  {}", paint.bold(one_line(&lane.name)), bar(lane, paint))];
    let mut width = format!("width {}", lane.width);
    if lane.width != lane.configured_width {
        width += &format!(" (configured {})", lane.configured_width);
    }
    lines.push(format!(
        "  {width}  permits {}  wanted {}  busy {}  parked {}",
        lane.permits,
        wanted(lane.wanted(), lane.resuming),
        lane.busy,
        lane.parked
    ));
    let standing = waiting_words::of_lane(lane, &clock(now));
    let limiter = match &standing {
        None => "limiter: none".to_owned(),
        Some(standing) => paint.yellow(format!("limiter: {}", standing.what)),
    };
    let saturated = match (lane.saturated, lane.saturated_since) {
        (true, Some(since)) => paint.red(format!("saturated for {} (since {since})", span(now.since(since)))),
        (true, None) => paint.red("saturated"),
        (false, _) => "not saturated".to_owned(),
    };
    let paused = if lane.paused { paint.yellow("  paused") } else { String::new() };
    let [one, five, fifteen] = lane.saturation.map(|share| share * 100.0);
    // The limiter goes first: a narrow terminal cuts the end of the line.
    lines.push(format!("  {limiter}{paused}  {saturated}  saturation 1m {one:.0}%  5m {five:.0}%  15m {fifteen:.0}%"));
    // For a lane that is merely full, the help is shown to the waiting runs instead.
    let is_plain = matches!(lane.limiter, Limiter::Width | Limiter::Share);
    if let Some(standing) = standing.filter(|_| !is_plain) {
        lines.extend(standing.why.map(|why| format!("  {}", inline(&why))));
        lines.extend(standing.help.map(|help| format!("  {}", first_line(&help))));
    }
    if let Some(held) = lane.held.as_ref().filter(|held| held.limiter.is_some_and(|limiter| limiter != lane.limiter)) {
        let limiter = held.limiter.unwrap_or(Limiter::None);
        lines.push(format!(
            "  and {}: {}",
            waiting_words::hold(limiter, held.until, 0, &clock(now)),
            first_line(&held.error)
        ));
    }
    let wait = &lane.queue_wait;
    let oldest = lane.oldest_queued_seconds.map(|oldest| format!("  oldest {}", span(oldest))).unwrap_or_default();
    lines.push(format!(
        "  first permit after p50 {}  p95 {}  p99 {}  max {}  (of {}){oldest}  granted {} in all",
        span(wait.p50_seconds),
        span(wait.p95_seconds),
        span(wait.p99_seconds),
        span(wait.max_seconds),
        wait.count,
        lane.granted_total
    ));
    for relief in &lane.reliefs {
        let until = match relief.until {
            Some(until) => format!("for {} more", span(until.since(now))),
            None => "for good".to_owned(),
        };
        lines.push(format!("  relief {}  +{}  {until}  undo: harnessctl relieve --undo {0}", relief.id, relief.by));
    }
    let mut lines: Vec<String> = match look.width {
        Some(columns) => lines.iter().map(|line| cut_painted(line, columns).into_owned()).collect(),
        None => lines,
    };
    if lane.shares.len() > 1 {
        lines.extend(shares(lane).lines(look, "  "));
    }
    lines
}

/// The number of wanted permits, and how many of them are wanted by resuming tickets.
fn wanted(wanted: u32, resuming: u32) -> String {
    if resuming > 0 { format!("{wanted} ({resuming} resuming)") } else { wanted.to_string() }
}

fn shares(lane: &LaneReport) -> Table {
    let mut table = Table::new(&["SHARE", ">WEIGHT", ">MAX", ">PERMITS", ">WANTED", ">BUSY", ">PARKED"]);
    for share in &lane.shares {
        let max = share.max.map_or_else(|| "-".to_owned(), |max| max.to_string());
        let mut row = vec![share.share.to_string().into(), share.weight.to_string().into(), max.into()];
        row.push(share.permits.to_string().into());
        row.push(wanted(share.wanted(), share.resuming).into());
        row.extend([share.busy, share.parked].map(|number| number.to_string().into()));
        table.row(row);
    }
    table
}

/// The holders of permits; if there are several lanes, with the name of the lane.
pub(crate) fn holders(lanes: &[&LaneReport], now: Timestamp) -> Table {
    let several = lanes.len() > 1;
    let columns = ["LANE", "RUN", "NAME", "TOOL", ">AGE", "COMMAND"];
    let mut table = Table::new(&columns[usize::from(!several)..]);
    for lane in lanes {
        for holder in &lane.holders {
            let mut row: Vec<Cell> = if several { vec![lane.name.to_string().into()] } else { Vec::new() };
            row.extend([
                short(holder.run).into(),
                holder.run_name.as_deref().unwrap_or("-").into(),
                holder.tool.to_string().into(),
                span(now.since(holder.since)).into(),
                first_line(&holder.command).into(),
            ]);
            table.row(row);
        }
    }
    table
}

/// Number of permits whose holders the report leaves out.
pub(crate) fn untold(lane: &LaneReport) -> usize {
    let more = (lane.permits as usize).saturating_sub(lane.holders.len());
    if lane.holders.len() >= MOST_HOLDERS { more } else { 0 }
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    pub(crate) fn sample() -> LaneReport {
        serde_json::from_str(
            r#"{"schema":"harness.lane/1","name":"tool","width":12,"configured_width":8,"queued":3,"busy":12,"parked":1,
            "resuming":0,"permits":12,"saturated":true,"saturated_since":"2026-11-30T11:00:00Z","limiter":"width",
            "paused":false,"reliefs":[{"id":"000000000000a","by":4,"since":"2026-11-30T11:01:00Z",
            "until":"2026-11-30T11:12:00Z"}],"saturation":[1.0,0.4,0.125],"queue_wait":{"count":40,"p50_seconds":0.5,
            "p95_seconds":12,"p99_seconds":90,"max_seconds":91},"oldest_queued_seconds":75,"granted_total":1234,
            "shares":[{"share":"default","weight":1,"max":null,"queued":3,"busy":11,"parked":1,
            "resuming":0,"permits":11},
            {"share":"ci","weight":4,"max":6,"queued":0,"busy":1,"parked":0,"resuming":0,"permits":1}],
            "holders":[{"run":"0123456789abc","run_name":"nightly","call":"000000000000b","tool":"shell",
            "command":"sleep 100","since":"2026-11-30T11:01:30Z"}]}"#,
        )
        .unwrap()
    }

    /// U10: permits of a lane are wanted while no ticket is queued. The report of an older daemon has the same meaning.
    #[test]
    fn permits_are_wanted_whether_for_the_first_time_or_again() {
        for (queued, resuming, told) in [
            (0, 0, "wanted 0 "),
            (3, 0, "wanted 3 "),
            (0, 2, "wanted 2 (2 resuming) "),
            (1, 2, "wanted 3 (2 resuming) "),
        ] {
            let lane = LaneReport { queued, resuming, ..sample() };
            let lines = summary(Look::PLAIN, &lane, lane.saturated_since.unwrap_or_default()).join("\n");
            assert!(lines.contains(told) && !lines.contains("queued"), "{lines}");
        }
    }

    #[test]
    fn a_block_tells_what_holds_the_lane_up_and_what_relieves_it() {
        let mut out = Vec::new();
        let now = sample().saturated_since.unwrap() + harness_protocol::time::Span::from_secs(120);
        write(&mut out, Look::PLAIN, &sample(), now).unwrap();
        let expected = "\
tool  [############] >>> ~
  width 12 (configured 8)  permits 12  wanted 3  busy 12  parked 1
  limiter: width, 3 runs wait  saturated for 2m00s (since 2026-11-30T11:00:00.000000Z)  \
  saturation 1m 100%  5m 40%  15m 12%
  first permit after p50 0.5s  p95 12s  p99 1m30s  max 1m31s  (of 40)  oldest 1m15s  granted 1234 in all
  relief 000000000000a  +4  for 10m00s more  undo: harnessctl relieve --undo 000000000000a
  SHARE    WEIGHT  MAX  PERMITS  WANTED  BUSY  PARKED
  default       1    -       11       3    11       1
  ci            4    6        1       0     1       0
  RUN       NAME     TOOL   AGE  COMMAND
  01234567  nightly  shell  30s  sleep 100
";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
    }
}
