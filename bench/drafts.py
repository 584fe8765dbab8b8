#!/usr/bin/env python3
"""What guesses at next tokens bring on plain requests: `paceline batch` with and without, in turn.

    python3 bench/drafts.py
    python3 bench/drafts.py --rounds 7 --csv record.csv

Questions such as people ask (greedy, and at temperature 0.8), tasks on a text, whose answers quote
it, and jobs: one task on many reviews, whose answers are alike, also by a schema. Each setting runs
with and without guesses in every round, and the median of the rounds' ratios is shown. Answers must
be the same, to the last token.
"""

import argparse
import csv
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parent.parent
MAX_TOKENS = 192
LIMIT_S = 600

QUESTIONS = """
What is the capital of France and why is it famous?
Explain how photosynthesis works in simple terms.
Write a short story about a robot who learns to paint.
List five tips for better sleep.
What are the main causes of the First World War?
Write a Python function that checks whether a string is a palindrome.
Describe the water cycle.
Give me a recipe for pancakes.
What is machine learning?
How do airplanes fly?
Write a poem about the sea.
Summarise the plot of Romeo and Juliet.
What is the difference between a virus and a bacterium?
How can I learn to play the guitar?
Write an email asking a colleague for the quarterly report.
Explain the theory of relativity to a child.
What are the health benefits of walking?
Write a SQL query that lists the ten best customers by revenue.
How does a refrigerator work?
Name three famous painters and one work of each.
What is inflation in economics?
Write a dialogue between a cat and a dog.
How do I change a bicycle tyre?
What happened at the Battle of Hastings?
Translate 'Good morning, how are you?' into Spanish and explain each word.
Write a product description for a wooden chair.
What is a black hole?
How do vaccines work?
Plan a weekend in Rome.
What is the Fibonacci sequence? Write the first 15 numbers.
Explain the rules of chess.
Write a JavaScript function that sorts an array of objects by name.
""".strip().splitlines()

MINUTES = (
    "The committee met on Tuesday 14 March in the old town hall. Anna Berger (chair), Tom Willis "
    "(treasurer) and Priya Nair (secretary) were present. The treasurer reported that the balance "
    "of the account was 4,213.50 euros at the end of February, of which 1,200 euros are set aside "
    "for the repair of the roof. Priya Nair said that the roof will be repaired by the firm Holz "
    "and Sons in the second week of April. Anna Berger thanked the members who had cleaned the "
    "hall. The next meeting is on Tuesday 11 April at 19:00."
)
TASKS = """
List all persons with their roles.
Repeat the text with all dates in the format YYYY-MM-DD.
Summarise the text in two sentences.
Extract all amounts of money as JSON.
Correct any mistakes in the text and print it again.
Translate the text into simple English.
What is said about the roof? Quote the sentences.
Write the minutes as bullet points.
""".strip().splitlines()

THINGS = """
hotel near the station; small Thai restaurant; new phone; blender; museum tour; pair of running shoes; garden chair;
online course on statistics; coffee machine; rental car; novel by a young author; city bus service;
pair of headphones; yoga class; winter jacket; office printer; board game; ferry to the island;
bakery; dentist on Main Street; laptop stand; camping tent; concert; wall paint; puppy training; electric kettle;
second-hand bicycle; museum cafe; gym; language app; vacuum cleaner; barber shop
""".replace("\n", " ").split(";")
OPINIONS = """
was better than I expected; broke after two days; made my whole week; was far too expensive;
works as promised; left me disappointed; was worth every cent; smelled strange and felt cheap
""".replace("\n", " ").split(";")
DETAILS = [
    "I went there with my sister in March.", "We waited forty minutes.", "The price was 49 euros.",
    "I would tell my friends about it.", "Nobody answered my emails.", "My children loved it.",
    "The colour was not that of the picture.", "I have used it every day since June.",
    "It rained, but that was fine.", "The manual is only in German.", "A friend had warned me.",
]
# Numbers without common factors, so that no two reviews are the same.
REVIEWS = [
    f"The {THINGS[i % 32].strip()} {OPINIONS[i * 3 // 2 % 8].strip()}. {DETAILS[i % 11]} "
    f"{DETAILS[(i // 2 + 5) % 11]}"
    for i in range(64)
]
SENTIMENT = [
    "Is the sentiment of this review positive or negative? Explain in one or two sentences.\n\n"
    f"Review: {review}" for review in REVIEWS
]
FIELDS = [
    'Extract from this review a JSON object with the keys "product", "sentiment", "complaints" and '
    f'"would_recommend". Answer with JSON only.\n\nReview: {review}' for review in REVIEWS
]

