"""tessera in Python: models as data, run, measured and trained by the C++ library.

    import tessera
    model = tessera.load("model.gguf")
    for piece in model.generate("Once upon a time", max_new_tokens=40):
        print(piece, end="", flush=True)

The settings of a call are keyword arguments, by the names of docs/guide/library.md. Numbers come as
`Matrix`, which numpy and torch read without a copy (`numpy.asarray(m)`, `torch.from_numpy(...)`).
Calls release the GIL; Ctrl-C ends a call after the current token or step.
"""
from __future__ import annotations

import atexit
import ctypes
import importlib
import json
import math
import os
import queue
import sys
import threading
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Iterator, NoReturn, Sequence

from ._draw import Drawing

if TYPE_CHECKING:  # nn is imported at its first use
    import torch

    from . import nn

__all__ = ["Completion", "Drawing", "Error", "Matrix", "Model", "cmake_prefix", "draw", "load",
           "load_plugin", "plan", "set_threads", "train", "version"]

_CODES = ["ok", "usage", "spec", "file", "input", "resource", "cancelled", "internal"]
_ON_TEXT = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
_ON_STEP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_int64, ctypes.c_void_p)
_I64P = ctypes.POINTER(ctypes.c_int64)


class Error(Exception):
    """An error of the library, in one line; `code` is "usage", "spec", "file", "input", "resource", ..."""

    code: str

    def __init__(self, text: str, code: str):
        super().__init__(text)
        self.code = code

    def __reduce__(self) -> tuple[type[Error], tuple[str, str]]:  # for worker processes
        return Error, (str(self), self.code)


def _open() -> ctypes.CDLL:
    # as the command has it: one order of MKL's sums, and threads that wait without a core of their own
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    path = os.environ.get("TESSERA_LIBRARY")
    if not path:
        path = str(Path(__file__).parent / "lib" / "libtessera.so")
        if not Path(path).exists():
            path = "libtessera.so"  # of an installation
    try:
        library = ctypes.CDLL(path)
    except OSError as error:
        raise ImportError(f"{error}; the library is found by the wheel, LD_LIBRARY_PATH or "
                          "TESSERA_LIBRARY, and needs the torch that it was built with") from None
    c = ctypes
    pointer, text, i64 = c.c_void_p, c.c_char_p, c.c_int64
    for name, result, arguments in [
            ("version", text, []), ("error", text, []), ("error_code", c.c_int, []),
            ("set_threads", None, [c.c_int]), ("free", None, [pointer]),
            ("load_plugin", c.c_int, [text]), ("load", pointer, [text, text]), ("close", None, [pointer]),
            ("generate", pointer, [pointer, text, text, _ON_TEXT, pointer]),
            ("generate_ids", pointer, [pointer, _I64P, i64, text, _ON_TEXT, pointer]),
            ("chat", pointer, [pointer, text, text, _ON_TEXT, pointer]),
            ("tokenize", i64, [pointer, text, c.c_int, c.c_int, c.POINTER(_I64P)]),
            ("detokenize", pointer, [pointer, _I64P, i64]),
            ("logits", pointer, [pointer, _I64P, i64, _I64P, _I64P]),
            ("hidden_states", pointer, [pointer, _I64P, i64, _I64P, _I64P]),
            ("embed", pointer, [pointer, c.POINTER(text), i64, text, _I64P, _I64P]),
            ("spec", pointer, [pointer]), ("plan", pointer, [text, i64]), ("outline", pointer, [text]),
            ("train", pointer, [text, text, text, _ON_STEP, pointer])]:
        function = getattr(library, "tessera_" + name)
        function.restype, function.argtypes = result, arguments
    return library


_lib = _open()


def _fail() -> NoReturn:
    raise Error(_lib.tessera_error().decode(errors="replace"), _CODES[_lib.tessera_error_code()])


def _text(address: int | None) -> str:
    if not address:
        _fail()
    try:
        return ctypes.string_at(address).decode()
    finally:
        _lib.tessera_free(address)


def _settings(settings: dict[str, Any]) -> bytes:
    for key, value in settings.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise Error(f"[{key}] found {value}; expected a finite number", "usage")
    return json.dumps(settings).encode()


def _ids(ids: Sequence[int]) -> tuple[Any, int]:
    for id_ in ids:
        if not 0 <= id_ < 2**63:
            raise Error(f"[ids] token {id_}; expected 0 or more", "input")
    return (ctypes.c_int64 * len(ids))(*ids), len(ids)


