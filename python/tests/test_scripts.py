"""Scripts as people write them give by Unisono what they give by eager PyTorch, on one rank and on two."""

from __future__ import annotations

import json

import launch
import pytest
import user_scripts

#: Scripts that one pair of processes runs.
TOGETHER = 4


@pytest.fixture(scope="module", autouse=True)
def _own_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="module")
def on_two_ranks(tmp_path_factory):
    """What differs on each rank, by script and family; scripts run a few at a time."""
    folder, found = tmp_path_factory.mktemp("scripts"), {}

    def differences(name: str, family: str) -> list[list[str]]:
        if name not in found:
            first = list(user_scripts.SCRIPTS).index(name) // TOGETHER * TOGETHER
            names = list(user_scripts.SCRIPTS)[first : first + TOGETHER]
            ended = launch.run("user_scripts:compare_all", 2, folder, 280, names=names)
            told = [one.err[-3000:] for one in ended if one.status != 0]
            found.update(dict.fromkeys(names, told))
            if not told:
                ranks = [json.loads((folder / f"scripts{rank}.json").read_text()) for rank in range(2)]
                found.update(
                    {one: [{f: rank[f"{one}, {f}"] for f in user_scripts.FAMILIES} for rank in ranks] for one in names}
                )
        return [one if isinstance(one, str) else one[family] for one in found[name]]

    return differences


@pytest.mark.parametrize("name", user_scripts.SCRIPTS)
def test_one_rank_gives_what_eager_gives(name):
    found, expected = user_scripts.run(name, user_scripts.parallelized()), user_scripts.run(name, user_scripts.Eager)
    assert not list(user_scripts.differences(found, expected))


@pytest.mark.parametrize("family", user_scripts.FAMILIES)
@pytest.mark.parametrize("name", user_scripts.SCRIPTS)
def test_two_ranks_give_what_eager_gives(on_two_ranks, name, family):
    for different in on_two_ranks(name, family):
        assert not different, "\n".join(different)
