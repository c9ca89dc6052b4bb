"""The page: every number of its main table is a row's, it needs nothing from outside, and it hides nothing."""

import base64
import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rope_jax.experiment.report import write_report
from rope_jax.experiment.report.page import render
from rope_jax.experiment.report.read import read_run, settle
from tests.experiment.report_rows import passkey_rows, text_rows, write_rows

ROOT = Path(__file__).parents[2]
MINUS = "\N{MINUS SIGN}"


@pytest.fixture(scope="module")
def text_page():
    """Rows and their page without figures: a label that would break out of its element, and a cell that failed."""
    rows = text_rows()
    for row in rows:
        if row["method"] == "YaRN(beta_fast=4.0)":
            row["label"] = '<b title="x">Ya&RN'
    failed = {name: value for name, value in rows[-1].items() if name != "value"}
    rows.append(failed | {"key": "other", "length": 1024, "error": "out of memory: 7 < 8 & more"})
    return rows, render(settle(rows), {})


def test_every_number_of_the_main_table_is_the_rows(text_page):
    rows, page = text_page
    head, *shown = _table(page, "loss at 1")
    assert head[:4] == ["method", "loss at 1×", "loss at 4×", "context gain at 4×"]
    for phase, title in (("base", "Zero-shot"), ("tuned", "Fine-tuned")):
        of_phase = [row for row in rows if row["phase"] == phase and "value" in row]
        far = [row for row in of_phase if row["metric"] == "loss" and row["length"] == 256]
        far.sort(key=lambda row: -row["context_gain"])
        near = {row["label"]: row["value"] for row in of_phase if row["metric"] == "loss" and row["length"] == 64}
        (tokens,) = {row["tokens"] for row in of_phase if row["metric"] == "training"}
        start = shown.index([title]) + 1
        assert shown[start][2] == f"{far[0]['truncated']:.3f}"
        for row, cells in zip(far, shown[start + 1 :], strict=False):
            gain = f"{row['context_gain']:+.3f} ± {row['context_gain_stderr']:.3f}".replace("-", MINUS)
            assert cells[0].startswith(row["label"])
            assert cells[1:3] == [f"{near[row['label']]:.3f}", f"{row['value']:.3f}"]
            half = 2.0117405137 * row["context_gain_stderr"]
            ends = (f"{row['context_gain'] + side:+.3f}".replace("-", MINUS) for side in (-half, half))
            assert cells[3].startswith(gain + " to ".join(ends))
            assert cells[5] == f"{tokens / 1e6:.3g}\N{NO-BREAK SPACE}M"


def test_the_page_names_a_class_for_every_method(text_page):
    _, page = text_page
    shown = {cells[0]: cells[3:5] for cells in _table(page, "loss at 1") if len(cells) > 1}
    assert shown["Llama3"][0].endswith("survives")
    assert shown["NTKAware"][0].endswith("collapses")
    assert shown["Llama3"][1] == "64 (1×)"


def test_the_page_stands_alone(tmp_path):
    write_rows(tmp_path, text_rows()[:6])
    path = write_report(tmp_path)
    page = path.read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|srcset|href)="([^"]*)"', page)
    assert all(source.startswith(("data:image/png;base64,", "#")) for source in sources)
    rest = re.sub(r'"data:image/png;base64,[^"]*"', "", page)
    assert not re.search(r"https?:|//|<script|<link|@import|url\(", rest)
    images = sorted(tmp_path.glob("figures/*.png"))
    assert [image.stem for image in images] == ["context_gain_base", "loss_by_position_base", "spectrum"]
    assert all(base64.b64encode(image.read_bytes()).decode() in page for image in images)


@pytest.mark.slow
def test_a_whole_page_has_a_figure_of_each_kind_on_light_and_dark_paper(tmp_path):
    write_rows(tmp_path, text_rows(seeds=(0, 1)))
    page = write_report(tmp_path).read_text(encoding="utf-8")
    kinds = ("context_gain_base", "context_gain_tuned", "loss_by_position_base", "loss_by_position_tuned", "spectrum")
    assert tuple(image.stem for image in sorted(tmp_path.glob("figures/*.png"))) == kinds
    assert page.count("data:image/png") == 2 * len(kinds)


