#!/usr/bin/env python3
"""Writes testdata/tokenizer: vocabularies, hard strings, and the ids the reference packages give.

    python3 testdata/make_tokenizer_fixtures.py --smollm2 SMOLLM2.gguf --bitnet CHECKPOINT_DIR \
        --bitnet-gguf BITNET.gguf --golden SMOLLM2_GOLDEN.json

Needs the packages tokenizers, sentencepiece and gguf. Vocabularies are kept as GGUF files without
tensors, zipped, so that the tests read them the way a model is read.
"""

import argparse
import io
import json
import random
import re
import shutil
import struct
import zipfile
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

OUT = Path(__file__).resolve().parent / "tokenizer"

HARD_STRINGS = [
    "",
    " ",
    "  ",
    "a",
    " a",
    "a ",
    "   three leading, two trailing  ",
    "Hello, world!",
    "hello   many    spaces",
    "I'm sure they'll say it's fine; we've done it, you'd know. HE'LL, WE'RE",
    "tabs\tand\t\ttabs",
    "line\nline\n\nline\r\nline\r\n\r\nend\r",
    "\n\n\n",
    " \n \n  \n",
    "trailing newline\n",
    "1234567890 12,345.678 3.14159 0x1F 1e-9 2024-02-29",
    "٣٤٥ १२३ ⅷ ½ ²³ ①②",
    "def f(x):\n    if x:\n\treturn [i ** 2 for i in range(10)]\n\n\n    # done\n",
    "<div class=\"a\">&nbsp;</div><!-- c -->",
    "{\"key\": [1, 2, {\"nested\": null}], \"t\": true}",
    "SELECT * FROM t WHERE a='b' AND c<>d;",
    "C:\\path\\to\\file $HOME/${x} `cmd` ~|^",
    "camelCaseHTTPServer snake_case_name kebab-case-name SCREAMING_CASE",
    "naïve café résumé coöperate Ångström",
    "cafe\u0301 e\u0301\u0323 a\u0308\u0304 \u0915\u094d\u0937",
    "Zażółć gęślą jaźń; Příliš žluťoučký kůň; Ђорђе",
    "Съешь же ещё этих мягких французских булок",
    "Ελληνικά και Ὀδυσσεύς",
    "你好，世界！这是一个测试。",
    "日本語のテキスト、カタカナ。ひらがな",
    "한국어 텍스트입니다",
    "ภาษาไทยไม่มีช่องว่าง",
    "हिन्दी में पाठ",
    "مرحبا بالعالم، كيف الحال؟",
    "שלום עולם",
    "mixed العربية and English עברית 123",
    "\u202eright to left override\u202c",
    "😀😃😄",
    "👩‍👩‍👧‍👦 👨🏽‍💻 🏳️‍🌈 🇩🇪🇫🇷 1️⃣",
    "a😀b🎉c",
    "𝕳𝖊𝖑𝖑𝖔 𐍈𐌰 \U0010fffd",
    "\x00\x01\x02\x1f\x7f\x80\x9f",
    "nul\x00inside",
    "\ufeffbom and \u200bzero\u200dwidth\u00a0nbsp\u3000ideographic",
    "\u2028line sep\u2029para sep\u0085nel",
    "…—–‘’“”«»¿¡§¶†‡•",
    "ﬁ ligature ſ long s K kelvin Ω ohm",
    "$100 €200 £300 ¥400 ₿1",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "================================================================",
    "ababababababababababab bababababa",
    "http://example.com/a?b=c&d=e#f user@example.com",
    "<|im_start|>user\nhi<|im_end|>\n",
    "spelled <|im_end|> in text, <|endoftext|><|endoftext|>",
    " <|im_end|> ",
    "almost <|im_end|x <|im_ <|im_end |>",
    "</s><s><unk> <0x41> ▁under▁",
    "The quick brown fox jumps over the lazy dog. " * 3,
]

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
WORD = r"[^\r\n\p{L}\p{N}]?"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
OTHER = r" ?[^\s\p{L}\p{N}]+"

