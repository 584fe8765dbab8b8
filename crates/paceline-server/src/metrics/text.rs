//! Prometheus' text format.
//!
//! Every family has a name of ours; those that gateways and dashboards look for appear a second
//! time under vLLM's names.

use std::fmt::Write;

use paceline_engine::stats::Histogram as PowerHistogram;

use super::histogram::Histogram;
use super::{EngineFacts, Inner};

pub(super) fn render(inner: &Inner, facts: Option<EngineFacts<'_>>) -> String {
    let mut page = Page { text: String::with_capacity(32 << 10), labels: String::new() };
    let responses = Family { ours: "http_responses_total", vllm: None };
    page.family(&responses, "counter", "HTTP responses by status.", |page, name| {
        for (status, count) in &inner.responses {
            page.sample(name, &[("code", &status.to_string())], *count as f64);
        }
    });
    let spans = [
        ("trace_spans_exported_total", inner.n_spans_exported, "Spans that the collector took."),
        ("trace_spans_dropped_total", inner.n_spans_dropped, "Spans that it did not."),
    ];
    for (ours, value, help) in spans {
        page.value(&Family { ours, vllm: None }, "counter", help, value as f64);
    }
    if let Some(facts) = facts {
        page.labels = format!("model_name=\"{}\"", escape(facts.model));
        page.engine_gauges(inner, &facts);
        page.engine_counters(inner);
        page.requests(inner);
        page.steps(inner);
    }
    page.text
}

/// One family of metrics under both its names.
struct Family {
    ours: &'static str,
    vllm: Option<&'static str>,
}

impl Family {
    fn names(&self) -> impl Iterator<Item = String> {
        let ours = format!("paceline_{}", self.ours);
        [Some(ours), self.vllm.map(|name| format!("vllm:{name}"))].into_iter().flatten()
    }
}

struct Page {
    text: String,
    /// Labels that every sample has.
    labels: String,
}

impl Page {
    fn engine_gauges(&mut self, inner: &Inner, facts: &EngineFacts<'_>) {
        let stats = &inner.engine;
        let usage = f64::from(stats.n_used_blocks) / f64::from(stats.n_blocks.max(1));
        let gauges = [
            (
                "requests_running",
                "num_requests_running",
                f64::from(stats.n_active),
                "Sequences that take part in steps.",
            ),
            (
                "requests_waiting",
                "num_requests_waiting",
                f64::from(stats.n_waiting),
                "Sequences in the queue.",
            ),
            (
                "kv_cache_usage_ratio",
                "kv_cache_usage_perc",
                usage,
                "Share of the KV blocks in use, from 0 to 1.",
            ),
        ];
        for (ours, vllm, value, help) in gauges {
            self.value(&Family { ours, vllm: Some(vllm) }, "gauge", help, value);
        }
        let own = [
            ("waiting_prompt_tokens", stats.n_waiting_tokens, "Prompt tokens in the queue."),
            (
                "kv_cached_blocks",
                u64::from(stats.n_cached_blocks),
                "Blocks whose content can be found again.",
            ),
            ("step_rows_budget", u64::from(stats.max_rows), "Rows that a step may have."),
            (
                "prompt_rows_budget",
                u64::from(inner.budgets.prompt_rows),
                "Rows of them that prompts may have while others stream or share.",
            ),
            (
                "batch_rows_budget",
                u64::from(inner.budgets.batch_rows),
                "Rows of them that the batch class may have while others stream.",
            ),
        ];
        for (ours, value, help) in own {
            self.value(&Family { ours, vllm: None }, "gauge", help, value as f64);
        }
        let config = Family { ours: "cache_config_info", vllm: Some("cache_config_info") };
        let block_size = facts.limits.block_size.to_string();
        let n_blocks = facts.limits.n_blocks.to_string();
        let labels = [("block_size", &*block_size), ("num_gpu_blocks", &n_blocks)];
        self.family(&config, "gauge", "The shape of the KV cache.", |page, name| {
            page.sample(name, &labels, 1.0);
        });
    }

