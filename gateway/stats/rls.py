"""Recursive least squares in two unknowns with forgetting: a line refitted at every sample."""

from __future__ import annotations


class LineFit:
    """
    Fits y = theta0·x0 + theta1·x1, newest samples first.

    Starts from a prior (theta, variance of each) in units of the residual's variance, and stays
    there along any direction the data does not excite: forgetting stops once the uncertainty is
    back at the prior's, so a long run of equal prompts cannot blow the fit up (wind-up).
    """

    __slots__ = ("_forgetting", "_p00", "_p01", "_p11", "_v0", "_v1", "n", "theta0", "theta1")

    def __init__(
        self, theta: tuple[float, float], variance: tuple[float, float], *, memory: float
    ) -> None:
        self.theta0, self.theta1 = theta
        self._v0, self._v1 = variance
        self._p00, self._p01, self._p11 = self._v0, 0.0, self._v1
        self._forgetting = 1.0 - 1.0 / memory
        self.n = 0  # samples ever

    def add(self, x0: float, x1: float, y: float) -> None:
        u0 = self._p00 * x0 + self._p01 * x1
        u1 = self._p01 * x0 + self._p11 * x1
        spread = self._forgetting + x0 * u0 + x1 * u1
        error = y - self.theta0 * x0 - self.theta1 * x1
        self.theta0 += u0 / spread * error
        self.theta1 += u1 / spread * error
        p00 = self._p00 - u0 * u0 / spread
        p01 = self._p01 - u0 * u1 / spread
        p11 = self._p11 - u1 * u1 / spread
        forget = self._forgetting
        if p00 <= forget * self._v0 and p11 <= forget * self._v1:
            p00, p01, p11 = p00 / forget, p01 / forget, p11 / forget
        self._p00, self._p01, self._p11 = max(p00, 1e-12), p01, max(p11, 1e-12)
        self.n += 1

    def export(self) -> list[float]:
        return [self.theta0, self.theta1, self._p00, self._p01, self._p11, float(self.n)]

    def load(self, values: list[float]) -> None:
        """Take over what `export` gave."""
        self.theta0, self.theta1, self._p00, self._p01, self._p11, n = values
        self.n = int(n)
