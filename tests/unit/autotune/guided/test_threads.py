"""The search takes one core for its algebra, and gives the others back."""

from __future__ import annotations

from typing import Any

from threadpoolctl import threadpool_info, threadpool_limits

from autotune.free_space import FreeSpace
from autotune.guided.searcher import GuidedSearcher
from autotune.guided.threads import one_thread
from autotune.study import Study


def blas_threads() -> set[int]:
    return {each["num_threads"] for each in threadpool_info() if each["user_api"] == "blas"}


def test_within_it_algebra_has_one_thread() -> None:
    with threadpool_limits(2, user_api="blas"):
        with one_thread():
            assert blas_threads() == {1}
        assert blas_threads() == {2}


def test_a_searcher_thinks_on_one_thread() -> None:
    seen: list[set[int]] = []

    def setting(values: Any) -> None:  # asked for while the searcher makes up its mind
        seen.append(blas_threads())

    with threadpool_limits(2, user_api="blas"):
        space = FreeSpace({"size": (1, 2, 4)}, setting=setting)
        Study(space, GuidedSearcher(), lambda request: float(request.values["size"])).step()
        assert blas_threads() == {2}
    assert seen
    assert all(each == {1} for each in seen)
