//! Flags of `paceline bench serve`. Names and meanings are those of `vllm bench serve` where it has
//! the same thing.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, ValueEnum, value_parser};

use super::bench_args::ReportArgs;

pub(super) const SERVE_EXAMPLES: &str = r#"Examples:
  paceline bench serve --base-url http://127.0.0.1:8000 --max-concurrency 32
  paceline bench serve --request-rate 4 --num-prompts 200 --goodput ttft:500 tpot:50
  paceline bench serve --concurrency 1,8,32 --ignore-eos --plot serve.svg
  paceline bench serve --dataset-name shared-prefix --prefix-len 512 --num-prefixes 4
  paceline bench serve --dataset-name file --dataset-path prompts.jsonl --json

Works against any server with OpenAI's completions or chat route. Tokens are counted by the server
(usage); where it does not say, each event with text counts as one. Lengths of random prompts are
exact where the server has /tokenize and takes token ids, and about right elsewhere.
The exit code is 1 if no request succeeded."#;

#[derive(Args, Debug)]
pub(crate) struct BenchServeArgs {
    /// Where the server is
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:8000",
        help_heading = "Server"
    )]
    pub(crate) base_url: String,

    /// The route to load
    #[arg(long, value_enum, default_value = "/v1/completions", help_heading = "Server")]
    pub(crate) endpoint: Endpoint,

    /// What to call the model [default: the first that the server lists]
    #[arg(short, long, value_name = "NAME", help_heading = "Server")]
    pub(crate) model: Option<String>,

    /// Sent as a bearer token [default: $OPENAI_API_KEY]
    #[arg(long, value_name = "KEY", help_heading = "Server")]
    pub(crate) api_key: Option<String>,

    /// How long the server may take to become ready
    #[arg(long, value_name = "SECONDS", default_value_t = 60, help_heading = "Server",
          value_parser = value_parser!(u64).range(0..=86_400))]
    pub(crate) ready_check_timeout_sec: u64,

    /// Give up a request after so long
    #[arg(long, value_name = "SECONDS", default_value_t = 600, help_heading = "Server",
          value_parser = value_parser!(u64).range(1..=86_400))]
    pub(crate) timeout_sec: u64,

    #[command(flatten)]
    pub(crate) data: DataArgs,

    #[command(flatten)]
    pub(crate) load: LoadArgs,

    #[command(flatten)]
    pub(crate) figures: FigureArgs,

    #[command(flatten)]
    pub(crate) report: ReportArgs,
}

/// What is asked.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Prompts")]
pub(crate) struct DataArgs {
    /// random: words at random; shared-prefix: the same after one of a few beginnings; file: one
    /// JSON object a line, with "prompt" and perhaps "output_len"
    #[arg(long, value_enum, default_value = "random")]
    pub(crate) dataset_name: Dataset,

    /// The file of `--dataset-name file`
    #[arg(long, value_name = "FILE.jsonl", required_if_eq("dataset_name", "file"))]
    pub(crate) dataset_path: Option<PathBuf>,

    /// How many requests, for each concurrency
    #[arg(long, value_name = "N", default_value_t = 100,
          value_parser = value_parser!(u32).range(1..=1_000_000))]
    pub(crate) num_prompts: u32,

    /// Tokens of each prompt, after its prefix
    #[arg(long, value_name = "TOKENS", default_value_t = 128, alias = "random-input-len",
          value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(crate) input_len: u32,

    /// Tokens of each answer at most
    #[arg(long, value_name = "TOKENS", default_value_t = 64, alias = "random-output-len",
          value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(crate) output_len: u32,

    /// Lengths vary evenly by this share of themselves, up and down; from 0 to below 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, alias = "random-range-ratio",
          value_parser = share)]
    pub(crate) range_ratio: f64,

    /// Tokens of each shared prefix
    #[arg(long, value_name = "TOKENS", default_value_t = 256,
          value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(crate) prefix_len: u32,

    /// How many prefixes there are
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = value_parser!(u32).range(1..=1 << 20))]
    pub(crate) num_prefixes: u32,

    /// Of prompts, lengths and arrivals
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,

    /// Let no end token end an answer (a field of vLLM and of this server)
    #[arg(long)]
    pub(crate) ignore_eos: bool,

    /// 0 is greedy
    #[arg(long, value_name = "T", default_value_t = 0.0)]
    pub(crate) temperature: f32,

    /// Fields to add to each request, as a JSON object
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    pub(crate) extra_body: Option<serde_json::Map<String, serde_json::Value>>,
}

/// How it is asked.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Load")]
pub(crate) struct LoadArgs {
    /// Requests a second, at random (Poisson); inf sends them as fast as concurrency allows
    #[arg(long, value_name = "N", default_value_t = f64::INFINITY, value_parser = rate)]
    pub(crate) request_rate: f64,

    /// Requests under way at once, at most [default: all]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=65_536))]
    pub(crate) max_concurrency: Option<u32>,

