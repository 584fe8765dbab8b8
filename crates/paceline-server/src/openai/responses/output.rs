//! What a response says, as items, and the events that tell of them.
//!
//! A stream writes the events as they come; a whole answer goes through the same steps and keeps
//! the items alone, so that both say the same.

use serde_json::{Value, json};

use crate::tools::{Said, ToolCall, ToolParser};

/// A kind, and the fields beside it.
pub(super) type Event = (&'static str, Value);

#[derive(Debug)]
pub(super) struct Output {
    /// The response's own name, without its prefix.
    id: String,
    /// Where there are tools.
    parser: Option<ToolParser>,
    /// Those that are complete.
    items: Vec<Value>,
    /// The text of the message that is being written.
    text: Option<String>,
}

impl Output {
    pub(super) fn new(id: String, parser: Option<ToolParser>) -> Output {
        Output { id, parser, items: Vec::new(), text: None }
    }

    pub(super) fn items(&self) -> &[Value] {
        &self.items
    }

    pub(super) fn push(&mut self, text: &str, events: &mut Vec<Event>) {
        let Some(parser) = &mut self.parser else {
            return self.write(text, events);
        };
        let mut said = Vec::new();
        parser.push(text, &mut said);
        self.say(said, events);
    }

    /// An answer that said nothing has an empty message.
    pub(super) fn finish(&mut self, is_whole: bool, events: &mut Vec<Event>) {
        let mut said = Vec::new();
        if let Some(parser) = &mut self.parser {
            parser.finish(&mut said);
        }
        self.say(said, events);
        if self.items.is_empty() && self.text.is_none() {
            self.open(events);
        }
        self.close(is_whole, events);
    }

    fn say(&mut self, said: Vec<Said>, events: &mut Vec<Event>) {
        for said in said {
            match said {
                Said::Text(text) => self.write(&text, events),
                Said::Call(call) => {
                    self.close(true, events);
                    self.call(call, events);
                }
            }
        }
    }

    fn write(&mut self, text: &str, events: &mut Vec<Event>) {
        if text.is_empty() {
            return;
        }
        if self.text.is_none() {
            self.open(events);
        }
        if let Some(known) = &mut self.text {
            known.push_str(text);
        }
        events.push(self.part_event("response.output_text.delta", "delta", text.into()));
    }

    fn open(&mut self, events: &mut Vec<Event>) {
        self.text = Some(String::new());
        let item = self.message("in_progress", Vec::new());
        events.push(self.item_event("response.output_item.added", item));
        events.push(self.part_event("response.content_part.added", "part", part("")));
    }

    fn close(&mut self, is_whole: bool, events: &mut Vec<Event>) {
        let Some(text) = self.text.take() else { return };
        events.push(self.part_event("response.output_text.done", "text", text.as_str().into()));
        events.push(self.part_event("response.content_part.done", "part", part(&text)));
        let status = if is_whole { "completed" } else { "incomplete" };
        let item = self.message(status, vec![part(&text)]);
        events.push(self.item_event("response.output_item.done", item.clone()));
        self.items.push(item);
    }

    /// Calls come whole.
    fn call(&mut self, call: ToolCall, events: &mut Vec<Event>) {
        let ToolCall { id: call_id, name, arguments } = call;
        let id = self.item_id("fc");
        let item = |status: &str, arguments: &str| {
            json!({"id": id, "type": "function_call", "status": status, "call_id": call_id,
                   "name": name, "arguments": arguments})
        };
        events.push(self.item_event("response.output_item.added", item("in_progress", "")));
        let place = self.items.len();
        events.push((
            "response.function_call_arguments.delta",
            json!({"item_id": id, "output_index": place, "delta": arguments}),
        ));
        events.push((
            "response.function_call_arguments.done",
            json!({"item_id": id, "output_index": place, "name": name, "arguments": arguments}),
        ));
        let item = item("completed", &arguments);
        events.push(self.item_event("response.output_item.done", item.clone()));
        self.items.push(item);
    }

    fn message(&self, status: &str, content: Vec<Value>) -> Value {
        json!({"id": self.item_id("msg"), "type": "message", "status": status,
               "role": "assistant", "content": content})
    }

    /// The name of the item that comes next.
    fn item_id(&self, prefix: &str) -> String {
        match self.items.len() {
            0 => format!("{prefix}-{}", self.id),
            n => format!("{prefix}-{}-{n}", self.id),
        }
    }

    fn item_event(&self, kind: &'static str, item: Value) -> Event {
        (kind, json!({"output_index": self.items.len(), "item": item}))
    }

    /// An event about a message's one part.
    fn part_event(&self, kind: &'static str, name: &str, value: Value) -> Event {
        let mut fields = json!({"item_id": self.item_id("msg"),
                                "output_index": self.items.len(), "content_index": 0});
        fields[name] = value;
        (kind, fields)
    }
}

fn part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}
