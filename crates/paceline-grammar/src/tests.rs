use std::sync::LazyLock;

use paceline_engine::{Constraint, Progress, Token, TokenMask};
use paceline_model::gguf::Gguf;
use paceline_model::synth::{SynthSpec, gguf_bytes};
use paceline_model::tokenizer::{SpecialTokens, Tokenizer};

use crate::{Compiler, GrammarError, Source};

static TOKENIZER: LazyLock<Tokenizer> = LazyLock::new(|| {
    let gguf = Gguf::parse(gguf_bytes(&SynthSpec::tiny("llama")).unwrap()).unwrap();
    Tokenizer::from_metadata(gguf.metadata()).unwrap()
});
static COMPILER: LazyLock<Compiler> = LazyLock::new(|| Compiler::new(&TOKENIZER).unwrap());

fn mask(constraint: &mut dyn Constraint) -> TokenMask {
    let mut mask = TokenMask::default();
    constraint.fill(&mut mask);
    mask
}

/// What becomes of a text: `None` if it is not allowed, otherwise whether it may end there.
fn outcome(source: &Source, text: &str) -> Option<bool> {
    let mut constraint = COMPILER.compile(source).unwrap().constraint();
    let eos = TOKENIZER.eos_tokens()[0];
    let mut progress = Progress::Open;
    for token in TOKENIZER.encode(text, SpecialTokens::AsText).unwrap() {
        if progress == Progress::Complete || !mask(&mut *constraint).allows(token) {
            return None;
        }
        progress = constraint.accept(token);
    }
    Some(progress == Progress::Complete || mask(&mut *constraint).allows(eos))
}

fn schema(text: &str, is_strict: bool) -> Source {
    Source::JsonSchema { schema: text.to_owned(), is_strict }
}

fn choice(choices: &[&str]) -> Source {
    Source::Choice(choices.iter().map(|&choice| choice.to_owned()).collect())
}

