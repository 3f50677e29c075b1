//! Converts numbers of 128 bits to hexadecimal digits and back, without an allocation: each record of a submit has two
//! such numbers. Pure.

/// Number of digits.
pub(crate) const DIGITS: usize = 32;

/// The digits of a number, in lower case.
pub(crate) fn encode(number: u128) -> [u8; DIGITS] {
    let mut text = [0; DIGITS];
    for (pair, byte) in text.chunks_exact_mut(2).zip(number.to_be_bytes()) {
        for (place, half) in pair.iter_mut().zip([byte >> 4, byte & 15]) {
            *place = if half < 10 { b'0' + half } else { b'a' + half - 10 };
        }
    }
    text
}

/// The number with these digits, in either case; `None` for a wrong digit, or where there are not [`DIGITS`] of them.
pub(crate) fn decode(text: impl IntoIterator<Item = u8>) -> Option<u128> {
    let (mut number, mut count) = (0, 0);
    for byte in text {
        let digit = match byte {
            b'0'..=b'9' => byte - b'0',
            b'a'..=b'f' => byte - b'a' + 10,
            b'A'..=b'F' => byte - b'A' + 10,
            _ => return None,
        };
        number = number << 4 | u128::from(digit);
        count += 1;
    }
    (count == DIGITS).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn digits_are_those_of_the_standard_library_and_read_back(number: u128) {
            let text = format!("{number:032x}");
            prop_assert_eq!(&encode(number)[..], text.as_bytes());
            prop_assert_eq!(decode(text.bytes()), Some(number));
            prop_assert_eq!(decode(text.to_uppercase().bytes()), Some(number));
            prop_assert_eq!(decode(text.bytes().skip(1)), None);
            prop_assert_eq!(decode(text.bytes().chain([b'0'])), None);
        }
    }
}
