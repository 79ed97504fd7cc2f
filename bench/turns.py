"""Two programs timed in turn in one process, so that other load on the machine meets both."""
import statistics
import sys
import time


CALLS = 4  # of a turn that are timed


def seconds(program):
    """A call's time within a turn: the first call, which meets the other program's caches and sleeping threads, is not
    timed."""
    program()
    begin = time.perf_counter()
    for _ in range(CALLS):
        program()
    return (time.perf_counter() - begin) / CALLS


def repeats(position):
    """The command line's argument at `position`, the number of turns; 9 without it."""
    return int(sys.argv[position]) if len(sys.argv) > position else 9


def compare(row, ours, peer, theirs, turns, threads, aim, elements=None):
    """Medians of `turns` turns of both, as `report` prints them; returned in seconds: ours, theirs."""
    pairs = [(seconds(ours), seconds(theirs)) for _ in range(turns)]
    mine, other = (statistics.median(column) for column in zip(*pairs))
    report(row, mine, peer, other, turns, threads, aim, elements)
    return mine, other


def report(row, mine, peer, other, turns, threads, aim, elements=None):
    """Prints one line: seconds of both, per element too where their number is given, and the ratio."""
    def shown(value):
        return f"{value * 1e3:.2f} ms" + (f" ({value / elements * 1e9:.3f} ns an element)" if elements else "")

    print(f"{row}: {peer} {shown(other)}, ours {shown(mine)}, ratio {other / mine:.1f} (aim: at least {aim}), "
          f"{threads} threads, medians of {turns}")
