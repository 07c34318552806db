"""Random trees of mechanisms, for every law over them."""

from hypothesis import settings
from hypothesis import strategies as st

from apiece.mechanisms import Composed, Gaussian, Laplace, Mechanism, Repeated, Sampled

noise = st.floats(0.1, 100.0)
leaves = st.one_of(st.builds(Gaussian, noise), st.builds(Laplace, noise))


def _grow(inner: st.SearchStrategy[Mechanism]) -> st.SearchStrategy[Mechanism]:
    uncoined = inner.filter(lambda m: not isinstance(m, Sampled))
    return st.one_of(
        st.builds(Sampled, uncoined, st.floats(0.0, 1.0)),
        st.builds(Repeated, inner, st.integers(1, 1000)),
        st.lists(inner, max_size=3).map(lambda ms: Composed(*ms)),
    )


mechanisms = st.recursive(leaves, _grow, max_leaves=6)
laws = settings(max_examples=60, derandomize=True, deadline=None)
