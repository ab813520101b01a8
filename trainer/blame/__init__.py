"""One recorded update, run again in other ways, from the checkpoint before it."""

from .experiment import Blame, blame

__all__ = ["Blame", "blame"]
