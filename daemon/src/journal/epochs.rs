//! Epochs: the stretches of a journal's history.
//!
//! Numbers of one epoch follow on each other. A copy that goes on by itself begins another one, far behind the last number, so that no
//! number means two events. Owns the table `epoch`. Never decides when an epoch begins.

use harness_protocol::id::{EpochId, Seq};
use harness_protocol::rpc::EpochReason;
use harness_protocol::time::Timestamp;
use rusqlite::{Connection, params};

use super::identity::Instance;

/// One epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epoch {
    /// By which clients name it.
    pub id: EpochId,
    /// Number of its first event.
    pub first: Seq,
    /// Why it began.
    pub reason: EpochReason,
}

/// All epochs, the oldest first.
///
/// # Errors
/// Where the file cannot be read.
pub fn all(db: &Connection) -> Result<Vec<Epoch>, rusqlite::Error> {
    let mut read = db.prepare("SELECT first_seq, id, reason FROM epoch ORDER BY first_seq")?;
    let rows = read.query_map([], |row| {
        let (id, reason) = (row.get::<_, String>(1)?, row.get::<_, String>(2)?);
        let reason = EpochReason::ALL.into_iter().find(|known| known.as_str() == reason);
        Ok(Epoch {
            // An id that is none is nobody's: whoever sends one has another.
            id: id.parse().unwrap_or(EpochId::from_u64(0)),
            first: Seq(row.get::<_, i64>(0)?.cast_unsigned()),
            reason: reason.unwrap_or(EpochReason::Copied),
        })
    })?;
    rows.collect()
}

/// Begins an epoch with a key of its own for ids, and gives the journal its number, in one transaction.
///
/// # Errors
/// Where nothing was written.
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

/// Gives the journal its number.
///
/// # Errors
/// Where nothing was written.
pub fn rename(db: &Connection, instance: Instance) -> Result<(), rusqlite::Error> {
    db.execute("UPDATE daemon SET instance = ?1", [instance.cast_signed()]).map(drop)
}
