//! SipHash-2-4 with a 128-bit result, over 64-bit words.
//!
//! A keyed hash: without the key nobody can prepare prompts whose blocks collide in the prefix
//! cache. Knows nothing of blocks or tokens.

/// Hash state. Feed whole words, then finish with the last partial word.
#[derive(Clone, Debug)]
pub(crate) struct SipHash128 {
    v: [u64; 4],
}

impl SipHash128 {
    pub(crate) fn new(key: [u64; 2]) -> Self {
        Self {
            v: [
                key[0] ^ 0x736f_6d65_7073_6575,
                key[1] ^ 0x646f_7261_6e64_6f6d ^ 0xee,
                key[0] ^ 0x6c79_6765_6e65_7261,
                key[1] ^ 0x7465_6462_7974_6573,
            ],
        }
    }

    pub(crate) fn word(&mut self, word: u64) {
        self.v[3] ^= word;
        self.round();
        self.round();
        self.v[0] ^= word;
    }

    /// `tail` holds the bytes left over below and the message's length (mod 256) in its top byte.
    pub(crate) fn finish(mut self, tail: u64) -> u128 {
        self.word(tail);
        self.v[2] ^= 0xee;
        let low = self.four_rounds();
        self.v[1] ^= 0xdd;
        let high = self.four_rounds();
        u128::from(high) << 64 | u128::from(low)
    }

    fn four_rounds(&mut self) -> u64 {
        for _ in 0..4 {
            self.round();
        }
        self.v[0] ^ self.v[1] ^ self.v[2] ^ self.v[3]
    }

    fn round(&mut self) {
        let [mut a, mut b, mut c, mut d] = self.v;
        a = a.wrapping_add(b);
        b = b.rotate_left(13) ^ a;
        a = a.rotate_left(32);
        c = c.wrapping_add(d);
        d = d.rotate_left(16) ^ c;
        a = a.wrapping_add(d);
        d = d.rotate_left(21) ^ a;
        c = c.wrapping_add(b);
        b = b.rotate_left(17) ^ c;
        c = c.rotate_left(32);
        self.v = [a, b, c, d];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash_bytes(key: [u64; 2], bytes: &[u8]) -> u128 {
        let mut hash = SipHash128::new(key);
        let chunks = bytes.chunks_exact(8);
        let rest = chunks.remainder();
        for chunk in chunks {
            hash.word(u64::from_le_bytes(chunk.try_into().unwrap()));
        }
        let mut tail = [0u8; 8];
        tail[..rest.len()].copy_from_slice(rest);
        tail[7] = bytes.len() as u8;
        hash.finish(u64::from_le_bytes(tail))
    }

    /// Key 00..0f, message 00 01 02 ...: the published vectors of SipHash-2-4-128.
    #[test]
    fn published_vectors() {
        let key = [0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908];
        let cases = [
            (0, "a3817f04ba25a8e66df67214c7550293"),
            (1, "da87c1d86b99af44347659119b22fc45"),
            (2, "8177228da4a45dc7fca38bdef60affe4"),
            (3, "9c70b60c5267a94e5f33b6b02985ed51"),
            (7, "a1f1ebbed8dbc153c0b84aa61ff08239"),
            (8, "3b62a9ba6258f5610f83e264f31497b4"),
            (9, "264499060ad9baabc47f8b02bb6d71ed"),
            (15, "5493e99933b0a8117e08ec0f97cfc3d9"),
            (16, "6ee2a4ca67b054bbfd3315bf85230577"),
            (31, "2939b0183223fafc1723de4f52c43d35"),
            (63, "5150d1772f50834a503e069a973fbd7c"),
        ];
        for (len, expected) in cases {
            let message: Vec<u8> = (0..len).collect();
            let hex: String = hash_bytes(key, &message)
                .to_le_bytes()
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect();
            assert_eq!(hex, expected, "length {len}");
        }
    }
}