# Pre-tokenisers by the names GGUF files use, with the patterns of the models they come from.
PATTERNS = {
    "gpt-2": [GPT2],
    "starcoder": [r"\p{N}", GPT2],
    "llama-bpe": [rf"{CONTRACTIONS}|{WORD}\p{{L}}+|\p{{N}}{{1,3}}|{OTHER}[\r\n]*|{TAIL}"],
    "qwen2": [rf"{CONTRACTIONS}|{WORD}\p{{L}}+|\p{{N}}|{OTHER}[\r\n]*|{TAIL}"],
    "tekken": [
        rf"{WORD}{UPPER}*{LOWER}+|{WORD}{UPPER}+{LOWER}*|\p{{N}}|{OTHER}[\r\n/]*|{TAIL}"
    ],
    "gpt-4o": [
        rf"{WORD}{UPPER}*{LOWER}+{CONTRACTIONS}?|{WORD}{UPPER}+{LOWER}*{CONTRACTIONS}?|"
        rf"\p{{N}}{{1,3}}|{OTHER}[\r\n/]*|{TAIL}"
    ],
    "deepseek-coder": [
        "[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        "[\u0800-\u9fa5\uac00-\ud7ff]+",
        r"\p{N}",
    ],
    "deepseek-v3": [
        r"\p{N}{1,3}",
        "[\u4e00-\u9fa5\u3040-\u30ff]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"
        r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|" + TAIL,
    ],
    "falcon": [r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
    "bloom": [" ?[^(\\s|.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c)]+"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}


class Metadata:
    """The key-value part of a GGUF file; the gguf package refuses tensor types it does not know."""

    SCALARS = "BbHhIif?"

    def __init__(self, path):
        self.data, self.at, self.values = path.read_bytes(), 4, {}
        self.number("I"), self.number("Q")
        for _ in range(self.number("Q")):
            key = self.string()
            self.values[key] = self.value(self.number("I"))

    def number(self, kind):
        (value,) = struct.unpack_from("<" + kind, self.data, self.at)
        self.at += struct.calcsize("<" + kind)
        return value

    def string(self):
        size = self.number("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            element, count = self.number("I"), self.number("Q")
            return [self.value(element) for _ in range(count)]
        return self.number({10: "Q", 11: "q", 12: "d"}.get(kind) or self.SCALARS[kind])


def gguf_bytes(values):
    """A GGUF file of version 3 with these values and no tensors."""

    def string(text):
        raw = text.encode()
        return struct.pack("<Q", len(raw)) + raw

    def scalar(value):
        if isinstance(value, bool):
            return 7, struct.pack("<?", value)
        if isinstance(value, int):
            return (4, struct.pack("<I", value)) if value >= 0 else (5, struct.pack("<i", value))
        if isinstance(value, float):
            return 6, struct.pack("<f", value)
        return 8, string(value)

    out = io.BytesIO()
    out.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(values)))
    for key, value in values.items():
        out.write(string(key))
        if not isinstance(value, list):
            kind, raw = scalar(value)
            out.write(struct.pack("<I", kind) + raw)
        elif key.endswith("token_type"):
            out.write(struct.pack("<IIQ", 9, 5, len(value)))
            out.write(struct.pack(f"<{len(value)}i", *value))
        else:
            items = [scalar(item) for item in value]
            out.write(struct.pack("<IIQ", 9, items[0][0], len(items)))
            out.write(b"".join(raw for _, raw in items))
    return out.getvalue()


def write_vocabulary(name, values):
    values = {key: value for key, value in values.items() if key.startswith("tokenizer.")}
    entry = zipfile.ZipInfo(f"{name}.gguf", (2020, 1, 1, 0, 0, 0))
    with zipfile.ZipFile(OUT / f"{name}.zip", "w") as archive:
        archive.writestr(entry, gguf_bytes(values), zipfile.ZIP_DEFLATED, 9)


def byte_level_bpe(values, pre_tokenizer, ignore_merges=False):
    """The tokenizers package's own BPE over the vocabulary of a GGUF file."""
    tokens, types = values["tokenizer.ggml.tokens"], values["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in values["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab, merges, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token, kind in zip(tokens, types) if kind == 3]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    return tokenizer


def smollm_pre_tokenizer():
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )


def pattern_pre_tokenizer(patterns):
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return pre_tokenizers.Sequence([*splits, level])


def cases(tokenizer, strings):
    rows = []
    for text in strings:
        tokenizer.encode_special_tokens = False
        row = {"text": text, "parse": tokenizer.encode(text, add_special_tokens=False).ids}
        row["decoded"] = tokenizer.decode(row["parse"], skip_special_tokens=True)
        tokenizer.encode_special_tokens = True
        row["as_text"] = tokenizer.encode(text, add_special_tokens=False).ids
        rows.append(row)
    return rows


