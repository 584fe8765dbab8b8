use paceline_model::template::Message;
use serde_json::json;

use super::style::{Form, ToolStyle, describe, in_plain_words};
use super::{Said, ToolParser};

const STYLE: ToolStyle = ToolStyle { form: Form::Tagged, is_in_template: true };

/// What an answer says when it comes in pieces of `n` characters: texts and calls in one line.
fn read(answer: &str, n: usize) -> String {
    let names = ["get_weather".to_owned(), "stop".to_owned()];
    let mut parser = ToolParser::new(names.into(), STYLE);
    let mut said = Vec::new();
    let letters: Vec<char> = answer.chars().collect();
    for piece in letters.chunks(n) {
        parser.push(&piece.iter().collect::<String>(), &mut said);
    }
    parser.finish(&mut said);
    let calls = said.iter().filter(|said| matches!(said, Said::Call(_))).count();
    assert_eq!(parser.n_calls(), calls);
    let mut line = String::new();
    for said in said {
        match said {
            Said::Text(text) => line += &text,
            Said::Call(call) => {
                assert!(call.id.starts_with("call_") && call.id.len() == 29);
                line += &format!("[{} {}]", call.name, call.arguments);
            }
        }
    }
    line
}

#[test]
fn calls_are_read_in_every_form_and_any_pieces() {
    let cases = [
        ("plain words", "plain words"),
        ("1 < 2 and <tool is text", "1 < 2 and <tool is text"),
        ("", ""),
        // Hermes and Qwen.
        (
            "\n<tool_call>\n{\"name\": \"stop\", \"arguments\": {\"a\": 1.0}}\n</tool_call>\n",
            "[stop {\"a\": 1.0}]",
        ),
        (
            "Let me see.\n<tool_call>{\"name\": \"stop\"}</tool_call>\n<tool_call>\
             {\"arguments\": {\"city\": \"Ulm\"}, \"name\": \"get_weather\"}</tool_call>",
            "Let me see.\n[stop {}][get_weather {\"city\": \"Ulm\"}]",
        ),
        ("<tool_call>{\"name\": \"stop\", \"arguments\": {}}", "[stop {}]"),
        ("<tool_call>{\"name\": \"st", "<tool_call>{\"name\": \"st"),
        (
            "<tool_call>{\"name\": \"unknown\"}</tool_call> so",
            "<tool_call>{\"name\": \"unknown\"}</tool_call> so",
        ),
        // Llama.
        ("{\"name\": \"stop\", \"parameters\": {\"a\": \"{\"}}", "[stop {\"a\": \"{\"}]"),
        ("<|python_tag|>{\"name\": \"stop\", \"parameters\": {}}", "[stop {}]"),
        (
            "{\"name\": \"stop\", \"parameters\": {}}; {\"function\": \"stop\"}",
            "[stop {}][stop {}]",
        ),
        (
            "{\"type\": \"function\", \"function\": {\"name\": \"stop\", \"arguments\": \"{}\"}}",
            "[stop {}]",
        ),
        ("{\"name\": \"Ann\", \"age\": 5}", "{\"name\": \"Ann\", \"age\": 5}"),
        ("{not JSON", "{not JSON"),
        // Mistral.
        (
            "[TOOL_CALLS] [{\"name\": \"stop\", \"arguments\": {}}, {\"name\": \"stop\"}]",
            "[stop {}][stop {}]",
        ),
        (
            "[TOOL_CALLS]stop[ARGS]{\"a\": [1]}[TOOL_CALLS]get_weather{}",
            "[stop {\"a\": [1]}][get_weather {}]",
        ),
        ("[TOOL_CALLS]nothing", "[TOOL_CALLS]nothing"),
        ("[1] is a footnote", "[1] is a footnote"),
        ("[{\"name\": \"stop\"}]", "[stop {}]"),
    ];
    for (answer, expected) in cases {
        for n in [1, 2, 3, 7, 1000] {
            assert_eq!(read(answer, n), expected, "in pieces of {n}");
        }
    }
}

#[test]
fn text_is_not_held_longer_than_needed() {
    let mut parser = ToolParser::new(["stop".to_owned()].into(), STYLE);
    let mut said = Vec::new();
    parser.push("Well, <to", &mut said);
    assert_eq!(said, [Said::Text("Well, ".to_owned())]);
    parser.push("y> it is", &mut said);
    assert_eq!(said[1], Said::Text("<toy> it is".to_owned()));
}

#[test]
fn templates_without_tools_get_words() {
    let call = json!({"id": "a", "function": {"name": "stop", "arguments": {"now": true}}});
    let chat = [
        Message::new("user", "hi"),
        Message { tool_calls: vec![call], ..Message::new("assistant", "") },
        Message::new("tool", "done"),
        Message::new("tool", "twice"),
    ];
    let mut plain = in_plain_words(&chat);
    let called = "<tool_call>\n{\"name\":\"stop\",\"arguments\":{\"now\":true}}\n</tool_call>";
    let results =
        "<tool_response>\ndone\n</tool_response>\n<tool_response>\ntwice\n</tool_response>";
    let expected = [
        Message::new("user", "hi"),
        Message::new("assistant", called),
        Message::new("user", results),
    ];
    assert_eq!(plain, expected);
    let tools = [json!({"type": "function", "function": {"name": "stop"}})];
    describe(&mut plain, &tools, true);
    assert_eq!((plain.len(), plain[0].role.as_str()), (4, "system"));
    assert!(plain[0].content.contains("{\"name\":\"stop\"}"), "{}", plain[0].content);
    describe(&mut plain, &tools, true);
    assert_eq!(plain.len(), 4, "what is there is added to");
}
