"""Users of a nano world: the exact Bayes filter over hidden types, and scripted users whose type is certain.

Both advance a whole batch of dialogues at a time; row i is dialogue i.
"""

from __future__ import annotations

from copy import copy
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from scope_lite.envs.nano.spec import World


def sharpen(probabilities: Float[np.ndarray, "*b n"], gamma: float) -> Float[np.ndarray, "*b n"]:
    """P_gamma proportional to P^gamma (Prop. F.1), along the last axis; zero stays zero.

    It is also what alignment by KL-regularised RL makes of P when the reward is typicality,
    log P, and beta the weight of KL(phi || P): phi is proportional to P exp(log P / beta), so
    gamma = 1 + 1 / beta, reply by reply.
    """
    if gamma == 1:
        return probabilities
    top = probabilities.max(axis=-1, keepdims=True)
    powered = (probabilities / top) ** gamma  # divided by the top first, so that nothing underflows to 0/0
    return powered / powered.sum(axis=-1, keepdims=True)


def draw(probabilities: Float[np.ndarray, "b n"], uniforms: Float[np.ndarray, " b"]) -> Int[np.ndarray, " b"]:
    """Inverse-CDF sampling: one index a row from one uniform number in [0, 1) a row."""
    cdf = probabilities.cumsum(axis=-1)
    # a uniform just below 1 must not fall past a CDF that ends at 1 - 1e-16
    index = (cdf <= uniforms[:, None] * cdf[:, -1:]).sum(axis=-1)
    return np.minimum(index, probabilities.shape[-1] - 1)


class BeliefUsers:
    """The exact P(reply | history): what a perfect base model of users would say.

    It holds, for each row, a belief over the types and the state that each type would
    be in. ``gamma`` above 1 sharpens what is said (a collapsed simulator); the belief is
    updated by P itself, since sharpening changes a model's choice and not its knowledge.
    """

    def __init__(
        self,
        world: World,
        prior: Float[np.ndarray, "*b Z"],
        rows: int,
        gamma: float = 1.0,
        tasks: Int[np.ndarray, " b"] | int = 0,
    ):
        self.world = world
        self.gamma = gamma
        self.types = np.arange(prior.shape[-1])
        self.belief = np.broadcast_to(prior, (rows, prior.shape[-1])).copy()
        self.states = np.broadcast_to(np.asarray(world.starts[tasks])[..., None], self.belief.shape).copy()

    def __getitem__(self, rows: Any) -> BeliefUsers:
        """The users of these rows (indices or a slice), as they are now."""
        part = copy(self)
        part.belief, part.states = self.belief[rows], self.states[rows]
        return part

    def _likelihood(self, acts: Int[np.ndarray, " b"]) -> Float[np.ndarray, "b Z R"]:
        return self.world.reply[self.types, self.states, acts[:, None]]

    def reply_probabilities(self, acts: Int[np.ndarray, " b"]) -> Float[np.ndarray, "b R"]:
        return sharpen(np.einsum("bz,bzr->br", self.belief, self._likelihood(acts)), self.gamma)

    def observe(self, acts: Int[np.ndarray, " b"], replies: Int[np.ndarray, " b"]) -> None:
        """Learn from what was said; ``belief`` and ``states`` are new arrays afterwards."""
        weight = self.belief * self.world.reply[self.types, self.states, acts[:, None], replies[:, None]]
        total = weight.sum(axis=1, keepdims=True)
        # a reply that no known type gives (a model may say anything) tells nothing
        self.belief = np.where(total > 0, weight / np.where(total > 0, total, 1), self.belief)
        self.states = self.world.next_state[self.types, self.states, acts[:, None], replies[:, None]]

    def outcome_probabilities(self) -> Float[np.ndarray, "b O"]:
        return sharpen(np.einsum("bz,bzo->bo", self.belief, self.world.outcome[self.types, self.states]), self.gamma)


class ScriptedUsers(BeliefUsers):
    """Real users: each row has a hidden type, and replies by that type's table."""

    def __init__(self, world: World, types: Int[np.ndarray, " b"], tasks: Int[np.ndarray, " b"] | int = 0):
        super().__init__(world, np.eye(len(world.prior))[types], len(types), tasks=tasks)

    @classmethod
    def sample(
        cls,
        world: World,
        prior: Float[np.ndarray, "*b Z"],
        uniforms: Float[np.ndarray, " b"],
        tasks: Int[np.ndarray, " b"] | int = 0,
    ) -> ScriptedUsers:
        """Draw each row's type from ``prior`` (one for all rows, or one a row)."""
        return cls(world, draw(np.broadcast_to(prior, (len(uniforms), prior.shape[-1])), uniforms), tasks)


def told_prior(
    world: World, prior: Float[np.ndarray, " Z"], prompts: Int[np.ndarray, " b"]
) -> Float[np.ndarray, "b Z"]:
    """The shares of the types among users that were told each row's prompt.

    Raises:
        ValueError: if nobody in ``prior`` is told that.
    """
    masked = prior * world.knows[prompts]
    total = masked.sum(axis=1, keepdims=True)
    if (total == 0).any():
        raise ValueError(f"nobody in this population of world {world.name} is told one of the prompts")
    return masked / total
