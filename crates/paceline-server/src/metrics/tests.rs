use super::*;

fn limits() -> BackendLimits {
    BackendLimits { n_blocks: 8, block_size: 32, max_rows: 64, max_model_len: 256, n_vocab: 10 }
}

fn page(metrics: &Metrics) -> String {
    metrics.text(Some(EngineFacts { model: "a \"model\"", limits: limits() }))
}

#[test]
fn gauges_and_counters_have_both_names() {
    let metrics = Metrics::default();
    let stats = Stats {
        n_active: 3,
        n_waiting: 5,
        n_blocks: 8,
        n_used_blocks: 2,
        n_prompt_tokens: 10,
        n_cached_tokens: 4,
        ..Stats::default()
    };
    metrics.publish(&stats, Budgets::of(&stats));
    metrics.responded(200);
    let page = page(&metrics);
    let label = "{model_name=\"a \\\"model\\\"\"}";
    for line in [
        format!("paceline_requests_running{label} 3"),
        format!("vllm:num_requests_running{label} 3"),
        format!("vllm:num_requests_waiting{label} 5"),
        format!("vllm:kv_cache_usage_perc{label} 0.25"),
        format!("vllm:prompt_tokens_total{label} 14"),
        "paceline_http_responses_total{code=\"200\"} 1".to_owned(),
        "vllm:cache_config_info{model_name=\"a \\\"model\\\"\",block_size=\"32\",\
         num_gpu_blocks=\"8\"} 1"
            .to_owned(),
    ] {
        assert!(page.lines().any(|known| known == line), "no {line} in\n{page}");
    }
}

#[test]
fn histograms_count_up_to_infinity() {
    let metrics = Metrics::default();
    for ms in [1, 15, 15, 200_000] {
        metrics.first_token_after(Duration::from_millis(ms));
    }
    let page = page(&metrics);
    let value = |le: &str| {
        let start = "vllm:time_to_first_token_seconds_bucket{";
        let end = format!("le=\"{le}\"}} ");
        let line = page.lines().find(|l| l.starts_with(start) && l.contains(&end)).unwrap();
        line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!([value("0.001"), value("0.01"), value("0.02"), value("+Inf")], [1, 1, 3, 4]);
}

/// What every scraper checks: a type before samples, one sample per name and labels, numbers.
#[test]
fn the_page_is_well_formed() {
    let metrics = Metrics::default();
    let mut stats = Stats::default();
    for rows in [1, 5, 300] {
        stats.step_rows.record(rows);
        stats.step_ns.record(rows * 1_000_000);
    }
    metrics.publish(&stats, Budgets::of(&stats));
    metrics.responded(200);
    metrics.responded(429);
    let page = page(&metrics);
    let (mut types, mut samples) = (BTreeMap::new(), std::collections::BTreeSet::new());
    let mut family = "";
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(types.insert(name, kind).is_none(), "{name} is declared twice");
            family = name;
            continue;
        }
        if line.starts_with("# HELP ") {
            continue;
        }
        let (key, value) = line.rsplit_once(' ').unwrap();
        value.parse::<f64>().unwrap();
        assert!(samples.insert(key), "{key} twice");
        let name = key.split('{').next().unwrap();
        let part = name.strip_prefix(family).unwrap_or_else(|| panic!("{name} under {family}"));
        assert!(["", "_bucket", "_sum", "_count"].contains(&part), "{name} under {family}");
    }
}
