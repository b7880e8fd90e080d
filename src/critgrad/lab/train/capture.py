"""A training step as a function of tensors that stay where they are, so that it can be recorded once and replayed.

A small model's step is hundreds of launches, and costs what these cost. A CUDA graph makes it one. The parts are kept
apart: ``StaticStep`` is the function, a ``Recorder`` knows how a function is replayed, ``Graphs`` decides which steps of
a run are.

NOTE [random numbers]: dropout inside of a graph draws from the device's default generator, which torch registers with
every capture. A replay begins where the generator stands then, seed and offset, and moves the offset on as the eager step
does. So reseeding between replays (``global_stream``, each epoch) means the same as it means to eager steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

import critgrad

from ..tasks import Batch, Problem
from .bases import Plain

WARM_UP_STEPS = 3  # of a shape before its capture: libraries set themselves up in them
MOST_GRAPHS = 4  # a language model needs three: the first chunk of an epoch, the last one, those between

Carry = tuple[Tensor, ...] | None
Take = Callable[[Batch, "Tensor | None", Carry], tuple[Tensor, Carry]]


def gradients(
    problem: Problem, model: nn.Module, parameters: list[nn.Parameter], batch: Batch, noise: Tensor | None, carry: Carry
) -> tuple[Tensor, Carry]:
    """The loss of a batch and what goes to the next step; the clipped gradient is left in ``p.grad``.

    NOTE [nothing stays]: no part of the autograd graph outlives this call. Its last nodes belong to the stream that made
    them, and one that is still alive would draw that stream into a later capture on another.
    """
    for p in parameters:  # what zero_grad does, without its bookkeeping: small tasks feel it
        p.grad = None
    loss, carry = problem.loss(model, batch, noise, carry)
    loss.backward()
    if problem.task.clip:
        nn.utils.clip_grad_norm_(parameters, problem.task.clip)
    return loss.detach(), carry


class StaticStep:
    """One step for batches of one shape: reads its inputs from buffers of its own, and leaves its results in some.

    The state that goes from step to step is written where the next one reads it.
    """

    def __init__(self, take: Take, batch: Batch, noise: Tensor | None, carry: Carry) -> None:
        self.take = take
        self.batch = tuple(part.clone() for part in batch)
        self.noise = None if noise is None else noise.clone()
        self.carry = None if carry is None else tuple(part.clone() for part in carry)
        self.loss: Tensor | None = None
        self.carried: Carry = None
        self.replay: Callable[[], None] | None = None
        self.taken = 0

    def fill(self, batch: Batch, noise: Tensor | None, carry: Carry) -> None:
        """Copy a step's inputs into the buffers."""
        torch._foreach_copy_(self.batch, batch)
        if self.noise is not None and noise is not None:
            self.noise.copy_(noise)
        if self.carry is not None and carry is not None and self.carry is not carry:
            torch._foreach_copy_(self.carry, carry)

    def __call__(self) -> None:
        """Take the step with what the buffers hold."""
        loss, carry = self.take(self.batch, self.noise, self.carry)
        if self.loss is None:
            self.loss = loss.clone()
            alike = _shapes(self.carry) == _shapes(carry)
            self.carried = self.carry if alike or carry is None else tuple(part.clone() for part in carry)
        else:
            self.loss.copy_(loss)
        if self.carried is not None and carry is not None:
            torch._foreach_copy_(self.carried, carry)


class Recorder(Protocol):
    """How a function of static tensors is replayed."""

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """Called once, before the first warm-up."""

    def warm_up(self, step: Callable[[], None]) -> None:
        """Call ``step``, in the surroundings in which it will be recorded."""

    def record(self, step: Callable[[], None], parameters: list[nn.Parameter]) -> Callable[[], None]:
        """A function that does what ``step`` does, its gradients in ``p.grad`` as well; recording itself does nothing."""


class CudaRecorder:
    """Records CUDA graphs. All of a run share one pool of memory: they never run at the same time."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)
        self.pool = torch.cuda.graph_pool_handle()

    def prepare(self, optimizer: torch.optim.Optimizer) -> None:
        """Ask torch's own optimizers for the form of their step that can be captured.

        Only now, since for some it is the slower one: the timed steps have been as anybody's are.
        """
        set_capturable(optimizer, True)

    def warm_up(self, step: Callable[[], None]) -> None:
        """Call ``step`` on the stream of the captures."""
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            step()
        here.wait_stream(self.stream)

    def record(self, step: Callable[[], None], parameters: list[nn.Parameter]) -> Callable[[], None]:
        """Capture ``step``."""
        graph = torch.cuda.CUDAGraph()
        with unharmed(self.device), torch.cuda.graph(graph, pool=self.pool, stream=self.stream):
            step()
        # Made in the graph's memory; while they are held here, no other graph of the pool is given their place.
        grads = [(p, p.grad) for p in parameters if p.grad is not None]

        def replay() -> None:
            graph.replay()
            if grads and grads[0][0].grad is not grads[0][1]:
                for p, grad in grads:
                    p.grad = grad

        return replay


@contextmanager
def unharmed(device: torch.device) -> Iterator[None]:
    """Put right what a capture that fails leaves behind.

    NOTE [after a failed capture]: torch leaves the capture's stream current, and its generator capturing, so that the next
    dropout would raise. The generator is given a new state with the old values.
    """
    here, random = torch.cuda.current_stream(device), torch.cuda.get_rng_state(device)
    try:
        yield
    except RuntimeError:
        torch.cuda.set_stream(here)
        index = torch.cuda.current_device() if device.index is None else device.index
        torch.cuda.default_generators[index].graphsafe_set_state(torch.Generator(device).graphsafe_get_state())
        torch.cuda.set_rng_state(random, device)
        raise


def set_capturable(optimizer: torch.optim.Optimizer, wanted: bool) -> None:
    """Turn an optimizer's option ``capturable`` on or off, where it has one, and put its step counts where they belong."""
    for group in optimizer.param_groups:
        if group.get("capturable") not in (None, wanted):
            group["capturable"] = wanted
            for p in group["params"]:
                state = optimizer.state.get(p, {})
                for name in ("step", "mu_product"):
                    if torch.is_tensor(state.get(name)):
                        state[name] = state[name].to(p.device if wanted or group.get("fused") else "cpu")
    # Steps of a rare shape stay eager on purpose: no need to warn of them.
    optimizer._warned_capturable_if_run_uncaptured = True


