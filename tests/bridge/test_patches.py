"""Table of patches: every row applies, is installed while in use, and is removed afterwards."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import jax
import pytest
from jax._src import pjit

from pallas_debug.bridge import patches
from pallas_debug.bridge.instrument import checkify_rule

ROWS = [patch for patch in patches.TABLE if patch.is_needed]


@pytest.fixture(scope="module", autouse=True)
def compile_quickly() -> None:
    """Leave jax's settings as they are, since a patch changes the one on optimisation."""


@pytest.fixture
def without_checkify() -> Iterator[None]:
    """Undo the patches of `pallas_debug.checkify`, which another test may have imported."""
    was_installed = checkify_rule._installed.is_set()
    checkify_rule.uninstall()
    yield
    if was_installed:
        checkify_rule.install()


@pytest.mark.usefixtures("without_checkify")
@pytest.mark.parametrize("patch", ROWS, ids=str)
def test_a_row_is_in_place_for_its_users_and_restored_after_the_last(patch: patches.Patch) -> None:
    if patch.area == patches.NO_TPU:
        pytest.skip("never undone")
    assert patch.problem() is None
    assert patch.why
    before = patch.own()
    with patches.installed(patch.area):
        during = patch.own()
        assert during is not before
        assert patch.problem() is None  # ours looks like jax's own
        with patches.installed(patch.area):
            assert patch.own() is during
        assert patch.own() is during
    assert patch.own() is before


def test_an_area_without_users_has_nothing_to_restore() -> None:
    before = pjit._get_fastpath_data
    patches.uninstall(patches.RUNS)
    assert pjit._get_fastpath_data is before
    with patches.installed(patches.RUNS):
        assert pjit._get_fastpath_data is not before


def test_what_somebody_else_put_on_top_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    before = pjit._get_fastpath_data
    seen: list[str] = []
    with patches.installed(patches.RUNS):
        ours = pjit._get_fastpath_data

        def theirs(*args: Any, **kwargs: Any) -> Any:
            seen.append("theirs")
            return ours(*args, **kwargs)

        monkeypatch.setattr(pjit, "_get_fastpath_data", theirs)
    assert pjit._get_fastpath_data is theirs
    with patches.installed(patches.RUNS):
        assert pjit._get_fastpath_data is theirs  # ours is below it already
    jax.jit(lambda x: x + 1)(1)
    assert seen
    monkeypatch.undo()
    assert pjit._get_fastpath_data is ours
    with patches.installed(patches.RUNS):
        assert pjit._get_fastpath_data is ours
    assert pjit._get_fastpath_data is before


def test_a_row_that_cannot_be_installed_leaves_none_of_its_area(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = pjit._pjit_call_impl_python
    monkeypatch.delattr("pallas_debug.bridge.lowering.hook.refusing")
    with pytest.raises(AttributeError), patches.installed(patches.RUNS):
        pass
    assert pjit._pjit_call_impl_python is before
    monkeypatch.undo()
    with patches.installed(patches.RUNS):
        assert pjit._pjit_call_impl_python is not before
    assert pjit._pjit_call_impl_python is before


def test_threads_share_what_is_installed() -> None:
    before = pjit._get_fastpath_data
    inside, leave = threading.Event(), threading.Event()

    def user() -> None:
        with patches.installed(patches.RUNS):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=user)
    with patches.installed(patches.RUNS):
        thread.start()
        assert inside.wait(60)
        ours = pjit._get_fastpath_data
    assert pjit._get_fastpath_data is ours
    leave.set()
    thread.join()
    assert pjit._get_fastpath_data is before
