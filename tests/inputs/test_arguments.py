"""Arguments as texts, files and functions: every form, and what each mistake is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_debug import defaults, inputs
from pallas_debug.errors import UsageError
from pallas_debug.inputs.grammar import FORMS


def one(text: str, *, values: bool = True) -> Any:
    (value,), named = inputs.parse([text], values=values)
    assert not named
    return value


@pytest.mark.parametrize(
    "text, dtype, values",
    [
        ("i32[2]=[512,100]", "int32", [512, 100]),
        ("i32[2] = [ -1 , 0x10 ]", "int32", [-1, 16]),
        ("i32[]=5", "int32", 5),
        ("i32[...]=[[1,2],[3,4]]", "int32", [[1, 2], [3, 4]]),
        ("u32[2]=4294967295", "uint32", [4294967295] * 2),
        ("u8[2]=1e2", "uint8", [100, 100]),
        ("f32[3]=[1,.5,-1e-3]", "float32", np.float32([1, 0.5, -1e-3])),
        ("f32[2]=[-inf,nan]", "float32", [-np.inf, np.nan]),
        ("bf16[2]=[1,2.5]", "bfloat16", [1, 2.5]),
        ("f8e4m3fn[2]=[448,-3.3]", "float8_e4m3fn", [448, -3.25]),
        ("float8_e5m2[1]=inf", "float8_e5m2", [np.inf]),
        ("i4[3]=[-8,7,0]", "int4", [-8, 7, 0]),
        ("u4[1]=15", "uint4", [15]),
        ("c64[2]=[1,2j]", "complex64", [1, 2j]),
        ("bool[2]=[True,false]", "bool", [True, False]),
        ("pred[2]=[0,1]", "bool", [False, True]),
        ("f32[2,2]=ones", "float32", np.ones((2, 2))),
        ("i32[2]=zeros", "int32", [0, 0]),
        ("f32[2,2]=arange", "float32", [[0, 1], [2, 3]]),
        ("f32[3]=arange(1,0.5)", "float32", [1, 1.5, 2]),
        ("i32[3]=arange(-1)", "int32", [-1, 0, 1]),
    ],
)
def test_an_array_has_the_values_that_are_written(text: str, dtype: str, values: Any) -> None:
    array = one(text)
    assert isinstance(array, jax.Array)
    assert str(array.dtype) == dtype
    np.testing.assert_array_equal(np.asarray(array, np.asarray(values).dtype), values)


@pytest.mark.slow
def test_random_values_are_the_same_each_time_and_not_in_each_argument() -> None:
    texts = ["f32[64]=normal(10,2)", "f32[64]=uniform(-1,1)", "i8[64]=randint(5,100)"]
    texts += ["i32[64]=permutation", "f32[64]=normal", "f32[64]=normal", "i32[64]=randint(3)"]
    (normal, uniform, whole, order, first, second, small), _ = inputs.parse(texts)
    assert 8 < float(normal.mean()) < 12
    assert -1 <= float(uniform.min()) < 0 < float(uniform.max()) < 1
    assert int(whole.min()) >= 5
    assert int(whole.max()) < 100
    assert sorted(order.tolist()) == list(range(64))
    assert set(small.tolist()) == {0, 1, 2}
    assert not np.array_equal(first, second)
    again, _ = inputs.parse(texts)
    np.testing.assert_array_equal(first, again[4])


def test_names_containers_and_python_values() -> None:
    args, kwargs = inputs.parse(
        [
            "{'w': f32[2]=ones, 'b': (bf16[2], None, [i32[1]=[7]], -1, 'a,b')}",
            "axis=-1",
            "act='relu'",
            "eps=1e-6",
            "mask = None",
            "causal=true",
            "dtype=bf16",
            "sizes=(1, 2)",
            "key=key(3)",
            "old=PRNGKey(3)",
        ]
    )
    (tree,) = args
    shape, nothing, (seven,), minus, text = tree["b"]
    assert shape == jax.ShapeDtypeStruct((2,), jnp.bfloat16)
    assert (nothing, int(seven[0]), minus, text) == (None, 7, -1, "a,b")
    assert tree["w"].tolist() == [1, 1]
    assert jnp.issubdtype(kwargs["key"].dtype, jax.dtypes.prng_key)
    assert kwargs["old"].tolist() == [0, 3]
    assert kwargs["dtype"] == jnp.bfloat16
    known = {"axis": -1, "act": "relu", "eps": 1e-6, "mask": None, "causal": True, "sizes": (1, 2)}
    assert {name: kwargs[name] for name in known} == known


def test_without_values_there_are_only_shapes_and_tables() -> None:
    for text in ("f32[8]", "f32[8]=ones", f"f32[{10**6},{10**6}]=normal", f"i32[{10**9}]=ones"):
        assert isinstance(one(text, values=False), jax.ShapeDtypeStruct)
    assert isinstance(one("f32[...]=[1,2]", values=False), jax.ShapeDtypeStruct)
    assert one("i32[...]=[1,2]", values=False).tolist() == [1, 2]
    assert one("i32[3]=7", values=False).tolist() == [7, 7, 7]
    assert one("key(0)", values=False).shape == ()


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("lengths.npy", np.array([512, 100]))
    np.save("a b,c.npy", np.ones((2, 4), ml_dtypes.bfloat16))
    args, kwargs = inputs.parse(
        [
            *("lengths=@lengths.npy", "bf16[2,4]=@a b,c.npy"),
            "(bf16[...]=@'a b,c.npy', f32[2]=@lengths.npy)",
        ]
    )
    assert kwargs["lengths"].tolist() == [512, 100]
    assert kwargs["lengths"].dtype == jnp.int32  # as in jax without x64
    assert str(args[0].dtype) == "bfloat16"
    assert [a.shape for a in args[-1]] == [(2, 4), (2,)]
    assert args[-1][1].tolist() == [512.0, 100.0]
    assert one("@lengths.npy", values=False).tolist() == [512, 100]
    np.save("big.npy", np.array([1, 5_000_000_000]))
    np.save("objects.npy", np.array([{}], dtype=object))
    np.save("texts.npy", np.array(["a"]))
    Path("cut.npy").write_bytes(Path("lengths.npy").read_bytes()[:20])
    for text, message in {
        "@gone.npy": "@gone.npy cannot be read: No such file or directory",
        "@x.npz": "@x.npz: only .npy files are read, as numpy.save writes them. For others, pass "
        "--inputs package.module:function, which returns the arguments",
        "@objects.npy": "@objects.npy is not an array of numbers: Object arrays cannot be loaded",
        "@cut.npy": "@cut.npy is not an array of numbers: ",
        "@texts.npy": "--arg '@texts.npy' holds <U1, not numbers",
        "@big.npy": "the value 5000000000 at [1] does not fit int32",
        "@a b,c.npy": "holds values of 2 bytes without a dtype, as numpy writes bfloat16 and the "
        "like: name it, as in bf16[2,4]=@a b,c.npy",
        "f32[2,4]=@a b,c.npy": "the file holds values of 2 bytes, but float32 has 4",
        "i32[3]=@lengths.npy": "the file has shape [2], not [3]",
    }.items():
        with pytest.raises(UsageError) as error:
            one(text)
        assert message in str(error.value)


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("act=relu", "column 5: 'relu' is not a value; a string needs quotes inside those of the "
                     "shell, as in --arg \"act='relu'\""),
        ("ones", "'ones' needs a dtype and sizes before it, as in f32[8,128]=ones"),
        ("", "column 1: invalid syntax"),
        ("f23[2]", "column 1: unknown dtype 'f23' (did you mean 'f32'?); write it as jax does, "
         "such as bf16, f32, i32 or float8_e4m3fn"),
        ("float[2]", "column 1: unknown dtype 'float' (did you mean 'f32'?); write it"),
        ("x=f32(2)", "column 3: sizes are written in brackets, as in f32[8,128]"),
        ("f32[2", "column 4: '[' was never closed"),
        ("f32[-1]", "'-1' is not a size: sizes are integers separated by commas"),
        ("f32[...]=ones", "an array of sizes `...` takes them from a list or a file"),
        ("f32[...]", "an array of sizes `...` takes them from a list or a file"),
        ("f32[2]=[1,,2]", "column 11: invalid syntax"),
        ("f32[2]=[1,2", "column 8: '[' was never closed"),
        ("f32[2]=[1 2]", "column 9: invalid syntax. Perhaps you forgot a comma?"),
        ("f32[2]=", "column 8: invalid syntax"),
        ("f32[2]=@", "expected a file after '@', such as @lengths.npy"),
        ("f32[2]=onse", "'onse' is not a fill (did you mean 'ones'?); there are zeros, ones, "),
        ("f32[2]=ones(1)", "ones is written ones"),
        ("i32[2]=randint", "randint is written randint(high), randint(low, high)"),
        ("f32[2]=ones x", "column 13: invalid syntax"),
        ("{'a' f32[2]}", "column 2: invalid syntax. Perhaps you forgot a comma?"),
        ("{a: f32[2]}", "column 2: expected a key such as 'weights'"),
        ("(f32[2] f32[2])", "column 2: invalid syntax. Perhaps you forgot a comma?"),
        ("f32[2], f32[2]", "pass --arg once per argument, or put a tuple in parentheses"),
        ("key(f32[2])", "expected a number, found 'f32[2]'"),
        ("key(1, 2)", "key is written key(0)"),
        ("i32[1]=[007]", "leading zeros in decimal integer literals"),
        ("f32[2]=[1,2,3]", "--arg 'f32[2]=[1,2,3]': the values have shape [3], not [2]"),
        ("f32[2,2]=[[1,2],[3]]", "the inner lists have different lengths"),
        ("i32[2]=[1.5,2]", "the value 1.5 at [0] is not an integer, as int32 requires"),
        ("i32[1]=nan", "the value nan at [0] is not an integer"),
        ("i8[300]=arange", "the value 128 at [128] does not fit int8, which holds -128 to 127"),
        ("u4[2]=[1,-1]", "the value -1 at [1] does not fit uint4, which holds 0 to 15"),
        (f"i32[1]=[{10**30}]", "does not fit int32, which holds -2147483648 to 2147483647"),
        ("f8e4m3fn[1]=[1000]", "the value 1000 at [0] does not fit float8_e4m3fn, which holds up to 448"),
        ("f4e2m1fn[1]=7", "does not fit float4_e2m1fn, which holds up to 6"),
        ("f8e4m3fn[1]=inf", "the value inf at [0] is not a value of float8_e4m3fn"),
        ("bool[1]=[2]", "the value 2 at [0] is not a bool: write True or False"),
        ("f32[1]=1j", "complex numbers do not fit float32"),
        ("i32[3]=normal", "normal produces floats; for int32, use randint(low, high)"),
        ("i32[3]=randint(5,5)", "randint takes two integers, the smaller one first"),
        ("f32[100000,100000]=ones", "takes 37.3 GiB, but an array with values may take at most 4 "
                                    "GiB: pass a smaller shape; `dump` needs no values"),
        ("[" * 5000, "too many nested parentheses"),
        ("i32[1]=" + "[" * 5000, "too many nested parentheses"),
    ],
)  # fmt: skip
def test_a_mistake_is_said_with_its_place(text: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        one(text)
    message = str(error.value)
    assert sentence in message
    assert len(message) < 700
    if "column" in message:
        assert message.endswith(FORMS)


def test_a_name_is_given_once() -> None:
    with pytest.raises(UsageError, match="'x=2': x was given before"):
        inputs.parse(["x=1", "x=2"])


def test_what_a_function_returns() -> None:
    x = np.ones(2)
    for returned, args, kwargs in [
        (((x,), {"k": 1}), [x], {"k": 1}),
        ((x, 3), [x, 3], {}),
        ([x], [x], {}),
        ({"x": x}, [], {"x": x}),
        (((x, 1), x), [(x, 1), x], {}),
    ]:
        assert inputs.from_function(lambda r=returned: r, "f") == (args, kwargs)
    with pytest.raises(UsageError) as error:
        inputs.from_function(lambda: x, "--inputs m:f")
    assert str(error.value) == (
        "--inputs m:f returned an array of shape (2,): it must return (args, kwargs), a tuple of "
        "positional arguments and a dict of keyword arguments, or one of the two"
    )
    with pytest.raises(UsageError, match="returned NoneType"):
        inputs.from_function(lambda: None, "f")


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "x.npy", np.zeros(100))
    monkeypatch.setattr(defaults, "MAX_INPUT_BYTES", 100)
    with pytest.raises(UsageError, match="has 928 bytes; at most 100 are read"):
        one(f"@{tmp_path / 'x.npy'}")
