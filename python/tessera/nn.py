"""Specs as torch.nn.Module: any part, stack or model of tessera in a PyTorch training loop.

    mixer = tessera.nn.module({"type": "mamba2", "n_heads": 8}, d_model=256)
    y = mixer(x)                                    # [B,T,256], with gradients

Parameters are ordinary torch.nn.Parameter under the spec's names; optimizers, state_dict(), hooks and
copy.deepcopy() work as usual. Tensors pass to and from the library without a copy. CPU; float32 or
float64; first-order gradients.
"""
from __future__ import annotations

import json
import operator
import os
import re
from pathlib import Path
from typing import Any, Iterable, Mapping, NoReturn

import torch

import tessera

__all__ = ["Module", "State", "module"]


def _classes() -> Any:
    try:
        return torch.classes.tessera.Module, torch.classes.tessera.State
    except RuntimeError:
        raise ImportError(f"[nn] torch {torch.__version__} is not the libtorch of {tessera._lib._name}; expected the "
                          "torch that it was built with (without the wheel: import torch before tessera)") from None


_Module, _State = _classes()


def _call(function: Any, *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except RuntimeError as error:
        coded = re.match(r"(\d)\|(.*)", str(error))
        if not coded:
            raise
        raise tessera.Error(coded[2], tessera._CODES[int(coded[1])]) from None


def _whole(number: Any, what: str) -> int:
    try:
        value = operator.index(number)
    except TypeError:
        raise TypeError(f"[nn] {what} = {number!r}; expected an integer") from None
    if not 0 <= value < 2**63:
        raise tessera.Error(f"[nn] {what} = {value}; expected 0 to 2^63 - 1", "usage")
    return value


class State:
    """KV cache and recurrent state of some rows; calls with it continue them.

    A state depends on the weights: create a new one after an update of the parameters. copy.copy()
    and copy.deepcopy() fork it. It cannot be pickled; `tensors()` has its contents.
    """

    def __init__(self, state: Any, fixed: Iterable[str]):
        self._state, self._fixed = state, set(fixed)

    @property
    def rows(self) -> int:
        """Number of rows (sequences)."""
        return self._state.rows()

    @property
    def bytes(self) -> int:
        """Bytes of all rows."""
        return self._state.bytes()

    def length(self, row: int = 0) -> int:
        """Tokens of a row."""
        return _call(self._state.length, row)

    def tensors(self, row: int = 0) -> dict[str, torch.Tensor | list[torch.Tensor]]:
        """What a row keeps, where it lies: a change in place changes the state.

        By name: a tensor of fixed size (a recurrence, the last inputs of a convolution), or, for
        entries per token (keys and values), a list of tensors [tokens, ...], one for each page.
        """
        held = _call(self._state.tensors, row)
        return {name: list_[0] if name in self._fixed else list(list_) for name, list_ in held.items()}

    def select(self, rows: Iterable[int]) -> State:
        """A state of these rows, in this order (beams, forks); memory is shared until one of them is written."""
        return State(_call(self._state.select, list(rows)), self._fixed)

    def detach(self) -> State:
        """Detaches the state from the graph of earlier calls (truncated backpropagation)."""
        self._state.detach()
        return self

    def __copy__(self) -> State:
        return self.select(range(self.rows))

    def __deepcopy__(self, memo: dict[int, Any]) -> State:
        return self.select(range(self.rows))

    def __reduce__(self) -> NoReturn:
        raise TypeError("[nn] a State cannot be pickled; expected its tensors() or a new state()")

    def __repr__(self) -> str:
        return f"State(rows={self.rows}, lengths={[self.length(r) for r in range(self.rows)]}, bytes={self.bytes})"


def _shapes(module: torch.nn.Module) -> str:
    named = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    return ", ".join(f"{name}={list(value.shape)}" for name, value in named)


class _Group(torch.nn.Module):
    """A level of the parameters' names: `in` of `in.weight`."""

    def _get_name(self) -> str:
        return "Group"

    def extra_repr(self) -> str:
        return _shapes(self)


class Module(torch.nn.Module):
    """What tessera.nn.module() returns.

    In training (`train()`), after each call, `losses` has the auxiliary losses of the parts (load balance
    of experts: mean per token, with gradients) to add to your loss, and `statistics` what they counted.
    `step` is the training step, for parts that draw random numbers every few steps (LSH attention).
    Dropout takes its random numbers from torch's default generator (torch.manual_seed).
    """

    losses: dict[str, torch.Tensor]
    statistics: dict[str, torch.Tensor]
    step: int

    def __init__(self,
                 spec: Mapping[str, Any] | list[Any] | str | os.PathLike[str],
                 *,
                 d_model: int = 0,
                 slot: str = "",
                 causal: bool = True,
                 seed: int = 0,
                 dtype: torch.dtype = torch.float32):
        super().__init__()
        if dtype not in (torch.float32, torch.float64):
            raise tessera.Error(f"[nn] dtype {dtype}; expected torch.float32 or torch.float64", "usage")
        self._arguments = (_json_of(spec), slot, _whole(d_model, "d_model"), bool(causal))
        self.step, self.losses, self.statistics = 0, {}, {}
        self._core: Any = None
        self._bound: Any = None
        core = self._open()
        for one, value in zip(self._declared, core.initial(_whole(seed, "seed"), dtype == torch.float64)):
            *path, name = one["name"].split(".")
            group: torch.nn.Module = self
            for level in path:
                if level not in group._modules:
                    group.add_module(level, _Group())
                group = group.get_submodule(level)
            if one["trainable"]:
                group.register_parameter(name, torch.nn.Parameter(value))
            else:
                group.register_buffer(name, value)

    def _open(self) -> Any:
        if self._core is None:
            self._core = _call(_Module.read, *self._arguments)
            said = json.loads(_call(self._core.describe))
            self.kind, self.d_model = said["kind"], said["d_model"]
            self._declared, self._fixed = said["parameters"], said["fixed"]
            self._bound = None
        return self._core

    def _values(self) -> list[torch.Tensor]:
        values = []
        for one in self._declared:
            *path, name = one["name"].split(".")
            group: Any = self
            for level in path:
                group = group._modules[level]
            values.append(getattr(group, name))  # also a parametrization's
        return values

    def _ready(self) -> Any:
        """The library's module on the present parameters, also after .double() or functional_call()."""
        core, values = self._open(), self._values()
        key = [(id(value), value.data_ptr(), value.dtype) for value in values]
        if key != self._bound:
            for one, value in zip(self._declared, values):
                if value.device.type != "cpu" or value.dtype not in (torch.float32, torch.float64):
                    raise tessera.Error(f"[nn] {one['name']} is {value.dtype} on {value.device}; "
                                        "expected torch.float32 or torch.float64 on the CPU", "usage")
            _call(core.bind, values)
            self._bound = key
        return core

    def forward(self,
                input: torch.Tensor,
                *,
                mask: torch.Tensor | None = None,
                ids: torch.Tensor | None = None,
                source: torch.Tensor | None = None,
                source_mask: torch.Tensor | None = None,
                state: State | None = None,
                hidden: bool = False) -> torch.Tensor:
        """Activations [B,T,D] of [B,T,D]; of a whole model, logits [B,T,C] of ids [B,T].

        mask: 1 = a token, 0 = padding before or after a row's tokens. ids: for parts that read them
        (a hash router). source, source_mask: of an encoder-decoder, with a row's first call. state:
        row b of the input continues row b. hidden: of a model, hidden states instead of logits.
        """
        for name, value in [("input", input), ("mask", mask), ("ids", ids), ("source", source),
                            ("source_mask", source_mask)]:
            _check_tensor(name, value, optional=name != "input")
        if state is not None and not isinstance(state, State):
            raise TypeError(f"[nn] state is a {type(state).__name__}; expected a tessera.nn.State")
        core = self._ready()
        dtype = next((p.dtype for p in self.parameters()), input.dtype)
        if self.kind != "model" and input.dtype != dtype and input.is_floating_point():
            if not torch.is_autocast_enabled("cpu"):
                raise tessera.Error(f"[nn] input is {input.dtype}; the parameters are {dtype}", "input")
            input = input.to(dtype)
        seed = int(torch.randint(2**62, ())) if self.training else 0
        with torch.autocast("cpu", enabled=False):  # the library computes in the dtype of its parameters
            out, losses, statistics = _call(core.forward, input, mask, ids, source, source_mask,
                                            state._state if state is not None else None, self.training, hidden, seed,
                                            self.step)
        self.losses, self.statistics = dict(losses.items()), dict(statistics.items())
        return out

    def state(self, rows: int = 1) -> State:
        """A state of empty rows: `y = module(x, state=state)` continues from it and moves it on."""
        return State(_call(self._ready().state, rows), self._fixed)

    def follow_rules(self, statistics: Mapping[str, torch.Tensor] | None = None) -> None:
        """Updates buffers that follow counts instead of gradients (biases that balance a router's load).

        Call it once per update, with the sum of `statistics` over its calls; default: of the last call.
        """
        counts = self.statistics if statistics is None else dict(statistics)
        if counts:
            _call(self._ready().follow_rules, counts)

    def weight_decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: weight decay of matrices and embeddings only, as in recipes."""
        decays = {one["name"] for one in self._declared if one["decays"]}
        named = dict(self.named_parameters())
        return [{"params": [p for name, p in named.items() if name in decays], "weight_decay": weight_decay},
                {"params": [p for name, p in named.items() if name not in decays], "weight_decay": 0.0}]

    @property
    def spec(self) -> dict[str, Any] | list[Any] | str:
        """The spec as it was given."""
        return json.loads(self._arguments[0])

    def _outline(self) -> dict[str, Any]:
        return json.loads(_call(self._ready().outline))

    def extra_repr(self) -> str:
        """What print(module) shows: the type, the width, the shapes of parameters."""
        spec = self.spec
        name = spec.get("type", self.kind) if isinstance(spec, dict) else spec if isinstance(spec, str) else self.kind
        shapes = _shapes(self)
        return f"{name}, d_model={self.d_model}" + (f", {shapes}" if shapes else "")

    def __getstate__(self) -> dict[str, Any]:
        # the library's object is created again from the spec; losses have a graph
        return {**self.__dict__, "_core": None, "_bound": None, "losses": {}, "statistics": {}}


def _check_tensor(name: str, value: Any, optional: bool) -> None:
    if optional and value is None:
        return
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"[nn] {name} is a {type(value).__name__}; expected a torch.Tensor")
    if value.device.type != "cpu" or value.layout != torch.strided:
        raise tessera.Error(f"[nn] {name} is a {value.layout} tensor on {value.device}; "
                            "expected a dense tensor on the CPU", "input")


def _json_of(spec: Any) -> str:
    if not isinstance(spec, (Mapping, list, str, os.PathLike)):
        raise TypeError(f"[nn] spec is a {type(spec).__name__}; expected a dict, a list of layers, JSON, a .json file "
                        "or the name of a part")
    if isinstance(spec, os.PathLike) or (isinstance(spec, str) and spec.endswith(".json")):
        return Path(spec).read_text()
    if isinstance(spec, str) and spec.lstrip()[:1] in ("{", "["):
        return spec
    return json.dumps({"layers": spec} if isinstance(spec, list) else dict(spec) if isinstance(spec, Mapping) else spec)


def module(spec: Mapping[str, Any] | list[Any] | str | os.PathLike[str],
           *,
           d_model: int = 0,
           slot: str = "",
           causal: bool = True,
           seed: int = 0,
           dtype: torch.dtype = torch.float32) -> Module:
    """A torch.nn.Module of a spec: a dict, JSON, a .json file, or the short name of a part.

    A part ({"type": "mamba2", ...}: a mixer, ffn or norm) and a stack ({"layers": [...]}, or the list
    alone) map [B,T,d_model] to the same shape; a whole spec ({"tessera": 1, ...}) maps ids to logits.
    d_model: width of the input of a part or stack. slot ("mixer", "ffn", "norm"): for a type that several
    slots have. causal: of a part or stack. seed: of the initial values, which are those of `tessera init`.
    """
    return Module(spec, d_model=d_model, slot=slot, causal=causal, seed=seed, dtype=dtype)


class _Loaded:
    """forward() and states of a loaded model."""

    def __init__(self, model: tessera.Model):
        self._core = _call(_Module.of_loaded, int(model._model))
        self._fixed = json.loads(_call(self._core.describe))["fixed"]

    def forward(self, ids: Any, state: State | None, hidden: bool) -> torch.Tensor:
        if state is not None and not isinstance(state, State):
            raise TypeError(f"[nn] state is a {type(state).__name__}; expected a tessera.nn.State")
        ids = torch.as_tensor(ids, dtype=torch.int64)
        out, _, _ = _call(self._core.forward, ids if ids.dim() == 2 else ids.unsqueeze(0), None, None, None, None,
                          state._state if state is not None else None, False, hidden, 0, 0)
        return out if ids.dim() == 2 else out.squeeze(0)

    def state(self, rows: int) -> State:
        return State(_call(self._core.state, rows), self._fixed)
