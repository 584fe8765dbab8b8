//! Tools: forced calls, calls of the model's own, what is told to it, what is refused.

use serde_json::{Value, json};

use crate::client::Response;
use crate::harness::{Setup, TestServer};
use crate::schemas::keeps;

const CHAT: &str = "/v1/chat/completions";

/// Templates that know tools, each with calls in another form.
const HERMES: &str = "{% for t in tools %}{{ t | tojson }}{% endfor %}<tool_call> is the form.\
    {% for m in messages %}{{ m.role }}: {{ m.content }}{% if m.tool_calls %}\
    {% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endif %}\
    {% endfor %}";
const LLAMA: &str = "{% for t in tools %}{{ t | tojson }}{% endfor %}\
    {\"name\": function name, \"parameters\": arguments}{{ messages[0].content }}";
const MISTRAL: &str = "{% if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}{% endif %}\
    {% if messages[0].tool_calls %}[TOOL_CALLS]{% endif %}{{ messages[0].content }}";

fn weather() -> Value {
    json!({"type": "object", "properties": {
               "days": {"type": "integer", "minimum": 1, "maximum": 9},
               "unit": {"enum": ["C", "F"]}},
           "required": ["days", "unit"], "additionalProperties": false})
}

fn tools() -> Value {
    json!([
        {"type": "function", "function": {"name": "get_weather", "description": "Tells it.",
                                          "parameters": weather()}},
        {"type": "function", "function": {"name": "stop"}},
    ])
}

fn ask(server: &TestServer, extra: &Value) -> Response {
    let mut body = json!({"messages": [{"role": "user", "content": "Rain?"}], "max_tokens": 600,
                          "tools": tools(), "seed": 2});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    server.post(CHAT, &body)
}

/// Name and arguments of each call; everything else is looked at.
fn calls_of(message: &Value) -> Vec<(String, Value)> {
    let calls = message["tool_calls"].as_array().unwrap();
    let call = |call: &Value| {
        assert_eq!(call["type"], "function");
        assert!(call["id"].as_str().is_some_and(|id| !id.is_empty()));
        let text = |name: &str| call["function"][name].as_str().unwrap().to_owned();
        let arguments: Value = serde_json::from_str(&text("arguments")).unwrap();
        match text("name").as_str() {
            "get_weather" => assert!(keeps(&arguments, &weather()), "{arguments}"),
            "stop" => assert_eq!(arguments, json!({})),
            other => panic!("nobody offered {other}"),
        }
        (text("name"), arguments)
    };
    calls.iter().map(call).collect()
}

#[test]
fn forced_calls_are_valid_in_every_form() {
    for template in [None, Some(HERMES), Some(LLAMA), Some(MISTRAL)] {
        let server = TestServer::patient(Setup { template, ..Setup::default() });
        let named = json!({"type": "function", "function": {"name": "get_weather"}});
        for seed in 0..6 {
            for (choice, parallel) in [(json!("required"), seed % 2 == 0), (named.clone(), true)] {
                let forced = json!({"tool_choice": choice, "seed": seed,
                                    "parallel_tool_calls": parallel});
                let answer = ask(&server, &forced).json();
                let choice = &answer["choices"][0];
                assert_eq!(choice["finish_reason"], "tool_calls", "{template:?} {answer}");
                assert!(choice["message"]["content"].is_null(), "{answer}");
                let calls = calls_of(&choice["message"]);
                let is_named = forced["tool_choice"].is_object();
                assert!(!is_named || calls[0].0 == "get_weather");
                let most = if is_named || !parallel { 1 } else { 8 };
                assert!((1..=most).contains(&calls.len()), "{answer}");
            }
        }
    }
}

#[test]
fn streamed_calls_are_the_same() {
    let server = TestServer::patient(Setup::default());
    for seed in 0..4 {
        let forced = json!({"tool_choice": "required", "seed": seed, "n": 2});
        let whole = ask(&server, &forced).json();
        let mut streamed = forced.clone();
        streamed["stream"] = true.into();
        let events = ask(&server, &streamed).events();
        for index in 0..2 {
            let own: Vec<&Value> = events
                .iter()
                .map(|event| &event["choices"][0])
                .filter(|choice| choice["index"] == index)
                .collect();
            let deltas: Vec<Value> = own
                .iter()
                .filter_map(|choice| choice["delta"]["tool_calls"].as_array().cloned())
                .flatten()
                .collect();
            let numbers: Vec<&Value> = deltas.iter().map(|delta| &delta["index"]).collect();
            assert_eq!(json!(numbers), json!((0..deltas.len()).collect::<Vec<_>>()));
            let calls = calls_of(&json!({"tool_calls": deltas}));
            assert_eq!(calls, calls_of(&whole["choices"][index]["message"]));
            assert_eq!(own.last().unwrap()["finish_reason"], "tool_calls");
            let content = own.iter().filter_map(|choice| choice["delta"]["content"].as_str());
            assert_eq!(content.collect::<String>(), "");
        }
    }
}

