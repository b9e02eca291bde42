"""Functions that an agent's configuration names."""

from dragoman import StepChange, StepContext, tool_called
from dragoman.agent.stop_conditions import SoFar

__all__ = ["NUMBER", "enough", "later", "lost", "lucky", "other"]

lucky = tool_called("lab.fail") & tool_called("time.now")


def enough(so_far: SoFar) -> bool:
    """Two calls are enough."""
    return len(so_far.calls) >= 2


async def later(so_far: SoFar) -> bool:
    """A predicate that nobody could wait for."""
    return bool(so_far.steps)


def other(step: StepContext) -> StepChange | None:
    """The second step is another model's, without tools."""
    return (
        StepChange(model="dear/big", tools=["time_now"], options={"top_p": 1}) if step.number == 2 else None
    )


def lost(_: StepContext) -> StepChange:
    """A model that there is not."""
    return StepChange(model="nobody/any")


NUMBER = 7
