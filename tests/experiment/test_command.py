"""The scripts: help, one line for a user's mistake, exit codes, and the path at the end."""

import json
import runpy
from pathlib import Path

import pytest

from rope_jax.experiment.command import run_script
from rope_jax.experiment.results import read_results
from tests.experiment.tiny import passkey_config, text_config, toml

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(toml(passkey_config(tmp_path)), encoding="utf-8")
    return path


def unused(*anything):
    raise AssertionError("called")


def script(name):
    """A script's own names, as if imported."""
    return runpy.run_path(str(SCRIPTS / name))


def test_the_path_of_what_was_written_comes_last(config_file, capsys):
    seen = []

    def prepare(config, subject):
        seen.append(config)
        return config.name

    assert (
        run_script("Does it.", prepare, lambda name: Path("runs") / name, [str(config_file), "--train.steps", "9"]) == 0
    )
    assert seen[0].train.steps == 9
    assert capsys.readouterr().out == "runs/keys\n"


def test_help_says_what_to_write(capsys):
    assert run_script("Does it.", unused, unused, ["--help"]) == 0
    printed = capsys.readouterr().out
    assert "Does it." in printed
    assert "CONFIG.toml" in printed
    assert all(word in printed for word in ("--checkpoint", "--text", "--sweep.multiples", "--output"))


def test_help_after_a_config_lists_its_settings(config_file, capsys):
    with pytest.raises(SystemExit) as left:
        run_script("Does it.", unused, unused, [str(config_file), "--help"])
    assert left.value.code == 0
    assert "--evaluate.truncation-stride" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["absent.toml"], "absent.toml"),
        (["--train.steps", "9"], "`config` must come first; got '--train.steps'"),
        (["CONFIG", "--train.warmup", "50"], "train.warmup"),
        (["CONFIG", "--sweep.methods", "Yarn()"], "'YaRN'"),
        (["CONFIG", "--train.stepz", "40"], "`--train.stepz` is not a setting. Did you mean `--train.steps`?"),
        (["CONFIG", "--train.steps", "4", "0"], "`overrides` must be settings, each with its value; got '0' alone"),
    ],
)
def test_a_users_fault_is_one_line_and_code_2(config_file, tmp_path, capsys, words, message):
    words = [str(config_file) if word == "CONFIG" else word for word in words]
    main = script("extrapolate.py")
    assert run_script("Sweep.", main["Sweep"], main["execute"], words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert message in printed.err
    assert not (tmp_path / "runs").exists()


def test_a_misspelt_setting_is_one_line_with_the_nearest(config_file, capsys):
    config_file.write_text(config_file.read_text().replace("steps =", "stepz =", 1), encoding="utf-8")
    assert run_script("Does it.", unused, unused, [str(config_file)]) == 2
    assert "stepz" in capsys.readouterr().err


def test_a_diverged_training_is_one_line_and_code_1(config_file, capsys):
    def execute(config):
        raise FloatingPointError("`loss` must stay finite; got nan\nat step 5.")

    assert run_script("Does it.", lambda config, subject: config, execute, [str(config_file)]) == 1
    assert capsys.readouterr().err == "error: `loss` must stay finite; got nan at step 5.\n"


@pytest.mark.parametrize("stopped", ["prepare", "execute"])
def test_ctrl_c_at_any_time_is_one_line_and_code_130(config_file, capsys, stopped):
    def step(name, result):
        def run(*_):
            if name == stopped:
                raise KeyboardInterrupt
            return result

        return run

    assert run_script("Does it.", step("prepare", 1), step("execute", Path("a")), [str(config_file)]) == 130
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "stopped; the same command goes on from here\n")


def test_a_fault_of_the_program_keeps_its_traceback(config_file):
    with pytest.raises(ValueError, match="of ours"):
        run_script(
            "Does it.", lambda config, subject: config, lambda config: Path(str(int("of ours"))), [str(config_file)]
        )


def test_extrapolate_trains_what_it_needs_and_ends_with_table_and_report(tmp_path, capsys):
    path = tmp_path / "tiny.toml"
    path.write_text(toml(text_config(tmp_path)), encoding="utf-8")
    swept = script("extrapolate.py")
    assert run_script("Sweep.", swept["Sweep"], swept["execute"], [str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert Path(lines[-1]).is_file()
    assert any("Effective length" in line for line in lines)
    assert sum(line.startswith("│ YaRN") for line in lines) == 2
    assert any(line.startswith(("Yes", "Only", "Undecided", "No;")) for line in lines)
    checkpoints = tmp_path / "runs" / "tiny" / "checkpoints"
    assert sorted(folder.name.partition("-")[0] for folder in checkpoints.glob("*/*")) == ["base", "tuned"]
    assert len(read_results(tmp_path / "runs" / "tiny")) == 10


def test_a_diverged_training_leaves_the_rest_waiting_and_code_1(config_file, tmp_path, capsys):
    swept = script("extrapolate.py")
    words = [str(config_file), "--train.weight-decay", "1e30"]
    assert run_script("Sweep.", swept["Sweep"], swept["execute"], words) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1] == str(tmp_path / "runs" / "keys")
    said = printed.err.splitlines()
    assert said[-1] == "error: 1 of the cells failed, 4 more waited for such a cell; the same command tries them again"
    assert said[-2].startswith("failed: training Identity at 16, seed 0: `")


def test_a_folder_of_another_config_is_refused(config_file, tmp_path, capsys):
    swept = script("extrapolate.py")
    assert run_script("Sweep.", swept["Sweep"], swept["execute"], [str(config_file)]) == 0
    capsys.readouterr()
    words = [str(config_file), "--train.learning-rate", "0.001"]
    assert run_script("Sweep.", swept["Sweep"], swept["execute"], words) == 2
    assert "train.learning_rate = 0.003 there, 0.001 here" in capsys.readouterr().err


def test_bench_compares_forms_and_ends_with_one_json_object(capsys):
    sizes = ["--seq", "8", "--heads", "2", "--kv-heads", "1", "--head-dim", "8", "--rounds", "1", "--dtypes", "float32"]
    script("bench.py")["main"]([*sizes, "--windows", "1"])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    results = last["results"]
    assert last["sweep"]["cold_s"] > last["sweep"]["warm_s"] > 0
    forms = {row["form"] for row in results}
    assert {"copy", "rotate", "table + rotate", "concatenate", "rotate-half"} < forms
    assert len(results) == 2 * len(forms)
    assert all(row["times_copy"] > 0 for row in results)
    assert [row["times_copy"] for row in results if row["form"] == "copy"] == [1.0, 1.0]
