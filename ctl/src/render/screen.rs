//! Renders the screen of `lane --watch`: all summaries first, then as many holders as fit.
//!
//! Pure. A line is cut to the width, so that none wraps and the screen does not scroll.

use harness_protocol::lane::LaneReport;
use harness_protocol::time::Timestamp;

use crate::render::lane::{holders, summary, untold};
use crate::render::style::Look;
use crate::render::text::cut;

/// The lines about the lanes that fit into `rows` rows.
pub(crate) fn screen(look: Look, lanes: &[LaneReport], now: Timestamp, rows: usize) -> Vec<String> {
    let summaries: Vec<Vec<String>> = lanes.iter().map(|lane| summary(look, lane, now)).collect();
    let table = holders(&lanes.iter().collect::<Vec<_>>(), now).lines(look, "  ");
    let spaced = summaries.join(&String::new());
    // Blank lines between the lanes are dropped first.
    let mut lines = if spaced.len() + table.len() <= rows { spaced } else { summaries.concat() };
    if lines.len() > rows {
        let kept = rows.saturating_sub(1);
        let more = lines.len() - kept;
        lines.truncate(kept);
        lines.push(cut_to(look, &format!("… and {more} more lines")));
        lines.truncate(rows);
        return lines;
    }
    let told = table.len() - 1;
    let untold: usize = lanes.iter().map(untold).sum();
    let room = rows - lines.len();
    match (told, untold, room) {
        (0, ..) | (.., 0) => {}
        (_, 0, _) if table.len() <= room => lines.extend(table),
        (.., 1 | 2) => lines.push(cut_to(look, &format!("  … {} hold permits", told + untold))),
        _ => {
            // The header and the line about the rest take one row each.
            let shown = told.min(room - 2);
            lines.extend(table.into_iter().take(1 + shown));
            lines.push(cut_to(look, &format!("  … and {} more", told + untold - shown)));
        }
    }
    lines
}

fn cut_to(look: Look, line: &str) -> String {
    look.width.map_or(line.into(), |columns| cut(line, columns)).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::lane::tests::sample;
    use crate::render::text::width;

    fn lanes(holders: usize) -> Vec<LaneReport> {
        let mut tool = sample();
        let holder = tool.holders[0].clone();
        tool.holders = vec![holder; holders];
        let mut other = sample();
        other.name = "local".into();
        other.holders.clear();
        vec![tool, other]
    }

    fn shown(holders: usize, rows: usize, columns: usize) -> Vec<String> {
        let look = Look { width: Some(columns), ..Look::PLAIN };
        let lanes = lanes(holders);
        let lines = screen(look, &lanes, lanes[0].holders[0].since, rows);
        assert!(lines.len() <= rows, "{holders} {rows}: {lines:#?}");
        assert!(lines.iter().all(|line| width(line) <= columns), "{columns}: {lines:#?}");
        lines
    }

    #[test]
    fn nothing_wraps_and_nothing_scrolls_whatever_the_window() {
        for rows in 0..40 {
            for columns in [0, 1, 20, 80, 200] {
                for holders in [1, 5, 100] {
                    shown(holders, rows, columns);
                }
            }
        }
    }

    #[test]
    fn the_summaries_of_all_lanes_go_before_the_holders() {
        let lines = shown(30, 24, 100);
        let local = lines.iter().position(|line| line.starts_with("local")).unwrap_or(99);
        let holder = lines.iter().position(|line| line.contains("sleep 100")).unwrap_or_default();
        assert!(local < holder, "{lines:#?}");
        assert_eq!(lines.len(), 24);
        let rows = lines.iter().filter(|line| line.contains("sleep 100")).count();
        assert_eq!(lines.last().map(String::as_str), Some(format!("  … and {} more", 30 - rows).as_str()));
        assert!(lines.iter().any(|line| line.contains("LANE  RUN")));
        let all = shown(3, 40, 100);
        assert!(all.last().is_some_and(|line| line.contains("sleep 100")), "where all fit nothing is more");
    }
}
