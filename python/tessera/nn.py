"""Specs as torch.nn.Module: any part, stack or model of tessera in a PyTorch training loop.

    mixer = tessera.nn.module({"type": "mamba2", "n_heads": 8}, d_model=256)
    y = mixer(x)                                    # [B,T,256], with gradients

Parameters are ordinary torch.nn.Parameter under the spec's names; optimizers, state_dict(), hooks and
copy.deepcopy() work as usual. Tensors pass to and from the library without a copy. CPU; float32 or
float64; first-order gradients.
"""
from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any, Iterable, Mapping

import torch

import tessera

__all__ = ["Module", "State", "module"]


def _classes() -> Any:
    torch.classes.load_library(tessera._lib._name)
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


class State:
    """KV cache and recurrent state of some rows; calls with it continue them.

    A state follows from the weights: after an update of the parameters, begin a new one.
    """

    def __init__(self, state: Any, fixed: Iterable[str]):
        self._state, self._fixed = state, set(fixed)

    @property
    def rows(self) -> int:
        return self._state.rows()

    @property
    def bytes(self) -> int:
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
        """A state of these rows, in this order (beams, forks); memory is shared until one of them writes."""
        return State(_call(self._state.select, list(rows)), self._fixed)

    def detach(self) -> State:
        """Ends the graph of earlier calls here (truncated backpropagation)."""
        self._state.detach()
        return self


class _Group(torch.nn.Module):
    """A level of the parameters' names."""


class Module(torch.nn.Module):
    """What tessera.nn.module() returns.

    In training (`train()`), after each call, `losses` has the parts' own losses (balance of experts:
    mean per token, with gradients) to add to yours, and `statistics` what they counted. `step` is the
    training step for parts that draw something anew every few steps. Dropout takes its random numbers
    from torch's default generator (torch.manual_seed).
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
        self._arguments = (_json_of(spec), slot, d_model, causal)
        self.step, self.losses, self.statistics = 0, {}, {}
        self._core: Any = None
        self._bound: Any = None
        core = self._open()
        for one, value in zip(self._declared, core.initial(seed, dtype == torch.float64)):
            *path, name = one["name"].split(".")
            group: torch.nn.Module = self
            for level in path:
                if level not in group._modules:
                    group.add_module(level, _Group())
                group = group._modules[level]  # type: ignore[assignment]
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
            values.append(group._parameters[name] if one["trainable"] else group._buffers[name])
        return values

    def _ready(self) -> Any:
        """The library's module on the parameters as they are now, also after .double() or an exchange."""
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
        core = self._ready()
        seed = int(torch.randint(2**62, ())) if self.training else 0
        out, losses, statistics = _call(core.forward, input, mask, ids, source, source_mask,
                                        state._state if state is not None else None, self.training, hidden, seed,
                                        self.step)
        self.losses, self.statistics = dict(losses.items()), dict(statistics.items())
        return out

    def state(self, rows: int = 1) -> State:
        """A state of empty rows: `y = module(x, state=state)` continues from it and moves it on."""
        return State(_call(self._ready().state, rows), self._fixed)

    def follow_rules(self, statistics: Mapping[str, torch.Tensor] | None = None) -> None:
        """Moves buffers that follow counts instead of gradients (biases of a router's balance).

        Call it once an update, with the sum of `statistics` over its calls; default: of the last call.
        """
        counts = self.statistics if statistics is None else dict(statistics)
        if counts:
            _call(self._ready().follow_rules, counts)

    def weight_decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Parameter groups for an optimizer: decay of matrices and embeddings alone, as recipes have it."""
        decays = {one["name"] for one in self._declared if one["decays"]}
        named = dict(self.named_parameters())
        return [{"params": [p for name, p in named.items() if name in decays], "weight_decay": weight_decay},
                {"params": [p for name, p in named.items() if name not in decays], "weight_decay": 0.0}]

    @property
    def spec(self) -> dict[str, Any] | list[Any] | str:
        """As it was given."""
        return json.loads(self._arguments[0])

    def extra_repr(self) -> str:
        spec = self.spec
        name = spec.get("type", self.kind) if isinstance(spec, dict) else spec if isinstance(spec, str) else self.kind
        return f"{name}, d_model={self.d_model}"

    def __getstate__(self) -> dict[str, Any]:
        # the library's object is made again from the spec; losses have a graph
        return {**self.__dict__, "_core": None, "_bound": None, "losses": {}, "statistics": {}}


def _json_of(spec: Any) -> str:
    if isinstance(spec, os.PathLike) or (isinstance(spec, str) and spec.endswith(".json")):
        return Path(spec).read_text()
    if isinstance(spec, str) and spec.lstrip()[:1] in ("{", "["):
        return spec
    return json.dumps({"layers": spec} if isinstance(spec, list) else spec)


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
    slot: for a type that several slots have. causal: of a part or stack. seed: of initial values, which
    are those of `tessera init`.
    """
    return Module(spec, d_model=d_model, slot=slot, causal=causal, seed=seed, dtype=dtype)


class _Loaded:
    """forward() and states of a loaded model."""

    def __init__(self, model: tessera.Model):
        self._core = _call(_Module.of_loaded, int(model._model))
        self._fixed = json.loads(_call(self._core.describe))["fixed"]

    def forward(self, ids: Any, state: State | None, hidden: bool) -> torch.Tensor:
        ids = torch.as_tensor(ids, dtype=torch.int64)
        out, _, _ = _call(self._core.forward, ids if ids.dim() == 2 else ids.unsqueeze(0), None, None, None, None,
                          state._state if state is not None else None, False, hidden, 0, 0)
        return out if ids.dim() == 2 else out.squeeze(0)

    def state(self, rows: int) -> State:
        return State(_call(self._core.state, rows), self._fixed)
