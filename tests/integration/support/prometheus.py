"""Prometheus' text format (0.0.4), read strictly."""
import math
import re

NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"(?:,|$)')
KINDS = {"counter", "gauge", "summary", "histogram", "untyped"}


class Metrics:
    """text -> help and type by family, samples {(name, frozenset of labels): value}. Whatever a Prometheus would refuse fails."""

    def __init__(self, text):
        assert text.endswith("\n"), text[-80:]
        self.help, self.type, self.samples = {}, {}, {}
        done, family = set(), None
        for line in text[:-1].split("\n"):
            comment = re.fullmatch(rf"# (HELP|TYPE) ({NAME}) (.+)", line)
            if comment:
                what, name, rest = comment.groups()
                table = self.help if what == "HELP" else self.type
                assert name not in table, f"{line}: {what} of {name} stands twice"
                table[name] = rest
                if what == "TYPE":
                    assert rest in KINDS, line
                    if family:
                        done.add(family)
                    family = name
                continue
            sample = re.fullmatch(rf"({NAME})(?:\{{(.*)\}})? (\S+)", line)
            assert sample, f"no line of the format: {line!r}"
            name, text_of_labels, value = sample.groups()
            own = name
            if self.type.get(family) == "summary":
                own = re.sub(r"_(sum|count)$", "", name)
            assert own == family, f"{line}: is not of the family {family} that it stands in"
            assert family not in done, f"{family} stands in two places"
            labels = self.labels(text_of_labels or "", line)
            key = (name, frozenset(labels.items()))
            assert key not in self.samples, f"{line}: stands twice"
            self.samples[key] = math.nan if value == "NaN" else float(value)
        for name in self.type:
            assert name in self.help, f"{name} has no HELP"
        for (name, labels), value in self.samples.items():
            if name.endswith("_total") or name.endswith("_count"):
                assert value >= 0 and value == int(value) or name.endswith("_seconds_total"), (name, labels, value)

    @staticmethod
    def labels(text, line):
        found, at = {}, 0
        while at < len(text):
            match = LABEL.match(text, at)
            assert match, f"labels of {line!r}"
            assert match.group(1) not in found, f"{line}: a label twice"
            found[match.group(1)] = re.sub(r"\\(.)", lambda m: "\n" if m.group(1) == "n" else m.group(1), match.group(2))
            at = match.end()
        return found

    def get(self, name, /, **labels):
        return self.samples[(name, frozenset(labels.items()))]

    def of(self, name):
        """[(labels, value)]"""
        return [(dict(labels), value) for (found, labels), value in self.samples.items() if found == name]