#[test]
fn the_models_own_calls_are_read() {
    let call = "{\"name\": \"get_weather\", \"arguments\": {\"days\": 3, \"unit\": \"C\"}}";
    let cases: [(&'static str, &str, usize, &str); 5] = [
        ("Let me look.\n<tool_call>\n@\n</tool_call>", "Let me look.\n", 1, "tool_calls"),
        ("<tool_call>@</tool_call>\n<tool_call>@</tool_call>", "", 2, "tool_calls"),
        ("@", "", 1, "tool_calls"),
        ("[TOOL_CALLS][@]", "", 1, "tool_calls"),
        ("It will rain <soon>.", "It will rain <soon>.", 0, "stop"),
    ];
    for (script, content, n_calls, finish) in cases {
        let script: &'static str = script.replace("@", call).leak();
        let server = TestServer::new(Setup { script: Some(script), ..Setup::default() });
        let choice = ask(&server, &json!({})).json()["choices"][0].clone();
        assert_eq!(choice["finish_reason"], finish, "{choice}");
        assert_eq!(choice["message"]["content"].as_str().unwrap_or(""), content);
        assert_eq!(choice["message"].get("tool_calls").is_some(), n_calls > 0);
        let events = ask(&server, &json!({"stream": true, "tool_choice": "auto"})).events();
        let deltas: Vec<&Value> =
            events.iter().map(|event| &event["choices"][0]["delta"]).collect();
        let text: String = deltas.iter().filter_map(|delta| delta["content"].as_str()).collect();
        assert_eq!(text, content);
        let calls = deltas.iter().filter(|delta| delta.get("tool_calls").is_some());
        assert_eq!(calls.count(), n_calls);
        if n_calls > 0 {
            assert_eq!(calls_of(&choice["message"]).len(), n_calls);
        }
        // Who offers no tools, or wants none used, gets the text as it is.
        for extra in [json!({"tools": null}), json!({"tool_choice": "none"}), json!({"tools": []})]
        {
            let message = ask(&server, &extra).json()["choices"][0]["message"].clone();
            assert_eq!(message["content"], script);
            assert!(message.get("tool_calls").is_none());
        }
    }
}

/// The prompt that a chat becomes.
fn prompt_of(server: &TestServer, chat: &Value) -> String {
    let tokens = server.post("/tokenize", chat);
    assert_eq!(tokens.status, 200, "{}", tokens.body);
    let tokens = tokens.json()["tokens"].clone();
    server.post("/detokenize", &json!({"tokens": tokens})).json()["prompt"]
        .as_str()
        .unwrap()
        .to_owned()
}

#[test]
fn the_model_is_told_of_tools_calls_and_results() {
    let call = json!({"id": "call_1", "type": "function",
                      "function": {"name": "stop", "arguments": "{\"now\": true}"}});
    let chat = json!({"tools": tools(), "messages": [
        {"role": "user", "content": "Rain?"},
        {"role": "assistant", "content": null, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "stopped"},
    ]});
    let plain = TestServer::plain();
    let prompt = prompt_of(&plain, &chat);
    for part in ["Tells it.", "\"get_weather\"", "<tool_call>", "{\"now\":true}", "stopped"] {
        assert!(prompt.contains(part), "no {part} in {prompt}");
    }
    let mut without = chat.clone();
    without["tool_choice"] = "none".into();
    assert!(!prompt_of(&plain, &without).contains("get_weather"));
    let hermes = TestServer::new(Setup { template: Some(HERMES), ..Setup::default() });
    let prompt = prompt_of(&hermes, &chat);
    for part in ["\"description\": \"Tells it.\"", "{\"now\": true}", "tool: stopped"] {
        assert!(prompt.contains(part), "no {part} in {prompt}");
    }
    let answer = plain.post(CHAT, &chat);
    assert_eq!(answer.status, 200, "{}", answer.body);
}

#[test]
fn tools_that_make_no_sense_are_refused() {
    let server = TestServer::patient(Setup::default());
    let function = |function: Value| json!([{"type": "function", "function": function}]);
    let many: Vec<Value> =
        (0..129).map(|i| function(json!({"name": format!("f{i}")}))[0].clone()).collect();
    let twins = json!([tools()[0], tools()[0]]);
    let bad_schema = function(json!({"name": "f", "parameters": {"type": "nonsense"}}));
    let named = |name: &str| json!({"type": "function", "function": {"name": name}});
    let format = json!({"type": "json_object"});
    let cases = [
        (json!({"tools": "f"}), "tools"),
        (json!({"tools": many}), "tools"),
        (json!({"tools": twins}), "tools"),
        (json!({"tools": [{"type": "web_search"}]}), "tools"),
        (json!({"tools": function(json!({"name": "a b"}))}), "tools"),
        (json!({"tools": function(json!({"name": "f", "parameters": 5}))}), "tools"),
        (json!({"tools": bad_schema, "tool_choice": "required"}), "tools"),
        (json!({"tools": null, "tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": "always"}), "tool_choice"),
        (json!({"tool_choice": named("unknown")}), "tool_choice"),
        (json!({"tool_choice": {"type": "function"}}), "tool_choice"),
        (json!({"tool_choice": "required", "response_format": format}), "response_format"),
    ];
    for (extra, param) in cases {
        let (status, error) = ask(&server, &extra).error();
        assert_eq!((status, error["param"].as_str()), (400, Some(param)), "{extra}");
    }
    let response = json!({"input": "a", "max_output_tokens": 3, "tools": tools()});
    assert_eq!(server.post("/v1/responses", &response).error().1["param"], "tools");
    // A model that may choose is not asked to follow a schema.
    let fine = json!({"tools": function(json!({"name": "f", "parameters": {"type": "nonsense"}})),
                      "max_tokens": 5});
    assert_eq!(ask(&server, &fine).status, 200);
}
