use super::*;
use axum::http::HeaderValue;

fn headers(value: &'static str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(header::AUTHORIZATION, HeaderValue::from_static(value));
    headers
}

#[test]
fn keys_are_compared_whole() {
    let keys = Keys::new(&[KeyRule::new("ann", "sk-1"), KeyRule::new("bob", "sk-12")]);
    let name = |value| keys.caller(&headers(value)).map(|caller| caller.name.clone());
    assert_eq!(name("Bearer sk-1").unwrap(), "ann");
    assert_eq!(name("Bearer sk-12").unwrap(), "bob");
    for wrong in ["Bearer sk-", "Bearer sk-123", "Bearer ", "sk-1", "Basic sk-1", "Bearer sk-2"] {
        assert_eq!(name(wrong), Err(ApiError::Unauthorized), "{wrong}");
    }
    assert_eq!(keys.caller(&HeaderMap::new()).unwrap_err(), ApiError::Unauthorized);
    let open = Keys::new(&[]);
    assert_eq!(open.caller(&HeaderMap::new()).unwrap().tenant, 0);
}

#[test]
fn key_files() {
    let text =
        "# who may\n\nann sk-1\nbob sk-2 max_concurrent=3 tokens_per_minute=60 priority=low\n";
    let rules = KeyRule::parse_file(text).unwrap();
    let bob = KeyRule {
        max_concurrent: Some(3),
        tokens_per_minute: Some(60),
        highest_priority: Priority::Low,
        ..KeyRule::new("bob", "sk-2")
    };
    assert_eq!(rules, [KeyRule::new("ann", "sk-1"), bob]);
    let name = |name: &str| name.to_owned();
    for (text, error) in [
        ("ann", KeyFileError::NoSecret { line: 1 }),
        ("a b\n\nc d x=1", KeyFileError::UnknownLimit { line: 3, name: name("x") }),
        ("a b max_concurrent=0", KeyFileError::BadValue { line: 1, name: name("max_concurrent") }),
        ("a b max_concurrent", KeyFileError::BadValue { line: 1, name: name("max_concurrent") }),
        ("a b priority=top", KeyFileError::BadValue { line: 1, name: name("priority") }),
        ("a b\nc b", KeyFileError::Twice { first: 1, second: 2 }),
    ] {
        let found = KeyRule::parse_file(text).unwrap_err();
        assert_eq!(found, error);
        assert!(!found.to_string().contains(" b"), "a key is shown: {found}");
    }
}

#[test]
fn concurrency_is_taken_and_given_back() {
    let rule = KeyRule { max_concurrent: Some(2), ..KeyRule::new("a", "b") };
    let caller = Caller::new(1, &rule);
    let large = caller.enter(5, 0).unwrap();
    assert!(caller.check().is_err(), "the large one is alone");
    drop(large);
    let first = caller.enter(1, 0).unwrap();
    let second = caller.enter(1, 0).unwrap();
    assert!(matches!(caller.check(), Err(ApiError::Overloaded { code: "concurrency_limit", .. })));
    drop(first);
    caller.check().unwrap();
    drop(second);
}

#[test]
fn tokens_are_counted_at_both_ends() {
    let rule = KeyRule { tokens_per_minute: Some(600), ..KeyRule::new("a", "b") };
    let caller = Caller::new(1, &rule);
    let mut share = caller.enter(1, 100).unwrap();
    caller.check().unwrap();
    share.n_tokens = 1100;
    drop(share);
    let Err(ApiError::Overloaded { retry_after, code, .. }) = caller.check() else {
        panic!("600 below zero");
    };
    assert_eq!(code, "rate_limit_exceeded");
    // 600 tokens are a minute's worth.
    assert!((55..=61).contains(&retry_after.as_secs()), "{retry_after:?}");
}
