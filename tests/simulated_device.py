"""A device that is not the CPU, simulated on the CPU: it counts how often the host waits for it.

A `DeviceTensor` says that it lies on the device `meta` and keeps its values on the CPU. As on a GPU, tensors of host
and device cannot be mixed. The host waits for a GPU whenever it needs a value (`item`, `tolist`, a copy to the host), a
number of elements that depends on values (`nonzero`, `unique`, indexing by a mask), or copies from ordinary memory.
"""

import traceback
from collections import Counter
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

NAME = "meta"
"""Stands for the GPU: torch knows this device everywhere, and gives it no memory."""
SIZED_BY_VALUES = {"nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive"}
SIZED_BY_VALUES |= {"_local_scalar_dense", "item", "is_nonzero", "equal"}
INDEXED = {"index", "index_put_", "index_put", "_index_put_impl_"}
PACKAGE = Path(torch.__file__).parent


class DeviceTensor(torch.Tensor):
    """A tensor on the simulated device."""

    @staticmethod
    def __new__(cls, values):
        shape = {"strides": values.stride(), "storage_offset": values.storage_offset(), "dtype": values.dtype}
        with torch.inference_mode(values.is_inference()):
            made = torch.Tensor._make_wrapper_subclass(cls, values.size(), device=NAME, **shape)
        made.values_on_host = values
        return made

    def __repr__(self):
        return f"DeviceTensor({self.values_on_host})"

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} was called outside of SimulatedDevice")


class SimulatedDevice(TorchDispatchMode):
    """Within this block the device exists; `waits` counts by kind and line, `calls` the operations on the device."""

    def __init__(self):
        super().__init__()
        self.waits, self.calls, self.numbers = Counter(), 0, FromNumbers()

    @property
    def total(self):
        """How often the host has waited."""
        return sum(self.waits.values())

    def __enter__(self):
        self.numbers.__enter__()
        return super().__enter__()

    def __exit__(self, *error):
        super().__exit__(*error)
        self.numbers.__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.ops.aten._has_compatible_shallow_copy_type.default:
            return False
        flat = tree_flatten((args, kwargs))[0]
        given = [value for value in flat if isinstance(value, DeviceTensor)]
        name = func.overloadpacket.__name__
        # In inference mode composite operations such as `to` arrive as a whole, and give the device by position.
        asked = kwargs.get("device", next((value for value in flat if isinstance(value, torch.device)), None))
        if name == "to" and func._overloadname == "other":
            asked = args[1].device
        onto = bool(given) if asked is None else torch.device(asked).type == NAME
        self.calls += bool(given)
        kind = self.kind_of_wait(name, args, flat, given, asked, onto)
        if kind:
            self.waits[kind, place()] += 1
        result = func(*tree_map(host, args), **tree_map(host, kwargs))
        if not onto or name in ("_local_scalar_dense", "item", "is_nonzero", "equal"):
            return result
        same = {id(value.values_on_host): value for value in given}
        return tree_map(lambda value: same.get(id(value)) if id(value) in same else device(value), result)

    def kind_of_wait(self, name, args, flat, given, asked, onto):
        """Why the host waits in this operation; None if it does not."""
        if name in ("to", "_to_copy", "copy_"):
            sides = {isinstance(value, DeviceTensor) for value in flat if isinstance(value, torch.Tensor)}
            if name != "copy_":
                sides = {isinstance(args[0], DeviceTensor), onto}
            return "copy" if len(sides) > 1 else None
        if not given:
            return None
        indices = [value for value in args[1] if value is not None] if name in INDEXED else []
        loose = [v for v in flat if isinstance(v, torch.Tensor) and not isinstance(v, DeviceTensor) and v.dim()]
        if loose:
            if all(any(value is index for index in indices) for value in loose):
                return "index of the host"
            raise RuntimeError(f"{name} was given tensors of host and device, at {place()}")
        if name in SIZED_BY_VALUES or any(index.dtype in (torch.bool, torch.uint8) for index in indices):
            return name
        if name == "repeat_interleave" and isinstance(args[-1], torch.Tensor):
            return name
        return None


class FromNumbers(TorchFunctionMode):
    """Tensors made from numbers are made on the host and copied."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.new_tensor:
            kwargs = {"dtype": args[0].dtype, "device": args[0].device} | kwargs
            func, args = torch.tensor, args[1:]
        onto = kwargs.pop("device", None) if func is torch.tensor else None
        if onto is None:
            return func(*args, **kwargs)
        return func(*args, **kwargs).to(onto)


def host(value):
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.values_on_host if isinstance(value, DeviceTensor) else value


def device(value):
    return DeviceTensor(value) if isinstance(value, torch.Tensor) else value


def place():
    """The line of the package that asked."""
    for frame in reversed(traceback.extract_stack()):
        if "lpa_cwm" in frame.filename:
            return f"{Path(frame.filename).name}:{frame.lineno}"
    return "test"
