//! Defines the identity of a folder, and compares it: does a path mean the same folder in another mount namespace, or
//! after another boot?
//!
//! Pure: it must not look at the file system; the callers do, and pass in what they found.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::hex;

/// A folder of one machine: its device, and its inode there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FolderId {
    /// Number of the device, as `stat` gives it (`st_dev`). For some file systems the number changes with each boot.
    pub device: u64,
    /// Number of the folder on that device (`st_ino`).
    pub inode: u64,
    /// The boot in which the device had that number. Filled in by the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot: Option<BootId>,
}

impl FolderId {
    /// Whether this is the folder `found`, as far as can be determined: devices are compared only within one boot.
    pub fn is(&self, found: &Self) -> bool {
        self.inode == found.inode && (self.device == found.device || !self.is_of_boot(found.boot))
    }

    /// Whether the device was recorded in this boot. False if one of the two boots is unknown.
    pub fn is_of_boot(&self, boot: Option<BootId>) -> bool {
        boot.is_some() && self.boot == boot
    }
}

impl fmt::Display for FolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "device {}, inode {}", self.device, self.inode)
    }
}

/// The id of one boot of a machine: the text in `/proc/sys/kernel/random/boot_id`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootId([u8; 16]);

impl BootId {
    /// The boot with this id.
    pub const fn from_u128(number: u128) -> Self {
        Self(number.to_be_bytes())
    }
}

/// A text is not a boot id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a boot id has 32 hexadecimal digits in groups of 8, 4, 4, 4 and 12")]
pub struct BootIdError;

/// Positions of the dashes.
const DASHES: [usize; 4] = [8, 13, 18, 23];
/// Characters of a boot id.
const LENGTH: usize = 36;

impl FromStr for BootId {
    type Err = BootIdError;

    fn from_str(text: &str) -> Result<Self, BootIdError> {
        let has_form =
            text.len() == LENGTH && text.bytes().enumerate().all(|(at, byte)| DASHES.contains(&at) == (byte == b'-'));
        let number = hex::decode(text.bytes().filter(|byte| *byte != b'-')).filter(|_| has_form);
        number.map(Self::from_u128).ok_or(BootIdError)
    }
}

impl BootId {
    fn text(self) -> [u8; LENGTH] {
        let mut text = [b'-'; LENGTH];
        let places = text.iter_mut().enumerate().filter(|(at, _)| !DASHES.contains(at));
        for ((_, place), digit) in places.zip(hex::encode(u128::from_be_bytes(self.0))) {
            *place = digit;
        }
        text
    }
}

impl fmt::Display for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl fmt::Debug for BootId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootId({self})")
    }
}

impl Serialize for BootId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(str::from_utf8(&self.text()).unwrap_or_default())
    }
}

impl<'de> Deserialize<'de> for BootId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = BootId;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a boot id")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<BootId, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for BootId {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BootId".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({ "type": "string", "format": "uuid" })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const BOOT: &str = "0b19d3cd-8f20-4d26-a2ee-4f4e2c2c0a01";
    const OTHER: &str = "ffffffff-ffff-ffff-ffff-ffffffffffff";

    fn folder(device: u64, inode: u64, boot: Option<&str>) -> FolderId {
        FolderId { device, inode, boot: boot.map(|boot| boot.parse().unwrap()) }
    }

    /// Entry U22 in `tests/README.md`.
    #[test]
    fn a_folder_is_told_by_device_and_inode_and_after_another_boot_by_its_inode() {
        let (now, before) = (Some(BOOT), Some(OTHER));
        for (kept, found, is_it) in [
            (folder(1, 2, now), folder(1, 2, now), true),
            (folder(1, 2, now), folder(3, 2, now), false),
            (folder(1, 2, now), folder(1, 3, now), false),
            (folder(1, 2, before), folder(3, 2, now), true),
            (folder(1, 2, before), folder(1, 2, now), true),
            (folder(1, 2, before), folder(1, 3, now), false),
            (folder(1, 2, None), folder(3, 2, now), true),
            (folder(1, 2, None), folder(3, 2, None), true),
            (folder(1, 2, now), folder(1, 4, None), false),
        ] {
            assert_eq!(kept.is(&found), is_it, "{kept:?} {found:?}");
        }
    }

    #[test]
    fn a_text_of_another_form_is_no_boot() {
        for wrong in ["", "0", &BOOT[1..], &BOOT.replace('-', ""), &BOOT.replace('0', "g"), &format!("{BOOT} ")] {
            assert_eq!(wrong.parse::<BootId>(), Err(BootIdError), "{wrong:?}");
        }
        assert_eq!("0b19d3cd8-f20-4d26-a2ee-4f4e2c2c0a01".parse::<BootId>(), Err(BootIdError));
    }

    proptest! {
        #[test]
        fn a_written_folder_reads_back(device: u64, inode: u64, boot: Option<u128>) {
            let boot = boot.map(BootId::from_u128);
            let folder = FolderId { device, inode, boot };
            let text = serde_json::to_string(&folder).unwrap();
            prop_assert_eq!(serde_json::from_str::<FolderId>(&text).unwrap(), folder);
        }
    }
}
