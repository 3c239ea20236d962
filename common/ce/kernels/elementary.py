"""Logarithm, exponential, gamma functions and Wright's omega, of + - x / and integer operations only.

These operations give the same bits on every processor and in every library, so that a function made of them does too.
Each function is written once. It works on arrays as it is, and `ce.kernels.compiled` compiles the same lines for single
numbers: compiled or not, a result has the same bits. Arguments are `numpy.float64` arrays or scalars.
"""

from __future__ import annotations

from typing import Any

import numpy as np

#: Below it numbers lose bits one by one; `log` expects at least this.
SMALLEST_NORMAL = 2.0**-1022

_FRACTION_BITS = 52
_BIAS = 1023
# ln 2 in two parts. The first has 32 bits, so that its product with any exponent is exact.
_LN2_HIGH = 0.6931471803691238
_LN2_LOW = 1.9082149292705877e-10
_LOG2_E = 1.4426950408889634
_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
# To add it rounds a number to the nearest whole one, which then stands in the lowest bits.
_ROUND = 6755399441055744.0  # 1.5 * 2^52
_ROUND_BITS = 0x4338000000000000
_LEAST_EXPONENT = -746.0  # exp() of less is zero
_FAR_BELOW = -8.0
_OMEGA_FAR_BELOW = 0.00033535  # about Wright's omega of it

_HALF_LN_2PI = 0.9189385332046727


def bits_of(x: Any) -> Any:
    """The 64 bits of a double, as an integer."""
    return x.view(np.int64)


def number_of(bits: Any) -> Any:
    """The double of these bits."""
    return bits.view(np.float64)


def chosen(condition: Any, one: Any, other: Any) -> Any:
    """One number where the condition holds, else the other; both have been computed."""
    return np.where(condition, one, other)


def log(x: Any) -> Any:
    """ln x for normal x > 0, to about one unit in the last place.

    x = m 2^e with m in [sqrt(1/2), sqrt(2)), and ln m = 2 artanh s = 2 (s + s³/3 + s⁵/5 + ...) with s = (m-1)/(m+1).
    The series after s is the polynomial in s² that equals it at seven Chebyshev points: the error is below 5e-18 s.
    """
    bits = bits_of(x)
    exponent = (bits - _SQRT_HALF_BITS) >> _FRACTION_BITS
    m = number_of(bits - (exponent << _FRACTION_BITS))
    e = exponent * 1.0
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    series = z * 0.07308224842521703 + 0.07665860800278021
    series = series * z + 0.09091444562630861
    series = series * z + 0.1111110556739754
    series = series * z + 0.14285714312987742
    series = series * z + 0.19999999999949752
    series = series * z + 0.3333333333333335
    twice = s + s
    return e * _LN2_HIGH + (twice + (twice * z * series + e * _LN2_LOW))


def exp(x: Any) -> Any:
    """e^x for x up to 709, to about one unit in the last place; zero for x below -746.

    x = n ln 2 + r with |r| <= ln(2)/2, and e^r by its Taylor series.
    """
    x = np.maximum(x, _LEAST_EXPONENT)
    rounded = x * _LOG2_E + _ROUND
    n = bits_of(rounded) - _ROUND_BITS
    whole = rounded - _ROUND
    r = (x - whole * _LN2_HIGH) - whole * _LN2_LOW
    series = r * (1.0 / 6227020800.0) + 1.0 / 479001600.0
    series = series * r + 1.0 / 39916800.0
    series = series * r + 1.0 / 3628800.0
    series = series * r + 1.0 / 362880.0
    series = series * r + 1.0 / 40320.0
    series = series * r + 1.0 / 5040.0
    series = series * r + 1.0 / 720.0
    series = series * r + 1.0 / 120.0
    series = series * r + 1.0 / 24.0
    series = series * r + 1.0 / 6.0
    series = series * r + 0.5
    power = series * (r * r) + r + 1.0
    # In two factors, because 2^n alone would not be a normal number where e^x is very small.
    half = n >> 1
    return power * _power_of_two(half) * _power_of_two(n - half)


def _power_of_two(n: Any) -> Any:
    return number_of((n + _BIAS) << _FRACTION_BITS)


