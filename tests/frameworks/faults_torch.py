"""Faults in the models and optimizers that native torch and torch_xla share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch.nn import functional

from xlacompare.frameworks.on_torch import models, optimizers

_RIGHT_UPDATE = optimizers.update


def _gelu_tanh(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.down(functional.gelu(self.up(x), approximate="tanh"))

    monkeypatch.setattr(models.Feedforward, "forward", forward)


def _padding_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        """SAME, as XLA and TensorFlow define it: as many outputs as size / stride, what is odd goes to the end."""
        size, kernel = x.shape[-1], self.weight.shape[-1]
        total = max(0, (-(-size // self.stride) - 1) * self.stride + kernel - size)
        low, high = total // 2, total - total // 2
        padded = functional.pad(x, (low, high, low, high))
        return functional.conv2d(padded, self.weight.to(x.dtype), None, self.stride)

    monkeypatch.setattr(models.Conv, "forward", forward)


def _summed_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    right = models.loss_of
    monkeypatch.setattr(models, "loss_of", lambda logits, labels: right(logits, labels) * labels.numel())


class _AveragingSgd(torch.optim.SGD):
    """v = m * v + (1 - m) * g: dampening, which torch leaves out at a step that finds no velocity."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                if self.state[parameter].get("momentum_buffer") is None:
                    self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
        return super().step(closure)


class _EpsInsideAdamW(torch.optim.AdamW):
    """p -= lr * (m / sqrt(v + eps) + weight_decay * p)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                self._update(parameter, self._moments(parameter), group)

    def _moments(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        state = self.state[parameter]
        if not state:
            zero = torch.zeros((), dtype=parameter.dtype)
            state |= {"step": zero, "exp_avg": 0 * parameter, "exp_avg_sq": 0 * parameter}
        return state

    def _update(self, p: torch.Tensor, state: dict[str, torch.Tensor], group: dict[str, Any]) -> None:
        (b1, b2), count = group["betas"], state["step"]
        count += 1
        state["exp_avg"].lerp_(p.grad, 1 - b1)
        state["exp_avg_sq"].lerp_(p.grad.square(), 1 - b2)
        m, v = state["exp_avg"] / (1 - b1**count), state["exp_avg_sq"] / (1 - b2**count)
        p -= group["lr"] * (m / (v + group["eps"]).sqrt() + group["weight_decay"] * p)


def _damped_update(spec: Any, *rest: Any, **options: Any) -> None:
    """The same for arms that trace the functional update: (1 - m) of the learning rate is (1 - m) of every velocity."""
    slow = dataclasses.replace(spec, learning_rate=spec.learning_rate * (1 - spec.momentum))
    _RIGHT_UPDATE(slow, *rest, **options)


def _velocity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizers, "make", _velocity_averages)
    monkeypatch.setattr(optimizers, "update", _damped_update)


def _optimizer(make: Callable[..., torch.optim.Optimizer]) -> Callable[[pytest.MonkeyPatch], None]:
    def patch(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(optimizers, "make", make)

    return patch


def _velocity_averages(spec: Any, parameters: Iterable[torch.nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    return _AveragingSgd(
        parameters,
        lr=spec.learning_rate,
        momentum=spec.momentum,
        dampening=spec.momentum,
        weight_decay=spec.weight_decay,
        **options,
    )


def _coupled_decay(spec: Any, parameters: Iterable[torch.nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, spec.learning_rate, (spec.b1, spec.b2), spec.eps, spec.weight_decay, **options)


def _eps_inside(spec: Any, parameters: Iterable[torch.nn.Parameter], **options: Any) -> torch.optim.Optimizer:
    return _EpsInsideAdamW(parameters, spec.learning_rate, (spec.b1, spec.b2), spec.eps, spec.weight_decay, **options)


def _unbiased(monkeypatch: pytest.MonkeyPatch) -> None:
    right = models.BatchNorm.forward

    def forward(self: Any, x: torch.Tensor, name: str, statistics: models.Statistics) -> torch.Tensor:
        y = right(self, x, name, statistics)
        mean, var = statistics[name]
        count = x.numel() // x.shape[1]
        statistics[name] = mean, var * (count / (count - 1))
        return y

    monkeypatch.setattr(models.BatchNorm, "forward", forward)


PATCHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "GELU tanh": _gelu_tanh,
    "padding SAME": _padding_same,
    "summed loss": _summed_loss,
    "velocity averages": _velocity,
    "coupled decay": _optimizer(_coupled_decay),
    "eps inside the root": _optimizer(_eps_inside),
    "unbiased running variance": _unbiased,
}


def _extra_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more product in layer1, by the turned kernel since an equal one is merged; no value or gradient changes."""
    right = models.Dense.forward

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = right(self, x)
        if self.weight.shape[0] != self.weight.shape[1]:
            return y
        return y + 0.0 * (x.detach() @ self.weight.detach())

    monkeypatch.setattr(models.Dense, "forward", forward)


def _layer_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """layer1 gives back what it is given; its parameters still take part, in nothing that counts."""

    right = models.Dense.forward

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self.weight.shape[0] != self.weight.shape[1]:
            return right(self, x)
        return x + 0.0 * self.weight[0] + 0.0 * self.bias

    monkeypatch.setattr(models.Dense, "forward", forward)


WORK_PATCHES: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "extra product": _extra_product,
    "layer left out": _layer_left_out,
}
