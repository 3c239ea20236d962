"""Logarithm, exponential and gamma functions against scipy's; and number by number, whatever stands beside it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import special

from ce.kernels import elementary
from ce.kernels.elementary import SMALLEST_NORMAL

laws = settings(deadline=None, max_examples=60, derandomize=True)

POSITIVE = np.concatenate([np.geomspace(1e-3, 1e5, 40001), np.linspace(0.5, 40.0, 8001)])


def test_the_logarithm_is_right_to_two_units_in_the_last_place_over_all_normal_numbers() -> None:
    x = np.concatenate([np.geomspace(SMALLEST_NORMAL, 1.7e308, 100001), np.linspace(0.5, 2.0, 100001)])
    assert (np.abs(elementary.log(x) - np.log(x)) <= 2 * np.spacing(np.abs(np.log(x)))).all()


def test_the_exponential_is_right_to_three_units_in_the_last_place_and_zero_far_below() -> None:
    x = np.linspace(-745.0, 700.0, 200001)
    assert (np.abs(elementary.exp(x) - np.exp(x)) <= 3 * np.spacing(np.exp(x))).all()
    np.testing.assert_array_equal(elementary.exp(np.array([-746.0, -1e300, -np.inf, 0.0])), [0.0, 0.0, 0.0, 1.0])


def test_digamma_is_right_to_1e_14() -> None:
    expected = special.psi(POSITIVE)
    np.testing.assert_allclose(elementary.digamma(POSITIVE), expected, rtol=1e-14, atol=1e-14)


def test_log_gamma_is_right_to_1e_13() -> None:
    expected = special.gammaln(POSITIVE)
    np.testing.assert_allclose(elementary.log_gamma(POSITIVE), expected, rtol=1e-13, atol=1e-13)


def test_trigamma_is_right_to_1e_14() -> None:
    np.testing.assert_allclose(elementary.trigamma(POSITIVE), special.polygamma(1, POSITIVE), rtol=1e-14, atol=0.0)


def test_omega_is_right_to_1e_14_and_satisfies_its_equation() -> None:
    z = np.concatenate(
        [np.linspace(-60.0, 60.0, 60001), np.geomspace(60.0, 1e15, 5001), -np.geomspace(60.0, 700.0, 2001)]
    )
    omega = elementary.wright_omega(z)
    np.testing.assert_allclose(omega, special.wrightomega(z), rtol=1e-14, atol=0.0)
    omega, z = omega[z >= -30.0], z[z >= -30.0]
    np.testing.assert_allclose(omega + np.log(omega), z, rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(elementary.wright_omega(np.array([-np.inf, -1e300, 1.0])), [0.0, 0.0, 1.0])


@pytest.mark.parametrize("name", ["log", "exp", "digamma", "log_gamma", "trigamma", "wright_omega"])
@laws
@given(x=st.floats(1e-4, 500.0), n=st.integers(1, 40))
def test_a_number_gives_the_same_bits_alone_and_among_others(name: str, x: float, n: int) -> None:
    function = getattr(elementary, name)
    among = function(np.linspace(x, x + 1.0, n))
    assert function(np.array([x]))[0] == among[0]
