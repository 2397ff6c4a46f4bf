"""The planner against an enumeration of everything it chooses from, in problems that are drawn where mistakes hide.

Random problems seldom meet a library's threshold, a tie, an axis of size 1 or six axes. Here each problem aims at one
of these. All matrices, all orders of the axes on rings and all programs are listed by code of its own, which knows
nothing but the rules of programs (`check_program`) and the times of the cost model. Then the planner's best must not be
beaten, and its first k must take as long as the k best that were listed.

    python -m tests.best --cases 50000
"""
