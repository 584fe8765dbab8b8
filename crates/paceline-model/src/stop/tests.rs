use super::*;

fn strings(stops: &[&str]) -> Vec<String> {
    stops.iter().map(|&stop| stop.to_owned()).collect()
}

/// All text handed out, and what stopped it.
fn run(stops: &[String], include_stop: bool, chunks: &[&str]) -> (String, Option<usize>) {
    let mut matcher = StopMatcher::new(stops, include_stop).unwrap();
    let mut text = String::new();
    for chunk in chunks {
        let output = matcher.push(chunk);
        text.push_str(&output.text);
        if output.stopped.is_some() {
            assert_eq!(matcher.finish(), "");
            return (text, output.stopped);
        }
    }
    text.push_str(&matcher.finish());
    (text, None)
}

/// The first end of any stop string in the text; the longest of those that end there.
fn naive(stops: &[String], include_stop: bool, text: &str) -> (String, Option<usize>) {
    for end in 1..=text.len() {
        let ends_here = |stop: &&String| text.as_bytes()[..end].ends_with(stop.as_bytes());
        let longest = stops.iter().filter(ends_here).map(String::len).max();
        if let Some(len) = longest {
            let index = stops.iter().position(|stop| stop.len() == len && ends_here(&stop));
            let cut = if include_stop { end } else { end - len };
            return (text[..cut].to_owned(), index);
        }
    }
    (text.to_owned(), None)
}

#[test]
fn random_texts_cut_anywhere_stop_where_a_plain_search_says() {
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut below = |limit: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % limit as u64) as usize
    };
    // Characters of one to four bytes, some of which share their first bytes.
    let alphabet = ['a', 'b', 'é', 'ê', '猫', '😀', '😁'];
    for _ in 0..20_000 {
        let letters = 2 + below(alphabet.len() - 1);
        let mut word = |max: usize, min: usize| -> String {
            let length = min + below(max);
            (0..length).map(|_| alphabet[below(letters)]).collect()
        };
        let stops: Vec<String> = (0..1 + word(3, 0).chars().count()).map(|_| word(4, 1)).collect();
        let text = word(30, 0);
        let include_stop = below(2) == 0;
        let mut chunks = Vec::new();
        let mut rest = text.as_str();
        while !rest.is_empty() {
            let n = rest.chars().count();
            let take: usize = rest.chars().take(1 + below(n.min(5))).map(char::len_utf8).sum();
            let (chunk, after) = rest.split_at(take);
            chunks.push(chunk);
            rest = after;
        }
        let expected = naive(&stops, include_stop, &text);
        assert_eq!(run(&stops, include_stop, &chunks), expected, "{stops:?} in {chunks:?}");
    }
}

#[test]
fn only_what_may_become_a_stop_string_is_held_back() {
    let mut matcher = StopMatcher::new(&strings(&["\nUser:", "END"]), false).unwrap();
    assert_eq!(matcher.push("Hello").text, "Hello");
    assert_eq!(matcher.push(" E").text, " ");
    assert_eq!(matcher.push("N").text, "");
    assert_eq!(matcher.push("N").text, "ENN");
    assert_eq!(matcher.push("\nUs").text, "");
    assert_eq!(matcher.push("e\nUse").text, "\nUse");
    let output = matcher.push("r: more");
    assert_eq!((output.text.as_str(), output.stopped), ("", Some(0)));
    let after = matcher.push("ignored");
    assert_eq!((after.text.as_str(), after.stopped), ("", Some(0)));
}

#[test]
fn the_stop_string_is_kept_on_request() {
    let stops = strings(&["</s>"]);
    assert_eq!(run(&stops, true, &["a<", "/s", ">b"]), ("a</s>".to_owned(), Some(0)));
    assert_eq!(run(&stops, false, &["a<", "/s", ">b"]), ("a".to_owned(), Some(0)));
}

#[test]
fn a_text_without_stops_passes_through() {
    assert_eq!(run(&[], false, &["a", "", "é"]), ("aé".to_owned(), None));
}

#[test]
fn bad_stop_strings_are_refused() {
    let many = vec!["x".to_owned(); MAX_STOP_STRINGS + 1];
    assert_eq!(StopMatcher::new(&many, false).unwrap_err(), StopError::TooMany(17));
    let empty = strings(&["a", ""]);
    assert_eq!(StopMatcher::new(&empty, false).unwrap_err(), StopError::Empty(1));
    let long = vec!["x".repeat(MAX_STOP_BYTES + 1)];
    let error = StopError::TooLong { index: 0, len: 1025 };
    assert_eq!(StopMatcher::new(&long, false).unwrap_err(), error);
    assert!(StopMatcher::new(&many[..MAX_STOP_STRINGS], false).is_ok());
}
