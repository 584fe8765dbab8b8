use serde_json::json;

use super::*;
use crate::tokenizer::SpecialTokens;
use crate::tokenizer::tests::{rows, tokenizer};

fn render(source: &str, input: &ChatInput<'_>) -> Result<String, TemplateError> {
    ChatTemplate::new(source, "<s>", "</s>")?.render(input)
}

fn rendered(source: &str) -> String {
    render(source, &ChatInput::default()).unwrap()
}

#[test]
fn smollm2_renders_the_golden_prompts_and_their_ids() {
    let tokenizer = tokenizer("smollm2");
    let template = ChatTemplate::of_tokenizer(&tokenizer).unwrap().unwrap();
    let mut chats = 0;
    for row in rows("smollm2.golden.json") {
        let Ok(messages) = serde_json::from_value::<Vec<Message>>(row["messages"].clone()) else {
            continue;
        };
        let input =
            ChatInput { messages: &messages, add_generation_prompt: true, ..ChatInput::default() };
        let prompt = template.render(&input).unwrap();
        assert_eq!(prompt, row["prompt"].as_str().unwrap());
        let ids = tokenizer.encode(&prompt, SpecialTokens::Parse).unwrap();
        assert_eq!(json!(ids), row["prompt_token_ids"]);
        chats += 1;
    }
    assert_eq!(chats, 3);
}

#[test]
fn the_dialect_is_that_of_chat_templates() {
    let cases = [
        ("{% if true %}\n  a\n{% endif %}\nb\n", "  a\nb"),
        ("   {% set x = 1 %}\n{{ x }}", "1"),
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{{ tools is none }} {{ documents is none }}", "True True"),
        ("{% if not tools %}no{% endif %}{{ missing }}", "no"),
        ("{{ ' a '.strip() }}{{ 'a,b'.split(',')[1] }}{{ 'abc'.startswith('ab') }}", "abTrue"),
        (
            "{% for i in [1,2,3,4] %}{% if i == 2 %}{% continue %}{% endif %}\
          {% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}",
            "13",
        ),
        (
            "{% set ns = namespace(n=0) %}{% for i in range(4) %}{% set ns.n = ns.n + i %}\
          {% endfor %}{{ ns.n }}",
            "6",
        ),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m('y') }}", "<y>"),
        ("{%- for m in [1,2,3][1:] -%} {{ m }} {%- endfor %}", "23"),
        (
            "{{ {'a': [1, 'é<'], 'b': none, 'c': true} | tojson }}",
            "{\"a\": [1, \"é<\"], \"b\": null, \"c\": true}",
        ),
        ("{{ {'a': {}} | tojson(indent=4) }}", "{\n    \"a\": {}\n}"),
        ("{{ {'b': 1, 'a': 2}.items() | map('first') | join(' ') }}", "b a"),
        ("a{% generation %}b{%- endgeneration -%} c", "abc"),
        ("{{ 'x' if loop is defined else 'y' }}{{ [1] | length }}", "y1"),
    ];
    for (source, expected) in cases {
        assert_eq!(rendered(source), expected, "{source}");
    }
}

#[test]
fn tools_are_written_in_their_own_order() {
    let tools = [json!({"z": 1, "a": {"y": false, "b": []}})];
    let input = ChatInput { tools: &tools, ..ChatInput::default() };
    let text = render("{% for t in tools %}{{ t | tojson }}{% endfor %}", &input).unwrap();
    assert_eq!(text, r#"{"z": 1, "a": {"y": false, "b": []}}"#);
}

#[test]
fn messages_and_extra_variables_arrive() {
    let messages = [Message::new("user", "hi"), Message::new("assistant", "<|im_end|>")];
    let extra = json!({"enable_thinking": false, "messages": "forged"});
    let input = ChatInput { messages: &messages, extra: extra.as_object(), ..ChatInput::default() };
    let source = "{% for m in messages %}{{ m.role }}={{ m['content'] }};{% endfor %}\
                  {% if enable_thinking is false %}quiet{% endif %}";
    assert_eq!(render(source, &input).unwrap(), "user=hi;assistant=<|im_end|>;quiet");
}

#[test]
fn a_template_can_refuse() {
    let error = render("{{ raise_exception('roles must alternate') }}", &ChatInput::default());
    let error = error.unwrap_err();
    assert!(matches!(&error, TemplateError::Refused(why) if why == "roles must alternate"));
    let nested = "{% macro m() %}{{ raise_exception('no') }}{% endmacro %}{{ m() }}";
    let error = render(nested, &ChatInput::default()).unwrap_err();
    assert!(matches!(error, TemplateError::Refused(_)), "{error}");
}

#[test]
fn hostile_templates_are_stopped() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}\
                   {% set x = a %}{% endfor %}{% endfor %}{% endfor %}";
    let error = render(endless, &ChatInput::default()).unwrap_err();
    assert!(matches!(error, TemplateError::OutOfFuel), "{error}");

    let deep = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    let error = render(deep, &ChatInput::default()).unwrap_err();
    assert!(matches!(error, TemplateError::Render(_)), "{error}");

    let nested = format!("{{{{ {}1{} }}}}", "(".repeat(10_000), ")".repeat(10_000));
    let error = render(&nested, &ChatInput::default()).unwrap_err();
    assert!(matches!(error, TemplateError::Syntax(_)), "{error}");

    let large = "x".repeat(MAX_SOURCE_BYTES + 1);
    let error = render(&large, &ChatInput::default()).unwrap_err();
    assert!(matches!(error, TemplateError::TooLarge { .. }), "{error}");
}

#[test]
fn faults_are_named_with_their_line() {
    let error = render("a\n{% if %}", &ChatInput::default()).unwrap_err().to_string();
    assert!(error.contains("not valid") && error.contains("line 2"), "{error}");
    let error = render("\n\n{{ missing.field.deep }}", &ChatInput::default()).unwrap_err();
    assert!(matches!(error, TemplateError::Render(_)), "{error}");
    assert!(error.to_string().contains("line 3"), "{error}");
    for open in ["{%", "{{ 'x", "{% generation", "%}{%"] {
        let _ = render(open, &ChatInput::default());
    }
}

#[test]
fn the_date_comes_from_the_caller() {
    let cases = [
        (0, "%Y-%m-%d %H:%M:%S %A", "1970-01-01 00:00:00 Thursday"),
        (951_782_400, "%d %b %Y", "29 Feb 2000"),
        (1_735_689_599, "%B %-d, %y %I:%M %p day %j", "December 31, 24 11:59 PM day 366"),
        (1_709_164_800, "%F %a %e%%%Q%", "2024-02-29 Thu 29%%Q%"),
        (-1, "%F %H:%M:%S", "1969-12-31 23:59:59"),
        (4_107_542_400, "%F", "2100-03-01"),
        (4_107_456_000, "%F", "2100-02-28"),
        (43_200, "%-I %p %-M", "12 PM 0"),
    ];
    for (now, format, expected) in cases {
        assert_eq!(time::format_utc(now, format), expected, "{now} {format}");
    }
    let input = ChatInput { now: 86_400, ..ChatInput::default() };
    let source = "Today Date: {{ strftime_now('%d %b %Y') }}";
    assert_eq!(render(source, &input).unwrap(), "Today Date: 02 Jan 1970");
}

#[test]
fn a_file_without_a_template_gives_none() {
    let tokenizer = tokenizer("sentencepiece");
    assert!(ChatTemplate::of_tokenizer(&tokenizer).unwrap().is_none());
}
