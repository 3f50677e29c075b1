//! Records the epochs of a journal, and its instance number. An epoch is a stretch of its history within which events
//! get consecutive numbers.
//!
//! A copy that continues on its own begins a new epoch, with numbers far behind the last one, so that no number means
//! two events in one history. The only place that gives the table `epoch` a meaning (a salvage copies its rows). Must
//! not decide when an epoch begins: the start does.

use harness_protocol::event::Gap;
use harness_protocol::id::{EpochId, Seq};
use harness_protocol::rpc::EpochReason;
use harness_protocol::time::Timestamp;
use rusqlite::{Connection, params};

use super::identity::{Instance, JUMP};

/// A stretch of the history, and how it differs from the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    /// The id by which clients name it.
    pub id: EpochId,
    /// Number of its first event.
    pub first: Seq,
    /// Why it began.
    pub reason: EpochReason,
}

/// All epochs, the oldest first.
///
/// # Errors
/// If the file cannot be read.
pub fn all(db: &Connection) -> Result<Vec<Epoch>, rusqlite::Error> {
    let mut read = db.prepare("SELECT first_seq, id, reason FROM epoch ORDER BY first_seq")?;
    let rows = read.query_map([], |row| {
        let (id, reason) = (row.get::<_, String>(1)?, row.get::<_, String>(2)?);
        let reason = EpochReason::ALL.iter().copied().find(|known| known.as_str() == reason);
        Ok(Epoch {
            // An id that cannot be read becomes 0, so that no client's cursor matches it.
            id: id.parse().unwrap_or(EpochId::from_u64(0)),
            first: Seq(row.get::<_, i64>(0)?.cast_unsigned()),
            reason: reason.unwrap_or(EpochReason::Copied),
        })
    })?;
    rows.collect()
}

/// Begins an epoch with its own key for ids, and stores the instance number of the journal, in one transaction.
///
/// # Errors
/// If nothing was written.
pub fn begin(
    db: &mut Connection,
    epoch: &Epoch,
    id_key: u64,
    instance: Instance,
    at: Timestamp,
) -> Result<(), rusqlite::Error> {
    let transaction = db.transaction()?;
    transaction.execute(
        "INSERT INTO epoch (first_seq, id, begun_at, reason) VALUES (?1, ?2, ?3, ?4)",
        params![epoch.first.0.cast_signed(), epoch.id.to_string(), at.as_micros().cast_signed(), epoch.reason.as_str()],
    )?;
    transaction.execute(
        "UPDATE daemon SET id_key = ?1, instance = ?2",
        params![id_key.cast_signed(), instance.cast_signed()],
    )?;
    transaction.commit()
}

/// Stores the instance number of the journal.
///
/// # Errors
/// If nothing was written.
pub fn rename(db: &Connection, instance: Instance) -> Result<(), rusqlite::Error> {
    db.execute("UPDATE daemon SET instance = ?1", [instance.cast_signed()]).map(drop)
}

/// Number of the first event of a new epoch. `last` is the last event of the history that the epoch continues; `used`
/// is the last number that was ever used in this state directory, also by a history that is gone. The result is a whole
/// number of jumps behind `last`, so that [`resume`] finds `last` again.
pub fn first_behind(last: Seq, used: Seq) -> Seq {
    // The recorded number may be too low by the events of one commit.
    let free = used.0.saturating_add(JUMP / 2).saturating_sub(last.0);
    Seq(last.0.saturating_add(free.div_ceil(JUMP).max(1).saturating_mul(JUMP)))
}

/// The last number that an epoch shares with the epoch before it. No epoch has as many events as a jump.
fn shared(before: &Epoch, epoch: &Epoch) -> Seq {
    let begin = before.first.0.saturating_sub(1);
    Seq(begin + (epoch.first.0.saturating_sub(begin)) % JUMP)
}

