"""LLDS under the trainer's name; the implementation, shared with the adapters, is
`lldscope.losses.llds`."""

from lldscope.losses.llds import GATES, llds_loss

__all__ = ["GATES", "llds_loss"]
