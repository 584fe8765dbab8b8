//! The library face on a small real model.

use paceline::{
    Error, Finish, GenerateParams, Input, Llm, LlmOptions, Piece, Prompt, SamplingParams,
};

use paceline_model::synth::{SynthSpec, gguf_bytes};

use crate::harness::testdata;

fn llm() -> Llm {
    llm_with(LlmOptions::default())
}

fn llm_with(options: LlmOptions) -> Llm {
    let model = testdata("models/smollm2-draft-16m.Q8_0.gguf");
    let threads = options.threads.or(Some(1));
    let options = LlmOptions { num_kv_blocks: Some(256), threads, ..options };
    Llm::load(model.to_str().unwrap(), options).unwrap()
}

const PROMPTS: [&str; 4] =
    ["Once upon a time", "The weather is", "def main():", "A long, long time ago, in a small town"];

#[test]
fn a_batch_answers_as_each_prompt_alone() {
    let mut llm = llm_with(LlmOptions { threads: Some(2), ..LlmOptions::default() });
    let params = GenerateParams::greedy(20);
    let batch = llm.generate_batch(&PROMPTS, &params).unwrap();
    for (i, prompt) in PROMPTS.iter().enumerate() {
        assert_eq!(batch[i].index, i);
        let alone = llm.generate(*prompt, &params).unwrap();
        assert_eq!(alone.completions, batch[i].completions);
        assert_eq!(alone.usage.completion_tokens, alone.completions[0].tokens.len());
    }
}

#[test]
fn a_stream_adds_up_to_the_batch() {
    let mut llm = llm();
    let params = GenerateParams::seeded(24, 0.8, 3);
    let batch = llm.generate_batch(&PROMPTS, &params).unwrap();
    let mut texts = vec![String::new(); PROMPTS.len()];
    let mut stream = llm.stream(&PROMPTS, &params).unwrap();
    while let Some(piece) = stream.next() {
        let piece = piece.unwrap();
        texts[stream.prompt_index(piece.request).unwrap()].push_str(&piece.text);
    }
    let expected: Vec<&str> = batch.iter().map(|generation| generation.text()).collect();
    assert_eq!(texts, expected);
}

#[test]
fn each_prompt_may_have_its_own_parameters() {
    let mut llm = llm();
    let prompts = [
        Prompt::from("Once upon a time").with_params(GenerateParams::greedy(3)),
        Prompt::user("Hello").with_params(GenerateParams::seeded(7, 1.0, 1)),
        Prompt::from(vec![1, 2, 3]),
    ];
    let params = GenerateParams {
        sampling: SamplingParams { ignore_eos: true, ..GenerateParams::greedy(5).sampling },
        ..GenerateParams::default()
    };
    let lengths: Vec<usize> = llm
        .generate_batch(&prompts, &params)
        .unwrap()
        .iter()
        .map(|generation| generation.completions[0].tokens.len())
        .collect();
    assert_eq!(lengths[0], 3);
    assert!(lengths[1] <= 7);
    assert_eq!(lengths[2], 5);
}

#[test]
fn stop_strings_end_the_text_before_them() {
    let mut llm = llm();
    let whole = llm.generate("Once upon a time", &GenerateParams::greedy(40)).unwrap();
    let text = whole.text();
    let at = text.char_indices().nth(text.chars().count() / 2).unwrap().0;
    let stop: String = text[at..].chars().take(5).collect();
    let params = GenerateParams { stop: vec![stop.clone()], ..GenerateParams::greedy(40) };
    let cut = llm.generate("Once upon a time", &params).unwrap();
    assert_eq!(cut.text(), text.split(&stop).next().unwrap());
    assert_eq!(cut.completions[0].finish, Some(Finish::Stop(Some(0))));
    let params = GenerateParams { include_stop: true, ..params };
    let kept = llm.generate("Once upon a time", &params).unwrap();
    assert_eq!(kept.text(), format!("{}{stop}", cut.text()));
    assert!(!llm.stats().n_generated_tokens.eq(&0));
    assert_eq!(llm.stats().n_active, 0);
}