def test_the_glossary_says_what_both_phases_are_measured_by(text_page):
    _, page = text_page
    assert "zero-shot and fine-tuned rows are both measured by it" in page


def test_a_seed_that_is_not_there_yet_is_counted():
    rows = text_rows(seeds=(0, 1))
    page = render(settle([row for row in rows if row["seed"] == 0]), {})
    assert "of the 2 seeds that the settings ask for, one is there" in page
    assert "Whether another seed" not in render(settle(rows), {})


def test_learned_positions_past_the_trained_length_are_said_to_be_untrained():
    rows = [row for row in text_rows(tuned=False) if row["label"] in ("Identity", "last L tokens, plain")]
    for row in rows:
        row["config"] = row["config"] | {"model": row["config"]["model"] | {"positional": "learned"}}
    page = render(settle(rows), {})
    assert "untrained rows of their table" in page
    assert "best method" not in page and "Identity" not in re.sub(r"<section><h2>Settings.*", "", page, flags=re.DOTALL)


def test_the_page_says_what_its_intervals_rest_on_and_what_they_leave_out(text_page):
    rows, page = text_page
    assert "interval of each gain, from 48 windows, 1 seed." in page
    assert "those that end near each other share its topic and may share tokens, which makes the true " in page
    assert "differ by more than both standard errors, added, allow" in page
    whole = [row | {"window_gains": [0.0] * 48} if row["metric"] == "loss" else row for row in rows]
    assert "by the difference of their gains, paired by window" in render(settle(whole), {})


def test_labels_are_escaped(text_page):
    _, page = text_page
    assert '<b title="x">' not in page
    assert html.escape('<b title="x">Ya&RN').replace("&quot;", "&#34;") in page


def test_failed_cells_are_listed_with_their_reason(text_page):
    _, page = text_page
    assert "out of memory: 7 &lt; 8 &amp; more" in page
    assert "1 cell failed." in page


@pytest.mark.slow
def test_a_passkey_page_has_its_maps_and_says_what_they_are(tmp_path):
    write_rows(tmp_path, passkey_rows())
    page = write_report(tmp_path).read_text(encoding="utf-8")
    assert (tmp_path / "figures/passkey_base.png").is_file()
    assert "content matching, not reading" in page
    table = _table(page, "64 (1")
    assert table[1][:2] == ["guessing: 3.1\N{NO-BREAK SPACE}%one of 32 symbols", "3.1"]
    assert table[-1][0] == "YaRNYaRN(beta_fast=4.0)"
    assert table[-1][1].replace("\N{NO-BREAK SPACE}", " ") == "99.596.2 to 99.9; 128 keys; whole 99.0"


@pytest.mark.parametrize("finished", [1, 2, 5])
def test_an_unfinished_sweep_makes_a_page_that_says_so(tmp_path, finished):
    path = write_rows(tmp_path, text_rows()[:finished])
    with path.open("a") as file:
        file.write('{"key": "torn')
    page = render(read_run(path), {})
    assert "cut off" in page
    assert ("No method has been evaluated yet" in page) == (finished < 3)
    assert ("Unfinished: Identity (plain), zero-shot, lacks 1 cell (length 512)." in page) == (finished == 5)


def test_the_script_ends_with_one_line_and_code_2_on_a_missing_file(tmp_path):
    command = [sys.executable, str(ROOT / "scripts/report.py"), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env={"PYTHONPATH": str(ROOT)}, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)


def _table(page, head):
    """Rows of the first table with such a head, each a list of the text of its cells."""
    tables = re.findall(r"<table.*?</table>", page, flags=re.DOTALL)
    found = next(table for table in tables if head in table)
    rows = re.findall(r"<tr.*?</tr>", found, flags=re.DOTALL)
    return [
        [html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in rows
    ]
