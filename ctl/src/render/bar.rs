//! Draws a lane as a bar: `[####....] >>> ~~`. `#` is a permit in use, `.` a free one, `>` a batch that waits for one,
//! `~` a parked batch.
//!
//! Pure. The bar shows a state in one line, on any output. `indicatif` would not do: it shows progress on a terminal,
//! and redraws by its own clock.

use harness_protocol::lane::LaneReport;

use crate::render::colour::Paint;

/// Most characters for permits; a wider lane is scaled down.
const PERMITS_MAX: u32 = 40;
/// Most characters for waiting tickets, of each kind.
const WAITING_MAX: u32 = 20;

/// The bar of a lane.
pub(crate) fn bar(lane: &LaneReport, paint: Paint) -> String {
    let shown = lane.width.clamp(1, PERMITS_MAX);
    let used = scale(lane.permits, lane.width, shown);
    let over = lane.permits.saturating_sub(lane.width).min(WAITING_MAX);
    let in_use = repeat('#', used);
    let in_use = if lane.saturated { paint.red(in_use) } else { paint.green(in_use) };
    let free = paint.dim(repeat('.', shown - used));
    let over = paint.red(repeat('#', over));
    let mut text = format!("[{in_use}{free}]{over}");
    for (sign, number) in [('>', lane.wanted()), ('~', lane.parked)] {
        if number > 0 {
            let more = if number > WAITING_MAX { "+" } else { "" };
            text += &format!(" {}", paint.yellow(format!("{}{more}", repeat(sign, number.min(WAITING_MAX)))));
        }
    }
    text
}

/// The number of `shown` characters that stand for `part` of `whole`: none only for 0, all only for the whole.
fn scale(part: u32, whole: u32, shown: u32) -> u32 {
    let part = part.min(whole);
    if whole <= shown || part == 0 {
        return part;
    }
    if part == whole {
        return shown;
    }
    let scaled = u64::from(part) * u64::from(shown) / u64::from(whole);
    u32::try_from(scaled).unwrap_or(shown).clamp(1, shown.saturating_sub(1).max(1))
}

fn repeat(c: char, times: u32) -> String {
    std::iter::repeat_n(c, times as usize).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::lane::tests::sample;

    #[test]
    fn every_permit_and_every_waiter_has_its_sign() {
        let mut lane = sample();
        (lane.width, lane.permits, lane.queued, lane.resuming, lane.parked) = (8, 5, 2, 1, 4);
        assert_eq!(bar(&lane, Paint::OFF), "[#####...] >>> ~~~~");
        (lane.permits, lane.queued, lane.resuming, lane.parked) = (10, 100, 0, 0);
        assert_eq!(bar(&lane, Paint::OFF), "[########]## >>>>>>>>>>>>>>>>>>>>+");
    }

    #[test]
    fn a_wide_lane_is_scaled_and_looks_neither_empty_nor_full_when_it_is_not() {
        assert_eq!([0, 1, 500, 999, 1000].map(|used| scale(used, 1000, 40)), [0, 1, 20, 39, 40]);
        assert_eq!(scale(3, 8, 8), 3);
    }
}