#[test]
fn sequences_join_and_leave_in_mid_flight() {
    // A token of each in every step.
    let mut llm = llm_with(LlmOptions { num_speculative_tokens: 0, ..LlmOptions::default() });
    let mut params = GenerateParams::greedy(12);
    params.sampling.ignore_eos = true;
    let expected = llm.generate(PROMPTS[0], &params).unwrap();
    let mut session = llm.session();
    let first = session.add(PROMPTS[0], &params).unwrap();
    let removed = session.add(PROMPTS[1], &params).unwrap();
    let mut pieces = Vec::new();
    for _ in 0..3 {
        assert!(session.step(&mut pieces));
    }
    let state = session.state(first, 0).unwrap();
    assert_eq!(state.n_generated, 3);
    let n_prompt = session.llm().tokenize(&Input::Text(PROMPTS[0].to_owned())).unwrap().len();
    assert_eq!(state.position as usize, n_prompt + 3);
    assert!(session.remove(removed));
    assert!(session.state(removed, 0).is_none());
    let late = session.add(PROMPTS[2], &params).unwrap();
    while session.step(&mut pieces) {}
    assert_eq!(session.n_live(), 0);
    let text = |id| -> String {
        let of_request = |piece: &&Piece| piece.request == id;
        pieces.iter().filter(of_request).map(|piece| piece.text.as_str()).collect()
    };
    assert_eq!(text(first), expected.text());
    let ended = |id| pieces.iter().any(|p| p.request == id && p.finish == Some(Finish::Length));
    assert!(ended(first) && ended(late) && !ended(removed));
    drop(session);
    assert_eq!(llm.stats().n_used_blocks, 0);
}

#[test]
fn a_dropped_session_leaves_nothing_behind() {
    let mut llm = llm();
    let mut session = llm.session();
    for prompt in PROMPTS {
        session.add(prompt, &GenerateParams::greedy(50)).unwrap();
    }
    session.step(&mut Vec::new());
    drop(session);
    assert_eq!(llm.stats().n_used_blocks, 0);
    assert_eq!(llm.generate_batch(&PROMPTS, &GenerateParams::greedy(4)).unwrap().len(), 4);
}

#[test]
fn several_completions_of_one_prompt() {
    let mut llm = llm();
    let mut params = GenerateParams::seeded(16, 1.0, 11);
    params.sampling.n = 4;
    let generation = llm.generate(PROMPTS[0], &params).unwrap();
    assert_eq!(generation.completions.len(), 4);
    let mut texts: Vec<&str> = generation.completions.iter().map(|c| c.text.as_str()).collect();
    texts.sort_unstable();
    texts.dedup();
    assert!(texts.len() > 1, "four seeds gave one text");
}

#[test]
fn more_prompts_than_the_queue_holds() {
    let mut llm =
        llm_with(LlmOptions { max_waiting_requests: 2, max_num_seqs: 2, ..LlmOptions::default() });
    let prompts: Vec<String> = (0..20).map(|i| format!("Number {i} is")).collect();
    let generations = llm.generate_batch(&prompts, &GenerateParams::greedy(4)).unwrap();
    assert!(generations.iter().all(|g| g.completions[0].finish.is_some()));
}

#[test]
fn bad_requests_are_told_apart_and_run_nothing() {
    let mut llm = llm();
    let error = |llm: &mut Llm, prompt: Prompt| {
        llm.generate_batch(&[Prompt::from("fine"), prompt], &GenerateParams::greedy(4))
            .unwrap_err()
            .to_string()
    };
    let too_long = Prompt::from(vec![5; 9000]);
    assert!(error(&mut llm, too_long).contains("prompt 1: the prompt has 9000 tokens"));
    assert!(error(&mut llm, Prompt::from("")).contains("the prompt is empty"));
    assert!(error(&mut llm, Prompt::from(vec![u32::MAX])).contains("vocabulary"));
    let mut params = GenerateParams::greedy(4);
    params.sampling.temperature = f32::NAN;
    let hot = Prompt::from("x").with_params(params);
    assert!(error(&mut llm, hot).contains("temperature"));
    let mut params = GenerateParams::greedy(4);
    params.stop = vec![String::new()];
    assert!(error(&mut llm, Prompt::from("x").with_params(params)).contains("stop string"));
    assert_eq!(llm.stats().n_requests, 0);
}

#[test]
fn weights_that_are_not_numbers_are_refused() {
    let mut bytes = gguf_bytes(&SynthSpec::tiny("llama")).unwrap();
    let at = bytes.len() - 4;
    bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("nan.gguf");
    std::fs::write(&path, bytes).unwrap();
    let error = Llm::load(path.to_str().unwrap(), LlmOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Model(_)));
    assert!(error.to_string().contains("not a finite number"), "{error}");
}

#[test]
fn models_that_cannot_be_loaded() {
    let load = |source: &str| Llm::load(source, LlmOptions::default()).unwrap_err();
    assert!(matches!(load("no/such/file.gguf"), Error::Pull(_)));
    let json = testdata("golden/smollm2-draft-16m.json");
    assert!(load(json.to_str().unwrap()).to_string().contains("golden"));
}
