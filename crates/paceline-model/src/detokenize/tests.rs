use super::*;
use crate::tokenizer::tests::{rows, tokenizer};

/// xorshift: enough for choosing tokens.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % limit as u64) as usize
    }
}

/// All pushes and the finish, concatenated; checks on the way that nothing is half a character.
fn stream(tokenizer: &Tokenizer, ids: &[u32], options: DetokenizeOptions) -> String {
    let mut detokenizer = Detokenizer::new(tokenizer, options);
    let mut text = String::new();
    for &id in ids {
        text.push_str(detokenizer.push(id));
        assert!(detokenizer.pending.len() < 4, "more than a character is held back");
    }
    text.push_str(detokenizer.finish());
    text
}

/// The whole text at once: the bytes of all tokens, decoded lossily by the standard library.
fn whole(tokenizer: &Tokenizer, ids: &[u32], options: DetokenizeOptions) -> String {
    let shown = |id: &&u32| !(options.skip_special && tokenizer.is_special(**id));
    let parts = ids.iter().filter(shown).map(|&id| tokenizer.token_bytes(id).into_owned());
    let mut bytes = parts.collect::<Vec<_>>().concat();
    let strips = tokenizer.vocab().strips_leading_space() && !options.continuation;
    if strips && bytes.first() == Some(&b' ') {
        bytes.remove(0);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Ids of the byte tokens and of a few others, so that broken characters are common.
fn interesting_ids(tokenizer: &Tokenizer) -> Vec<u32> {
    let all = 0..tokenizer.n_vocab() as u32 + 2;
    all.filter(|&id| {
        let bytes = tokenizer.token_bytes(id);
        std::str::from_utf8(&bytes).is_err() || id % 61 == 0 || tokenizer.is_special(id)
    })
    .collect()
}

#[test]
fn pushes_concatenate_to_the_whole_text_for_any_ids() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for name in ["bitnet-tiny", "sentencepiece"] {
        let tokenizer = tokenizer(name);
        let ids = interesting_ids(&tokenizer);
        for round in 0..4000 {
            let length = random.below(24);
            let sequence: Vec<u32> = (0..length).map(|_| ids[random.below(ids.len())]).collect();
            let options =
                DetokenizeOptions { skip_special: round % 2 == 0, continuation: round % 3 == 0 };
            let expected = whole(&tokenizer, &sequence, options);
            let streamed = stream(&tokenizer, &sequence, options);
            assert_eq!(streamed, expected, "{name} {sequence:?} {options:?}");
        }
    }
}

#[test]
fn a_character_appears_with_its_last_byte() {
    let tokenizer = tokenizer("sentencepiece");
    let byte = |b: u8| tokenizer.token_id(&format!("<0x{b:02X}>")).unwrap();
    let mut detokenizer = Detokenizer::new(&tokenizer, DetokenizeOptions::default());
    let bytes = "€".as_bytes();
    assert_eq!(detokenizer.push(byte(bytes[0])), "");
    assert_eq!(detokenizer.push(byte(bytes[1])), "");
    assert!(detokenizer.has_pending());
    assert_eq!(detokenizer.push(byte(bytes[2])), "€");
    assert!(!detokenizer.has_pending());

    assert_eq!(detokenizer.push(byte(bytes[0])), "");
    assert_eq!(detokenizer.push(byte(b'x')), "\u{fffd}x");
    assert_eq!(detokenizer.push(byte(bytes[0])), "");
    assert_eq!(detokenizer.finish(), "\u{fffd}");
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn the_leading_space_belongs_to_a_continuation_only() {
    let tokenizer = tokenizer("sentencepiece");
    let row = rows("sentencepiece.cases.json").into_iter().find(|row| row["text"] == "a").unwrap();
    let ids: Vec<u32> = serde_json::from_value(row["ids"].clone()).unwrap();
    let mut options = DetokenizeOptions::default();
    assert_eq!(stream(&tokenizer, &ids, options), "a");
    options.continuation = true;
    assert_eq!(stream(&tokenizer, &ids, options), " a");
}

#[test]
fn special_tokens_are_shown_on_request_and_leave_the_space_to_the_text() {
    let tokenizer = tokenizer("sentencepiece");
    let (bos, a) = (tokenizer.bos().unwrap(), tokenizer.token_id("▁a").unwrap());
    let mut options = DetokenizeOptions::default();
    assert_eq!(stream(&tokenizer, &[bos, a], options), "a");
    options.skip_special = false;
    assert_eq!(stream(&tokenizer, &[bos, a], options), "<s> a");
}
