"""Runs inside Paddle's own environment: loads each named export and reports what Paddle understood.

Reads a JSON list of file paths from the file in argv[1] and writes a JSON list of reports to argv[2]. A report has
`fields` (every explicitly set field by its path), or `error`.
"""

import json
import runpy
import sys

from paddle.distributed import fleet


def list_fields(message, prefix=""):
    fields = {}
    for descriptor, value in message.ListFields():
        path = prefix + descriptor.name
        if descriptor.message_type is not None:
            fields.update(list_fields(value, path + "."))
        else:
            fields[path] = value
    return fields


def read(path):
    if path.endswith(".py"):
        return runpy.run_path(path)["make_strategy"]()
    strategy = fleet.DistributedStrategy()
    strategy.load_from_prototxt(path)
    return strategy


def report_on(path):
    try:
        return {"fields": list_fields(read(path).strategy)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        paths = json.load(file)
    reports = [report_on(path) for path in paths]
    last_snippet = [path for path in paths if path.endswith(".py")][-1:]
    for path in last_snippet:
        runpy.run_path(path)["init_fleet"]()
        reports.append({"fields": {"worker_num": fleet.worker_num()}})
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        json.dump(reports, file)


if __name__ == "__main__":
    main()