def _bytes(text: str | bytes, what: str) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    if b"\0" in data:
        raise Error(f"[{what}] a zero byte in the text; expected text without one", "input")
    return data


class Matrix:
    """float32 numbers in rows; `m[r]` is a row, numpy.asarray(m) an array on the same memory."""

    shape: tuple[int, int]

    def __init__(self, address: int, rows: int, columns: int):
        self.shape = (rows, columns)
        self._address = address
        self._values = (ctypes.c_float * (rows * columns)).from_address(address)

    def __del__(self) -> None:
        _lib.tessera_free(self._address)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, row: int) -> list[float]:
        rows, columns = self.shape
        if not -rows <= row < rows:
            raise IndexError(row)
        begin = row % rows * columns
        return self._values[begin:begin + columns]

    @property
    def __array_interface__(self) -> dict[str, Any]:
        return {"shape": self.shape, "typestr": "<f4", "data": (self._address, False), "version": 3}

    def tolist(self) -> list[list[float]]:
        """Rows as lists."""
        return [self[r] for r in range(len(self))]


class _Answer:
    """What a Completion and the thread that generates it share."""

    def __init__(self) -> None:
        self.pieces: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self.stop = False
        self.result: dict[str, Any] | None = None
        self.error: Error | None = None

    def run(self, call: Callable[[Any], int | None]) -> None:
        def listen(text: int, size: int, _user: Any) -> int:
            self.pieces.put(ctypes.string_at(text, size).decode())
            return not self.stop

        try:
            self.result = json.loads(_text(call(_ON_TEXT(listen))))
        except Error as error:
            self.error = error
        finally:
            self.pieces.put(None)


class Completion:
    """A completion: iterate over its text as it is generated, or read `text`, which waits for all of it.

    `token_ids`, `prompt_tokens` and `finish_reason` are available at the end. Leaving the loop early
    ends the generation, as does deleting the object.
    """

    def __init__(self, call: Callable[[Any], int | None]):
        self._answer = _Answer()
        self._thread = threading.Thread(target=self._answer.run, args=(call,))
        _running.add(self)
        self._thread.start()

    def __del__(self) -> None:
        if hasattr(self, "_answer"):
            self._answer.stop = True

    def _next(self) -> str | None:
        while True:  # in short waits, so that Ctrl-C is seen
            ended = not self._thread.is_alive()
            try:
                return self._answer.pieces.get(timeout=0 if ended else 0.1)
            except queue.Empty:
                if ended:
                    return None

    def __iter__(self) -> Iterator[str]:
        try:
            while (piece := self._next()) is not None:
                yield piece
        finally:
            self._answer.stop = True
            self._thread.join()
        if self._answer.error:
            raise self._answer.error

    def _done(self) -> dict[str, Any]:
        try:
            while self._thread.is_alive():
                self._thread.join(timeout=0.1)
        except KeyboardInterrupt:
            self._answer.stop = True
            self._thread.join()
            raise
        if self._answer.error:
            raise self._answer.error
        assert self._answer.result is not None
        return self._answer.result

    @property
    def text(self) -> str:
        """The whole text."""
        return self._done()["text"]

    @property
    def token_ids(self) -> list[int]:
        """The generated tokens."""
        return self._done()["token_ids"]

    @property
    def prompt_tokens(self) -> int:
        """Number of tokens of the prompt."""
        return self._done()["prompt_tokens"]

    @property
    def finish_reason(self) -> str:
        """Why the generation ended: "stop", "length" or "cancelled"."""
        return self._done()["finish_reason"]

    def __str__(self) -> str:
        return self.text


_running: weakref.WeakSet[Completion] = weakref.WeakSet()


def _end_all() -> None:
    """Generation ends with the interpreter."""
    for completion in list(_running):
        completion._answer.stop = True


# before threads are waited for, which is before atexit's own functions
getattr(threading, "_register_atexit", atexit.register)(_end_all)