def wright_omega(z: Any) -> Any:
    """The w that solves w + ln w = z, for z up to 1e100; 0 for z = -infinity.

    Below -8 it is a Padé approximant in e^z. Above, the same or z - 2 (z-1)/(z+1), within 20 percent, is the start of
    two steps of Fritsch, Shafer and Crowley, each of which raises the error to its fourth power.
    """
    t = exp(np.minimum(z, 1.0))
    low = t * (1.0 + t * (4.0 / 3.0)) / (1.0 + t * (7.0 / 3.0 + t * (5.0 / 6.0)))
    above = np.maximum(z, 1.0)
    w = chosen(z < 1.0, np.maximum(low, _OMEGA_FAR_BELOW), above - 2.0 * (above - 1.0) / (above + 1.0))
    bounded = np.maximum(z, _FAR_BELOW)
    w = w * _towards_omega(bounded, w)
    w = w * _towards_omega(bounded, w)
    return chosen(z < _FAR_BELOW, low, w)


def _towards_omega(z: Any, w: Any) -> Any:
    residual = z - w - log(w)
    next_ = w + 1.0
    bend = next_ * (next_ + residual * (2.0 / 3.0))
    return 1.0 + residual * (bend - 0.5 * residual) / (next_ * (bend - residual))


# The gamma functions are computed at y = x + 10, where their asymptotic series (Bernoulli numbers) converge to the last
# bit. The way back to x is a sum of reciprocals 1/(x + i), i = 0..9, formed as one fraction: it needs one division.


def digamma(x: Any) -> Any:
    """psi(x) for 0 < x < 1e30. 1/x, which is most of it for small x, is subtracted by itself."""
    following = x + 2.0
    top, product = (x + 1.0) + following, (x + 1.0) * following
    following = x + 3.0
    top, product = top * following + product, product * following
    following = x + 4.0
    top, product = top * following + product, product * following
    following = x + 5.0
    top, product = top * following + product, product * following
    following = x + 6.0
    top, product = top * following + product, product * following
    following = x + 7.0
    top, product = top * following + product, product * following
    following = x + 8.0
    top, product = top * following + product, product * following
    following = x + 9.0
    top, product = top * following + product, product * following
    y = x + 10.0
    inverse = 1.0 / y
    z = inverse * inverse
    series = z * (1.0 / 12.0) - 691.0 / 32760.0
    series = series * z + 1.0 / 132.0
    series = series * z - 1.0 / 240.0
    series = series * z + 1.0 / 252.0
    series = series * z - 1.0 / 120.0
    series = series * z + 1.0 / 12.0
    return log(y) - 0.5 * inverse - z * series - top / product - 1.0 / x


def log_gamma(x: Any) -> Any:
    """ln Gamma(x) for 0 < x < 1e30."""
    product = x * (x + 1.0)
    product = product * (x + 2.0)
    product = product * (x + 3.0)
    product = product * (x + 4.0)
    product = product * (x + 5.0)
    product = product * (x + 6.0)
    product = product * (x + 7.0)
    product = product * (x + 8.0)
    product = product * (x + 9.0)
    y = x + 10.0
    inverse = 1.0 / y
    z = inverse * inverse
    series = z * (1.0 / 156.0) - 691.0 / 360360.0
    series = series * z + 1.0 / 1188.0
    series = series * z - 1.0 / 1680.0
    series = series * z + 1.0 / 1260.0
    series = series * z - 1.0 / 360.0
    series = series * z + 1.0 / 12.0
    return (y - 0.5) * log(y) - y + _HALF_LN_2PI + inverse * series - log(product)


def trigamma(x: Any) -> Any:
    """psi'(x) for 0 < x < 1e15."""
    square = x * x
    following = (x + 1.0) * (x + 1.0)
    top, product = square + following, square * following
    following = (x + 2.0) * (x + 2.0)
    top, product = top * following + product, product * following
    following = (x + 3.0) * (x + 3.0)
    top, product = top * following + product, product * following
    following = (x + 4.0) * (x + 4.0)
    top, product = top * following + product, product * following
    following = (x + 5.0) * (x + 5.0)
    top, product = top * following + product, product * following
    following = (x + 6.0) * (x + 6.0)
    top, product = top * following + product, product * following
    following = (x + 7.0) * (x + 7.0)
    top, product = top * following + product, product * following
    following = (x + 8.0) * (x + 8.0)
    top, product = top * following + product, product * following
    following = (x + 9.0) * (x + 9.0)
    top, product = top * following + product, product * following
    y = x + 10.0
    inverse = 1.0 / y
    z = inverse * inverse
    series = z * (7.0 / 6.0) - 691.0 / 2730.0
    series = series * z + 5.0 / 66.0
    series = series * z - 1.0 / 30.0
    series = series * z + 1.0 / 42.0
    series = series * z - 1.0 / 30.0
    series = series * z + 1.0 / 6.0
    return inverse * (1.0 + 0.5 * inverse + series * z) + top / product
