//! Spans in OTLP's JSON. Attributes have vLLM's names.

use std::time::Duration;

use serde_json::{Value, json};

use super::Span;

/// OTLP's numbers for what a span is and how it ended.
const KIND_SERVER: u8 = 2;
const STATUS_UNSET: u8 = 0;
const STATUS_ERROR: u8 = 2;

/// The body of an export request.
pub(super) fn body(spans: &[Span]) -> Value {
    let scope = json!({"name": "paceline", "version": env!("CARGO_PKG_VERSION")});
    let resource = [
        attribute("service.name", text("paceline")),
        attribute("service.version", text(env!("CARGO_PKG_VERSION"))),
    ];
    let spans: Vec<Value> = spans.iter().map(span).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": resource},
        "scopeSpans": [{"scope": scope, "spans": spans}],
    }]})
}

fn span(span: &Span) -> Value {
    let number = || u128::from(crate::random::number());
    let trace_id = match span.context {
        Some(context) => context.trace_id,
        None => number() << 64 | number(),
    };
    let parent = span.context.map_or(String::new(), |c| format!("{:016x}", c.parent_id));
    let start = span.end.saturating_sub(span.finished.times.total);
    let is_error = matches!(span.finished.reason, "error" | "timeout");
    json!({
        "traceId": format!("{trace_id:032x}"),
        "spanId": format!("{:016x}", crate::random::number()),
        "parentSpanId": parent,
        "name": "llm_request",
        "kind": KIND_SERVER,
        "startTimeUnixNano": start.as_nanos().to_string(),
        "endTimeUnixNano": span.end.as_nanos().to_string(),
        "attributes": attributes(span),
        "status": {"code": if is_error { STATUS_ERROR } else { STATUS_UNSET }},
    })
}

fn attributes(span: &Span) -> Vec<Value> {
    let (finished, params, times) = (&span.finished, &span.params, &span.finished.times);
    let mut attributes = vec![
        attribute("gen_ai.request.id", text(&span.request_id)),
        attribute("gen_ai.response.model", text(&span.model)),
        attribute("gen_ai.response.finish_reason", text(finished.reason)),
        attribute("gen_ai.request.n", count(finished.n)),
        attribute("gen_ai.request.max_tokens", count(finished.max_tokens)),
        attribute("gen_ai.request.temperature", double(f64::from(params.temperature))),
        attribute("gen_ai.request.top_p", double(f64::from(params.top_p))),
        attribute("gen_ai.usage.prompt_tokens", count(finished.n_prompt)),
        attribute("gen_ai.usage.completion_tokens", count(finished.n_generated)),
        attribute("gen_ai.latency.time_in_queue", seconds(times.queue)),
        attribute("gen_ai.latency.time_in_model_prefill", seconds(times.prefill)),
        attribute("gen_ai.latency.time_in_model_decode", seconds(times.decode)),
        attribute("gen_ai.latency.time_in_model_inference", seconds(times.prefill + times.decode)),
        attribute("gen_ai.latency.e2e", seconds(times.total)),
    ];
    if finished.has_spoken {
        let first = times.queue + times.prefill;
        attributes.push(attribute("gen_ai.latency.time_to_first_token", seconds(first)));
    }
    attributes
}

fn attribute(key: &str, value: Value) -> Value {
    json!({"key": key, "value": value})
}

fn text(value: &str) -> Value {
    json!({"stringValue": value})
}

/// Whole numbers of 64 bits are strings in this format.
fn count(value: u32) -> Value {
    json!({"intValue": value.to_string()})
}

fn double(value: f64) -> Value {
    json!({"doubleValue": value})
}

fn seconds(value: Duration) -> Value {
    double(value.as_secs_f64())
}
