"""Matrix games: the shares of some columns that keep the largest row of a matrix least, and the weights that prove it.

They are small linear programs, and there are thousands of them in one search. The simplex method on a dense table takes
a tenth of a millisecond for each; a general solver takes ten times as long to set up.
"""

import numpy as np
from numpy.typing import NDArray

MOST_PIVOTS = 1_000
"""More pivots than this are never needed for tables of this size, but for rounding."""

STEEPEST = 50
"""After this many pivots the first column that helps is taken, not the one that helps most: this ends all cycles."""

GAIN, PIVOT = 2e-10, 1e-8
"""Gains below the first are none, and numbers below the second are no pivots: columns that differ by that little are
the same but for rounding, and to divide by the difference would make the rounding large."""

Values = NDArray[np.float64]


def balanced_shares(matrix: Values) -> tuple[float, Values, Values]:
    """The least that the largest row of `matrix @ shares` can be, weights of the rows, and the shares.

    The matrix has no negative numbers. Shares and weights are zero or more, and each add up to 1. The weights prove the
    value: no column of `weights @ matrix` is less, so no shares can do better; but for 1e-7 of the largest number.

    For example, in two rows the columns (10, 2) and (4, 8): with the shares 1/3 and 2/3 both rows are 6. With the
    weights 1/2 and 1/2 both columns are 6.
    """
    rows, columns = matrix.shape
    scale = float(matrix.max()) or 1.0
    # With all numbers between 1 and 2, this is: the largest sum of what the columns take, so that no row exceeds 1.
    table = np.zeros((rows + 1, columns + rows + 1))
    table[:-1, :columns] = 1 + matrix / scale
    table[:-1, columns:-1] = np.eye(rows)
    table[:-1, -1] = 1.0
    table[-1, :columns] = -1.0
    basis = np.arange(columns, columns + rows)
    for pivot in range(MOST_PIVOTS):
        gains = table[-1, :-1]
        entering = int(gains.argmin() if pivot < STEEPEST else (gains < -GAIN).argmax())
        if gains[entering] >= -GAIN:
            break
        column = table[:-1, entering]
        ratios = np.full(rows, np.inf)
        np.divide(table[:-1, -1], column, out=ratios, where=column > PIVOT)
        leaving = int(ratios.argmin())
        table[leaving] /= table[leaving, entering]
        others = table[:, entering].copy()
        others[leaving] = 0.0
        table -= np.outer(others, table[leaving])
        basis[leaving] = entering
    taken = np.zeros(columns + rows)
    taken[basis] = table[:-1, -1]
    shares, weights = np.maximum(taken[:columns], 0.0), np.maximum(table[-1, columns:-1], 0.0)
    shares, weights = shares / shares.sum(), weights / weights.sum()
    return float((matrix @ shares).max()), weights, shares