class Model:
    """A model ready to run: a Hugging Face folder, a GGUF file, a run's folder, or a name in the cache."""

    def __init__(self, path: str | os.PathLike[str], **settings: Any):
        self._model = _lib.tessera_load(_bytes(os.fsencode(path), "load"), _settings(settings))
        if not self._model:
            _fail()

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            _lib.tessera_close(self._model)

    def generate(self, prompt: str | Sequence[int], **settings: Any) -> Completion:
        """A completion of a text, or of token ids."""
        said = _settings(settings)
        if isinstance(prompt, str):
            text = _bytes(prompt, "generate")
            return Completion(lambda on: _lib.tessera_generate(self._model, text, said, on, None))
        ids, n = _ids(prompt)
        return Completion(lambda on: _lib.tessera_generate_ids(self._model, ids, n, said, on, None))

    def chat(self, messages: list[dict[str, Any]], **settings: Any) -> Completion:
        """The next message of a conversation: [{"role": "user", "content": "..."}]."""
        said, all_ = _settings(settings), json.dumps(messages).encode()
        return Completion(lambda on: _lib.tessera_chat(self._model, all_, said, on, None))

    def tokenize(self, text: str, special: bool = True, parse_special: bool = True) -> list[int]:
        """Token ids. special: with BOS and EOS; parse_special: special tokens spelled in the text."""
        ids = _I64P()
        n = _lib.tessera_tokenize(self._model, _bytes(text, "tokenize"), special, parse_special, ctypes.byref(ids))
        if n < 0:
            _fail()
        try:
            return ids[:n]
        finally:
            _lib.tessera_free(ids)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids."""
        return _text(_lib.tessera_detokenize(self._model, *_ids(ids)))

    def logits(self, ids: Sequence[int]) -> Matrix:
        """Logits of the next token after each token, [tokens, vocabulary]."""
        return self._matrix(_lib.tessera_logits, *_ids(ids))

    def hidden_states(self, ids: Sequence[int]) -> Matrix:
        """Hidden states after the final norm, [tokens, width]."""
        return self._matrix(_lib.tessera_hidden_states, *_ids(ids))

    def embed(self, texts: Sequence[str], **settings: Any) -> Matrix:
        """A vector per text, [texts, width]."""
        if isinstance(texts, str):
            raise TypeError("embed() takes a list of texts")
        all_ = (ctypes.c_char_p * len(texts))(*(_bytes(text, "embed") for text in texts))
        return self._matrix(_lib.tessera_embed, all_, len(texts), _settings(settings))

    def _matrix(self, call: Any, *arguments: Any) -> Matrix:
        rows, columns = ctypes.c_int64(), ctypes.c_int64()
        address = call(self._model, *arguments, ctypes.byref(rows), ctypes.byref(columns))
        if not address:
            _fail()
        return Matrix(address, rows.value, columns.value)

    def forward(self,
                ids: torch.Tensor | Sequence[int] | Sequence[Sequence[int]],
                state: nn.State | None = None,
                hidden: bool = False) -> torch.Tensor:
        """Logits as a torch.Tensor without a copy: [tokens, vocabulary] of ids, or [B,T,vocabulary] of [B,T].

        state: from state(); the call appends its tokens to it. hidden: hidden states after the final
        norm instead of logits. No gradients; for training, tessera.nn.module().
        """
        return self._in_torch().forward(ids, state, hidden)

    def state(self, rows: int = 1) -> nn.State:
        """An empty KV cache and recurrent state for forward()."""
        return self._in_torch().state(rows)

    def _in_torch(self) -> nn._Loaded:
        if not hasattr(self, "_loaded"):
            from . import nn
            self._loaded = nn._Loaded(self)
        return self._loaded

    @property
    def spec(self) -> dict[str, Any]:
        """The resolved spec."""
        return json.loads(_text(_lib.tessera_spec(self._model)))

    def _repr_svg_(self) -> str:
        return draw(self).svg


def load(path: str | os.PathLike[str], **settings: Any) -> Model:
    """Loads a model: a Hugging Face folder, a GGUF file, a run's folder, or a name in the cache."""
    return Model(path, **settings)


def load_plugin(file: str | os.PathLike[str]) -> None:
    """Loads a plugin, a shared library with mechanisms of your own: specs and models may use them from now on.

    Those of the environment variable TESSERA_PLUGINS are loaded by the first call that reads a spec or a model.
    """
    if _lib.tessera_load_plugin(_bytes(os.fsencode(file), "plugin")) != 0:
        _fail()


def cmake_prefix() -> str:
    """The folder for CMAKE_PREFIX_PATH of a plugin's build: where headers and find_package(tessera) are."""
    for prefix in (Path(__file__).parent, *list(Path(_lib._name).resolve().parents)[:3]):
        if (prefix / "include" / "tessera-plugin").is_dir():
            return str(prefix)
    raise Error(f"[plugin] {_lib._name}: no headers of plugins are installed with it; expected those of the wheel or of "
                "`make install`", "file")


