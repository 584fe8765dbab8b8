//! The pre-tokenisers that GGUF files name in `tokenizer.ggml.pre`.
//!
//! A name stands for a list of patterns. Each splits what the one before left, matches and gaps
//! alike, and the last step spells every piece in byte characters.

use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use super::error::TokenizerError;

const FALLBACK: &[&str] = &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"];
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|",
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const SEED_CODER: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const BAILING: &str = concat!(
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
);
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|",
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
/// Letters of the scripts that have case, as the DeepSeek models list them.
const CASED_WORD: &str = concat!(
    r"\s?[\x{41}-\x{5A}\x{61}-\x{7A}\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}",
    r"\x{1BC}-\x{1BF}\x{1C4}-\x{293}\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}",
    r"\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}",
    r"\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}",
    r"\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}\x{1D00}-\x{1D2B}",
    r"\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}",
    r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}",
    r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}",
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}",
    r"\x{1FF2}-\x{1FF4}\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}",
    r"\x{2119}-\x{211D}\x{2124}\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}",
    r"\x{2139}\x{213C}-\x{213F}\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}",
    r"\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}",
    r"\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}\x{A771}-\x{A787}",
    r"\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}",
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}",
    r"\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}",
    r"\x{1E900}-\x{1E943}]+",
);
const CJK: &str = r"[\x{800}-\x{9FA5}\x{AC00}-\x{D7FF}]+";
const DEEPSEEK_LLM: &[&str] = &[
    "[\r\n]",
    CASED_WORD,
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+",
    r"\s+$",
    CJK,
    r"\p{N}+",
];
const DEEPSEEK_CODER: &[&str] = &["[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", CJK, r"\p{N}"];
const DEEPSEEK3: &[&str] = &[
    r"\p{N}{1,3}",
    r"[\x{4E00}-\x{9FA5}\x{3040}-\x{30FF}]+",
    concat!(
        r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"##,
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|",
        r"\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
];
const FALCON: &[&str] = &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"];
const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

/// A named way to cut text before merging, with what else the name implies.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreTokenizer {
    steps: Steps,
    /// A piece that is a token as it stands is taken whole, whatever the merges say.
    pub(super) ignore_merges: bool,
    /// A text starts with BOS unless the file says otherwise.
    pub(super) adds_bos: bool,
}

#[derive(Clone, Copy, Debug)]
enum Steps {
    /// The GPT-2 pattern, which `ByteLevel` carries itself.
    Gpt2,
    /// Every digit alone, then the GPT-2 pattern.
    DigitsThenGpt2,
    Patterns(&'static [&'static str]),
}

impl PreTokenizer {
    fn new(steps: Steps) -> Self {
        Self { steps, ignore_merges: false, adds_bos: false }
    }

    fn whole_words_with_bos(steps: Steps) -> Self {
        Self { steps, ignore_merges: true, adds_bos: true }
    }

    /// The pre-tokeniser a file names. An unknown name is worth a warning, not a refusal: most
    /// text comes out right under the common rules.
    pub(super) fn named(name: Option<&str>) -> Self {
        match name {
            Some(name) => Self::known(name).unwrap_or_else(|| {
                tracing::warn!(
                    name,
                    "unknown pre-tokeniser: using the default one, so some prompts may be \
                     tokenised differently than the model was trained with"
                );
                Self::new(Steps::Patterns(FALLBACK))
            }),
            None => {
                tracing::warn!("the model file names no pre-tokeniser: using the default one");
                Self::new(Steps::Patterns(FALLBACK))
            }
        }
    }

    fn known(name: &str) -> Option<Self> {
        let steps = match name {
            "llama3" | "llama-v3" | "llama-bpe" | "falcon3" | "falcon-h1" | "pixtral"
            | "midm-2.0" | "lfm2" => {
                return Some(Self::whole_words_with_bos(Steps::Patterns(&[LLAMA3])));
            }
            "tekken" => return Some(Self::whole_words_with_bos(Steps::Patterns(&[TEKKEN]))),
            "default" => Steps::Patterns(FALLBACK),
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "trillion" | "granite-docling"
            | "gigachat" | "a.x-4.0" | "mellum" | "exaone4" | "roberta-bpe" => Steps::Gpt2,
            "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone"
            | "minerva-7b" | "mellum2" => Steps::DigitsThenGpt2,
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => Steps::Patterns(&[LLAMA3]),
            "qwen2" | "deepseek-r1-qwen" | "kormo" | "stablelm2" | "hunyuan" | "megrez"
            | "grok-2" | "solar-open" => Steps::Patterns(&[QWEN2]),
            "qwen35" => Steps::Patterns(&[QWEN35]),
            "gpt-4o" | "llama4" | "kanana2" | "minimax-m2" => Steps::Patterns(&[GPT4O]),
            "deepseek-llm" => Steps::Patterns(DEEPSEEK_LLM),
            "deepseek-coder" => Steps::Patterns(DEEPSEEK_CODER),
            "deepseek-v3" | "hunyuan-dense" | "joyai-llm" => Steps::Patterns(DEEPSEEK3),
            "falcon" => Steps::Patterns(FALCON),
            "bloom" | "poro-chat" | "gpt3-finnish" => Steps::Patterns(&[BLOOM]),
            "viking" => Steps::Patterns(&[BLOOM, r"\p{N}"]),
            "seed-coder" => Steps::Patterns(&[SEED_CODER]),
            "bailingmoe" | "bailingmoe2" | "llada-moe" => Steps::Patterns(&[BAILING]),
            _ => return None,
        };
        Some(Self::new(steps))
    }

    /// The `tokenizers` form of it.
    pub(super) fn build(&self) -> Result<PreTokenizerWrapper, TokenizerError> {
        let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
        let uses_gpt2_pattern = match self.steps {
            Steps::Gpt2 => true,
            Steps::DigitsThenGpt2 => {
                steps.push(Digits::new(true).into());
                true
            }
            Steps::Patterns(patterns) => {
                for pattern in patterns {
                    steps.push(isolate(pattern)?.into());
                }
                false
            }
        };
        steps.push(ByteLevel::new(false, true, uses_gpt2_pattern).into());
        Ok(Sequence::new(steps).into())
    }
}

/// Matches become pieces of their own; so does what lies between them.
fn isolate(pattern: &str) -> Result<Split, TokenizerError> {
    let pattern = SplitPattern::Regex(pattern.to_owned());
    Split::new(pattern, SplitDelimiterBehavior::Isolated, false)
        .map_err(|error| TokenizerError::Invalid(error.to_string()))
}
