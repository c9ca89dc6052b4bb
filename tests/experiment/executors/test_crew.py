"""How a sweep leads its workers: tries are bounded, and what cannot be measured holds up nothing else."""

import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rope_jax.experiment.executors import cluster, connection, crew
from rope_jax.experiment.executors.agenda import agenda_of, describe
from rope_jax.experiment.executors.cluster import RayExecutor
from rope_jax.experiment.executors.job import ExecutorError, Job
from rope_jax.experiment.executors.ray_options import RayOptions
from rope_jax.experiment.executors.worker import TOKEN
from rope_jax.experiment.measure import Laboratory
from rope_jax.experiment.plan import plan
from rope_jax.experiment.progress import Reporter
from tests.experiment.tiny import text_config


class Lost(Exception):
    """What Ray raises for a worker that is gone, or for an error in one."""

    cause: Exception


class Reference:
    def __init__(self, call):
        self.call = call


class Actor:
    """Answers as a Ray actor does; a call runs when its result is asked for."""

    def __init__(self, worker):
        for name in ("prepare", "measure"):
            call = getattr(worker, name)
            setattr(self, name, SimpleNamespace(remote=lambda *words, call=call: Reference(lambda: call(*words))))


class Ray:
    """A cluster of one process; its workers start after `busy` looks at them."""

    exceptions = SimpleNamespace(RayError=Lost)

    def __init__(self, cpus=2.0, busy=0):
        self.resources = {"CPU": cpus}
        self.busy = busy
        self.asked, self.killed = [], []

    def is_initialized(self):
        return True

    def nodes(self):
        return [{"Alive": True, "Resources": self.resources}]

    def cluster_resources(self):
        return self.resources

    def remote(self, **options):
        self.asked.append(options)
        return lambda kind: SimpleNamespace(remote=lambda errand: Actor(kind(errand)))

    def wait(self, references, num_returns, timeout):
        if self.busy > 0:
            self.busy -= 1
            time.sleep(timeout)
            return [], references
        return references[-1:], references[:-1]

    def get(self, reference):
        return reference.call()

    def kill(self, actor):
        self.killed.append(actor)


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory):
    folder = tmp_path_factory.mktemp("crew")
    config = text_config(folder)
    return Laboratory(config, folder, Reporter(Console(quiet=True)))


@pytest.fixture
def lead(laboratory, monkeypatch):
    """Leads workers that give 1.0 unless told otherwise: ([(cell in words, measured)], tries by cell, rows given)."""

    def led(ray, measure=lambda cell, tries: None, prepare=lambda: None, **options):
        agenda = agenda_of(laboratory.config, plan(laboratory.config))
        tries, given = Counter[str](), dict[str, list[Any]]()
        rows: list[Any] = []

        class Worker:
            def __init__(self, errand):
                assert (errand.folder / TOKEN).read_text() == errand.token

            def prepare(self):
                prepare()
                return "host, process 1"

            def measure(self, key, rows):
                cell = agenda.cells[key]
                tries[describe(cell)] += 1
                given[describe(cell)] = rows
                return measure(describe(cell), tries[describe(cell)]) or {"value": 1.0, "seconds": 0.1}

        monkeypatch.setattr(crew, "Worker", Worker)
        for module in (cluster, connection):
            monkeypatch.setattr(module, "imported_ray", lambda: ray)
        monkeypatch.setattr(crew, "TICK", 0.01)
        executor = RayExecutor(RayOptions(**options))
        executor.open()
        job = Job(laboratory, agenda, frozenset(), lambda: rows, Reporter(Console(quiet=True)))
        ended = []
        for cell, measured in executor.outcomes(job):
            ended.append((describe(cell), measured))
            if measured and "value" in measured:
                rows.append(cell.row() | measured)
        return ended, tries, given

    return led


def failed(ended):
    return {cell: measured["error"] for cell, measured in ended if measured and "error" in measured}


def waiting(ended):
    return [cell for cell, measured in ended if measured is None]


TRAINING = "training Identity at 16, seed 0"
BASELINE = "truncated_loss, the baseline (last L tokens, plain) within 32, seed 0"
LOSS = "loss YaRN x2 at 32, seed 0"


