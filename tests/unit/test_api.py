"""The public functions: small, typed, documented, and the same as the commands."""

import ast
import inspect
import json
import re
import shlex
import subprocess
import sys

import pytest
from api_examples import MEASURING, PAGE, assert_prints_what_the_page_says
from conftest import ROOT
from reference_pages import api
from typer.testing import CliRunner

import joulecast
from joulecast import JoulecastError
from joulecast.app.cli.main import app

FUNCTIONS = sorted(name for name in joulecast.__all__ if name.islower() and name[0] != "_")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("function", sorted(set(FUNCTIONS) - set(MEASURING)))
def test_the_example_of_the_page(function):
    assert_prints_what_the_page_says(function)


def test_the_page_has_an_example_of_every_function_and_no_other():
    titles = re.findall(r'^```python title="(\w+)"$', PAGE.read_text(), re.M)
    assert sorted(titles) == FUNCTIONS == sorted(api.FUNCTIONS) and len(FUNCTIONS) == 12


@pytest.mark.parametrize("function", FUNCTIONS)
def test_signatures_are_typed_and_docstrings_tell_all_of_them(function):
    # No room (a package) of the library has its name.
    told = getattr(joulecast, function)
    assert inspect.isfunction(told)
    signature = inspect.signature(told)
    assert signature.return_annotation is not inspect.Signature.empty
    described = inspect.getdoc(told) or ""
    for name, parameter in signature.parameters.items():
        assert parameter.annotation is not inspect.Parameter.empty
        # What records are is said once, of all functions.
        assert name == "records" or re.search(rf"\b{name}\b", described), name
    assert "Returns:" in described and "Raises:" in described


@pytest.mark.parametrize("room", ["partition", "simulate", "tune"])
def test_a_rooms_modules_are_imported_as_of_any_package(room):
    code = f"import joulecast.{room}.request as loaded; assert loaded.__name__.endswith('request')"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_importing_loads_nothing_that_is_not_needed():
    code = (
        "import sys, joulecast\n"
        "heavy = {'torch', 'pandas', 'numpy', 'scipy', 'typer', 'mpi4py'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
        "joulecast.simulate_step('alexnet', 'hc2', 'dp=8')\n"
        "assert not {'torch', 'mpi4py', 'typer'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_library_does_not_use_its_own_public_functions():
    public = {*joulecast.__all__}
    for file in (ROOT / "src/joulecast").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "joulecast":
                assert not public & {alias.name for alias in node.names}, file


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: joulecast.evaluate("two-core-vm", split="no"),
            "split 'no': give one of in-sample",
        ),
        (lambda: joulecast.forecast("two-core-vm", [4], scaling="no"), "scaling 'no': give one of"),
        (
            lambda: joulecast.partition_network("vgg16", 2, cost="no"),
            "cost 'no': give one of compute",
        ),
        (lambda: joulecast.tune_training(criterion="no"), "criterion 'no': give one of cost"),
        (lambda: joulecast.simulate_step("vgg16", "hc9", "dp=2"), "known: dgx-h100, "),
        (lambda: joulecast.read_records("nowhere"), "nowhere: no such folder"),
        (lambda: joulecast.evaluate("no/where"), "no/where: no such folder"),
        (
            lambda: joulecast.evaluate("mlperf-power"),
            "`joulecast import mlperf mlperf-power FOLDER`",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(call, said):
    with pytest.raises(JoulecastError) as caught:
        call()
    assert said in str(caught.value) and "\n" not in str(caught.value)


ASKED = {
    "forecast": {"records": "two-core-vm", "nodes": [4, 8], "price": 0.3, "scaling": "weak"},
    "advise": {
        "network": "vit_ti",
        "records": "two-core-vm",
        "deadline_s": "30min",
        "batch": "4,8",
    },
    "plan": {
        "network": "alexnet",
        "platform": "hc1,hc2",
        "samples": 1e5,
        "devices": "1:2",
        "precision": "fp32",
        "objective": "time",
        "price_gpu_hour": "hc1=1,hc2=2",
    },
    "simulate_step": {
        "network": "alexnet",
        "platform": "hc2",
        "strategy": "dp=8",
        "links": {"nic": 12.5e9},
        "stragglers": {3: 1.5},
        "inference": True,
    },
    "search": {"network": "alexnet", "platform": "hc1", "devices": 2, "global_batch": 32, "top": 3},
    "partition_network": {"graph": "vgg16", "devices": 3, "mode": "compat"},
}
REQUESTS = {
    "forecast": joulecast.ForecastRequest,
    "advise": joulecast.AdviceRequest,
    "plan": joulecast.PlanRequest,
    "simulate_step": joulecast.SimulateRequest,
    "search": joulecast.SearchRequest,
    "partition_network": joulecast.PartitionRequest,
}


@pytest.mark.parametrize("function", ASKED)
def test_a_request_its_command_and_the_result_ask_the_same(function):
    request = REQUESTS[function](**ASKED[function])
    result = getattr(joulecast, function)(request)
    again = getattr(joulecast, function)(**json.loads(json.dumps(result["request"])))
    name, *words = shlex.split(request.in_shell())
    said = CliRunner().invoke(app, [*words, "--json"])
    assert name == "joulecast" and said.exit_code == 0, said.output
    answers = [json.loads(json.dumps(each)) for each in (result, again, json.loads(said.stdout))]
    for each in answers:
        each.pop("planning_cpu_s", None)
    assert answers[0] == answers[1] == answers[2]


def test_prices_of_a_request_go_before_those_of_its_configuration(elsewhere):
    (elsewhere / "c.yaml").write_text(
        "campaign: c\nprices: {price: 0.2, pue: 1.5, currency: CHF}\n"
    )
    prices = joulecast.forecast("two-core-vm", 4, prices="c.yaml", pue=1.0)["prices"]
    assert (prices["price"], prices["pue"], prices["currency"]) == (0.2, 1.0, "CHF")
    command = "forecast --records two-core-vm --nodes 4 --prices c.yaml --pue 1 --json"
    said = CliRunner().invoke(app, command.split())
    assert json.loads(said.stdout)["prices"] == prices


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("forecast --records two-core-vm --nodes 4 --batch 0", "--batch '0': must be at least 1"),
        ("forecast --records two-core-vm --nodes 4,x", "--nodes '4,x': give numbers"),
        ("plan --network a --platform hc2 --samples x", "--samples 'x': "),
        ("advise --network a --records two-core-vm --deadline 5x", "--deadline '5x': no duration"),
        ("partition vgg16 --devices 2 --cost no", "--cost 'no': give one of compute, max, sum"),
    ],
)
def test_a_command_names_the_option_that_is_wrong_in_one_line(command, said):
    done = CliRunner().invoke(app, command.split())
    assert done.exit_code == 2 and done.output.startswith(f"error: {said}")
    assert done.output.count("\n") == 1