ON_A_TEXT = [f"Here is a text:\n\n{MINUTES}\n\nTask: {task}" for task in TASKS]
STRINGS = {"type": "array", "items": {"type": "string"}, "maxItems": 3}
SCHEMA = {
    "type": "object",
    "properties": {
        "product": {"type": "string"}, "sentiment": {"enum": ["positive", "negative", "mixed"]},
        "complaints": STRINGS, "would_recommend": {"type": "boolean"}},
    "required": ["product", "sentiment", "complaints", "would_recommend"],
    "additionalProperties": False,
}
BY_SCHEMA = "reviews to JSON by a schema"
# What is asked, at which temperature, and how many at once.
SETTINGS = [
    ("questions", QUESTIONS[:6], 0.0, 1),
    ("questions", QUESTIONS, 0.0, 8),
    ("questions", QUESTIONS, 0.0, 32),
    ("questions, temperature 0.8", QUESTIONS, 0.8, 8),
    ("questions, temperature 0.8", QUESTIONS, 0.8, 32),
    ("tasks on a text", ON_A_TEXT, 0.0, 1),
    ("tasks on a text", ON_A_TEXT, 0.0, 8),
    ("sentiment of reviews", SENTIMENT[:16], 0.0, 1),
    ("sentiment of reviews", SENTIMENT, 0.0, 8),
    ("sentiment of reviews", SENTIMENT, 0.0, 32),
    ("reviews to JSON", FIELDS, 0.0, 8),
    ("reviews to JSON", FIELDS, 0.0, 32),
    (BY_SCHEMA, FIELDS[:16], 0.0, 1),
    (BY_SCHEMA, FIELDS, 0.0, 8),
    (BY_SCHEMA, FIELDS, 0.0, 32),
]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=5, metavar="N", help="[5]")
    add("--drafts", type=int, default=8, metavar="N", help="guesses a sequence may have [8]")
    add("--model", default="default", help="[default]")
    add("--paceline", type=Path, default=ROOT / "target/release/paceline", metavar="PATH",
        help="[target/release/paceline]")
    add("--csv", type=Path, metavar="PATH", help="also write a record")
    args = parser.parse_args()
    if not args.paceline.exists():
        print(f"There is no {args.paceline}: run `cargo build --release`.", file=sys.stderr)
        return 2
    rows = [measure(args, *setting) for setting in SETTINGS]
    if args.csv:
        with args.csv.open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return 0


def measure(args: argparse.Namespace, name: str, prompts: list[str], temperature: float,
            at_once: int) -> dict:
    """One setting, in every round with and without."""
    speeds: dict[int, list[float]] = {0: [], args.drafts: []}
    with tempfile.TemporaryDirectory() as folder:
        lines = Path(folder, "prompts.jsonl")
        write = schema_line if name == BY_SCHEMA else line
        lines.write_text("".join(write(prompt, temperature) for prompt in prompts))
        for _ in range(args.rounds):
            answers = []
            for drafts, figures in speeds.items():
                speed, answer = run(args, lines, drafts, at_once)
                figures.append(speed)
                answers.append(answer)
            if answers[0] != answers[1]:
                sys.exit("guesses have changed an answer: this is a bug")
    ratios = [b / a for a, b in zip(*speeds.values())]
    row = {"setting": name, "at_once": at_once, "tokens_per_s": round(median(speeds[0]), 1),
           "with_drafts": round(median(speeds[args.drafts]), 1),
           "ratio": round(median(ratios), 3), "least": round(min(ratios), 3),
           "most": round(max(ratios), 3), "rounds": args.rounds}
    print("{setting}, {at_once} at once: {tokens_per_s:,.0f} tok/s, with guesses "
          "{with_drafts:,.0f}, {ratio:.2f}x ({least:.2f} to {most:.2f})".format(**row), flush=True)
    return row


def line(prompt: str, temperature: float) -> str:
    fields = {"prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": temperature, "seed": 1}
    return json.dumps(fields) + "\n"


def schema_line(prompt: str, temperature: float) -> str:
    """The same as a request of OpenAI's batch API, whose answer must fit the schema."""
    form = {"name": "review", "strict": True, "schema": SCHEMA}
    body = {"messages": [{"role": "user", "content": prompt}], "max_tokens": MAX_TOKENS,
            "temperature": temperature, "seed": 1,
            "response_format": {"type": "json_schema", "json_schema": form}}
    request = {"custom_id": prompt, "method": "POST", "url": "/v1/chat/completions", "body": body}
    return json.dumps(request) + "\n"


def run(args: argparse.Namespace, lines: Path, drafts: int, at_once: int) -> tuple[float, list]:
    """Tokens per second, and every answer's tokens, or its text."""
    out = lines.with_name("out.jsonl")
    command = [str(args.paceline), "batch", "-i", str(lines), "-o", str(out), "--chat", "--force",
               "--ordered", "-m", args.model, "--max-num-seqs", str(at_once),
               "--num-speculative-tokens", str(drafts)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    found = re.search(r"([\d.]+) tokens/s", done.stderr)
    if done.returncode != 0 or not found:
        sys.exit(f"paceline batch failed: {done.stderr.strip()[-500:]}")
    results = [json.loads(text) for text in out.read_text().splitlines()]
    return float(found.group(1)), [answer_of(result) for result in results]


def answer_of(result: dict):
    if "token_ids" in result:
        return result["token_ids"]
    return result["response"]["body"]["choices"][0]["message"]["content"]


if __name__ == "__main__":
    sys.exit(main())