def test_every_cell_is_measured_once_after_what_it_needs(lead, laboratory):
    ray = Ray()
    ended, tries, given = lead(ray, cpus=0.5)
    cells = [cell for cell, _ in ended]
    assert len(set(cells)) == len(cells) == 10
    assert set(tries.values()) == {1}
    assert cells.index(TRAINING) < cells.index(BASELINE) < cells.index(LOSS)
    assert given[TRAINING] == []
    assert [row["metric"] for row in given[LOSS]][:1] == ["truncated_loss"]
    assert {(asked["num_cpus"], asked["num_gpus"], asked["max_restarts"]) for asked in ray.asked} == {(0.5, 0.0, 0)}
    assert len(ray.asked) == len(ray.killed) <= 4
    assert not (laboratory.folder / TOKEN).exists()


def test_as_many_workers_as_asked_for(lead):
    ray = Ray(cpus=64.0)
    assert len(lead(ray, workers=1)[0]) == 10
    assert len(ray.asked) == 1


def test_a_lost_worker_costs_a_try_of_its_cell(lead):
    def measure(cell, tries):
        if cell == LOSS and tries < 3:
            raise Lost("The actor died unexpectedly.\n\tclass_name: Worker\nThe process was killed.")

    ray = Ray()
    ended, tries, _ = lead(ray, measure, retries=2)
    assert (failed(ended), waiting(ended)) == ({}, [])
    assert tries[LOSS] == 3
    assert sum(tries.values()) == 12


def test_a_cell_that_loses_every_worker_is_recorded_and_the_rest_goes_on(lead):
    def measure(cell, tries):
        if cell == LOSS:
            raise Lost("The actor died unexpectedly.\n\tclass_name: Worker\nThe process was killed.")

    ended, tries, _ = lead(Ray(), measure, retries=1)
    reason = "given up after 2 tries; worker lost: The actor died unexpectedly. The process was killed."
    assert failed(ended) == {LOSS: reason}
    assert (len(ended), waiting(ended), tries[LOSS]) == (10, [], 2)


def test_an_error_in_a_worker_is_recorded_by_its_own_words(lead):
    def measure(cell, tries):
        if cell == LOSS:
            error = Lost("a long\ntraceback")
            error.cause = KeyError("absent")
            raise error

    ended, _, _ = lead(Ray(), measure, retries=0)
    assert failed(ended) == {LOSS: "given up after 1 tries; KeyError: 'absent'"}


@pytest.mark.parametrize(("cell", "others"), [(TRAINING, 9), (BASELINE, 7)])
def test_what_needs_a_failed_cell_waits_and_no_other(lead, cell, others):
    measured = {"error": "`loss` must stay finite; got nan at step 5.", "seconds": 0.1}
    ended, tries, _ = lead(Ray(), lambda found, _: measured if found == cell else None)
    assert failed(ended) == {cell: measured["error"]}
    assert len(waiting(ended)) == others
    assert len(ended) == 10
    # A training that diverges does so again.
    assert tries[cell] == 1


def test_machines_on_which_no_worker_can_start_are_given_up(lead):
    def prepare():
        error = Lost()
        error.cause = RuntimeError("`output` must be on storage that every machine shares")
        raise error

    ray = Ray()
    with pytest.raises(ExecutorError, match="no worker of the cluster can start: RuntimeError: `output` must be on"):
        lead(ray, prepare=prepare, retries=2)
    assert 3 <= len(ray.asked) <= 6


def test_a_machine_on_which_workers_cannot_start_leaves_the_others(lead):
    broken = [True, True, True]

    def prepare():
        if broken:
            broken.pop()
            raise Lost("no module named rope_jax")

    ended, _, _ = lead(Ray(), prepare=prepare, retries=2)
    assert (len(ended), failed(ended)) == (10, {})


def test_a_worker_that_fits_no_node_is_refused_in_time(lead):
    with pytest.raises(ExecutorError, match="must fit a node of the cluster; got 3 and 0 for 2 CPUs and 0 GPUs"):
        lead(Ray(), cpus=3, wait=0.05)


def test_a_sweep_waits_for_a_cluster_that_others_take_up_and_says_so_once(lead, monkeypatch):
    said = []
    monkeypatch.setattr(Reporter, "note", lambda self, line: said.append(line))
    assert len(lead(Ray(busy=40), wait=0.05)[0]) == 10
    (line,) = said
    assert line.startswith("no worker has started within 0.05 s: others take up the cluster")


def test_a_cluster_whose_nodes_vanish_is_given_up_in_time(lead):
    class Vanishing(Ray):
        def nodes(self):
            return [] if self.asked else super().nodes()

    ray = Vanishing(busy=10**6)
    with pytest.raises(ExecutorError, match="must fit a node of the cluster; got 1 and 0 for no node"):
        lead(ray, wait=0.05)
    assert len(ray.killed) == len(ray.asked) == 1