    /// Several such limits, one after the other
    #[arg(long, value_name = "N,N,…", value_delimiter = ',', conflicts_with = "max_concurrency",
          value_parser = value_parser!(u32).range(1..=65_536))]
    pub(crate) concurrency: Vec<u32>,

    /// Requests to send first, one after the other, that are not counted
    #[arg(long, value_name = "N", default_value_t = 0,
          value_parser = value_parser!(u32).range(0..=10_000))]
    pub(crate) num_warmups: u32,
}

impl LoadArgs {
    /// The limits to measure.
    pub(crate) fn levels(&self) -> Vec<Option<u32>> {
        match self.concurrency.is_empty() {
            true => vec![self.max_concurrency],
            false => self.concurrency.iter().copied().map(Some).collect(),
        }
    }
}

/// What is shown, and where it is kept.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Results")]
pub(crate) struct FigureArgs {
    /// Latencies in ms that a good request keeps to: ttft, tpot, e2el
    #[arg(long, value_name = "METRIC:MS", num_args = 1..)]
    pub(crate) goodput: Vec<Goal>,

    /// Latencies to show: ttft, tpot, itl, e2el
    #[arg(long, value_name = "METRIC,…", value_delimiter = ',', value_enum,
          default_values_t = [Metric::Ttft, Metric::Tpot, Metric::Itl])]
    pub(crate) percentile_metrics: Vec<Metric>,

    /// Their percentiles
    #[arg(long, value_name = "P,…", value_delimiter = ',', default_values_t = [99.0],
          value_parser = percent)]
    pub(crate) metric_percentiles: Vec<f64>,

    /// Write each result to a JSON file with vLLM's field names
    #[arg(long)]
    pub(crate) save_result: bool,

    /// Each request's figures too
    #[arg(long, requires = "save_result")]
    pub(crate) save_detailed: bool,

    /// Where the files go
    #[arg(long, value_name = "DIR", default_value = ".", requires = "save_result")]
    pub(crate) result_dir: PathBuf,

    /// Their name [default: made of rate, concurrency, model and time]
    #[arg(long, value_name = "FILE", requires = "save_result")]
    pub(crate) result_filename: Option<String>,
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Endpoint {
    #[value(name = "/v1/completions")]
    Completions,
    #[value(name = "/v1/chat/completions")]
    Chat,
}

impl Endpoint {
    pub(crate) fn path(self) -> &'static str {
        match self {
            Endpoint::Completions => "/v1/completions",
            Endpoint::Chat => "/v1/chat/completions",
        }
    }
}

#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dataset {
    Random,
    SharedPrefix,
    File,
}

/// A latency of a request.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    /// Time to first token
    Ttft,
    /// Time per output token after the first
    Tpot,
    /// Time between two events with text
    Itl,
    /// From sending the request to the end of its answer
    E2el,
}

impl Metric {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft",
            Metric::Tpot => "tpot",
            Metric::Itl => "itl",
            Metric::E2el => "e2el",
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A latency that a good request keeps to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Goal {
    pub(crate) metric: Metric,
    pub(crate) ms: f64,
}

impl FromStr for Goal {
    type Err = String;

    fn from_str(text: &str) -> Result<Goal, String> {
        const HINT: &str = "write a latency and its limit in ms, as in ttft:200";
        let (name, ms) = text.split_once(':').ok_or(HINT)?;
        let known = [Metric::Ttft, Metric::Tpot, Metric::E2el];
        let metric = known.into_iter().find(|metric| metric.name() == name);
        let metric = metric.ok_or("goals are ttft, tpot and e2el")?;
        let ms: f64 = ms.parse().map_err(|_| HINT)?;
        match ms.is_finite() && ms >= 0.0 {
            true => Ok(Goal { metric, ms }),
            false => Err(HINT.to_owned()),
        }
    }
}

fn rate(text: &str) -> Result<f64, String> {
    let rate: f64 = text.parse().map_err(|_| "not a number of requests a second".to_owned())?;
    match rate == f64::INFINITY || (1e-3..=1e6).contains(&rate) {
        true => Ok(rate),
        false => Err("must be inf, or from 0.001 to 1000000".to_owned()),
    }
}

fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..1.0).contains(&share) { Ok(share) } else { Err("must be from 0 to below 1".into()) }
}

fn percent(text: &str) -> Result<f64, String> {
    let percent: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=100.0).contains(&percent) { Ok(percent) } else { Err("must be 0 to 100".into()) }
}

fn json_object(text: &str) -> Result<serde_json::Map<String, serde_json::Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_and_wrong_ones_refused() {
        assert_eq!("ttft:200".parse(), Ok(Goal { metric: Metric::Ttft, ms: 200.0 }));
        for wrong in ["ttft", "itl:5", "ttft:fast", "tpot:-1", "e2el:inf"] {
            assert!(wrong.parse::<Goal>().is_err(), "{wrong}");
        }
        assert_eq!((rate("inf"), rate("2.5")), (Ok(f64::INFINITY), Ok(2.5)));
        assert!(["0", "-1", "NaN", "x", "1e9"].iter().all(|text| rate(text).is_err()));
        assert!(share("1").is_err() && share("NaN").is_err() && share("0.5").is_ok());
        assert!(percent("101").is_err() && percent("99.9").is_ok());
        assert!(json_object("[1]").is_err() && json_object(r#"{"a": 1}"#).is_ok());
    }
}