/// Where a subscription with the cursor `after` in `epoch` begins, and the gap that is reported first. `None` if the
/// cursor is not of this history.
pub fn resume(epochs: &[Epoch], epoch: Option<EpochId>, after: Seq, last: Seq) -> Option<(Seq, Option<Gap>)> {
    let current = epochs.last();
    let another = current.zip(epoch).filter(|(current, id)| current.id != *id);
    let Some((current, id)) = another else { return (after <= last).then_some((after, None)) };
    let Some(at) = epochs.iter().position(|epoch| epoch.id == id) else {
        // A new journal shares no event with another journal.
        if epochs.len() == 1 {
            return None;
        }
        // The cursor is of an unknown history. It is not known which numbers up to the cursor mean the same event here.
        // A new epoch begins behind all used numbers, so the client has seen no event of an epoch that begins behind
        // the cursor.
        let next = epochs.iter().skip(1).find(|epoch| epoch.first > after).unwrap_or(current);
        let to = Seq(next.first.0.saturating_sub(1));
        return Some((to, Some(Gap { from: Seq(1), to, reason: Some(next.reason) })));
    };
    let (epoch, next) = (epochs.get(at).unwrap_or(current), epochs.get(at + 1).unwrap_or(current));
    let end = shared(epoch, next);
    if after <= end {
        // Both histories are the same up to this number. The gap behind it is reported when the subscription gets
        // there.
        return Some((after, None));
    }
    let to = Seq(next.first.0.saturating_sub(1));
    Some((to, Some(Gap { from: end.next(), to, reason: Some(next.reason) })))
}