def pattern_cases(values):
    rows = {}
    for name, patterns in PATTERNS.items():
        whole = name in ("llama-bpe", "tekken")
        tokenizer = byte_level_bpe(values, pattern_pre_tokenizer(patterns), ignore_merges=whole)
        tokenizer.encode_special_tokens = True
        rows[name] = [tokenizer.encode(text, add_special_tokens=False).ids for text in HARD_STRINGS]
    return rows


CORPUS = """
The tide came in before dawn and left a row of small boats leaning on the sand.
A baker who rises at three knows the streets better than the watchman does.
In the workshop the lathe turned slowly, and the boy swept curls of wood into a sack.
Numbers such as 12, 365 and 1024 appear in lists; so do dates: 1999-12-31.
def add(a, b):
    return a + b
for i in range(10): print(i, add(i, i))
Der Regen fiel auf das Dach, und die Katze schlief. Über den Fluss führte eine Brücke.
Le café était fermé; l'élève attendait près de la fenêtre.
banana bandana cabana abracadabra ababa babab aabb abab
今日は雨です。猫が寝ています。
"""


def train_sentencepiece():
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS.strip().split("\n") * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        split_digits=True,
        control_symbols=["<|user|>", "<|end|>"],
        user_defined_symbols=["<tool>"],
        character_coverage=0.99,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def sentencepiece_values(processor):
    def kind(index):
        if processor.is_unknown(index):
            return 2
        if processor.is_control(index):
            return 3
        if processor.is_byte(index):
            return 6
        return 4 if processor.id_to_piece(index) == "<tool>" else 1

    ids = range(processor.vocab_size())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [processor.id_to_piece(index) for index in ids],
        "tokenizer.ggml.scores": [float(processor.get_score(index)) for index in ids],
        "tokenizer.ggml.token_type": [kind(index) for index in ids],
        "tokenizer.ggml.bos_token_id": processor.bos_id(),
        "tokenizer.ggml.eos_token_id": processor.eos_id(),
        "tokenizer.ggml.unknown_token_id": processor.unk_id(),
    }


def random_strings(count):
    """Strings over small alphabets, where merges compete; and a few over everything."""
    generator = random.Random(7)
    alphabets = ["ab", "aban ", "abcdr ", "einrtsd ", "0129 ,-", "aé猫は\n😀 ", "abcdefghijklmn "]
    for _ in range(count):
        alphabet = generator.choice(alphabets)
        yield "".join(generator.choice(alphabet) for _ in range(generator.randint(1, 40)))


def sentencepiece_cases(processor):
    strings = [*HARD_STRINGS, "a <tool>", "<|user|>hi<|end|>", *random_strings(250)]
    rows = []
    for text in strings:
        ids = processor.encode(text)
        rows.append({"text": text, "ids": ids, "decoded": processor.decode(ids)})
    return rows


TURN = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.S)
DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def golden_prompts(path):
    """Prompts with their ids; a chat's turns are taken apart for the template test."""
    rows = []
    for case in json.loads(path.read_text())["cases"]:
        row = {key: case[key] for key in ("name", "prompt", "prompt_token_ids")}
        turns = [{"role": role, "content": text} for role, text in TURN.findall(case["prompt"])]
        if turns and turns[0] == {"role": "system", "content": DEFAULT_SYSTEM}:
            row["messages"] = turns[1:]
        rows.append(row)
    return rows


def write_json(name, value):
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    (OUT / name).write_text(text + "\n")


def main():
    parser = argparse.ArgumentParser()
    for name in ("smollm2", "bitnet", "bitnet-gguf", "golden"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args()

    checkpoint = OUT / "bitnet-tiny"
    checkpoint.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(args.bitnet / name, checkpoint / name)
    bitnet = Tokenizer.from_file(str(args.bitnet / "tokenizer.json"))
    write_json("bitnet-tiny.cases.json", cases(bitnet, HARD_STRINGS))
    write_vocabulary("bitnet-tiny", Metadata(args.bitnet_gguf).values)

    values = Metadata(args.smollm2).values
    write_vocabulary("smollm2", values)
    smollm2 = byte_level_bpe(values, smollm_pre_tokenizer())
    write_json("smollm2.cases.json", cases(smollm2, HARD_STRINGS))
    write_json("smollm2.patterns.json", pattern_cases(values))
    write_json("smollm2.golden.json", golden_prompts(args.golden))

    processor = train_sentencepiece()
    write_vocabulary("sentencepiece", sentencepiece_values(processor))
    write_json("sentencepiece.cases.json", sentencepiece_cases(processor))


if __name__ == "__main__":
    main()
