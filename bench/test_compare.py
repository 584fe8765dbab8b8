"""The logic of compare.py, without any engine: `python3 -m unittest discover bench`."""

import argparse
import csv
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import compare  # noqa: E402
import table  # noqa: E402
import task  # noqa: E402


def results(rounds: dict[str, list[tuple[float, float]]]) -> table.Results:
    """One batch of 8; (prefill, decode) of each engine by round."""
    all_of_it = table.Results(list(rounds), [8])
    for engine, figures in rounds.items():
        for number, (prefill, decode) in enumerate(figures):
            measured = table.Sample(number, engine, 8, float(prefill), float(decode), "1.0")
            all_of_it.samples.append(measured)
    return all_of_it


class Ratios(unittest.TestCase):
    def test_are_taken_within_a_round(self):
        # The machine halves its speed in the second round and the third: the ratio stays.
        run = results({
            "ours": [(400, 40), (200, 20), (180, 18)],
            "theirs": [(200, 10), (100, 5), (90, 4.5)],
        })
        self.assertEqual(run.ratio("ours", ["theirs"], 8, "decode"), table.Spread(4, 4, 4))
        self.assertEqual(run.ratio("ours", ["theirs"], 8, "prefill"), table.Spread(2, 2, 2))
        self.assertEqual(run.speed("ours", 8, "decode"), table.Spread(20, 18, 40))

    def test_against_the_best_of_each_round(self):
        run = results({"ours": [(1, 12), (1, 12)], "a": [(1, 6), (1, 2)], "b": [(1, 3), (1, 4)]})
        self.assertEqual(run.ratio("ours", ["a", "b"], 8, "decode"), table.Spread(2.5, 2, 3))

    def test_need_both_sides_in_the_round(self):
        run = results({"ours": [(1, 12), (1, 100)], "a": [(1, 6)]})
        self.assertEqual(run.ratio("ours", ["a"], 8, "decode"), table.Spread(2, 2, 2))
        self.assertIsNone(run.ratio("ours", ["gone"], 8, "decode"))
        self.assertIsNone(run.ratio("ours", ["a"], 64, "decode"))

    def test_count_the_first_token_as_prefill(self):
        work = task.Task("m", batch=4, prompt_tokens=10, new_tokens=6, threads=1)
        self.assertEqual(task.speed(work, 2.0, 5.0, "v"), task.Speed(20.0, 4.0, "v"))


class Shown(unittest.TestCase):
    def test_spreads(self):
        cases = [
            (None, "-"),
            (table.Spread(2, 2, 2), "2.00x"),
            (table.Spread(2.5, 2, 3), "2.50x (2.00-3.00)"),
        ]
        for spread, expected in cases:
            self.assertEqual(table.shown(spread, "{:.2f}x"), expected)

    def test_table(self):
        run = results({"ours": [(3000, 12)], "a": [(1500, 6)], "b": [(1000, 3)]})
        self.assertEqual(table.text(run).splitlines(), [
            "         batch   ours      a      b  ours / a  ours / b  ours / the best",
            " decode      8     12      6      3     2.00x     4.00x            2.00x",
            "prefill      8  3,000  1,500  1,000     2.00x     3.00x            2.00x",
        ])

    def test_an_engine_without_samples_has_no_column(self):
        run = results({"gone": [], "a": [(1500, 6)], "b": [(1000, 3)]})
        self.assertEqual(table.text(run).splitlines()[0], "         batch      a      b  a / b")
        self.assertEqual(table.text(results({"gone": []})), "")

    def test_record(self):
        run = results({"ours": [(3000, 12), (2000, 14)], "a": [(1500, 6)]})
        written = table.csv_text(run, "tiny", ["how, and where"])
        self.assertEqual(written.splitlines()[0], "# how, and where")
        rows = list(csv.DictReader(io.StringIO(written.split("\n", 1)[1])))
        self.assertEqual([row["engine"] for row in rows], ["ours", "a"])
        self.assertEqual(rows[0]["decode_tokens_per_s"], "13.0")
        self.assertEqual((rows[0]["prefill_min"], rows[0]["prefill_max"]), ("2000.0", "3000.0"))
        self.assertEqual((rows[1]["decode_ratio"], rows[1]["rounds"]), ("2.0", "1"))


class Arguments(unittest.TestCase):
    def test_wrong_ones_are_sentences(self):
        cases = [
            (compare.engine_list, "paceline,vllm"),
            (compare.number_list, "1,0"),
            (compare.number_list, "8,"),
            (compare.positive, "-3"),
            (compare.at_least_two, "1"),
        ]
        for parse, text in cases:
            with self.assertRaises(argparse.ArgumentTypeError, msg=text):
                parse(text)

    def test_repeats_are_dropped(self):
        self.assertEqual(compare.number_list("8,1,8"), [8, 1])
        self.assertEqual(compare.engine_list("openvino,paceline,openvino"),
                         ["openvino", "paceline"])

    def test_every_engine_comes_first_in_turn(self):
        firsts = [compare.rotated(["a", "b", "c"], number)[0] for number in range(4)]
        self.assertEqual(firsts, ["a", "b", "c", "a"])
        self.assertEqual(compare.rotated([], 1), [])


class Runs(unittest.TestCase):
    """The whole program, with a script in the place of Paceline and no peers."""

    def run_compare(self, script: str, *flags: str) -> subprocess.CompletedProcess:
        with tempfile.TemporaryDirectory() as folder:
            binary, model = Path(folder, "paceline"), Path(folder, "tiny.gguf")
            binary.write_text(f"#!/bin/sh\n{script}\n")
            binary.chmod(0o755)
            model.write_bytes(b"GGUF")
            command = [sys.executable, str(HERE / "compare.py"), "--paceline", str(binary),
                       "--model", str(model), "--venv", str(Path(folder, "none")),
                       "--batch", "8", "--rounds", "2", *flags]
            return subprocess.run(command, capture_output=True, text=True, check=False)

    def test_a_missing_peer_is_named_and_left_out(self):
        answer = '[{"batch": 8, "prefill_tokens_per_s": 900.0, "decode_tokens_per_s": 90.0}]'
        done = self.run_compare(f"echo '{answer}'", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        printed = json.loads(done.stdout)
        self.assertEqual(sorted(printed["left_out"]), ["llama.cpp", "openvino-f16"])
        [row] = printed["rows"]
        self.assertEqual((row["engine"], row["decode_tokens_per_s"]), ("paceline", 90.0))
        self.assertEqual(row["rounds"], 2)

    def test_failures_are_sentences(self):
        cases = [
            ("echo broken pipe dream >&2; exit 3", "broken pipe dream"),
            ("kill -SEGV $$", "ended by signal 11"),
            ("echo '[]'", "its answer is not a speed"),
            ("echo nothing", "its answer is not a speed"),
            ("exit 4", "it ended with code 4"),
        ]
        for script, reason in cases:
            done = self.run_compare(script, "--engines", "paceline")
            self.assertEqual(done.returncode, 1, script)
            self.assertIn(reason, done.stderr)
            self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