def recorder_for(device: torch.device) -> Recorder | None:
    """The recorder for a device, where there is one."""
    return CudaRecorder(device) if device.type == "cuda" else None


# Optimizers without an option ``capturable`` whose step depends on tensors alone.
_WITHOUT_COUNTS = (torch.optim.SGD, critgrad.AggMo, Plain)
_KNOWN = ("torch", "critgrad", "abc", "builtins", "typing")


def recordable(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a recorded step goes on as the eager ones would.

    NOTE [counts on the host]: an optimizer that counts its steps in Python numbers can be captured without an error, and its
    bias correction then stays that of the captured step for ever. So those of whom nobody knows step eagerly, the classes that
    somebody has made of torch's among them.
    """
    known = all(cls.__module__.split(".")[0] in _KNOWN for cls in type(optimizer).__mro__)
    return known and ("capturable" in optimizer.defaults or isinstance(optimizer, _WITHOUT_COUNTS))


class Graphs:
    """The recorded steps of a run, one for each shape of batch that comes back.

    ``whole``: the optimizer's step is part of what is recorded. If not, the gradient alone is, and the caller steps: so it is
    where the learning rate changes from step to step, or the optimizer is not ``recordable``.

    The steps before a capture are steps of the training as all others, so nothing must be put back after them; a capture
    runs nothing, so after one that failed the eager steps simply go on. Then no graph is used any more: ``warning`` says
    why.
    """

    def __init__(
        self,
        problem: Problem,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        recorder: Recorder | None,
        whole: bool = True,
    ) -> None:
        self.recorder = recorder
        self.whole = whole
        self.optimizer = optimizer
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.steps: dict[Any, StaticStep] = {}
        self.seen: Counter[Any] = Counter()
        self.replayed = 0
        self.warning: str | None = None

        def take(batch: Batch, noise: Tensor | None, carry: Carry) -> tuple[Tensor, Carry]:
            loss, carry = gradients(problem, model, self.parameters, batch, noise, carry)
            if whole:
                optimizer.step()
            return loss, carry

        self._take = take

    def find(self, batch: Batch, noise: Tensor | None, carry: Carry) -> StaticStep | None:
        """The recorded step for inputs of these shapes, or one that is about to be; ``None``: step eagerly."""
        if self.recorder is None:
            return None
        shapes = _shapes(batch), _shapes(None if noise is None else (noise,)), _shapes(carry)
        step = self.steps.get(shapes)
        if step is None:
            self.seen[shapes] += 1
            if self.seen[shapes] == 1 or len(self.steps) >= MOST_GRAPHS:
                return None
            if not self.steps and self.whole:
                self.recorder.prepare(self.optimizer)
            step = self.steps[shapes] = StaticStep(self._take, batch, noise, carry)
        return step

    def take(self, step: StaticStep, batch: Batch, noise: Tensor | None, carry: Carry) -> tuple[Tensor, Carry]:
        """Take a step that ``find`` has given: its loss, and what goes to the next one."""
        step.fill(batch, noise, carry)
        if step.replay is None and step.taken >= WARM_UP_STEPS:
            self._record(step)
        step.taken += 1
        if step.replay is not None:
            step.replay()
            self.replayed += 1
        elif self.recorder is not None:
            self.recorder.warm_up(step)
        else:
            step()
        assert step.loss is not None
        return step.loss.clone(), step.carried

    def _record(self, step: StaticStep) -> None:
        assert self.recorder is not None
        try:
            step.replay = self.recorder.record(step, self.parameters)
        except RuntimeError as error:
            self.recorder = None
            self.steps.clear()
            self.warning = "no CUDA graph: " + (str(error).strip().splitlines() or ["unknown error"])[0]


def _shapes(tensors: tuple[Tensor, ...] | None) -> tuple[Any, ...] | None:
    return None if tensors is None else tuple((part.shape, part.dtype) for part in tensors)
