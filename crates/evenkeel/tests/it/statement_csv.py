"""Reads a statement in CSV from standard input, and prints its rows as JSON."""

import csv
import json
import sys

sys.stdin.reconfigure(newline="")
print(json.dumps(list(csv.reader(sys.stdin, strict=True))))
