//! Tools in `/v1/responses`: what is sent and what comes back has the route's own shape, and means
//! the same as in a chat.

use serde_json::{Value, json};

use crate::client::Response;
use crate::harness::{Setup, TestServer};
use crate::schemas::keeps;

const RESPONSES: &str = "/v1/responses";
const CALL: &str = "{\"name\": \"get_weather\", \"arguments\": {\"days\": 3}}";

fn parameters() -> Value {
    json!({"type": "object", "properties": {"days": {"type": "integer", "minimum": 1,
                                                     "maximum": 9}},
           "required": ["days"], "additionalProperties": false})
}

fn tools() -> Value {
    json!([{"type": "function", "name": "get_weather", "description": "Tells it.",
            "parameters": parameters()},
           {"type": "function", "name": "stop"}])
}

fn ask(server: &TestServer, extra: &Value) -> Response {
    let mut body = json!({"input": "Rain?", "max_output_tokens": 600, "tools": tools(), "seed": 2});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    server.post(RESPONSES, &body)
}

fn events(response: &Response) -> Vec<Value> {
    let lines = response.body.lines().filter_map(|line| line.strip_prefix("data: "));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_kind<'a>(items: &'a Value, kind: &str) -> Vec<&'a Value> {
    items.as_array().unwrap().iter().filter(|item| item["type"] == kind).collect()
}

/// An item without what differs from response to response.
fn content(item: &Value) -> Value {
    match item["type"].as_str().unwrap() {
        "message" => json!({"text": item["content"][0]["text"]}),
        _ => json!({"name": item["name"], "arguments": item["arguments"]}),
    }
}

#[test]
fn forced_calls_are_items_and_valid() {
    let server = TestServer::patient(Setup::default());
    for seed in 0..4 {
        for choice in [json!("required"), json!({"type": "function", "name": "get_weather"})] {
            let forced = json!({"tool_choice": choice, "seed": seed});
            let answer = ask(&server, &forced).json();
            assert_eq!(answer["status"], "completed", "{answer}");
            assert_eq!((&answer["tools"], &answer["tool_choice"]), (&tools(), &choice));
            let calls = of_kind(&answer["output"], "function_call");
            assert_eq!(calls.len(), answer["output"].as_array().unwrap().len(), "{answer}");
            assert!(!calls.is_empty() && (choice == "required" || calls.len() == 1));
            for call in calls {
                assert_eq!(call["status"], "completed");
                assert!(call["call_id"].as_str().is_some_and(|id| id.starts_with("call")));
                let arguments = call["arguments"].as_str().unwrap();
                let arguments: Value = serde_json::from_str(arguments).unwrap();
                match call["name"].as_str().unwrap() {
                    "get_weather" => assert!(keeps(&arguments, &parameters()), "{arguments}"),
                    name => assert_eq!((name, &arguments), ("stop", &json!({}))),
                }
            }
        }
    }
}

#[test]
fn the_models_own_calls_are_items_whole_and_streamed() {
    let cases: [(&str, &[&str]); 4] = [
        ("Let me look.\n<tool_call>\n@\n</tool_call>", &["message", "function_call"]),
        ("<tool_call>@</tool_call>\n<tool_call>@</tool_call>", &["function_call"; 2]),
        ("It will rain <soon>.", &["message"]),
        ("", &["message"]),
    ];
    for (script, kinds) in cases {
        let script: &'static str = script.replace('@', CALL).leak();
        let server = TestServer::new(Setup { script: Some(script), ..Setup::default() });
        let whole = ask(&server, &json!({})).json();
        let items = whole["output"].as_array().unwrap();
        let found: Vec<&str> = items.iter().map(|item| item["type"].as_str().unwrap()).collect();
        assert_eq!(found, kinds, "{script}");
        let ids: std::collections::HashSet<&str> =
            items.iter().map(|item| item["id"].as_str().unwrap()).collect();
        assert_eq!(ids.len(), items.len(), "{items:?}");
        let events = events(&ask(&server, &json!({"stream": true})));
        check_events(&events, items);
        // Who wants none used gets the text as it is.
        let plain = ask(&server, &json!({"tool_choice": "none"})).json();
        assert_eq!(plain["output"][0]["content"][0]["text"], script);
        assert_eq!(plain["tools"], tools());
    }
}