    fn engine_counters(&mut self, inner: &Inner) {
        let stats = &inner.engine;
        let n_prompt = stats.n_prompt_tokens + stats.n_cached_tokens;
        let counters = [
            ("prompt_tokens_total", n_prompt, "Prompt tokens, computed or cached."),
            (
                "prompt_tokens_cached_total",
                stats.n_cached_tokens,
                "Prompt tokens from the prefix cache.",
            ),
            ("generation_tokens_total", stats.n_generated_tokens, "Generated tokens."),
            ("num_preemptions_total", stats.n_preemptions, "Sequences that gave up their memory."),
            (
                "spec_decode_num_draft_tokens_total",
                stats.n_drafted_tokens,
                "Guesses at next tokens that were computed.",
            ),
            (
                "spec_decode_num_accepted_tokens_total",
                stats.n_accepted_tokens,
                "Guesses at next tokens that were right.",
            ),
            (
                "prefix_cache_queries_total",
                stats.n_prefix_query_tokens,
                "Tokens looked up in the prefix cache.",
            ),
            (
                "prefix_cache_hits_total",
                stats.n_prefix_hit_tokens,
                "Tokens found in the prefix cache.",
            ),
        ];
        for (name, value, help) in counters {
            self.value(&Family { ours: name, vllm: Some(name) }, "counter", help, value as f64);
        }
        let own = [
            ("steps_total", stats.n_steps, "Steps."),
            ("failed_steps_total", stats.n_failed_steps, "Steps that failed as a whole."),
            (
                "recomputed_tokens_total",
                stats.n_recomputed_tokens,
                "Generated tokens computed again after a preemption.",
            ),
            ("faults_total", stats.n_faults, "Internal errors that cost one request."),
        ];
        for (ours, value, help) in own {
            self.value(&Family { ours, vllm: None }, "counter", help, value as f64);
        }
        let success = Family { ours: "request_success_total", vllm: Some("request_success_total") };
        self.family(&success, "counter", "Requests by why they ended.", |page, name| {
            for (reason, count) in &inner.finished {
                page.sample(name, &[("finished_reason", reason)], *count as f64);
            }
        });
    }

    fn requests(&mut self, inner: &Inner) {
        let requests = &inner.requests;
        let both = [
            ("time_to_first_token_seconds", &requests.first_token),
            ("inter_token_latency_seconds", &requests.between_tokens),
            ("request_time_per_output_token_seconds", &requests.per_output_token),
            ("e2e_request_latency_seconds", &requests.total),
            ("request_queue_time_seconds", &requests.queue),
            ("request_prefill_time_seconds", &requests.prefill),
            ("request_decode_time_seconds", &requests.decode),
            ("request_inference_time_seconds", &requests.inference),
            ("request_prompt_tokens", &requests.prompt_tokens),
            ("request_generation_tokens", &requests.generated_tokens),
            ("request_params_max_tokens", &requests.max_tokens),
            ("request_params_n", &requests.n),
        ];
        for (name, histogram) in both {
            self.histogram(&Family { ours: name, vllm: Some(name) }, histogram);
        }
    }

    fn steps(&mut self, inner: &Inner) {
        let stats = &inner.engine;
        let rows = Family { ours: "step_rows", vllm: Some("iteration_tokens_total") };
        self.powers(&rows, "Rows (tokens) per step.", &stats.step_rows, 1.0);
        let seqs = Family { ours: "step_sequences", vllm: None };
        self.powers(&seqs, "Sequences per step.", &stats.step_seqs, 1.0);
        let seconds = Family { ours: "step_seconds", vllm: None };
        self.powers(&seconds, "Seconds per step.", &stats.step_ns, 1e-9);
    }

    /// A family under each of its names; a name's samples follow its type, as scrapers demand.
    fn family(
        &mut self,
        family: &Family,
        kind: &str,
        help: &str,
        samples: impl Fn(&mut Page, &str),
    ) {
        for name in family.names() {
            // Writing to a string cannot fail.
            let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            samples(self, &name);
        }
    }

    fn value(&mut self, family: &Family, kind: &str, help: &str, value: f64) {
        self.family(family, kind, help, |page, name| page.sample(name, &[], value));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let mut all = self.labels.clone();
        for (label, of) in labels {
            let comma = if all.is_empty() { "" } else { "," };
            all.push_str(&format!("{comma}{label}=\"{}\"", escape(of)));
        }
        let braces = if all.is_empty() { String::new() } else { format!("{{{all}}}") };
        let _ = writeln!(self.text, "{name}{braces} {value}");
    }

    fn histogram(&mut self, family: &Family, histogram: &Histogram) {
        self.family(family, "histogram", "Per request; see the name.", |page, name| {
            let mut count = 0;
            for (bound, total) in histogram.cumulative() {
                page.bucket(name, bound, total);
                count = total;
            }
            page.totals(name, histogram.sum(), count);
        });
    }

    /// A histogram by powers of two: bucket `i` holds what is below `2^i`.
    fn powers(&mut self, family: &Family, help: &str, histogram: &PowerHistogram, unit: f64) {
        let n_used = histogram.buckets.iter().rposition(|&count| count > 0).map_or(0, |i| i + 1);
        self.family(family, "histogram", help, |page, name| {
            let mut total = 0;
            for (i, &count) in histogram.buckets[..n_used].iter().enumerate() {
                total += count;
                // Whole numbers below 2^i are at most 2^i - 1.
                page.bucket(name, ((1u64 << i) - 1) as f64 * unit, total);
            }
            page.bucket(name, f64::INFINITY, histogram.count);
            page.totals(name, histogram.sum as f64 * unit, histogram.count);
        });
    }

    fn bucket(&mut self, name: &str, bound: f64, total: u64) {
        let bound = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
        self.sample(&format!("{name}_bucket"), &[("le", &bound)], total as f64);
    }

    fn totals(&mut self, name: &str, sum: f64, count: u64) {
        self.sample(&format!("{name}_sum"), &[], sum);
        self.sample(&format!("{name}_count"), &[], count as f64);
    }
}

/// A label's value as the format wants it.
fn escape(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}
