"""The double binary tree: two trees of least height whose inner nodes are different ranks."""

from __future__ import annotations

import pytest

from fusionctl.plan.double_tree import depth_of, parents


@pytest.mark.parametrize("size", range(2, 65))
def test_no_rank_is_an_inner_node_of_both_trees(size: int) -> None:
    first, second = parents(size), parents(size, second=True)
    assert set(first.values()).isdisjoint(second.values())
    for tree in (first, second):
        inner = list(tree.values())
        assert len(tree) == size - 1
        assert max(map(inner.count, inner)) <= 2
        assert max(depth_of(tree, rank) for rank in range(size)) == size.bit_length() - 1


def test_the_second_tree_is_the_mirror_image_or_shifted_by_one() -> None:
    assert parents(6) == {0: 1, 1: 3, 2: 1, 4: 5, 5: 3}
    assert parents(6, second=True) == {5: 4, 4: 2, 3: 4, 1: 0, 0: 2}
    assert parents(5) == {0: 1, 1: 3, 2: 1, 4: 3}
    assert parents(5, second=True) == {1: 2, 2: 4, 3: 2, 0: 4}
