"""Eight numbers at a time: vectors that compiled kernels hold in registers.

numba leaves it to the compiler to find vectors in loops, and over a handful of clusters the compiler finds few. These
operations say what is meant: eight doubles or eight 64-bit words, lane by lane. A processor with shorter vectors works
on them in parts. Every lane is rounded by itself, so that a vector has the same bits as a loop.

Vectors are read from flat, contiguous arrays at an index that must be inside: nothing is checked here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from ce.kernels.cells import LANES

#: What `small_words` can round: beyond it the sum of its trick has a rounding of its own.
LARGEST_SMALL = 2.0**51

_MAGIC = 1.5 * 2.0**52  # to add it rounds to a whole number, in the lowest bits of the sum
_MAGIC_BITS = 0x4338000000000000

#: Of whose types mypy has its own idea.
_operation: Callable[..., Any] = intrinsic
_get_function: Any = cgutils.get_or_insert_function

_INT32, _INT64 = ir.IntType(32), ir.IntType(64)
_REALS = ir.VectorType(ir.DoubleType(), LANES)
_WORDS = ir.VectorType(_INT64, LANES)
_CODES = ir.VectorType(_INT32, LANES)


class _Lanes(types.Type):
    """numba's type of a vector."""


Reals = _Lanes("ce_lanes_of_reals")
Words = _Lanes("ce_lanes_of_words")


@register_model(_Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, of: _Lanes) -> None:
        super().__init__(manager, of, _vector(of))  # type: ignore[no-untyped-call]


def _vector(of: _Lanes) -> ir.VectorType:
    return _REALS if of == Reals else _WORDS


def _place(context: Any, builder: Any, of: Any, array: Any, index: Any, vector: ir.VectorType) -> Any:
    begin = builder.gep(context.make_array(of)(context, builder, array).data, [index])
    return builder.bitcast(begin, vector.as_pointer())


def _same(builder: Any, number: Any, vector: ir.VectorType) -> Any:
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, number, ir.Constant(_INT32, 0))
    return builder.shuffle_vector(first, nothing, ir.Constant(_CODES, [0] * LANES))


@_operation
def load(_: Any, array: Any, index: Any) -> Any:
    """The eight numbers of a flat array from `index` on."""
    of = Reals if array.dtype == types.float64 else Words

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_place(context, builder, signature.args[0], args[0], args[1], _vector(of)), align=8)

    return of(array, types.intp), generate


@_operation
def store(_: Any, array: Any, index: Any, lanes: Any) -> Any:
    """Write eight numbers into a flat array from `index` on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        begin = _place(context, builder, signature.args[0], args[0], args[1], _vector(lanes))
        builder.store(args[2], begin, align=8)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


@_operation
def all_same(_: Any, number: Any) -> Any:
    """Eight times the same number."""
    of = Reals if number == types.float64 else Words

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _same(builder, args[0], _vector(of))

    return of(number), generate


def _lane_by_lane(of_reals: str, of_words: str) -> Callable[[Any, Any, Any], Any]:
    """An operation of two vectors, by the name of the instruction for each kind."""

    def typed(_: Any, left: Any, right: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return getattr(builder, of_reals if left == Reals else of_words)(*args)

        return left(left, right), generate

    return typed


add = _operation(_lane_by_lane("fadd", "add"))
times = _operation(_lane_by_lane("fmul", "mul"))
over = _operation(_lane_by_lane("fdiv", "sdiv"))


@_operation
def small_words(_: Any, reals: Any) -> Any:
    """The nearest whole numbers, of two equally near the even one, for 0 to `LARGEST_SMALL`: few instructions
    everywhere, where `any_words` needs new processors to be fast."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        shifted = builder.fadd(args[0], ir.Constant(_REALS, [_MAGIC] * LANES))
        return builder.sub(builder.bitcast(shifted, _WORDS), ir.Constant(_WORDS, [_MAGIC_BITS] * LANES))

    return Words(reals), generate


@_operation
def any_words(_: Any, reals: Any) -> Any:
    """The same for every number whose nearest whole number fits in a word."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = ir.FunctionType(_REALS, [_REALS])
        rint = _get_function(builder.module, kind, f"llvm.rint.v{LANES}f64")
        return builder.fptosi(builder.call(rint, args), _WORDS)

    return Words(reals), generate


@_operation
def add_lanes_in_order(_: Any, begin: Any, a: Any, b: Any, c: Any, d: Any, e: Any, f: Any, g: Any, h: Any) -> Any:
    """Lane i of the result: begin's lane i, and then the lanes of the i-th of eight vectors, one after the other."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        total, *rows = args
        for column in _transposed(builder, rows):
            total = builder.fadd(total, column)
        return total

    return begin(begin, a, b, c, d, e, f, g, h), generate


def _transposed(builder: Any, rows: list[Any]) -> list[Any]:
    """Rows become columns in three rounds, which exchange squares of side 1, 2 and 4."""
    for side in (1, 2, 4):
        new = list(rows)
        for i in range(LANES):
            if not i & side:
                low = [lane if not lane & side else lane - side + LANES for lane in range(LANES)]
                high = [lane + side if not lane & side else lane + LANES for lane in range(LANES)]
                new[i] = builder.shuffle_vector(rows[i], rows[i + side], ir.Constant(_CODES, low))
                new[i + side] = builder.shuffle_vector(rows[i], rows[i + side], ir.Constant(_CODES, high))
        rows = new
    return rows


@_operation
def one_where_equal(_: Any, reals: Any, codes: Any, index: Any, code: Any) -> Any:
    """1 in the lanes whose entry of codes (flat, int32), from `index` on, is `code`; the others as they are."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        lanes = builder.load(_place(context, builder, signature.args[1], args[1], args[2], _CODES), align=4)
        equal = builder.icmp_signed("==", lanes, _same(builder, builder.trunc(args[3], _INT32), _CODES))
        return builder.select(equal, ir.Constant(_REALS, [1.0] * LANES), args[0])

    return reals(reals, codes, types.intp, types.intp), generate