#[test]
fn sources_allow_what_they_say() {
    let regex = |text: &str| Source::Regex(text.to_owned());
    let object = r##"{"type": "object", "properties": {"b": {"type": "integer"},
        "a": {"$ref": "#/$defs/name"}}, "required": ["b"], "additionalProperties": false,
        "$defs": {"name": {"type": "string", "maxLength": 2}}}"##;
    let lark = Source::Lark("start: greeting \" \" /[a-z]+/\ngreeting: \"hi\" | \"ho\"".to_owned());
    let cases = [
        (Source::JsonObject, r#"{"a": [1, {"b": null}]}"#, Some(true)),
        (Source::JsonObject, "{\n  \"a\": 1\n}", Some(true)),
        (Source::JsonObject, r#"{"a": "#, Some(false)),
        (Source::JsonObject, "[1]", None),
        (schema(object, true), r#"{"b": 12, "a": "xy"}"#, Some(true)),
        (schema(object, true), r#"{"b": 12"#, Some(false)),
        (schema(object, true), r#"{"b": 12, "a": "xyz"}"#, None),
        (schema(object, true), r#"{"a": "xy", "b": 12}"#, None),
        (schema(object, true), r#"{"b": 12, "c""#, None),
        (schema(r#"{"type": "boolean"}"#, true), "true", Some(true)),
        (regex("[0-9]{3}-[a-f]+"), "123-ab", Some(true)),
        (regex("[0-9]{3}-[a-f]+"), "123-", Some(false)),
        (regex("[0-9]{3}-[a-f]+"), "12-", None),
        (regex("^a/b$"), "a/b", Some(true)),
        (regex(r"a\$"), "a$", Some(true)),
        (choice(&["yes", "no", "not at all"]), "no", Some(true)),
        (choice(&["yes", "no", "not at all"]), "not at", Some(false)),
        (choice(&["\"quoted\" \\ \n"]), "\"quoted\" \\ \n", Some(true)),
        (choice(&["yes", "no"]), "maybe", None),
        (lark.clone(), "ho there", Some(true)),
        (lark, "hi 5", None),
    ];
    for (source, text, expected) in cases {
        assert_eq!(outcome(&source, text), expected, "{source:?} and {text:?}");
    }
}

#[test]
fn sources_that_make_no_sense_are_refused() {
    let bad = [
        schema("{", false),
        schema("[]", false),
        schema(r#"{"type": "nonsense"}"#, false),
        schema(r##"{"$ref": "#/nowhere"}"##, false),
        schema(r#"{"$ref": "https://example.org/schema.json"}"#, false),
        schema(r#"{"type": "object", "required": ["a"], "properties": {"a": false}}"#, false),
        schema(r#"{"type": "string", "not": {"const": "a"}}"#, true),
        Source::Regex("(unclosed".to_owned()),
        Source::Regex("(?=look)ahead".to_owned()),
        Source::Choice(Vec::new()),
        Source::Lark("start: missing".to_owned()),
        Source::Lark(String::new()),
        Source::Lark("start: @other".to_owned()),
    ];
    for source in bad {
        let error = COMPILER.compile(&source).expect_err(&format!("{source:?}"));
        let GrammarError::Invalid(message) = error else { panic!("{error:?}") };
        assert!(!message.is_empty() && !message.contains("backtrace"), "{message}");
    }
    // What cannot be kept is ignored if the schema is not strict.
    let lenient = schema(r#"{"type": "string", "not": {"const": "a"}}"#, false);
    assert!(COMPILER.compile(&lenient).is_ok());
}

/// Texts that would take a stack, a memory or an hour if there were no limits. Most are refused; of
/// the others a few tokens are taken.
#[test]
fn bombs_do_no_harm() {
    let chain = |item: &str| {
        (0..400)
            .map(|i| item.replace('<', &i.to_string()).replace('>', &(i + 1).to_string()))
            .collect::<String>()
    };
    let deep = "{\"items\":".repeat(5_000) + "{}" + &"}".repeat(5_000);
    let properties = chain("\"p<\": {\"type\": \"string\"}, ");
    let either: Vec<String> = (2..26)
        .map(|i| format!("{{\"anyOf\": [{{\"minimum\": {i}}}, {{\"multipleOf\": {i}}}]}}"))
        .collect();
    let bombs = [
        Source::Regex("(((a{1,1000}){1,1000}){1,1000}){1,1000}".to_owned()),
        Source::Regex("(.*a.{400})(.*b.{400})&(.*c.{400})".to_owned()),
        Source::Regex("a?".repeat(2_000)),
        Source::Regex("a?".repeat(20_000)),
        Source::Regex("(".repeat(2_000) + &")".repeat(2_000)),
        Source::Lark(chain("R<: R> \"x\"\n") + "R400: \"a\"\nstart: R0"),
        Source::Lark(chain("R<: R> R>\n") + "R400: \"a\"\nstart: R0"),
        Source::Lark("start: ".to_owned() + &"(".repeat(10_000)),
        Source::Lark("start: start start | \"a\" |".to_owned()),
        schema(&deep, false),
        schema(&format!("{{\"type\": \"number\", \"allOf\": [{}]}}", either.join(",")), false),
        schema(&format!("{{\"properties\": {{{properties} \"z\": {{}}}}}}"), false),
        schema(r##"{"allOf": [{"$ref": "#"}, {"$ref": "#"}]}"##, false),
        schema(r#"{"type": "integer", "multipleOf": 1000000007}"#, false),
        schema(r#"{"type": "string", "minLength": 1000000000}"#, false),
        schema(&format!(r#"{{"pattern": "{}"}}"#, "a?".repeat(3_000)), false),
    ];
    let mut n_refused = 0;
    for source in bombs {
        match COMPILER.compile(&source) {
            Err(_) => n_refused += 1,
            Ok(grammar) => take_some(&mut *grammar.constraint()),
        }
    }
    assert_eq!(n_refused, 9);
}

fn take_some(constraint: &mut dyn Constraint) {
    for _ in 0..10 {
        let mask = mask(constraint);
        let allowed = (0..TOKENIZER.n_vocab() as Token).rev().find(|&token| mask.allows(token));
        if allowed.is_none_or(|token| constraint.accept(token) == Progress::Complete) {
            return;
        }
    }
}

#[test]
fn copies_go_their_own_ways() {
    let grammar = COMPILER.compile(&Source::Regex("[ab]+c".to_owned())).unwrap();
    let mut one = grammar.constraint();
    let ids: Vec<Token> =
        "abc".chars().map(|c| TOKENIZER.token_id(&c.to_string()).unwrap()).collect();
    let first = mask(&mut *one);
    assert_eq!(one.accept(ids[0]), Progress::Open);
    let mut two = one.clone();
    assert_eq!(one.accept(ids[2]), Progress::Complete);
    assert!(mask(&mut *two).allows(ids[2]));
    assert_eq!(two.accept(ids[1]), Progress::Open);
    assert_eq!(mask(&mut *grammar.constraint()), first, "the grammar itself has not moved");
}

/// Special tokens are no text, even where any text is allowed.
#[test]
fn special_tokens_are_out_of_reach() {
    let mut any = COMPILER.compile(&Source::Regex("(?s:.*)".to_owned())).unwrap().constraint();
    let mask = mask(&mut *any);
    let eos = TOKENIZER.eos_tokens();
    for token in 0..TOKENIZER.n_vocab() as Token {
        if TOKENIZER.is_special(token) {
            assert_eq!(mask.allows(token), eos.contains(&token), "token {token}");
        }
    }
}