def _given(spec: dict[str, Any] | str | os.PathLike[str]) -> bytes:
    return json.dumps(spec).encode() if isinstance(spec, dict) else _bytes(os.fsencode(spec), "spec")


def plan(spec: dict[str, Any] | str | os.PathLike[str], context: int = 0) -> dict[str, Any]:
    """Parameters, FLOPs and state bytes of a spec (a dict, a file) or of a model, whose weights are not read."""
    return json.loads(_text(_lib.tessera_plan(_given(spec), context)))


def draw(spec: dict[str, Any] | str | os.PathLike[str] | Model | nn.Module) -> Drawing:
    """A diagram (SVG) of a spec, a model or a module of tessera.nn; Jupyter shows it."""
    if isinstance(spec, Model):
        return draw(spec.spec)
    if isinstance(spec, (dict, str, os.PathLike)):
        return Drawing(json.loads(_text(_lib.tessera_outline(_given(spec)))))
    return Drawing(spec._outline())


class _Progress:
    """A progress bar on stderr: tqdm's if it is installed, otherwise a line of text."""

    def __init__(self) -> None:
        self._bar: Any = None
        self._text = ""

    def show(self, line: dict[str, Any], steps: int) -> None:
        numbers = {name: f"{line[name]:.4g}" for name in ("loss", "valid_loss", "tokens_per_s")
                   if isinstance(line.get(name), (int, float))}
        if self._bar is None and not self._text:
            try:
                from tqdm.auto import tqdm
                self._bar = tqdm(total=steps, unit="step", initial=line["step"])
            except ImportError:
                pass
        if self._bar is not None:
            self._bar.set_postfix(numbers, refresh=False)
            self._bar.update(line["step"] - self._bar.n)
            return
        width = 30
        done = width * line["step"] // max(1, steps)
        text = f"[{'#' * done}{'.' * (width - done)}] {line['step']}/{steps} " + \
            " ".join(f"{name}={value}" for name, value in numbers.items())
        print("\r" + text.ljust(len(self._text)), end="", file=sys.stderr, flush=True)
        self._text = text

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        elif self._text:
            print(file=sys.stderr)


def train(recipe: str | os.PathLike[str],
          folder: str | os.PathLike[str],
          on_step: Callable[[dict[str, Any], int], bool | None] | None = None,
          progress: bool = False,
          **settings: Any) -> str:
    """Trains a recipe into a run's folder; returns the path of the newest checkpoint.

    on_step(line, steps) receives each line of the log and the number of steps; returning False ends the
    run after a checkpoint, as Ctrl-C does. progress: a progress bar on stderr (tqdm's if installed).
    """
    stop: list[BaseException | None] = []
    error: list[Error] = []
    bar = _Progress()

    def listen(line: bytes, steps: int, _user: Any) -> int:
        try:
            read = json.loads(line)
            if progress:
                bar.show(read, steps)
            if on_step is not None and on_step(read, steps) is False:
                stop.append(None)
        except BaseException as raised:  # of the caller's function, for the caller
            stop.append(raised)
        return not stop

    def run() -> None:
        try:
            path.append(_text(_lib.tessera_train(os.fsencode(recipe), os.fsencode(folder), said, called, None)))
        except Error as raised:
            error.append(raised)

    path: list[str] = []
    said, called = _settings(settings), _ON_STEP(listen)
    thread = threading.Thread(target=run)
    thread.start()
    while thread.is_alive():
        try:
            thread.join(timeout=0.1)
        except KeyboardInterrupt as raised:
            stop.append(raised)
    bar.close()
    for reason in stop:
        if reason is not None:
            raise reason
    if error:
        raise error[0]
    return path[0]


def set_threads(count: int) -> None:
    """Threads of every call; 0 = the cores that the process may use."""
    if not 0 <= count <= 4096:
        raise Error(f"[set_threads] {count} threads; expected 0 (all cores) to 4096", "usage")
    _lib.tessera_set_threads(count)


def __getattr__(name: str) -> Any:
    if name == "nn":  # imports torch
        return importlib.import_module("tessera.nn")
    raise AttributeError(f"module 'tessera' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "nn"])


def version() -> str:
    """The library's version."""
    return _lib.tessera_version().decode()
