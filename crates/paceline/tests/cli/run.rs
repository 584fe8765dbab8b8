use super::bench::Bench;

const RUN: [&str; 5] = ["run", "-m", "tiny.gguf", "--threads", "1"];

fn run<'a>(args: &[&'a str]) -> Vec<&'a str> {
    let limit: &[&str] = if args.contains(&"--max-tokens") { &[] } else { &["--max-tokens", "6"] };
    [&RUN, limit, args].concat()
}

#[test]
fn an_answer_goes_to_standard_output_and_its_figures_to_the_other() {
    let bench = Bench::new();
    let ran = bench.call(&run(&["--ignore-eos", "hello"])).expect(0);
    assert!(!ran.stdout.is_empty() && ran.stdout.ends_with('\n'));
    for says in ["prompt tokens", "6 generated", "first token after", "tokens/s"] {
        assert!(ran.stderr.contains(says), "{}", ran.stderr);
    }
    assert_eq!(bench.call(&run(&["-q", "--ignore-eos", "hello"])).expect(0).stderr, "");
}

#[test]
fn a_seed_repeats_a_random_answer() {
    let bench = Bench::new();
    let answer = |args: &[&str]| {
        let args = [&["-t", "1.5", "--ignore-eos"], args, &["hello"]].concat();
        bench.call(&run(&args)).expect(0)
    };
    let first = answer(&[]);
    let seed = first.stderr.split("seed ").nth(1).unwrap().trim_end_matches("]\n").to_owned();
    assert_eq!(answer(&["--seed", &seed]).stdout, first.stdout);
}

#[test]
fn a_prompt_can_be_piped_in_or_continued_raw() {
    let bench = Bench::new();
    let chat = bench.call(&run(&["hello"])).expect(0).stdout;
    assert_eq!(bench.call_with(&run(&["-"]), "hello").expect(0).stdout, chat);
    let figures = |args: &[&str]| bench.call(&run(args)).expect(0).stderr;
    assert!(figures(&["--raw", "xyz"]).contains("[3 prompt tokens"));
    assert!(!figures(&["xyz"]).contains("[3 prompt tokens"));
}

#[test]
fn a_chat_keeps_the_conversation() {
    let bench = Bench::new();
    let chat = |lines: &str| bench.call_with(&run(&["-v"]), lines).expect(0);
    // How many prompt tokens each turn had, and their sum.
    let counts = |lines: &str| -> Vec<u32> {
        let parts = chat(lines).stderr;
        let parts = parts.split('[').skip(1);
        parts.map(|part| part.split(' ').next().unwrap().parse().unwrap()).collect()
    };
    let alone = counts("one\n")[0];
    let both = counts("one\n\none\n");
    assert_eq!((both[0], both.len()), (alone, 3));
    assert!(both[1] > 2 * alone - 10 && both[1] > alone, "{both:?}");
    assert_eq!(counts("one\n/clear\none\n"), [alone, alone, 2 * alone]);
    assert_eq!(counts("one\n/exit\none\n"), [alone, alone]);
    assert!(chat("/help\n").stderr.contains("/clear"));
}

#[test]
fn a_turn_that_fails_does_not_end_the_chat() {
    let bench = Bench::new();
    let lines = format!("{}\nhi\n", "x".repeat(400));
    let ran = bench.call_with(&run(&[]), &lines).expect(1);
    assert!(ran.stderr.contains("error: the prompt has"), "{}", ran.stderr);
    assert!(!ran.stdout.is_empty());
}

#[test]
fn values_out_of_range_are_refused_before_the_model_is_looked_at() {
    let bench = Bench::new();
    let cases: [(&[&str], &str); 13] = [
        (&["-t", "-1"], "temperature is -1, but must be from 0 to 100"),
        (&["-t", "NaN"], "temperature is NaN"),
        (&["-t", "warm"], "invalid value 'warm'"),
        (&["--top-p", "1.5"], "top_p is 1.5"),
        (&["--min-p", "-0.1"], "min_p is -0.1"),
        (&["--repetition-penalty", "0"], "repetition_penalty is 0"),
        (&["--presence-penalty", "-3"], "presence_penalty is -3"),
        (&["--stop", ""], "stop string 0 is empty"),
        (&["--threads", "0"], "0 is not in 1..=1024"),
        (&["--max-num-seqs", "0"], "0 is not in 1..=65536"),
        (&["--num-kv-blocks", "0"], "0 is not in 1..="),
        (&["--kv-cache-dtype", "fp8"], "invalid value 'fp8' for '--kv-cache-dtype"),
        (&["--raw", "--system", "x"], "cannot be used with"),
    ];
    for (flags, says) in cases {
        let args = [&["run", "-m", "missing.gguf"], flags, &["hello"]].concat();
        bench.call(&args).expect_error(2, says);
    }
}

#[test]
fn models_that_cannot_be_used_are_explained() {
    let bench = Bench::new();
    bench.write_strange_model("strange.gguf");
    let whole = std::fs::read(bench.path("tiny.gguf")).unwrap();
    bench.write("cut.gguf", &whole[..whole.len() / 2]);
    bench.write("text.gguf", "I am a poem.");
    std::fs::create_dir(bench.path("empty")).unwrap();
    let cases = [
        ("missing.gguf", "there is no file or directory missing.gguf"),
        ("tiny.gguf/x", "tiny.gguf/x"),
        ("org/repo", "write hf:org/repo"),
        ("hf:nonsense", "a repository is written hf:org/name"),
        ("hf:org/repo:a.gguf", "downloads are switched off"),
        ("default", "downloads are switched off"),
        ("strange.gguf", "strange.gguf: the architecture \"perceptron\" is not supported"),
        ("cut.gguf", "cut.gguf: tensor"),
        ("text.gguf", "this is not a GGUF file"),
        ("empty", "this directory holds no model"),
        ("", "it is empty"),
    ];
    for (model, says) in cases {
        bench.call(&["run", "-m", model, "hello"]).expect_error(1, says);
        bench.call(&["inspect", model]).expect_error(1, says);
    }
}

#[test]
fn a_pool_larger_than_the_memory_is_refused() {
    let bench = Bench::new();
    bench.call(&run(&["--num-kv-blocks", "60000000", "a"])).expect_error(1, "the KV pool needs");
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let bench = Bench::new();
    let mut child = bench.spawn(&run(&["-q", "--ignore-eos", "--max-tokens", "200", "hello"]));
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}