/// Explains a hole in the event numbers as gaps. Before each epoch there is a gap with the epoch's reason; the other
/// numbers were pruned.
pub fn gaps(epochs: &[Epoch], mut from: Seq, to: Seq) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for (before, epoch) in epochs.iter().zip(epochs.iter().skip(1)) {
        if epoch.first <= from || epoch.first > to.next() {
            continue;
        }
        let (end, last) = (shared(before, epoch), Seq(epoch.first.0.saturating_sub(1)));
        if from <= end {
            gaps.push(Gap { from, to: end, reason: None });
            from = end.next();
        }
        gaps.push(Gap { from, to: last, reason: Some(epoch.reason) });
        from = epoch.first;
    }
    if from <= to {
        gaps.push(Gap { from, to, reason: None });
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    fn epoch(id: u64, first: u64, reason: EpochReason) -> Epoch {
        Epoch { id: EpochId::from_u64(id), first: Seq(first), reason }
    }

    /// A12: a subscription with a cursor of another epoch continues where both histories are the same, or else behind a
    /// gap that has the reason.
    #[test]
    fn a_cursor_of_another_epoch_gives_a_gap_with_the_reason() {
        let (second, third) = (300 + JUMP, 350 + 2 * JUMP);
        let last = third + 9;
        let epochs = [
            epoch(1, 1, EpochReason::Begun),
            epoch(2, second, EpochReason::Restored),
            epoch(3, third, EpochReason::WentBack),
        ];
        let gap = |from, to, reason| Some(Gap { from: Seq(from), to: Seq(to), reason: Some(reason) });
        for (id, after, expected) in [
            (None, 5, Some((5, None))),
            (Some(3), last, Some((last, None))),
            (Some(3), last + 1, None),
            (Some(1), 0, Some((0, None))),
            (Some(1), 300, Some((300, None))),
            (Some(1), 301, Some((second - 1, gap(301, second - 1, EpochReason::Restored)))),
            (Some(1), 500, Some((second - 1, gap(301, second - 1, EpochReason::Restored)))),
            (Some(2), second + 3, Some((second + 3, None))),
            (Some(2), second + 999, Some((third - 1, gap(351 + JUMP, third - 1, EpochReason::WentBack)))),
            (Some(9), 40, Some((second - 1, gap(1, second - 1, EpochReason::Restored)))),
            (Some(9), second, Some((third - 1, gap(1, third - 1, EpochReason::WentBack)))),
            (Some(9), last + 40, Some((third - 1, gap(1, third - 1, EpochReason::WentBack)))),
        ] {
            let resumed = resume(&epochs, id.map(EpochId::from_u64), Seq(after), Seq(last));
            assert_eq!(resumed, expected.map(|(seq, gap)| (Seq(seq), gap)), "{id:?} {after}");
        }
        for after in [0, 40, last, last + 40] {
            let begun = [epoch(1, 1, EpochReason::Begun)];
            assert_eq!(resume(&begun, Some(EpochId::from_u64(9)), Seq(after), Seq(last)), None, "{after}");
        }
    }

    /// A12: pruned events are told apart from events of another history, also where they are next to each other.
    #[test]
    fn a_hole_is_told_as_what_was_pruned_and_as_each_epoch_that_began() {
        let (second, third) = (300 + JUMP, 350 + 2 * JUMP);
        let epochs = [
            epoch(1, 1, EpochReason::Begun),
            epoch(2, second, EpochReason::Restored),
            epoch(3, third, EpochReason::Copied),
        ];
        let (restored, copied) = (Some(EpochReason::Restored), Some(EpochReason::Copied));
        for (from, to, expected) in [
            (5, 9, vec![(5, 9, None)]),
            (301, second - 1, vec![(301, second - 1, restored)]),
            (290, second - 1, vec![(290, 300, None), (301, second - 1, restored)]),
            (301, second + 4, vec![(301, second - 1, restored), (second, second + 4, None)]),
            (second, second + 4, vec![(second, second + 4, None)]),
            (351 + JUMP, third - 1, vec![(351 + JUMP, third - 1, copied)]),
            (
                300,
                third + 2,
                vec![
                    (300, 300, None),
                    (301, second - 1, restored),
                    (second, 350 + JUMP, None),
                    (351 + JUMP, third - 1, copied),
                    (third, third + 2, None),
                ],
            ),
        ] {
            let gap = |&(from, to, reason)| Gap { from: Seq(from), to: Seq(to), reason };
            assert_eq!(gaps(&epochs, Seq(from), Seq(to)), expected.iter().map(gap).collect::<Vec<_>>(), "{from} {to}");
        }
        // An epoch without events shares no number with the epoch behind it.
        let empty = [epoch(1, 1, EpochReason::Begun), epoch(2, second, EpochReason::Restored)];
        let behind = first_behind(Seq(second - 1), Seq(second - 1));
        let empty = [empty[0], empty[1], epoch(3, behind.0, EpochReason::Restored)];
        let told: Vec<_> =
            gaps(&empty, Seq(301), Seq(behind.0 - 1)).iter().map(|gap| (gap.from.0, gap.reason)).collect();
        assert_eq!(told, [(301, restored), (second, restored)]);
    }

    /// A12: whatever was restored before, and however often, no number is used again, also none of a history that is
    /// gone.
    #[test]
    fn an_epoch_begins_behind_all_numbers_that_were_used_and_shares_what_it_goes_on_from() {
        for (begins, last, used, jumps) in [
            (1, 100, 0, 1),
            (1, 100, 100, 1),
            (1, 100, 500, 1),
            (1, 100, 90 + JUMP, 2),
            (1, 100, 100 + JUMP, 2),
            (1, 100, 700 + JUMP, 2),
            (1, 40, 700 + 5 * JUMP, 6),
            (101 + JUMP, 200 + JUMP, 900 + JUMP, 1),
            (101 + JUMP, 200 + JUMP, 900 + 3 * JUMP, 3),
            (101 + 3 * JUMP, 100 + 3 * JUMP, 100 + 3 * JUMP, 1),
        ] {
            let what = format!("{last} of an epoch from {begins}, {used} were used");
            let first = first_behind(Seq(last), Seq(used));
            assert_eq!(first.0, last + jumps * JUMP, "{what}");
            assert!(first.0 > used, "{what}");
            let (before, after) = (epoch(1, begins, EpochReason::Begun), epoch(2, first.0, EpochReason::Restored));
            assert_eq!(shared(&before, &after), Seq(last), "{what}");
        }
    }
}
