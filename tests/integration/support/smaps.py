"""How a duck has its weights mapped."""
import re


def mapped_weights(pid):
    """Bytes of the weight buffer that the process has mapped, and those of them that are in huge pages."""
    mapped = huge = 0
    inside = False
    with open(f"/proc/{pid}/smaps", encoding="utf-8") as file:
        for line in file:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                inside = "fp9-weights" in line
            elif inside and line.startswith("Rss:"):
                mapped += int(line.split()[1]) << 10
            elif inside and line.startswith("ShmemPmdMapped:"):
                huge += int(line.split()[1]) << 10
    return mapped, huge