/// Each item is added, filled and done, in its place, before the next; the last event has all.
fn check_events(events: &[Value], items: &[Value]) {
    let numbers = events.iter().map(|event| event["sequence_number"].as_u64().unwrap());
    assert!(numbers.eq(0..events.len() as u64));
    let last = events.last().unwrap();
    assert_eq!(last["type"], "response.completed");
    let streamed = last["response"]["output"].as_array().unwrap();
    assert!(streamed.iter().map(content).eq(items.iter().map(content)));
    let mut rest = events[2..events.len() - 1].iter();
    for (place, item) in streamed.iter().enumerate() {
        let own: Vec<&Value> =
            rest.clone().take_while(|event| event["output_index"] == place).collect();
        rest.nth(own.len() - 1);
        let (first, last) = (own[0], own[own.len() - 1]);
        assert_eq!(first["type"], "response.output_item.added");
        assert_eq!(first["item"]["status"], "in_progress");
        assert_eq!(last["type"], "response.output_item.done");
        assert_eq!(&last["item"], item);
        let inner = &own[1..own.len() - 1];
        assert!(inner.iter().all(|event| event["item_id"] == item["id"]), "{inner:?}");
        let deltas: String = inner.iter().filter_map(|event| event["delta"].as_str()).collect();
        let kinds: Vec<&str> = inner.iter().map(|event| event["type"].as_str().unwrap()).collect();
        if item["type"] == "function_call" {
            let name = "response.function_call_arguments";
            assert_eq!(kinds, [format!("{name}.delta"), format!("{name}.done")]);
            assert_eq!(inner[1]["arguments"], item["arguments"]);
            assert_eq!(deltas, item["arguments"].as_str().unwrap());
        } else {
            assert_eq!(kinds[0], "response.content_part.added");
            assert_eq!(deltas, item["content"][0]["text"].as_str().unwrap());
        }
    }
    assert!(rest.next().is_none());
}

/// A conversation with calls and results becomes the prompt that the same chat becomes.
#[test]
fn calls_and_results_come_back_as_in_a_chat() {
    let server = TestServer::plain();
    let flat = tools();
    let nested: Vec<Value> = flat
        .as_array()
        .unwrap()
        .iter()
        .map(|tool| {
            let mut function = tool.clone();
            function.as_object_mut().unwrap().remove("type");
            json!({"type": "function", "function": function})
        })
        .collect();
    let call = |id: &str| {
        json!({"id": id, "type": "function",
               "function": {"name": "get_weather", "arguments": "{\"days\": 3}"}})
    };
    let chat = json!({"tools": nested, "max_tokens": 8, "temperature": 0, "ignore_eos": true,
    "messages": [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": "I look.", "tool_calls": [call("c1"), call("c2")]},
        {"role": "tool", "tool_call_id": "c1", "content": "no", "name": "get_weather"},
        {"role": "tool", "tool_call_id": "c2", "content": "yes", "name": "get_weather"},
    ]});
    let item = |id: &str| {
        json!({"type": "function_call", "id": "fc_1", "call_id": id, "name": "get_weather",
               "arguments": "{\"days\": 3}", "status": "completed"})
    };
    let input = json!([
        {"role": "user", "content": "Rain?"},
        {"type": "message", "role": "assistant",
         "content": [{"type": "output_text", "text": "I look."}]},
        item("c1"), item("c2"),
        {"type": "function_call_output", "call_id": "c1", "output": "no"},
        {"type": "function_call_output", "call_id": "c2",
         "output": [{"type": "input_text", "text": "yes"}]},
    ]);
    let response = json!({"tools": flat, "max_output_tokens": 8, "temperature": 0,
                          "ignore_eos": true, "input": input});
    let chatted = server.post("/v1/chat/completions", &chat).json();
    let responded = server.post(RESPONSES, &response).json();
    assert_eq!(responded["usage"]["input_tokens"], chatted["usage"]["prompt_tokens"]);
    let text = &responded["output"][0]["content"][0]["text"];
    assert_eq!(text, &chatted["choices"][0]["message"]["content"]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let server = TestServer::patient(Setup::default());
    let format = json!({"format": {"type": "json_object"}});
    let item = |item: Value| json!({"input": [{"role": "user", "content": "a"}, item]});
    let cases = [
        (json!({"tools": [{"type": "web_search"}]}), "tools"),
        (json!({"tools": [{"type": "function", "function": {"name": "f"}}]}), "tools"),
        (json!({"tools": [5]}), "tools"),
        (json!({"tool_choice": {"type": "function", "name": "unknown"}}), "tool_choice"),
        (json!({"tool_choice": {"type": "function"}}), "tool_choice"),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (json!({"tool_choice": "required", "text": format}), "text"),
        (item(json!({"type": "function_call", "name": "stop"})), "input"),
        (item(json!({"type": "function_call", "call_id": "c"})), "input"),
        (item(json!({"type": "function_call_output", "call_id": "c", "output": "x"})), "input"),
        (item(json!({"type": "item_reference", "id": "x"})), "input"),
        (item(json!({"content": "whose?"})), "input"),
    ];
    for (extra, param) in cases {
        let (status, error) = ask(&server, &extra).error();
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{extra}");
    }
}
